"""`topoff convert`: write any graph that `topoff.load` reads as an .npz file, a folder of tables or a store."""

from __future__ import annotations

import functools
import json
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from topoff.cli.flags import AsJson, Dataset, Overwrite, Quiet, Root, Split, SplitSeed, Trust
from topoff.data.edges import merge_edges, without_self_loops
from topoff.data.write import check_place, ending_of, split_column, write_npz, write_tables
from topoff.machine.files import replacing

if TYPE_CHECKING:
    from torch_geometric.data import Data

    from topoff.data.array_file import Array
    from topoff.data.edge_sort import Tidy
    from topoff.data.store import Store

EXAMPLES = """Examples:

  topoff convert Cora cora.npz --undirected --remove-duplicates

  topoff convert graph.npz graph/ --format csv

  topoff convert ogbn_products/ products.store --undirected --dtype float16 --by-part"""


def convert(
    dataset: Dataset,
    out: Annotated[
        str,
        typer.Argument(
            help="A file ending in .npz, a store ending in .store, else a folder for nodes and edges as tables."
        ),
    ],
    root: Root = None,
    trust: Trust = False,
    split: Split = 0,
    seed: SplitSeed = 0,
    table_format: Annotated[
        str | None, typer.Option("--format", help="Format of a folder: csv, parquet (default) or store.")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Type of a store's features: float32, float16 or float64. [default: as they are]")
    ] = None,
    by_part: Annotated[
        bool,
        typer.Option(
            "--by-part",
            help="Partition a store, and order its nodes by part: batches are then read in ranges, and training takes "
            "the parts as they are. Nodes keep their ids.",
        ),
    ] = False,
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
    """Write a graph as one .npz file, as a folder of tables or as a store; `topoff` reads all, with the same labels.

    A store is for graphs that do not fit into memory: arrays in a folder, which are mapped when it is loaded. What is
    large is converted in pieces: the arrays of an .npz file, tables of edges (those of nodes are read whole), and all
    of the raw folder of an OGB dataset, the one with raw/edge.csv.gz. Edges are sorted by target and source.

    Tables that become tables keep their columns, as they are; edges that are merged keep source, target and weight.
    The features of a folder are standardised when it is read, like those of any table. The graph that is read is never
    overwritten: OUT is another place.
    """
    from topoff.cli.summaries import working

    ending = ending_of(out, table_format)
    if ending == "store":
        from topoff.data.edge_sort import Tidy

        given = {"root": root, "trust": trust, "split": split, "seed": seed}
        tidy = Tidy(undirected=undirected, self_loops=not remove_self_loops, duplicates=not remove_duplicates)
        _write_store(
            dataset,
            out,
            given,
            tidy=tidy,
            dtype=dtype,
            by_part=by_part,
            overwrite=overwrite,
            as_json=as_json,
            quiet=quiet,
        )
        return
    if by_part:
        raise ValueError("Expected no --by-part without a store (got it); leave it out, or add --format store.")
    if dtype is not None:
        raise ValueError(f"Expected no --dtype without a store (got '{dtype}'); leave it out, or add --format store.")
    with working("loading", quiet=quiet) as status:
        from topoff.data.load import load
        from topoff.data.places import refuse_source

        refuse_source(out, dataset, root=root, inside=True)
        path = check_place(out, overwrite=overwrite)
        data = load(dataset, root=root, trust=trust, split=split, seed=seed, in_memory=True)
        _warn_of_stand_in(data)
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
    edges, features = data.edge_index.size(1), data.num_features
    sizes = {"nodes": data.num_nodes, "edges": edges, "edges_before": edges_before, "features": features}
    _tell({"out": str(path), "format": ending, **sizes}, as_json=as_json)


def _write_store(
    dataset: str,
    out: str,
    given: dict[str, Any],
    *,
    tidy: Tidy,
    dtype: str | None,
    by_part: bool,
    overwrite: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Write a store, piece by piece."""
    from topoff.cli.progress import telling
    from topoff.data.by_part import write_by_part
    from topoff.data.pieces import pieces_of
    from topoff.data.places import refuse_source
    from topoff.data.store_write import write_store

    refuse_source(out, dataset, root=given["root"], inside=True)
    path = check_place(out, overwrite=overwrite)
    with telling(quiet=quiet) as tell:
        tell("loading", 0.0)
        settings: dict[str, Any] = {"dtype": dtype, "tidy": tidy, "progress": tell}
        pieces = pieces_of(dataset, **given)
        if by_part:
            store = write_by_part(path, pieces, functools.partial(_parts, tell=tell), **settings)
        else:
            store = write_store(path, pieces, **settings)
    header = store.header
    sizes = {"nodes": header.nodes, "edges": header.edges, "edges_before": header.statistics["came"]}
    about = {"out": str(path), "format": "store", **sizes, "features": header.features}
    _tell({**about, "dtype": header.dtype, "bytes": store.bytes}, as_json=as_json)


def _parts(store: Store, *, tell: Callable[[str, float], object]) -> Array:
    """Return the part of every node, (n,): as many as training would choose for up to some hundred batches."""
    from topoff.batching.node_sets import usual_parts
    from topoff.batching.partition import affordable, partition

    header = store.header
    tell("partitioning", 0.0)
    weight = store.tensor("edge_weight") if "edge_weight" in header.arrays else None
    method, _ = affordable(header.edges, header.nodes)
    count = usual_parts(header.nodes)
    found = partition(store.tensor("edge_index"), header.nodes, parts=count, method=method, edge_weight=weight)
    return found.numpy()


def _warn_of_stand_in(data: Data) -> None:
    """Say that a generated graph loses its label: neither tables nor .npz files have a place for it."""
    if stand_in := getattr(data.get("names"), "stand_in", None):
        warnings.warn(f"The graph is a {stand_in}, which OUT will not say; name it so.", stacklevel=3)


def _tell(found: dict[str, Any], *, as_json: bool) -> None:
    """Print what was written."""
    change = "" if found["edges"] == found["edges_before"] else f" (before: {found['edges_before']:,})"
    text = f"{found['out']}: {found['nodes']:,} nodes, {found['edges']:,} edges{change}, {found['features']:,} features"
    typer.echo(json.dumps(found) if as_json else text)
