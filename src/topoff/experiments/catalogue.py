"""All studies, by the names that users type."""

from __future__ import annotations

from topoff.experiments.ablations import ABLATIONS
from topoff.experiments.figure3 import FIGURE3, FIGURE6, FIGURE7, FIGURE8, FIGURE9
from topoff.experiments.figure5 import FIGURE5
from topoff.experiments.study import Study
from topoff.experiments.table1 import TABLE1
from topoff.experiments.table2 import TABLE2
from topoff.experiments.table3 import FIGURE2, TABLE3
from topoff.experiments.table4 import FIGURE4, TABLE4, TABLE5
from topoff.experiments.table6 import TABLE6
from topoff.experiments.table7 import TABLE7
from topoff.experiments.table8 import TABLE8
from topoff.experiments.theory_studies import THEORY_STUDIES

STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        TABLE1,
        TABLE2,
        TABLE3,
        TABLE4,
        TABLE5,
        TABLE6,
        TABLE7,
        TABLE8,
        FIGURE2,
        FIGURE3,
        FIGURE4,
        FIGURE5,
        FIGURE6,
        FIGURE7,
        FIGURE8,
        FIGURE9,
        *THEORY_STUDIES,
        *ABLATIONS,
    )
}


def chosen(words: str) -> list[Study]:
    """Read names of studies, comma-separated, or "all".

    Raises:
        ValueError: there is no such study.

    >>> [study.name for study in chosen("table3,figure4")]
    ['table3', 'figure4']
    """
    if words.strip() == "all":
        return list(STUDIES.values())
    names = [word.strip().lower().replace(" ", "") for word in words.split(",")]
    for name in names:
        if name not in STUDIES:
            raise ValueError(f"Expected 'all' or names among {', '.join(STUDIES)} (got '{name}').")
    return [STUDIES[name] for name in names]
