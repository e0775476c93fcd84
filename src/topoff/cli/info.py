"""`topoff info`: describe a graph, and warn of what would go wrong or cost accuracy."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from topoff.cli.flags import AsJson, Dataset, Quiet, Root, Split, SplitSeed, Trust
from topoff.cli.format import graph_name
from topoff.data.layout import SPLITS
from topoff.machine.memory import readable

if TYPE_CHECKING:
    from rich.table import Table

    from topoff.data.describe import Degrees, Description
    from topoff.data.store import Store

EXAMPLES = """Examples:

  topoff info wordnet

  topoff info graph/ --json"""

MOST_CLASSES = 20  # rows of the table of classes


def info(
    dataset: Dataset,
    root: Root = None,
    trust: Trust = False,
    split: Split = 0,
    seed: SplitSeed = 0,
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare all of a store with its checksums first, which reads all of it.")
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Describe and check a graph: size, degrees, labels, split, features, and what to mind before training."""
    from dataclasses import asdict

    from topoff.cli.summaries import console, print_lines, print_pairs, working

    with working("loading", quiet=quiet):
        from topoff.data.describe import describe
        from topoff.data.load import load

        data = load(dataset, root=root, trust=trust, split=split, seed=seed)
        names = data.get("names")
        if verify:
            _verify(dataset, getattr(names, "store", None))
        found = describe(data)
    warnings = [_with_names(sentence, dataset, root=root) for sentence in found.warnings]
    notes, stand_in = [str(note) for note in getattr(names, "notes", ())], getattr(names, "stand_in", None)
    if as_json:
        about = {"dataset": dataset, "stand_in": stand_in}
        typer.echo(json.dumps({**about, **asdict(found), "warnings": warnings, "notes": notes}))
        return
    print_pairs(f"Graph: {graph_name(dataset, stand_in)}", _graph_rows(found), title_justify="left")
    console().print(_degree_table(found))
    print_pairs("Labels and features", _label_rows(found), title_justify="left")
    if found.classes:
        console().print(_class_table(found))
    for title, sentences in (("Notes on the tables:", notes), ("Warnings:", warnings)):
        print_lines([title, *(f"- {sentence}" for sentence in sentences)] if sentences else [])


def _verify(dataset: str, store: Store | None) -> None:
    """Compare a store with its checksums; refuse another graph, which has none."""
    if store is None:
        raise ValueError(f"Expected a store for --verify (got {dataset}, which is none); leave the flag out.")
    store.verify()


def _with_names(sentence: str, dataset: str, *, root: str | None) -> str:
    """Give a command that a warning advises its names: of the graph, and of a new one beside it."""
    before, command, rest = sentence.partition("GRAPH NEW --")
    if not command:
        return sentence
    flag = rest.partition("`")[0]
    path = Path(dataset) if Path(dataset).name not in ("", "..") else Path(dataset).resolve()
    suffix = ".npz" if path.suffix == ".npz" else ""
    new = str(path.with_name(f"{path.name.removesuffix(suffix)}-{flag.split('-')[-1]}{suffix}"))
    given = [dataset, new, *(["--root", root] if root is not None else [])]
    return f"{before}{shlex.join(given)} --{rest}".replace("use NEW", f"use {shlex.quote(new)}")


def _graph_rows(found: Description) -> dict[str, str]:
    """Say what nodes and edges there are."""
    rows = {
        "nodes": f"{found.nodes:,}, {found.isolated:,} of them isolated",
        "edges": f"{found.edges:,}, {'both ways' if found.undirected else 'directed'}"
        f"{', weighted' if found.weighted else ''}",
        "self-loops, duplicates": f"{found.self_loops:,}, {found.duplicates:,}",
        "components": f"{found.components:,}, the largest of {_share(found.largest_component, found.nodes)}",
        "incoming edges per node" if found.degree_out else "edges per node": _spread(found.degree),
    }
    if found.degree_out:
        rows["outgoing edges per node"] = _spread(found.degree_out)
    if found.edge_features:
        rows["features per edge"] = f"{found.edge_features:,}"
    if found.homophily is not None:
        adjusted = found.adjusted_homophily
        rows["homophily"] = f"{found.homophily:.3f}, adjusted {'-' if adjusted is None else f'{adjusted:.3f}'}"
    rows["memory"] = f"features {readable(found.memory['x'])}, edges {readable(found.memory['edges'])}"
    return rows


def _label_rows(found: Description) -> dict[str, str]:
    """Say what is to be learnt, from what."""
    several = {
        "classes": f"{len(found.classes):,} classes",
        "multilabel": f"{len(found.classes):,} labels, any of them",
    }
    rows = {"task": several.get(found.task, found.task)}
    if found.target is not None:
        target = found.target
        rows["target"] = f"{target.min:.4g} to {target.max:.4g}, mean {target.mean:.4g}, deviation {target.std:.4g}"
    rows["split"] = ", ".join(f"{name} {_share(count, found.nodes)}" for name, count in found.splits.items() if count)
    if found.unlabelled:
        rows["unlabelled"] = _share(found.unlabelled, found.nodes)
    if found.majority is not None:
        balance = "" if found.balance is None else f", balance {found.balance:.2f} of 1"
        rows["largest class"] = f"{found.majority:.1%} of the training nodes{balance}"
    features = found.features
    rows["features"] = (
        f"{features.count:,} of {features.dtype}, {features.constant:,} constant, {features.zeros:.1%} zeros, "
        f"{features.min:.4g} to {features.max:.4g}"
    )
    return rows


def _degree_table(found: Description) -> Table:
    """Draw the histogram of the (incoming) edges per node."""
    from rich.progress_bar import ProgressBar
    from rich.table import Column, Table

    title = "Incoming edges per node" if found.degree_out else "Edges per node"
    columns = (Column("edges", justify="right"), Column("nodes", justify="right"), "")
    table = Table(*columns, title=title, title_justify="left")
    edges, counts = found.histogram["edges"], found.histogram["counts"]
    for first, beyond, count in zip(edges[:-1], edges[1:], counts, strict=True):
        label = f"{first:,}" if beyond == first + 1 else f"{first:,}-{beyond - 1:,}"
        table.add_row(label, f"{count:,}", ProgressBar(total=max(counts), completed=count, width=40))
    return table


def _class_table(found: Description) -> Table:
    """Count the classes per split, the largest first."""
    from rich.table import Column, Table

    columns = (Column("name", overflow="fold"), *(Column(name, justify="right") for name in ("nodes", *SPLITS)))
    table = Table(*columns, title="Labels" if found.task == "multilabel" else "Classes", title_justify="left")
    ordered = sorted(found.classes, key=lambda one: -one.count)
    for one in ordered[:MOST_CLASSES]:
        table.add_row(one.name, *(f"{count:,}" for count in (one.count, one.train, one.val, one.test)))
    if rest := ordered[MOST_CLASSES:]:
        sums = (sum(vars(one)[key] for one in rest) for key in ("count", *SPLITS))
        table.add_row(f"and {len(rest):,} more", *(f"{count:,}" for count in sums))
    return table


def _share(count: int, total: int) -> str:
    return f"{count:,} ({count / total:.1%})"


def _spread(degrees: Degrees) -> str:
    return f"{degrees.min:,} to {degrees.max:,}, median {degrees.median:g}, mean {degrees.mean:.2f}"
