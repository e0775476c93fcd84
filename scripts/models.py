"""Write docs/models.md, and README's sentence about it, from the table that tests/laws/test_law_zoo.py holds true.

python scripts/models.py
"""

import re
import sys
from pathlib import Path

import torch_geometric

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "laws")]

from pyg_convs import CONVS  # noqa: E402 - the table lies with the tests
from pyg_models import MODELS  # noqa: E402
from pyg_zoo import ABSENT, ASIDE, EXACT, GRAPHS, REFUSED, Variant  # noqa: E402

Table = dict[str, list[Variant]]
VERSION = ".".join(torch_geometric.__version__.split(".")[:2])
MARKS = re.compile(r"(<!-- written by scripts/models\.py -->).*?(<!-- to here -->)", re.DOTALL)


def verdict(variants: list[Variant]) -> str:
    """Return the verdict on a class: that of its variants, exact where one of them is."""
    return next(word for word in (EXACT, REFUSED, ABSENT, ASIDE) if word in [each.verdict for each in variants])


def count(table: Table, word: str) -> int:
    """Count the classes with a verdict."""
    return sum(verdict(variants) == word for variants in table.values())


def sentence() -> str:
    """Say in one sentence how much of PyG is exact."""
    runs = [sum(count(table, word) for word in (EXACT, REFUSED)) for table in (CONVS, MODELS)]
    variants = sum(each.verdict == EXACT for table in (CONVS, MODELS) for row in table.values() for each in row)
    return (
        f"{count(CONVS, EXACT)} of the {runs[0]} convs of PyG {VERSION} that run without further packages and "
        f"{count(MODELS, EXACT)} of its {runs[1]} models of nodes are exact, tested in {variants} variants on "
        f"{len(GRAPHS)} kinds of graph; the others are refused with the reason"
    )


def row(name: str, variants: list[Variant]) -> str:
    """Write a row of the table: class, exact variants, verdict, remark."""
    word = verdict(variants)
    shown = "; ".join(each.what or "as it is" for each in variants if each.verdict == EXACT)
    others = [each for each in variants if each.verdict != EXACT]
    remarks = [f"{each.what}: refused, {each.reason}" if word == EXACT else each.reason for each in others]
    if word == ABSENT:
        remarks = [f"needs {remark}" for remark in remarks]
    cells = (f"`{name}`", shown, word, "; ".join(remark.removeprefix(": ") for remark in remarks))
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def section(title: str, table: Table) -> str:
    """Write the table of one module of PyG."""
    head = f"## {title}\n\n| class | variants tested | verdict | remark |\n|---|---|---|---|\n"
    return head + "\n".join(row(*item) for item in table.items()) + "\n"


def page() -> str:
    """Write docs/models.md."""
    return (
        "# Which models of PyG can be trained in batches?\n\n"
        "Written by `scripts/models.py` from the table that `tests/laws/test_law_zoo.py` holds true.\n\n"
        f"{sentence()}.\n\n"
        f"*{EXACT}*: batched inference equals the plain forward, and one batch that is the whole graph equals it with "
        f"its gradient, to 1e-9 in float64, with perturbed weights, on a directed, an undirected and an acyclic "
        "graph and on one with self-loops, duplicate edges and isolated nodes. "
        f"*{REFUSED}*: an error says why before anything is trained. "
        f"*{ABSENT}*: PyG itself asks for a package that is not among our dependencies, so nothing is known. "
        f"*{ASIDE}*: there is nothing to batch.\n\n"
        f"{section('torch_geometric.nn.conv', CONVS)}\n{section('torch_geometric.nn.models', MODELS)}"
    )


def written() -> dict[Path, str]:
    """Return what each document must say."""
    readme = ROOT / "README.md"
    text = MARKS.sub(lambda marks: f"{marks[1]}{sentence()}{marks[2]}", readme.read_text())
    return {ROOT / "docs" / "models.md": page(), readme: text}


if __name__ == "__main__":
    for path, text in written().items():
        path.write_text(text)
        print(f"{path.relative_to(ROOT)} written")
