"""`topoff partition`: cut a graph into parts and write the part of every node."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from topoff.cli.flags import AsJson, Dataset, Overwrite, Quiet, Root, SpreadsheetSafe, Trust
from topoff.cli.format import graph_name
from topoff.data.write import check_place, known_names
from topoff.machine.files import replacing
from topoff.training.config import LARGEST_SEED

if TYPE_CHECKING:
    from torch import Tensor
    from torch_geometric.data import Data

EXAMPLES = """Examples:

  topoff partition wordnet --parts 100 --out parts.npz

  topoff partition graph/ --parts 20 --method metis --out parts.csv --json"""


def partition(
    dataset: Dataset,
    root: Root = None,
    trust: Trust = False,
    parts: Annotated[int, typer.Option(help="Number of parts, at most one per node.", min=1)] = 100,
    method: Annotated[str, typer.Option(help="kaminpar, metis, ldg (in little memory) or random.")] = "kaminpar",
    out: Annotated[
        str,
        typer.Option(help=".npz with 'parts' (and 'node_ids' where known), or .csv with the columns node and part."),
    ] = "parts.npz",
    seed: Annotated[int, typer.Option(help="Random seed of the partitioner.", min=0, max=LARGEST_SEED)] = 0,
    spreadsheet_safe: SpreadsheetSafe = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Cut a graph into parts of similar size with few edges between them, and write the part of every node."""
    from topoff.cli.summaries import working

    if Path(out).suffix.lower() not in (".npz", ".csv"):
        raise ValueError(f"Expected --out to end in .npz or .csv (got '{out}'); choose one of them.")
    if spreadsheet_safe and Path(out).suffix.lower() != ".csv":
        raise ValueError(f"Expected --out to end in .csv with --spreadsheet-safe (got '{out}'); leave the flag out.")
    with working("loading", quiet=quiet) as status:
        from topoff.batching.partition import partition as cut
        from topoff.data.load import load
        from topoff.data.places import refuse_source

        refuse_source(out, dataset, root=root)
        path = check_place(out, overwrite=overwrite)
        data = load(dataset, root=root, trust=trust)
        start = time.perf_counter()
        settings: dict[str, Any] = {"parts": parts, "method": method, "seed": seed, "progress": status.update}
        part = cut(data.edge_index, int(data.num_nodes), edge_weight=data.get("edge_weight"), **settings)
        seconds = time.perf_counter() - start
        status.update("writing")
        with replacing(path) as draft:
            _write(part, data, draft, safe=spreadsheet_safe)
    result = {**summarize(part, data.edge_index, parts=parts), "seconds": round(seconds, 3), "out": str(path)}
    if as_json:
        typer.echo(json.dumps(result))
    else:
        _print_table(result, dataset=graph_name(dataset, getattr(data.get("names"), "stand_in", None)), method=method)


def _write(part: Tensor, data: Data, place: Path, *, safe: bool) -> None:
    """Write the part of every node, beside its own id where it has one."""
    import csv

    import numpy as np

    from topoff.data.ids import as_array, node_ids, simple
    from topoff.data.ids import spreadsheet_safe as no_formula

    ids = simple(node_ids(data))
    if place.suffix.lower() == ".npz":
        named = {"node_ids": as_array(ids)} if known_names(data, "node_ids") else {}
        arrays: dict[str, Any] = {"parts": part.numpy(), **named}
        with place.open("wb") as file:
            np.savez(file, **arrays)
        return
    with place.open("w", newline="", encoding="utf-8") as text:
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(("node", "part"))
        writer.writerows(zip((no_formula(ids) if safe else ids).to_pylist(), part.tolist(), strict=True))


def summarize(part: Tensor, edge_index: Tensor, *, parts: int) -> dict[str, Any]:
    """Count the sizes of the parts, empty ones too, and the share of edges between different nodes that are cut.

    >>> import torch
    >>> summarize(torch.tensor([0, 0, 1]), torch.tensor([[0, 1], [1, 2]]), parts=2)
    {'parts': 2, 'edge_cut': 0.5, 'min': 1, 'mean': 1.5, 'max': 2}
    """
    between = int((edge_index[0] != edge_index[1]).sum())
    cut = int((part[edge_index[0]] != part[edge_index[1]]).sum())
    sizes = part.bincount(minlength=parts)
    return {
        "parts": parts,
        "edge_cut": cut / between if between else 0.0,
        "min": int(sizes.min()),
        "mean": len(part) / parts,
        "max": int(sizes.max()),
    }


def _print_table(result: dict[str, Any], *, dataset: str, method: str) -> None:
    """Print the one row."""
    from rich.table import Column, Table

    from topoff.cli.summaries import console, print_lines

    names = ("parts", "edges cut", "smallest", "mean", "largest", "seconds")
    columns = (Column(name, justify="right") for name in names)
    table = Table(*columns, title=f"{dataset} cut by {method}", title_justify="left")
    sizes = (f"{result['min']:,}", f"{result['mean']:,.1f}", f"{result['max']:,}")
    table.add_row(f"{result['parts']:,}", f"{result['edge_cut']:.2%}", *sizes, f"{result['seconds']:.2f}")
    console().print(table)
    print_lines([f"written to {result['out']}"])
