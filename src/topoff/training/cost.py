"""Estimate what an epoch will cost before it runs: what each method computes, in words, rows and messages per layer.

Sampled blocks are counted by their expectation, from the probability of every node to be needed: one pass over the
edges per layer, and nothing is drawn.

>>> from topoff.training.config import make_config
>>> ring = torch.stack([torch.arange(100), (torch.arange(100) + 1) % 100])
>>> config = make_config({"dataset": "ring", "method": "ns", "layers": 2, "ratio": 0.1, "fanout": 5})
>>> work = workload(config, Data(x=torch.ones(100, 1), edge_index=ring))
>>> work.batches, work.targets, work.messages
(10, 10, [0.0, 100.0])
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch_geometric.data import Data

from topoff.batching.pagerank import senders
from topoff.batching.ratio import near_training
from topoff.batching.scopes import k_hop
from topoff.compensation.refresh import LARGE, SCARCE, SMALL, Refreshing
from topoff.forward.lockstep import LARGE as MANY
from topoff.forward.parking import LIMIT
from topoff.machine.rates import Rates, rates_of
from topoff.methods.registry import METHODS
from topoff.training.config import EPOCHS, Config
from topoff.training.cost_memory import Held, has_jk, peak_of
from topoff.training.cost_words import TARGETS, on_training

GATHER = 10.0  # what a gathered byte costs, in copied ones: rows lie apart, and memory is fresh
STEP = 2.5e-3  # seconds of a step that no matrix takes
MADE = 18  # matrices of all nodes that a layer of a forward makes
REFRESH = 0.15  # seconds of a refresh that no matrix takes, besides those of a `STEP` for every estimate
PARKED = 16  # what a byte costs that goes to the disk and comes back, in bytes of such matrices
CUT = 32  # bytes per edge of all nodes' pieces of the operator, and on the way there
PULLED = 16.0  # what a byte that GAS pulls from a history costs, in copied ones: the same, pushes and dropout included
CLOSED = 8.0  # neighbours per node of a graph whose batches of clusters have half the halo of random ones
FEATURES_FIRST = ("gcn", "sage", "cluster-gcn")  # models whose first layer propagates the raw features, linearly
GENERAL = ("gat", "pna")  # models whose convs are no fixed operators
ATTENDED = 7.0  # what a byte of their messages costs, in bytes of others' messages
SOME = 200  # training nodes whose subgraphs are measured
CLOSE = 2.0  # messages per node inside the subgraph of one target


@dataclass(frozen=True)
class Estimate:
    """Say what training is about to cost."""

    epoch_seconds: float
    memory: int  # bytes
    batches: int
    batch_nodes: int  # whose outputs a batch is for


def estimate(config: Config, data: Data, model: nn.Module) -> Estimate:
    """Estimate seconds per epoch and peak memory from what the method computes, and from rates that are measured here.

    Dense products at the machine's own rate, three times each (forward, two backward); sparse products, norms and
    dropout at its memory rate; sampling at the rate of sorting. Constants were fitted to stand-ins of arxiv and of
    products on one machine, where most methods are within 1.5 (docs/decisions.md); your own models count as linear.
    """
    work, width, rank = workload(config, data), int(data.x.element_size()), _rank(config)
    matrices = [p for p in model.parameters() if not is_lazy(p) and p.dim() == 2]
    flops, moved, counted, attended = 0.0, 0.0, set[int](), ATTENDED if config.model in GENERAL else 1.0
    for number, matrix in enumerate(matrices):
        layer = number * len(work.rows) // len(matrices)  # parameters come in the order of the layers
        rows, columns = work.rows[layer], matrix.size(0)
        flops += 6.0 * rows * matrix.numel() + 12.0 * rows * rank * columns
        messages = 0.0 if layer in counted else work.messages[layer]  # once, however many matrices a layer has
        moved += 2.0 * width * (attended * messages + rows) * columns + 20.0 * width * rows * columns
        counted.add(layer)
    if work.batches > 1:  # a batch gathers its features; of SIGN, every power of the operator times them
        powers = 1 + config.layers if config.method == "sign" else 1
        moved += GATHER * width * work.rows[0] * powers * data.x.size(1)
    if config.method == "gas":  # every layer but the first pulls the rows of its halo, which lie apart
        moved += PULLED * width * config.hidden * _pulled(config, data, work) * (config.layers - 1)
    rates = rates_of(int(data.num_nodes or 0), config.hidden)
    seconds = flops / rates.flops + moved / rates.bytes + work.examined / rates.items + STEP * work.batches
    again = _refreshes(config, data, work)
    if again:
        seconds += again * _refresh_seconds(
            config, data, work, rates, inner=sum(each.numel() for each in matrices[:-1])
        )
    return Estimate(seconds, memory_of(config, data, model, work=work), work.batches, work.targets)


def _pulled(config: Config, data: Data, work: Workload) -> float:
    """Return the rows that all batches pull from a history: their halos, each node once for every batch around it.

    Around random batches they are counted by expectation; clusters keep the more together, the fewer neighbours a node
    has (as a share of the random ones: WordNet a quarter, stand-ins of arxiv and products 0.7 to 0.9).
    """
    nodes = max(1, int(data.num_nodes or 0))
    reached = _blocks(data, torch.full((nodes,), work.targets / nodes), hops=1)[0].rows - work.targets
    return work.batches * max(0.0, reached) * _halo(config, data)


def _halo(config: Config, data: Data) -> float:
    """Return how many nodes are around a batch, as a share of those around as many random nodes."""
    degree = data.edge_index.size(1) / max(1, int(data.num_nodes or 0))
    return 1.0 if config.batches == "random" else degree / (degree + CLOSED)


def memory_of(config: Config, data: Data, model: nn.Module, *, work: Workload | None = None) -> int:
    """Estimate the peak memory of training and its evaluations, in bytes (see `cost_memory`)."""
    work, active = work or workload(config, data), 0.0
    matrices = [p for p in model.parameters() if not is_lazy(p) and p.dim() == 2]
    for number, matrix in enumerate(matrices):
        active += work.rows[number * len(work.rows) // len(matrices)] * matrix.size(0) * data.x.element_size()
    summed = sum(work.messages) / work.batches if config.model in GENERAL else 0.0
    held = Held(work.batches, work.targets * work.batches, work.messages[-1], active / work.batches, summed)
    return peak_of(config, data, model, held=held)


def _refreshes(config: Config, data: Data, work: Workload) -> float:
    """Return how many refreshes an epoch has: as many as are asked for, or as come where batches hold few of the nodes.

    Elsewhere "auto" keeps them a small share of the work.
    """
    policy = Refreshing.parse(config.refresh or "auto")
    scarce = int(data.num_nodes or 0) > SCARCE * work.targets * work.batches
    if config.method != "top" or not policy.interval or (policy.automatic and not scarce):
        return 0.0
    policy.begin(price=1.0, scarce=True)
    epochs, age, count = config.epochs or EPOCHS, 0, 0
    for _ in range(epochs - 1):  # none before the first epoch
        age += 1
        if policy.due(age):
            policy.observe((SMALL + LARGE) / 2)  # what keeps the interval, as far as it may be kept
            age, count = 0, count + 1
    return count / epochs


def _refresh_seconds(config: Config, data: Data, work: Workload, rates: Rates, *, inner: int) -> float:
    """Return the seconds of a refresh: a forward of all nodes up to the last propagation, and an estimate per batch.

    `inner` are the weights up to there. A conv that reads raw features knows its messages, others make one more place.
    """
    nodes, edges, batched = int(data.num_nodes or 0), data.edge_index.size(1), work.targets * work.batches
    row, known = config.hidden * int(data.x.element_size()), config.model in FEATURES_FIRST and not config.linear
    places, layers, rank = config.layers - known, max(1, config.layers - known), _rank(config)
    columns = 3.5 * rank  # of the basis: three per direction, and what joins them
    systems = work.batches * (1 if known else 2)  # rows without messages have one of their own
    flops = 2.0 * nodes * inner + 4.0 * batched * config.hidden * places * columns
    flops += systems * (30.0 * columns**3 + 6.0 * work.targets * columns**2)
    gathered = row * ((places - 1) * edges + places * batched * edges / max(1, nodes))
    gathered += edges * data.x.size(1) * data.x.element_size() if known else 0.0  # A X, which was let go
    made = MADE * layers * nodes * row + CUT * edges
    if nodes >= MANY:  # sleeping batches lie on disk
        asleep = sum(1 + place * has_jk(config) + config.model.startswith("gcnii") for place in range(places))
        made += PARKED * max(0.0, asleep * nodes * row - places * LIMIT)
    return float(REFRESH + STEP * systems + flops / rates.flops + gathered / rates.gathered + 2.0 * made / rates.bytes)


def _rank(config: Config) -> int:
    """Return how many directions a batch is compensated with, as far as the settings say."""
    return config.rank if config.method == "top" and isinstance(config.rank, int) else 0


@dataclass(frozen=True)
class Workload:
    """Count what an epoch computes, over all its batches; the first layer comes first."""

    batches: int
    targets: int  # nodes per batch whose outputs are wanted
    rows: list[float]  # nodes whose rows a layer reads
    messages: list[float]  # messages that a layer adds up
    examined: float = 0.0  # messages that sampling looks at


def workload(config: Config, data: Data) -> Workload:
    """Count what an epoch of the method computes, from settings that leave nothing open."""
    nodes, edges, method = int(data.num_nodes or 0), data.edge_index.size(1), config.method
    mask = data.train_mask if "train_mask" in data else torch.ones(nodes, dtype=torch.bool)
    batched = int(mask.sum()) if on_training(config) else nodes
    if config.reach is not None and "reach" in METHODS[method].settings and "train_mask" in data:
        batched = len(near_training(data, config.reach))
    batches = 1 if method == "full" else min(max(1, nodes), max(1, round(1 / (config.ratio or 1.0))))
    batches = min(batches, max(1, batched)) if method in TARGETS else batches
    targets, fanout, examined = max(1, round(batched / batches)), config.fanout or 1, 0.0
    rows, messages = float(batched), edges * batched / max(1, nodes)  # that arrive in batches
    if method in ("sgc", "sign"):
        messages = 0.0
    elif method == "ibmb-batch":
        rows, messages = float(nodes), float(edges)
    elif method in ("shadow", "shadow-ppr"):
        rows *= _scope(data, mask, hops=config.hops, fanout=fanout) if method == "shadow" else fanout
        messages = examined = CLOSE * rows
    elif method == "ibmb":
        union = nodes * -torch.expm1(torch.tensor(-targets * fanout / max(1, nodes))).item()
        rows = batches * (targets + _halo(config, data) * max(0.0, union - targets))
        messages = rows * edges / max(1, nodes)
    elif method in TARGETS:
        return _sampled(config, data, mask, batches=batches, targets=targets)
    elif config.model in GENERAL and method in ("top", "drop", "drop-ax", "gas"):  # whose convs run on the halo, too
        rows += batches * (_blocks(data, torch.full((nodes,), targets / max(1, nodes)), hops=1)[0].rows - targets)
    elif method in ("top", "drop", "drop-ax", "cluster"):
        messages *= batched / max(1, nodes)
    elif method in ("lmc", "graphfm-ob"):
        reached = _blocks(data, torch.full((nodes,), 1 / batches), hops=1)[0].rows - nodes / batches
        halo = batches * reached * _halo(config, data)
        messages *= (rows + halo) / max(1, batched)
        rows += halo * (2 / 3 if method == "lmc" else 1)  # without the gradient of weights
    return Workload(batches, targets, [rows] * config.layers, [messages] * config.layers, examined)


def _sampled(config: Config, data: Data, mask: Tensor, *, batches: int, targets: int) -> Workload:
    """Count what batches of training nodes need whose messages are sampled layer by layer."""
    method, nodes = config.method, len(mask)
    known = config.model in FEATURES_FIRST and not config.linear  # the first layer reads A X, which is computed once
    most = nodes * (config.ratio or 1.0) if method in ("fastgcn", "ladies", "adapt") else None
    hops = config.layers - known
    pool = nodes if method == "fastgcn" else 0  # it draws from all nodes, the others among neighbours
    blocks = _blocks(data, mask.float() / batches, hops=hops, fanout=config.fanout, most=most, pool=pool)
    runs = 4 / 3 if method == "vrgcn" and config.dropout else 1  # a forward without dropout, too
    rows = [runs * batches * block.rows for block in reversed(blocks)]
    messages = [batches * (block.examined if method == "vrgcn" else block.messages) for block in reversed(blocks)]
    if known:
        rows, messages = [rows[0] if rows else float(mask.sum()), *rows], [0.0, *messages]
    return Workload(batches, targets, rows, messages, batches * sum(block.examined for block in blocks))


@dataclass(frozen=True)
class _Block:
    """Count what a layer of a batch needs."""

    rows: float  # nodes that send or receive
    messages: float
    examined: float  # messages that could have been drawn


def _blocks(
    data: Data, wanted: Tensor, *, hops: int, fanout: int | None = None, most: float | None = None, pool: int = 0
) -> list[_Block]:
    """Count the blocks of a batch, the last layer first, from the probability (n,) of each node to be a target.

    A receiver hears `fanout` of its neighbours, or all of them; or `most` nodes are drawn per layer, out of the
    neighbours or out of a larger `pool`.
    """
    (senders, receivers), nodes = data.edge_index, len(wanted)
    degree = torch.bincount(receivers, minlength=nodes).float()
    share = torch.ones(nodes) if fanout is None else (fanout / degree.clamp(min=1)).clamp(max=1)
    found = []
    for _ in range(hops):
        expected = torch.zeros(nodes).index_add_(0, senders, (wanted * share)[receivers])
        reached, messages = -torch.expm1(-expected), float((wanted * share) @ degree)
        if most is not None:
            kept = min(1.0, most / max(1.0, pool, float(reached.sum())))
            reached, messages = kept * reached, kept * messages
        examined = float(wanted @ degree)
        wanted = 1 - (1 - wanted) * (1 - reached)
        found.append(_Block(float(wanted.sum()), messages, examined))
    return found


def _scope(data: Data, mask: Tensor, *, hops: int, fanout: int) -> float:
    """Return the mean size of the sampled subgraph of a training node, measured on some of them."""
    rng = np.random.default_rng(0)
    training = mask.nonzero().view(-1).numpy()
    some = rng.choice(training, min(len(training), SOME), replace=False)
    scopes = k_hop(*senders(data.edge_index, len(mask)), some, hops=hops, fanout=fanout, rng=rng)
    return len(scopes.ids) / max(1, len(some))
