"""The checks of the paper's theory as studies of `topoff reproduce`.

>>> [study.name for study in THEORY_STUDIES][:2]
['theory-symmetry', 'theory-linear']
"""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from topoff.experiments.study import Cell, Results, Scope, Sheet, Study, failed
from topoff.experiments.theory_all import THEORY
from topoff.experiments.theory_record import Check, new_panels

TITLES = {
    "theory-symmetry": "Figure 1: message invariance by symmetry",
    "theory-linear": "Section 4.2.2: linear GNNs",
    "theory-convergence": "Theorems 5.1 and D.1: convergence and unbiased gradients",
    "theory-colors": "Lemma E.1: equal colours, equal embeddings",
    "theory-separation": "Theorem E.3: random networks separate",
    "theory-coverage": "Theorem E.4: how large a batch must be",
}


def _study(name: str) -> Study:
    """Make the study of one statement."""

    def cell(scope: Scope) -> Cell:
        """Return the one cell."""
        return Cell("theory", {"name": name, "quick": scope.quick})

    def sheet(scope: Scope, results: Results) -> Sheet:
        """Write what was measured beside its limit."""
        found = results(cell(scope))
        if reason := failed(found):
            return Sheet(("finding", "measured", "limit", ""), [[f"not measured: {reason}", "", "", ""]])
        check = Check.from_json(found)
        rows = [_row(finding) for finding in check.findings]
        return Sheet(("finding", "measured", "limit", ""), rows, [check.statement])

    def draw(scope: Scope, results: Results) -> Figure:
        """Draw what was measured."""
        found = results(cell(scope))
        return new_panels(1)[0] if failed(found) else THEORY[name].draw(Check.from_json(found))

    about = "A statement of the paper, measured in float64 on small graphs (docs/theory.md)."
    return Study(name, TITLES[name], about, lambda scope: [cell(scope)], sheet, draw)


def _row(finding: Any) -> list[str]:
    """Write one finding."""
    limit = f"{'<=' if finding.at_most else '>='} {finding.limit:.3g}"
    verdict = "holds" if finding.holds else "does not hold"
    return [finding.claim, f"{finding.measured:.3g}", limit, f"{verdict} (ours)" if finding.ours else verdict]


THEORY_STUDIES = [_study(name) for name in THEORY]
