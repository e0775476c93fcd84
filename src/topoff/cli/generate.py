"""`topoff generate`: write a stand-in graph, of the size and shape of a published one, as a store."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from topoff.cli.flags import AsJson, Overwrite, Quiet
from topoff.cli.format import duration
from topoff.machine.memory import readable
from topoff.training.config import LARGEST_SEED

if TYPE_CHECKING:
    from topoff.data.recipe import Recipe

EXAMPLES = """Examples:

  topoff generate products --out products.store --seed 1

  topoff generate papers100M --scale 0.01 --dtype float16 --out papers.store

  topoff generate --nodes 10000 --edges 200000 --classes 5 --between 0.3 --out small.store"""


def generate(
    out: Annotated[str, typer.Option(help="Folder of the store that is written.")],
    preset: Annotated[
        str | None,
        typer.Argument(help="arxiv, reddit, yelp, products or papers100M; every flag below changes one thing of it."),
    ] = None,
    scale: Annotated[
        float, typer.Option(help="Share of the nodes, edges and communities of the published graph.")
    ] = 1.0,
    seed: Annotated[
        int, typer.Option(help="Random seed: the same one gives the same bits.", min=0, max=LARGEST_SEED)
    ] = 0,
    nodes: Annotated[int | None, typer.Option(help="Number of nodes; needed without a preset.")] = None,
    edges: Annotated[int | None, typer.Option(help="Directed edges, both ways counted. [default: 20 per node]")] = None,
    features: Annotated[int | None, typer.Option(help="Features per node. [default: 64]")] = None,
    classes: Annotated[int | None, typer.Option(help="Classes, or labels. [default: 10]")] = None,
    task: Annotated[str | None, typer.Option(help="classes or multilabel. [default: classes]")] = None,
    communities: Annotated[int | None, typer.Option(help="Communities. [default: one per 1,000 nodes]")] = None,
    between: Annotated[float | None, typer.Option(help="Share of edges between communities. [default: 0.2]")] = None,
    homophily: Annotated[float | None, typer.Option(help="Share of edges that join nodes of one class.")] = None,
    exponent: Annotated[
        float | None, typer.Option(help="Exponent of the power law of degrees; 0: all alike. [default: 2.6]")
    ] = None,
    largest: Annotated[int | None, typer.Option(help="Largest degree to be expected. [default: 300 x mean]")] = None,
    label_noise: Annotated[float | None, typer.Option(help="Share of labels drawn anew. [default: 0.1]")] = None,
    feature_noise: Annotated[
        float | None, typer.Option(help="Noise of features; 1: as far as classes lie from the origin.")
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Shares of train, validation and test. [default: 0.6,0.2,0.2]")
    ] = None,
    directed: Annotated[bool, typer.Option("--directed", help="Draw edges one way only.")] = False,
    dtype: Annotated[str, typer.Option(help="Type of the features: float32 or float16.")] = "float32",
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Generate a stand-in graph: communities with classes, degrees by a power law, noisy features and labels.

    It has the size of the graph that it is named after, its split, and roughly its degrees and homophily: enough to
    measure time and memory, and for methods to differ. No score on it says anything about the published graph, so it is
    labelled as stand-in wherever it is named. The store is written piece by piece and moved to its place at the end.
    """
    given: dict[str, Any] = {
        "nodes": nodes,
        "edges": edges,
        "features": features,
        "classes": classes,
        "task": task,
        "communities": communities,
        "between": between,
        "homophily": homophily,
        "exponent": exponent,
        "largest": largest,
        "label_noise": label_noise,
        "feature_noise": feature_noise,
        "split": _shares(split),
        "undirected": False if directed else None,
    }
    start = time.perf_counter()
    from topoff.cli.progress import telling
    from topoff.data.generate import generate as write
    from topoff.data.write import check_place

    recipe = _recipe(preset, scale, {key: value for key, value in given.items() if value is not None})
    path = check_place(out, overwrite=overwrite)
    with telling(quiet=quiet) as tell:
        label = {"preset": preset, "scale": scale}
        store = write(recipe, path, seed=seed, dtype=dtype, label=label, progress=tell)
    header, seconds = store.header, round(time.perf_counter() - start, 3)
    sizes = {"nodes": header.nodes, "edges": header.edges, "features": header.features, "classes": header.classes}
    found = {"path": str(path), **sizes, "dtype": header.dtype, "seconds": seconds, "bytes": store.bytes}
    text = f"{path}: {header.nodes:,} nodes, {header.edges:,} edges, {header.features:,} features of {header.dtype}, "
    text += f"{readable(store.bytes)}, {duration(seconds)}"
    typer.echo(json.dumps(found) if as_json else text)


def _recipe(preset: str | None, scale: float, given: dict[str, Any]) -> Recipe:
    """Return the preset, scaled, with what was given instead; without one, a recipe of what was given.

    >>> _recipe("arxiv", 0.1, {"classes": 5}).classes
    5
    """
    from topoff.data.recipe import PRESETS, Recipe, named, scaled

    if preset is None and "nodes" not in given:
        known = ", ".join(PRESETS)
        raise ValueError(f"Expected a preset or --nodes (got neither); name one of {known}, or give --nodes.")
    if given.get("exponent") == 0:
        given["exponent"] = None
    if preset is None:
        return scaled(Recipe(**({"edges": 20 * given["nodes"]} | given)), scale)
    return replace(scaled(named(preset), scale), **given)


def _shares(split: str | None) -> tuple[float, float, float] | None:
    """Return the three shares of a split.

    >>> _shares("0.5,0.25,0.25")
    (0.5, 0.25, 0.25)
    """
    if split is None:
        return None
    try:
        train, val, test = (float(share) for share in split.split(","))
    except ValueError:
        remedy = "give those of train, validation and test"
        raise ValueError(
            f"Expected --split to be three shares such as 0.6,0.2,0.2 (got '{split}'); {remedy}."
        ) from None
    return train, val, test
