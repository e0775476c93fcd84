"""`topoff measure`: how far batches are from the whole graph, on a model trained full-batch (Section 5.2)."""

from __future__ import annotations

import json
import math
import re
from typing import Annotated, Any

import typer

from topoff.cli.flags import AsJson, Dataset, Quiet, Root, Split, Trust
from topoff.cli.format import graph_name
from topoff.training.config import LARGEST_SEED

EXAMPLES = """Examples:

  topoff measure wordnet --hidden 128 --epochs 100 --ratio 0.1 --batches metis

  topoff measure minesweeper --root data --ratio 0.5 --batches metis --methods top,cluster,drop --json"""

OWN = "[default: the model's own]"


def measure(
    dataset: Dataset,
    root: Root = None,
    trust: Trust = False,
    model: Annotated[
        str,
        typer.Option(
            help="gcn, gcnii, gcnii-jk, sage, gat, pna, cluster-gcn, sgc, sign, linear, or your own as module:Class."
        ),
    ] = "gcn",
    layers: Annotated[int, typer.Option(help="Number of convs.", min=1)] = 3,
    hidden: Annotated[int, typer.Option(help="Width of the hidden layers (gat: of one head).", min=1)] = 256,
    dropout: Annotated[float, typer.Option(help="Dropout after each hidden layer.", min=0, max=0.99)] = 0.2,
    norm: Annotated[
        bool | None, typer.Option("--norm/--no-norm", help=f"LayerNorm per node after each conv. {OWN}")
    ] = None,
    residual: Annotated[
        bool | None, typer.Option("--residual/--no-residual", help=f"Residual connections where shapes match. {OWN}")
    ] = None,
    epochs: Annotated[int, typer.Option(help="Full-batch training steps.", min=0)] = 200,
    lr: Annotated[float, typer.Option(help="Learning rate of Adam.")] = 0.01,
    batches: Annotated[str, typer.Option(help="metis, kaminpar, ldg, random or stored (in a store).")] = "kaminpar",
    parts: Annotated[int | None, typer.Option(help="Number of clusters to merge into batches.")] = None,
    ratio: Annotated[float, typer.Option(help="Fraction of the nodes per batch.")] = 0.1,
    rank: Annotated[int, typer.Option(help="Rank of the compensation.", min=0)] = 64,
    inits: Annotated[int, typer.Option(help="Number of random initialisations behind the basis.", min=1)] = 2,
    estimator: Annotated[str, typer.Option(help="ridge, paper or released.")] = "ridge",
    refresh_age: Annotated[
        str,
        typer.Option(
            help="'none': basis from random initialisations, GAS after an epoch of its own; A: basis and histories "
            "from the weights A epochs before the end."
        ),
    ] = "none",
    methods: Annotated[str, typer.Option(help="Comma-separated: top, cluster, drop, gas.")] = "top,cluster,drop",
    split: Split = 0,
    seed: Annotated[int, typer.Option(help="Random seed.", min=0, max=LARGEST_SEED)] = 0,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train a model full-batch, then measure how far its mini-batches are from the exact output and gradient."""
    import torch

    from topoff.batching.node_sets import NodeSets
    from topoff.cli.progress import progress_bar
    from topoff.compensation.estimator import Compensator
    from topoff.data.load import load
    from topoff.experiments.measure import check_methods, standardized, train_full_batch
    from topoff.experiments.measure import measure as compare
    from topoff.models.by_name import make_model
    from topoff.models.networks import degree_histogram
    from topoff.tasks.task import task_of
    from topoff.training.model_check import check_model

    age = _age(refresh_age)
    chosen = tuple(name.strip() for name in methods.split(","))
    check_methods(chosen)
    if not 0 < lr < math.inf:
        raise ValueError(f"Expected --lr to be greater than 0 and finite (got {lr:g}); 0.01 is the default.")
    Compensator(rank, estimator=estimator).check()
    data = standardized(load(dataset, root=root, trust=trust, split=split, seed=seed))
    torch.manual_seed(seed)
    options: dict[str, Any] = {"hidden": hidden, "layers": layers, "dropout": dropout}
    degrees = degree_histogram(data.edge_index, int(data.num_nodes))
    options |= {"norm": norm, "residual": residual, "degrees": degrees}
    labels = task_of(data.y, train_mask=data.train_mask)
    network = make_model(model, in_channels=data.num_features, out_channels=labels.outputs, **options).to(data.x.dtype)
    check_model(network, data, task=labels, name=model)
    with progress_bar(quiet=quiet, transient=True) as bar:
        task = bar.add_task("partitioning", total=epochs, note="")

        def tell(epoch: int, loss: float) -> None:
            """Show how far the training is."""
            bar.update(task, completed=epoch, description=f"training full-batch, loss {loss:.3f}")

        sets = NodeSets(method=batches, ratio=ratio, parts=None if batches == "random" else parts, seed=seed).fit(data)
        trained = train_full_batch(network, data, epochs=epochs, lr=lr, age=age, seed=seed, tell=tell)
        bar.update(task, description="comparing")
        settings: dict[str, Any] = {"rank": rank, "inits": inits, "estimator": estimator, "seed": seed}
        result = compare(trained, data, sets=sets, methods=chosen, lr=lr, **settings)
    if as_json:
        typer.echo(json.dumps(result))
    else:
        _print_table(result, graph_name(dataset, getattr(data.get("names"), "stand_in", None)))


def _age(text: str) -> int | None:
    if text == "none":
        return None
    if not re.fullmatch("[0-9]{1,18}", text):
        raise ValueError(f"Expected --refresh-age to be 'none' or a number of epochs (got '{text}').")
    return int(text)


def _print_table(result: dict[str, Any], dataset: str) -> None:
    from rich.table import Column, Table

    from topoff.cli.summaries import console

    names = ("relative_error", "accuracy_degradation", "gradient_error", "gradient_cosine", "certificate")
    columns = (Column(name.replace("_", " "), justify="right") for name in names)
    table = Table("method", *columns, title=f"Batches against the whole graph: {dataset}")
    for method, row in result.items():
        table.add_row(method, *(_cell(name, row.get(name)) for name in names))
    console().print(table)


def _cell(name: str, value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" if name == "gradient_cosine" else f"{value:.2%}"
