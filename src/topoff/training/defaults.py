"""Choose what the user left open from the graph, and say why.

>>> import torch
>>> from topoff.training.config import make_config
>>> ring = torch.stack([torch.arange(100), (torch.arange(100) + 1) % 100])
>>> config, choices = choose(make_config({"dataset": "ring"}), Data(x=torch.ones(100, 1), edge_index=ring))
>>> config.ratio, choices[0].what
(1.0, 'batches')
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch_geometric.data import Data

from topoff.batching.overlapping_sets import SAMPLERS
from topoff.batching.partition import affordable
from topoff.batching.ratio import WHOLE, near_training, usual_ratio
from topoff.batching.stored import STORED, stored_parts
from topoff.compensation.usual import LITTLE, MOST, NODES_PER_RANK, has_offset, usual_rank
from topoff.methods.registry import METHODS, model_of
from topoff.models.by_name import MODELS, OPTIONS, options_of
from topoff.training.config import EPOCHS, FIELDS, Config

LONG = 10  # epochs of a run whose first estimate may wait for one of them
EVALUATE = 5  # epochs between exact evaluations of a larger graph
MANY = 24  # messages per node from which on those from outside are compensated as well as those inside
AVERAGING = ("gcn", "gcnii", "gcnii-jk", "sage", "cluster-gcn", "sgc", "linear")  # models that add up their neighbours
FEW = 0.5  # of all nodes: those near a training node are batched alone, where they are not more
NEXT = 0.3  # of all nodes: training nodes and their neighbours are batched alone, where they are not more
CHEAP = 20_000  # nodes up to which an exact evaluation after every epoch costs next to nothing
USUAL = ("regroup", "fanout", "mix")  # settings for which every method has its own default


@dataclass(frozen=True)
class Choice:
    """Say what was chosen, and why."""

    what: str
    value: Any
    why: str


def choose(config: Config, data: Data, *, processes: int = 1) -> tuple[Config, list[Choice]]:
    """Return the settings with nothing left open, and the choices that were made."""
    nodes, choices = int(data.num_nodes or 0), list[Choice]()

    def take(what: str, value: Any, why: str) -> None:
        """Choose a value where the user gave none."""
        if getattr(config, what) is None:
            choices.append(Choice(what, value, why))

    read = METHODS[config.method].settings
    if "ratio" in read:
        alone, why = _train_only(config, data, processes=processes)
        if "train_only" in read:
            take("train_only", alone, why)
        batches: str | None = config.batches
        if "batches" in read:
            batches, why = _batches(config, data, train_only=alone, processes=processes)
            take("batches", batches, why)
        reach, batched, why = _reach(config, data, train_only=alone, processes=processes)
        if reach is not None:
            take("reach", reach, why)
        labels = int(data.train_mask.sum()) if "train_mask" in data else nodes
        ratio, why = usual_ratio(batched, labels=labels)
        take("ratio", ratio, why)
        batch = max(1, round(batched * (config.ratio or ratio)))
    if "rank" in read:
        offset = has_offset(offset=config.offset, estimator=config.estimator, refresh=config.refresh or "auto")
        sizes: dict[str, Any] = {"labels": labels if alone else None, "nodes": nodes, "batch": batch}
        usual = usual_rank(config.batches or batches or "kaminpar", offset=offset, **sizes)
        most = max(1, batch // NODES_PER_RANK)
        why = "a few directions follow what changes outside" if usual == LITTLE else "most comes from outside"
        why = "nearly all comes from outside, and batches are large" if usual == MOST else why
        why = why if usual <= most else f"{NODES_PER_RANK} or more nodes per direction"
        take("rank", min(usual, most), why)
        take("refresh", "auto", "as often as it pays: by what is missing, and by the work of an epoch")
        long = config.seconds is not None or (config.epochs or EPOCHS) >= LONG
        late = offset and long and (config.refresh or "auto") == "auto" and (config.inits or 1) == 1
        why = "weights move furthest in the first epoch" if late else "batches are compensated from the start"
        take("late", late, why)
    for name in USUAL:
        if name in read:
            take(name, _usual(METHODS[config.method], name), f"usual for {config.method}")
    take("average", True, "single steps are noisy, their average is not")
    if processes > 1:
        take("accumulate", processes, "one batch for every process")
    if config.seconds is None:  # else they are spread over the time
        take("eval_every", *_evaluations(config, nodes, refreshes="refresh" in read))
    choices.sort(key=lambda choice: list(FIELDS).index(choice.what))  # as they are written, and read again
    return dataclasses.replace(config, **{choice.what: choice.value for choice in choices}), choices


def _batches(config: Config, data: Data, *, train_only: bool, processes: int) -> tuple[str, str]:
    """Choose which nodes go together: clusters, unless training nodes are batched alone and have many messages.

    Means of many messages are compensated, whatever a batch holds; random batches have the classes of the whole graph,
    and take no time to find. Clusters come from the graph, where its nodes lie by part and no other number is wanted.
    Several processes keep clusters, for they exchange fewer rows; so does one that takes as many batches for a step.
    """
    edges, nodes = data.edge_index.size(1), int(data.num_nodes or 0)
    if not edges:
        return "random", "no edges, nothing to cluster"
    if stored_parts(data) is not None and config.parts is None:
        return STORED, "the nodes of the store lie by part"
    together = processes > 1 or (config.accumulate or 1) > 1 or config.parts is not None or bool(config.regroup)
    follows = "rank" in METHODS[config.method].settings and config.model in AVERAGING and _follows(config)
    if train_only and follows and not together and edges >= MANY * nodes:
        why = f"{edges / nodes:.0f} messages per node, compensated whatever goes together: no time for clusters"
        return "random", why
    return affordable(edges, nodes)


def _train_only(config: Config, data: Data, *, processes: int) -> tuple[bool, str]:
    """Choose whether the training nodes are batched alone: they are, where averages of many messages are compensated.

    A batch then has more labels for the same rows. Where nodes have few neighbours, each of them counts by itself, and
    those outside are followed less well; nor do few training nodes follow many others. A `ratio` that was given is one
    of all nodes.
    """
    read = METHODS[config.method].settings
    if "train_only" not in read or config.train_only is not None:
        return bool(config.train_only and "train_only" in read), ""
    if "rank" not in read:
        return False, f"usual for {config.method}"
    if config.reach is not None:
        return False, "nodes in reach of a training node are batched, too"
    if config.ratio is not None or config.batches in SAMPLERS or "train_mask" not in data:
        return False, "all nodes are batched"
    nodes, labels = int(data.num_nodes or 0), int(data.train_mask.sum())
    each = data.edge_index.size(1) / max(1, nodes)
    if each < MANY:
        return False, f"{each:.0f} messages per node: each neighbour counts, and those in the batch are exact"
    if labels <= WHOLE * processes:
        return False, f"{labels:,} training nodes are too few to follow all others"
    if config.model not in AVERAGING:
        return False, f"it was not tried with model {config.model}"
    if not _follows(config):
        return False, "what changes outside is not followed"
    return True, f"{each:.0f} messages per node: their means are compensated well, and a batch has more labels"


def _reach(config: Config, data: Data, *, train_only: bool, processes: int) -> tuple[int | None, int, str]:
    """Return the reach to choose, the nodes to batch, and why: those that count, where they are less than half of all.

    Where labels are few, training nodes and their neighbours are batched alone if that halves the rows at least: what
    lies behind them is followed well enough, and a step costs a fraction.
    """
    nodes, read = int(data.num_nodes or 0), METHODS[config.method].settings
    if "train_mask" not in data:
        return None, nodes, ""
    if train_only:
        return None, int(data.train_mask.sum()), ""
    if config.reach is not None and "reach" in read:
        return config.reach, len(near_training(data, config.reach)), ""
    if "reach" not in read or nodes <= WHOLE or config.batches in SAMPLERS:
        return None, nodes, ""
    hops = config.layers - 1  # what the first layer reads is known
    near = len(near_training(data, min(1, hops)))
    if near > FEW * nodes:  # and the more those behind
        return None, nodes, ""
    far = near if hops < 2 else len(near_training(data, hops))
    follows = _follows(config) and config.model in AVERAGING and config.ratio is None and processes == 1
    if follows and near <= NEXT * nodes and 2 * near <= far:
        return 1, near, f"{near:,} of {nodes:,} nodes are training nodes or next to one: what lies behind is followed"
    why = f"{far:,} of {nodes:,} nodes are near enough to a training node to count for its loss"
    return (hops, far, why) if far <= FEW * nodes else (None, nodes, "")


def _follows(config: Config) -> bool:
    """Whether what changes outside of batches is followed: compensated since the last refresh, and refreshed."""
    refresh = config.refresh or "auto"
    offset = has_offset(offset=config.offset, estimator=config.estimator, refresh=refresh)
    return offset and refresh != "never" and config.rank != 0


def _usual(method: Any, name: str) -> Any:
    """Return a method's own default of a setting, from the nearest of its classes whose constructor names it."""
    constructors = (inspect.signature(kind.__init__).parameters for kind in method.__mro__)
    return next(parameters[name].default for parameters in constructors if name in parameters)


