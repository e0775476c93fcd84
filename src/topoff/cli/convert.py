"""`topoff convert`: write any graph that `topoff.load` reads as an .npz file or a folder of tables; tidy its edges."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from topoff.cli.flags import AsJson, Dataset, Overwrite, Quiet, Root, Split, SplitSeed, Trust
from topoff.data.edges import merge_edges, without_self_loops
from topoff.data.write import check_place, ending_of, split_column, write_npz, write_tables
from topoff.machine.files import replacing

EXAMPLES = """Examples:

  topoff convert Cora cora.npz --undirected --remove-duplicates

  topoff convert graph.npz graph/ --format csv"""


def convert(
    dataset: Dataset,
    out: Annotated[str, typer.Argument(help="A file ending in .npz, else a folder for nodes and edges as tables.")],
    root: Root = None,
    trust: Trust = False,
    split: Split = 0,
    seed: SplitSeed = 0,
    table_format: Annotated[
        str | None, typer.Option("--format", help="Format of the tables in a folder: csv or parquet (default).")
    ] = None,
    undirected: Annotated[
        bool,
        typer.Option(
            "--undirected",
            help="Add the reverse of every edge and merge duplicates. Merged edges of equal weight keep it, others get "
            "the sum of their weights, the same one both ways. Edges are sorted by source and target.",
        ),
    ] = False,
    remove_self_loops: Annotated[
        bool, typer.Option("--remove-self-loops", help="Drop edges from a node to itself.")
    ] = False,
    remove_duplicates: Annotated[
        bool,
        typer.Option("--remove-duplicates", help="Merge edges with the same source and target, weights as above."),
    ] = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Write a graph as one .npz file or as a folder of tables; `topoff` reads both, with the same labels and split.

    Tables that become tables keep their columns, as they are; edges that are merged keep source, target and weight.
    The features of a folder are standardised when it is read, like those of any table. The graph that is read is never
    overwritten: OUT is another place.
    """
    from topoff.cli.summaries import working

    ending = ending_of(out, table_format)
    with working("loading", quiet=quiet) as status:
        from topoff.data.load import load
        from topoff.data.places import refuse_source

        refuse_source(out, dataset, root=root, inside=True)
        path = check_place(out, overwrite=overwrite)
        data = load(dataset, root=root, trust=trust, split=split, seed=seed)
        edges_before = data.edge_index.size(1)
        status.update("converting")
        rows = (data.edge_index[0] != data.edge_index[1]).numpy() | (not remove_self_loops)
        if remove_self_loops:
            data = without_self_loops(data)
        if undirected or remove_duplicates:
            data, rows = merge_edges(data, undirected=undirected), None
        status.update("writing")
        with replacing(path) as draft:
            if ending == "npz":
                write_npz(data, draft)
            elif getattr(data.get("names"), "folder", None) is None:
                write_tables(data, draft, ending=ending)
            else:
                from topoff.data.table_copy import copy_tables

                copy_tables(data, draft, ending=ending, rows=rows, split=split_column(data) if seed else None)
    edges = data.edge_index.size(1)
    sizes = {"nodes": data.num_nodes, "edges": edges, "edges_before": edges_before, "features": data.num_features}
    change = "" if edges == edges_before else f" (before: {edges_before:,})"
    text = f"{path}: {data.num_nodes:,} nodes, {edges:,} edges{change}, {data.num_features:,} features"
    typer.echo(json.dumps({"out": str(path), "format": ending, **sizes}) if as_json else text)
