"""The settings of a run: one flat record, read from TOML and flags, validated; nothing below the training sees it.

>>> config = make_config({"dataset": "wordnet", "lr": "0.02"})
>>> config.lr, config.model
(0.02, 'gcn')
>>> make_config({"dataset": "wordnet", "hiden": 64})
Traceback (most recent call last):
    ...
ValueError: Expected a known setting (got 'hiden'); did you mean 'hidden'?
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib.resources
import math
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt

from topoff.compensation.refresh import Refreshing
from topoff.machine.places import expand_home
from topoff.training.complaints import check_value, complaint, located, shortened
from topoff.training.toml import LARGEST, parse_toml, toml_comment, toml_value

LARGEST_SEED = 2**32 - 1  # others are made of it, and torch takes none from 2**64 on
Natural = Annotated[int, Ge(0), Lt(2**32)]  # what libraries take for a seed or a count
Positive = Annotated[int, Ge(1), Lt(2**32)]
Repeated = Annotated[int, Ge(1), Le(10_000)]  # what is done one after the other
Size = Annotated[float, Ge(0), Lt(math.inf)]
Rate = Annotated[float, Ge(0), Lt(1)]
PARTITIONS = ("kaminpar", "metis", "ldg", "stored", "random")  # batches that hold every node once
COMPENSATED = ("top", "drop", "drop-ax")  # methods that take any node sets
JOINT = ("method", "batches")  # settings that are right or wrong together
LENGTHS = ("epochs", "seconds")  # a run has one of them
EPOCHS = 50  # where neither is given
MethodName = Literal[  # the keys of methods.METHODS, which would import torch
    "top", "full", "cluster", "drop", "drop-ax", "saint-node", "saint-edge", "saint-walk", "gas", "ns", "labor",
    "labor-star", "shadow", "shadow-ppr", "ibmb", "ibmb-batch", "sgc", "sign", "lmc", "graphfm-ob", "graphfm-ib",
    "vrgcn", "fastgcn", "ladies", "adapt",
]  # fmt: skip

BatchesName = Literal[
    "kaminpar", "metis", "ldg", "stored", "random", "saint-node", "saint-edge", "saint-walk", "shadow", "ibmb",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Config:
    """Hold every setting of a training run; the fields are the TOML keys and the flags of `topoff train`.

    The string after a field is its help. Anything you leave unset is chosen from the graph, and the reason is printed;
    norm and residual default to the model's own.
    """

    dataset: Annotated[str, "'wordnet', a published graph's name, an .npz file or a folder of tables."]
    root: Annotated[str | None, "Folder with raw files of published graphs."] = None
    split: Annotated[Natural, "Which of the dataset's splits."] = 0
    row_normalize: Annotated[bool, "Divide each node's features by their sum, as is usual for bags of words."] = False
    standardize: Annotated[bool, "Bring every feature to mean 0 and deviation 1 over all nodes."] = False
    seed: Annotated[Annotated[int, Ge(0), Le(LARGEST_SEED)], "Random seed."] = 0
    metric: Annotated[str, "accuracy, micro_f1, roc_auc, r2, rmse or mae; auto: by the labels."] = "auto"

    method: Annotated[MethodName, "How batches are made and run."] = "top"
    batches: Annotated[
        BatchesName | None,
        "How nodes are batched, stored: by the parts of a store; the sets of the last five overlap (top only).",
    ] = None
    ratio: Annotated[Annotated[float, Gt(0), Le(1)] | None, "Fraction of the nodes per batch."] = None
    parts: Annotated[Positive | None, "Number of clusters to merge into batches."] = None
    regroup: Annotated[bool | None, "Merge the clusters into new batches every epoch."] = None
    train_only: Annotated[bool | None, "Batch only the training nodes; all others are compensated."] = None
    reach: Annotated[
        Natural | None, "Batch only nodes within so many edges of a training node; all others are compensated."
    ] = None
    rank: Annotated[
        Natural | Annotated[float, Gt(0), Lt(1)] | None,
        "Rank of the compensation, or the share of energy to keep (below 1).",
    ] = None
    estimator: Annotated[Literal["ridge", "paper", "released"], "How the compensation is estimated."] = "ridge"
    inits: Annotated[Annotated[int, Ge(1), Le(100)] | None, "Number of networks behind the first basis."] = None
    refresh: Annotated[str | None, "auto, every=E (epochs) or never."] = None
    offset: Annotated[bool | None, "Compensate what has changed since the last refresh, or all (--no-offset)."] = None
    late: Annotated[bool | None, "Estimate the first compensation after the first epoch instead of before it."] = None
    fanout: Annotated[Positive | None, "Neighbours per node and layer, or nodes per target's subgraph."] = None
    hops: Annotated[Repeated, "Depth of a target's subgraph (shadow)."] = 2
    walk_length: Annotated[Repeated, "Steps of a random walk (saint-walk)."] = 2
    mix: Annotated[Annotated[float, Ge(0), Le(1)] | None, "Share of fresh values in histories (lmc, graphfm)."] = None

    model: Annotated[
        str, "gcn, gcnii, gcnii-jk, sage, gat, pna, cluster-gcn, sgc, sign, linear, or your own as module:Class."
    ] = "gcn"
    layers: Annotated[Annotated[int, Ge(1), Le(1000)], "Number of convs."] = 3
    hidden: Annotated[Positive, "Width of the hidden layers (gat: of one head)."] = 128
    dropout: Annotated[Rate, "Dropout after each hidden layer."] = 0.2
    input_dropout: Annotated[Rate, "Dropout of the features."] = 0.0
    edge_dropout: Annotated[Rate, "Share of the edges that each step leaves out; batches of top become costlier."] = 0.0
    norm: Annotated[Literal["none", "layer", "batch"] | None, "Normalisation after each conv."] = None
    residual: Annotated[bool | None, "Residual connections where shapes match."] = None
    jk: Annotated[bool, "Jumping knowledge: the last layer reads all layers."] = False
    linear: Annotated[bool, "Linear layers before and after the convs."] = False
    heads: Annotated[Positive, "Attention heads (gat)."] = 4
    out_heads: Annotated[Positive, "Attention heads of the last conv, averaged (gat)."] = 1
    alpha: Annotated[Size, "Strength of the initial residual (gcnii)."] = 0.1
    theta: Annotated[Size, "Strength of the identity mapping (gcnii)."] = 0.5
    shared_weights: Annotated[bool, "One weight for both terms of a layer (gcnii)."] = True
    diag_lambda: Annotated[Size, "Enhancement of the diagonal (cluster-gcn)."] = 1.0
    aggregators: Annotated[str, "Comma-separated: mean, max, min, sum, std, var (pna)."] = "mean,max"
    scalers: Annotated[str, "Comma-separated: identity, amplification, attenuation (pna)."] = "identity,amplification"
    fast_dropout: Annotated[bool, "Use the fast CPU dropout for nn.Dropout inside your own model."] = False

    memory: Annotated[
        Annotated[float, Gt(0), Lt(math.inf)] | None,
        "GiB that may be taken; what is larger lies on disk, with the same results.",
    ] = None
    seconds: Annotated[
        Annotated[float, Gt(0), Lt(math.inf)] | None,
        "Train for this many seconds of preparation, refreshes and steps instead of epochs; evaluation is not counted.",
    ] = None
    epochs: Annotated[Positive | None, "Passes over the batches."] = None
    optimizer: Annotated[Literal["adam", "adamw", "sgd"], "The optimiser (sgd: momentum 0.9)."] = "adam"
    lr: Annotated[Annotated[float, Gt(0), Lt(math.inf)], "Learning rate."] = 0.01
    weight_decay: Annotated[Size, "Weight decay."] = 0.0
    outer_decay: Annotated[Size | None, "Weight decay of the output layer and linear layers around the convs."] = None
    schedule: Annotated[
        Literal["constant", "cosine", "linear", "step"],
        "Learning rate over the epochs, or seconds (step: a tenth at 1/2 and 3/4).",
    ] = "constant"
    warmup: Annotated[Natural, "Epochs, or seconds with --seconds, over which the learning rate rises from zero."] = 0
    average: Annotated[
        bool | None, "Score and keep a running average of the weights, over about the last sixteenth of the steps."
    ] = None
    accumulate: Annotated[Positive | None, "Batches per step, shared out among the processes (top, drop)."] = None
    clip: Annotated[Size, "Clip the gradient to this norm; 0: do not clip."] = 0.0
    patience: Annotated[Natural, "Stop after this many evaluations without a better validation score; 0: never."] = 0
    class_weight: Annotated[Literal["none", "balanced"], "Weigh rare classes more in the loss."] = "none"
    checkpoint_seconds: Annotated[Annotated[float, Ge(0)], "Seconds between checkpoints; 0: after every step."] = 10.0
    device: Annotated[str, "cpu, cuda, cuda:1, ...; auto: cuda where there is one."] = "auto"
    eval_every: Annotated[
        Positive | None,
        "Epochs between exact evaluations, which double as refreshes (top). With --seconds: spread over the time.",
    ] = None


FIELDS = {field.name: field for field in dataclasses.fields(Config)}


def make_config(*layers: Mapping[str, Any], origin: str = "") -> Config:
    """Return the validated settings; later layers win, and a None in them is as good as absent.

    A file that all of them come from is named in errors as their `origin`. A run has epochs or seconds: the later ones
    replace the others.

    Raises:
        ValueError: an unknown key, with the nearest one, or a value that a key cannot have.
    """
    from pydantic import ValidationError  # late: `--help` does without

    merged: dict[str, Any] = {}
    for layer in layers:
        _refuse_unknown(layer, origin)
        given = {key: value for key, value in layer.items() if value is not None}
        if given.keys() & set(LENGTHS):
            merged = {key: value for key, value in merged.items() if key not in LENGTHS}
        merged |= given
    if not merged.keys() & set(LENGTHS):
        merged["epochs"] = EPOCHS
    try:
        for key, value in merged.items():
            check_value(key, value, kind=_kinds()[key])
        config: Config = _adapter().validate_python(merged)
    except ValidationError as error:
        raise ValueError(located(complaint(error.errors()), origin)) from error
    except ValueError as error:
        raise ValueError(located(str(error), origin)) from error
    if config.refresh is not None:
        Refreshing.parse(config.refresh)
    if config.epochs is not None and config.seconds is not None:
        got = f"Expected epochs or seconds, not both (got {config.epochs} epochs and {config.seconds:g} seconds)"
        raise ValueError(located(f"{got}; leave one out.", origin))
    if config.batches not in (None, *PARTITIONS) and config.method not in COMPENSATED:
        raise ValueError(
            f"Expected batches to be {', '.join(PARTITIONS[:-1])} or {PARTITIONS[-1]} for method {config.method} (got "
            f"'{config.batches}'): sets that overlap are for method top."
        )
    return config


@cache
def _kinds() -> dict[str, Any]:
    """Return the type of every setting, bounds included."""
    hints = typing.get_type_hints(Config, include_extras=True)
    return {key: typing.get_args(hint)[0] for key, hint in hints.items()}


@cache
def _adapter() -> Any:
    """Return what validates settings; it takes a few milliseconds to make."""
    from pydantic import TypeAdapter

    return TypeAdapter(Config)


def read_config(source: str | Path) -> dict[str, Any]:
    """Read a flat TOML file, or one that ships with the package by its name ("gcn-reddit").

    Raises:
        FileNotFoundError: no such file or name.
        ValueError: no flat TOML, or an unknown key.
    """
    path = expand_home(source)
    if path.is_file():
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
    elif path.is_dir():
        remedy = f"name {path / 'config.toml'}." if (path / "config.toml").is_file() else "name a file."
        raise ValueError(f"Expected a TOML file or the name of a config (got the folder '{source}'); {remedy}")
    elif str(source) in shipped_configs():
        content = (importlib.resources.files("topoff.training") / "configs" / f"{source}.toml").read_bytes()
    else:
        remedy = nearest(str(source), shipped_configs(), what="names")
        raise FileNotFoundError(f"Expected a TOML file or the name of a config (got '{source}'); {remedy}")
    keys = parse_config(content, origin=str(source))
    make_config({"dataset": "any"}, {key: value for key, value in keys.items() if key not in JOINT}, origin=str(source))
    return keys


def parse_config(content: bytes | str, *, origin: str) -> dict[str, Any]:
    """Return the keys of a flat TOML text; `origin` names it in errors."""
    keys = parse_toml(content, origin=origin)
    _refuse_unknown(keys, origin)
    return keys


def shipped_configs() -> list[str]:
    """List the names of the configs that ship with the package."""
    folder = importlib.resources.files("topoff.training") / "configs"
    return sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))


def write_toml(config: Config, *, command: str, reasons: Mapping[str, str] | None = None) -> str:
    """Return the settings as flat TOML whose first line is the command; `reasons` say why settings were chosen."""
    lines = [f"# {toml_comment(command)}"]
    for key in FIELDS:
        value = getattr(config, key)
        if value is not None:
            why = f"  # chosen: {toml_comment(reasons[key])}" if reasons and key in reasons else ""
            lines.append(f"{key} = {toml_value(value)}{why}")
    return "\n".join(lines) + "\n"


def difference(old: Config, new: Config) -> list[str]:
    """List the keys in which two configs differ, as `key: old -> new`."""
    pairs = [(key, getattr(old, key), getattr(new, key)) for key in FIELDS]
    return [f"{key}: {before} -> {after}" for key, before, after in pairs if before != after]


def _refuse_unknown(keys: Mapping[str, Any], origin: str = "") -> None:
    for key in keys:
        if key not in FIELDS:
            remedy = nearest(key.replace("-", "_"), FIELDS, what="settings")
            place = f" in {origin}" if origin else ""
            raise ValueError(f"Expected a known setting{place} (got {shortened(key)}); {remedy}")


def nearest(word: str, known: Collection[str], *, what: str) -> str:
    """Say which known word is meant, or which there are: "did you mean 'top'?", "the methods are top, full."."""
    near = difflib.get_close_matches(word, known, n=1)
    return f"did you mean '{near[0]}'?" if near else f"the {what} are {', '.join(known)}."
