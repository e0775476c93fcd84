"""What the check of a theorem finds, and the frame of its plot.

A finding is one number beside its limit. Where the paper's words do not hold as printed, the finding says so: `holds`
is computed from the two numbers, never set.

>>> finding = Finding("output error of the batch", measured=3e-16, limit=1e-10)
>>> finding.holds
True
>>> check = Check("theory-example", statement="h4 = h3", findings=(finding,), rows=({"error": 3e-16},))
>>> Check.from_json(check.to_json()) == check
True
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

RED, BLUE, GRAY, OCHRE, VIOLET = "#c0392b", "#3f7fb5", "#8a8a8a", "#b0791a", "#8a63c9"  # on light and dark
EXACT = 1e-10  # relative errors below it are rounding, in float64
FLOOR = 1e-17  # where 0 is drawn on a logarithmic axis

Row = Mapping[str, Any]  # what was measured in one place, by name; JSON-able


@dataclass(frozen=True)
class Finding:
    """Hold one measured number beside what a statement says of it."""

    claim: str  # what was measured, in words
    measured: float
    limit: float  # what it may be
    at_most: bool = dataclasses.field(default=True, kw_only=True)  # the limit is the largest value, or the smallest
    ours: bool = dataclasses.field(default=False, kw_only=True)  # our claim, of what the paper leaves out

    @property
    def holds(self) -> bool:
        """Whether the number is within its limit; NaN never is."""
        return self.measured <= self.limit if self.at_most else self.measured >= self.limit


@dataclass(frozen=True)
class Check:
    """Hold what the check of one statement of the paper found."""

    name: str  # as `topoff reproduce` names it
    statement: str  # what the paper says, in a sentence
    findings: tuple[Finding, ...]
    rows: tuple[Row, ...]  # what is drawn

    @property
    def holds(self) -> bool:
        """Whether every finding holds."""
        return all(finding.holds for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Return all of it as plain lists, dicts and numbers, with `holds` written out."""
        findings = [dataclasses.asdict(finding) | {"holds": finding.holds} for finding in self.findings]
        rows = [dict(row) for row in self.rows]
        return {"name": self.name, "statement": self.statement, "holds": self.holds, "findings": findings, "rows": rows}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Check:
        """Read what `to_json` wrote; `holds` is computed again."""
        known = {field.name for field in dataclasses.fields(Finding)}
        findings = [Finding(**{key: row[key] for key in known}) for row in found["findings"]]
        return cls(found["name"], found["statement"], tuple(findings), tuple(found["rows"]))


def new_panels(count: int, *, height: float = 3.2) -> tuple[Figure, list[Axes]]:
    """Return a figure with panels side by side, without frames and with faint lines.

    >>> figure, panels = new_panels(2)
    >>> len(panels)
    2
    """
    figure = Figure(figsize=(4.4 * count, height), layout="constrained")
    panels = list(figure.subplots(1, count, squeeze=False)[0])
    for axes in panels:
        axes.grid(visible=True, color="#999999", alpha=0.25, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, panels
