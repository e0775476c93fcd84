"""Count the lines that change between every example's "before" and "after", and write the table of README.md.

python examples/pyg/count_lines.py
"""

import difflib
from pathlib import Path

HERE = Path(__file__).parent
HEAD = ["| example | lines before | lines after | lines changed | what changes |", "|---|--:|--:|--:|---|"]
CHANGES = {
    "gcn": "the loop over batches, `top(batch)`, `top.predict()`",
    "gat": "the same; the attention's own dropout stays in the model",
    "sgc": "the same, and `forward` takes the graph instead of reading a global; `cached=True` changes nothing",
    "gcn2_cora": "the same, and `edge_index, edge_weight` instead of `adj_t`",
    "reddit": "no loaders; `model.inference` becomes `top.predict()`",
    "cluster_gcn_reddit": 'no loaders: `batches="metis"`; `model.inference` becomes `top.predict()`',
    "graph_saint": '`batches="saint-walk"`; `loss_weight` for `node_norm`; no `edge_norm`, as no edge is lost; '
    "`call=`, as the model calls its features `x0`",
    "ogbn_sage": "no loaders; validation and test scores are exact instead of sampled",
    "ogbn_gat": "the same",
}


def row(name: str) -> str:
    """Return an example's line of the table."""
    before, after = ((HERE / f"{name}_{when}.py").read_text().splitlines() for when in ("before", "after"))
    signs = [line[0] for line in difflib.ndiff(before, after)]
    added, removed = signs.count("+"), signs.count("-")
    changed = f"{added + removed} (+{added} -{removed})"
    files = f"{name}: [before]({name}_before.py), [after]({name}_after.py)"
    return f"| {files} | {len(before)} | {len(after)} | {changed} | {CHANGES[name]} |"


def table() -> str:
    """Return the table of all examples."""
    return "\n".join([*HEAD, *map(row, CHANGES)])


def main() -> None:
    """Put the table in the place of the old one."""
    page = HERE / "README.md"
    lines = page.read_text().splitlines()
    spots = [number for number, line in enumerate(lines) if line.startswith("|")]
    page.write_text("\n".join([*lines[: spots[0]], table(), *lines[spots[-1] + 1 :]]) + "\n")


if __name__ == "__main__":
    main()
