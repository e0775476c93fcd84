"""The checks of the paper's theory by name, each with its plot: what `topoff reproduce theory-...` and a script run.

>>> [name.removeprefix("theory-") for name in THEORY]
['symmetry', 'linear', 'convergence', 'colors', 'separation', 'coverage']
>>> THEORY["theory-colors"].run(quick=True).name
'theory-colors'
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from topoff.experiments.theory_colors import check_colors, draw_colors
from topoff.experiments.theory_convergence import check_convergence, draw_convergence
from topoff.experiments.theory_coverage import check_coverage, draw_coverage
from topoff.experiments.theory_linear import check_linear, draw_linear
from topoff.experiments.theory_record import Check
from topoff.experiments.theory_separation import check_separation, draw_separation
from topoff.experiments.theory_symmetry import check_symmetry, draw_symmetry


@dataclass(frozen=True)
class Theory:
    """Hold how one statement is checked and drawn."""

    check: Callable[..., Check]
    draw: Callable[[Check], Figure]
    quick: Mapping[str, Any]  # arguments of a check of a few seconds

    def run(self, *, quick: bool = False) -> Check:
        """Run the check, at full length or quickly."""
        return self.check(**(self.quick if quick else {}))


THEORY: Mapping[str, Theory] = {
    "theory-symmetry": Theory(check_symmetry, draw_symmetry, {"draws": 1}),
    "theory-linear": Theory(check_linear, draw_linear, {"draws": 1, "layers": (2, 3)}),
    "theory-convergence": Theory(check_convergence, draw_convergence, {"lengths": (32, 128, 512), "seeds": 2}),
    "theory-colors": Theory(check_colors, draw_colors, {"graphs": 1, "draws": 1}),
    "theory-separation": Theory(check_separation, draw_separation, {"graphs": 2, "draws": 4, "trials": 100}),
    "theory-coverage": Theory(check_coverage, draw_coverage, {"classes": (4,), "draws": 30}),
}
