"""What cells do, each in a process of its own: train full-batch and compare batches, or train with a method.

>>> run_cell("training", {"dataset": "nowhere", "train": {}}, "unused")["failed"][:8]
'Expected'
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

PARTS = 200  # clusters of the paper's tables
LR = 0.01
AGE = 5  # epochs between the estimate of TOP's basis and the weights at which it is measured, where it is refreshed
RANK = 64
WIDEST = 200  # features that a first conv of PNA reads itself: it multiplies a row of each edge with a 2 F x F matrix


def dataset_of(settings: dict[str, Any], folder: Path) -> tuple[str, str | None]:
    """Return name and root of a cell's graph; a stand-in is generated, once, into the folder."""
    if "preset" not in settings:
        return settings["dataset"], settings.get("root")
    from topoff.data.generate import generate
    from topoff.data.recipe import PRESETS, scaled

    name, scale = settings["preset"], settings["scale"]
    path = folder / "graphs" / f"{name}-{scale:g}"
    if not path.is_dir():
        label = {"preset": name, "scale": scale}
        generate(scaled(PRESETS[name], scale), path, seed=1, label=label)
    return str(path), None


def invariance(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Train full-batch, then measure batches of some of 200 clusters (Section 5.2), or of a sampler.

    Settings: the graph, model, layers, hidden, `width` where heads lie side by side, epochs, seed; `each`, clusters per
    batch; or `sampler` and `ratio`.
    Returns, for every batching, what `measure` finds for cluster, gas, the paper's TOP (random networks, k = d) as
    "top", and ours, estimated with its offset from the weights five epochs ago, as "top-refreshed"; as "gas-aged" GAS
    with histories of the same weights, where nodes are in one batch each ("gas": after an epoch of its own); and as
    "linear", whether the model has linear layers around its convs (`is_wide`).
    """
    from topoff.experiments.measure import exact_output

    data, trained = _trained(settings, folder)
    found, parts, truth = dict[str, Any](linear=is_wide(settings["model"], data.num_features)), None, None
    for name, sets in _batchings(settings).items():
        sets.fit(data) if parts is None else sets.fit(data, parts=parts)  # the same clusters for all sizes of batches
        parts = sets.parts_
        truth = exact_output(trained.model, data, sets=sets) if truth is None else truth
        found[name] = _compared(trained, data, sets, settings, truth=truth)
    return found


def _trained(settings: dict[str, Any], folder: Path) -> tuple[Any, Any]:
    """Return a cell's graph, and its model trained full-batch, with the weights of five epochs before the end."""
    import torch

    from topoff.data.load import load
    from topoff.experiments.measure import standardized, train_full_batch
    from topoff.models.by_name import make_model
    from topoff.models.networks import degree_histogram
    from topoff.tasks.task import task_of

    dataset, root = dataset_of(settings, folder)
    data = standardized(load(dataset, root=root, seed=settings["seed"]))
    torch.manual_seed(settings["seed"])
    options: dict[str, Any] = {key: settings[key] for key in ("hidden", "layers")}
    if is_wide(settings["model"], data.num_features):
        options["linear"] = True  # which brings the features to the hidden width, as GAS's option of that name does
    degrees = degree_histogram(data.edge_index, int(data.num_nodes))
    outputs = task_of(data.y, train_mask=data.train_mask).outputs
    model = make_model(
        settings["model"], in_channels=data.num_features, out_channels=outputs, degrees=degrees, **options
    )
    return data, train_full_batch(model, data, epochs=settings["epochs"], lr=LR, age=AGE, seed=settings["seed"])


def is_wide(model: str, features: int) -> bool:
    """Whether a model has linear layers around its convs here, because its first conv would cost too much.

    >>> is_wide("pna", 7), is_wide("pna", 500), is_wide("gcn", 500)
    (False, True, False)
    """
    return model == "pna" and features > WIDEST


def _batchings(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the node sets to compare, by name."""
    from topoff.batching.drawn_sets import DrawnSets
    from topoff.batching.overlapping_sets import named_sets

    if "sampler" in settings:
        common: dict[str, Any] = {"ratio": settings["ratio"], "seed": settings["seed"], "regroup": False}
        sets = named_sets(settings["sampler"], **common, parts=None, train_only=False, reach=None)
        return {settings["sampler"]: sets}
    parts = settings.get("parts", PARTS)
    return {str(each): DrawnSets(method="metis", parts=parts, each=each) for each in settings["each"]}


def _compared(trained: Any, data: Any, sets: Any, settings: dict[str, Any], *, truth: Any) -> dict[str, Any]:
    """Measure all methods on some batches, against the model's exact output (n, out)."""
    from topoff.batching.node_sets import NodeSets
    from topoff.experiments.measure import FullBatchModel, measure

    bare = FullBatchModel(trained.model, None)
    rivals = ("cluster", "gas") if isinstance(sets, NodeSets) else ("cluster",)
    k = min(settings.get("width", settings["hidden"]), max(1, int(data.num_nodes) // 8))
    common: dict[str, Any] = {"sets": sets, "seed": settings["seed"], "truth": truth}
    common |= {"gradients": False}  # which no sheet shows
    found = measure(bare, data, **common, methods=("top", *rivals), rank=k, inits=2)
    mine = ("top", *rivals[1:])
    ours = measure(trained, data, **common, methods=mine, rank=min(RANK, k), refresh="every=100", inits=1)
    return found | {"top-refreshed": ours["top"]} | ({"gas-aged": ours["gas"]} if "gas" in ours else {})


def compensations(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Train full-batch, then measure TOP's batches, the gradient included, under several settings of `TOP`.

    Settings: the graph, model, layers, hidden, epochs, seed; `sampler` and `ratio`; `tops`, settings of `TOP` by name.
    With `refresh` "never" the basis comes from random networks, else from the weights five epochs ago.
    """
    from topoff.experiments.measure import FullBatchModel, measure

    data, trained = _trained(settings, folder)
    (sets,) = _batchings(settings).values()
    sets.fit(data)
    bare, found = FullBatchModel(trained.model, None), dict[str, Any]()
    for name, top in settings["tops"].items():
        model = bare if top["refresh"] == "never" else trained
        found |= {name: measure(model, data, sets=sets, methods=("top",), seed=settings["seed"], **top)["top"]}
    return found


def training(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Train as `topoff train` does; return its result, and the scores against seconds and epochs.

    With `as_large_as`, settings of another training, batches of training nodes have as many rows as that one's.
    """
    import os

    from topoff.machine.memory import keep_freed_memory
    from topoff.training.config import make_config, read_config
    from topoff.training.run_folder import RunFolder
    from topoff.training.seed import train_seed

    keep_freed_memory()
    dataset, root = dataset_of(settings, folder)
    base = read_config(settings["config"]) if settings.get("config") else {"average": False}  # as in the paper
    named = {"dataset": dataset, "root": root}
    config = make_config(base, {key: value for key, value in named.items() if value}, settings["train"])
    if "as_large_as" in settings:
        config = make_config(vars(config), {"ratio": _ratio_of(make_config(vars(config), settings["as_large_as"]))})
    with tempfile.TemporaryDirectory(prefix="topoff-reproduce-") as place:
        os.environ["TOPOFF_CACHE"] = str(Path(place) / "cache")
        run = RunFolder(Path(place) / "run")
        train_seed(config, run, command="topoff reproduce")
        result, lines = run.read_json("result.json"), run.metrics()
    before = result["preprocess_seconds"]
    curve = [(round(before + (line.train_seconds or 0), 3), line.passed, line.test) for line in lines if line.evaluated]
    kept: tuple[str, ...] = (
        "test",
        "val",
        "metric",
        "epoch_seconds",
        "preprocess_seconds",
        "seconds",
        "peak_rss_mb",
        "fidelity",
    )
    kept += ("train_peak_rss_mb", "epochs", "steps", "nodes", "edges", "parameters")
    missed = [1 - line.fidelity for line in lines if line.fidelity is not None]
    error = sum(missed) / len(missed) if missed else None  # of batches, over the evaluated epochs
    return {key: result[key] for key in kept} | {"curve": curve, "error": error}


def _ratio_of(config: Any) -> float:
    """Return the share of the training nodes that makes batches with as many rows, over all layers, as a training's."""
    from topoff.training.build import make_setup
    from topoff.training.cost import workload
    from topoff.training.trained import graph_of

    setup = make_setup(config, graph_of(config))
    work = workload(setup.config, setup.data)
    rows = sum(work.rows) / len(work.rows) / work.batches
    return min(1.0, max(0.001, rows / max(1, int(setup.data.train_mask.sum()))))


def theory(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Check a statement of the paper."""
    from topoff.experiments.theory_all import THEORY

    return THEORY[settings["name"]].run(quick=settings["quick"]).to_json()


TASKS: dict[str, Callable[[dict[str, Any], Path], dict[str, Any]]] = {
    "invariance": invariance,
    "compensations": compensations,
    "training": training,
    "theory": theory,
}


def run_cell(task: str, settings: dict[str, Any], folder: str) -> dict[str, Any]:
    """Do a cell's work; a reason in the place of a result where it cannot be done."""
    import warnings

    from topoff.machine.notices import hearing

    try:
        with warnings.catch_warnings(), hearing(lambda _: None):
            warnings.simplefilter("ignore")
            return TASKS[task](settings, Path(folder))
    except Exception as error:  # one cell must not cost the others; what it was stands in the table
        expected = isinstance(error, ValueError | OSError)
        text = " ".join(str(error).split())[:400]
        return {"failed": text if expected and text else f"{type(error).__name__}: {text}"}
