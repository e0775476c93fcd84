"""Build the page of a run: one self-contained HTML file, from the files in the run's folder only.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     _ = (Path(folder) / "metrics.jsonl").write_text('{"epoch": 1, "seconds": 0.5, "loss": 1.2, "val": 0.8}')
...     page = build_report(Path(folder))
>>> "interrupted after epoch 1" in page, "https://" in page
(True, False)
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader

from topoff.machine.files import replacing
from topoff.report.plots import choose_unit, draw_plots
from topoff.report.read import finite, read_run
from topoff.training.records import Spread

NOTHING = "\N{EN DASH}"


def build_report(run: Path) -> str:
    """Build the HTML page of a run, as `read_run` reads it; the same files give the same text."""
    found = read_run(Path(run))
    page = Environment(loader=PackageLoader("topoff.report"), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    page.filters.update(number=number, plain=plain, part_of=part_of, largest=_largest)
    title = str(found.result.dataset or Path(run).resolve().name)
    text: str = page.get_template("report.html.j2").render(title=title, run=found, plots=draw_plots(found))
    return text.encode(errors="replace").decode()  # half a surrogate pair in a name has no place in a file


def write_report(run: Path, *, out: Path | None = None) -> Path:
    """Write the page of a run in one step, by default to its report.html, and return where it is.

    Raises:
        ValueError: as `read_run`; or `out` is a folder.
    """
    path = Path(run) / "report.html" if out is None else Path(out)
    if path.is_dir():
        raise ValueError(
            f"Expected out to be a file (got the folder {path}); add a name, as in {path / 'report.html'}."
        )
    page = build_report(run)
    with replacing(path) as draft:
        draft.write_text(page, encoding="utf-8", newline="\n")
    return path


# Words and numbers


def number(value: Any, kind: str = "plain") -> str:
    r"""Write a number, or a mean and its standard deviation, in units for people.

    >>> number(0.91234, "share"), number(Spread(90, 3), "seconds"), number(2048, "memory")
    ('91.23\xa0%', '90.0 ± 3.0\xa0s', '2.00\xa0GB')
    """
    mean, spread = (value.mean, value.std) if isinstance(value, Spread) else (value, None)
    if not finite(mean):
        return NOTHING
    scale, unit = choose_unit(abs(mean), kind)
    size = abs(mean * scale)
    digits = 2 if kind == "share" else 0 if isinstance(mean, int) and scale == 1 and spread is None else 3
    if digits == 3:  # significant ones
        digits = min(6, max(0, 2 - math.floor(math.log10(size)))) if size > 0 else 0
    text = f"{mean * scale:,.{digits}f}"
    text += f" ± {spread * scale:,.{digits}f}" if finite(spread) else ""
    return f"{text}\xa0{unit}" if unit else text


def plain(value: object) -> str:
    """Write a setting as its TOML would."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ", ".join(map(plain, value))
    return NOTHING if value is None else str(value)


def part_of(value: Any, most: Any) -> float:
    """Return the length of a bar in per cent of the longest."""
    return round(min(100.0, max(0.0, 100 * value / most)), 1) if finite(value) and finite(most) and most > 0 else 0.0


def _largest(rows: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    """Sort rows by one of their numbers, the largest first, what has none last."""
    return sorted(rows, key=lambda row: -row[key] if finite(row.get(key)) else math.inf)