def unused(config: Config, given: Iterable[str]) -> list[str]:
    """List those of the given settings that the method or the model does not read, with the reason.

    >>> from topoff.training.config import make_config
    >>> unused(make_config({"dataset": "x", "model": "sage", "heads": 2}), ["model", "heads"])
    ['heads has no effect on model sage']
    """
    of_methods = {key for method in METHODS.values() for key in method.settings}
    idle = of_methods - set(METHODS[config.method].settings)
    model = model_of(config.method, config.model)
    idle |= {"model"} if model != config.model else set()
    found = [f"{key} has no effect on method {config.method}" for key in given if key in idle]
    # of a class of the user's, or a name that will be refused, nothing is known
    ignored = OPTIONS - options_of(model) if model in MODELS else frozenset()
    return found + [f"{key} has no effect on model {model}" for key in given if key in ignored]


def _evaluations(config: Config, nodes: int, *, refreshes: bool) -> tuple[int, str]:
    """Choose the epochs between exact evaluations."""
    if nodes <= CHEAP:
        return 1, f"cheap up to {CHEAP:,} nodes"
    whole = "an exact evaluation is a forward pass over the whole graph"
    return min(_interval(config), config.epochs or EPOCHS), "an evaluation is also a refresh" if refreshes else whole


def _interval(config: Config) -> int:
    """Return the epochs between refreshes, as far as they are fixed."""
    name, _, number = (config.refresh or "auto").partition("=")
    return int(number) if name == "every" and number.isdecimal() and int(number) > 0 else EVALUATE
