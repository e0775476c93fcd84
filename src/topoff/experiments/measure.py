"""Measure message invariance as Section 5.2 does: train full-batch, then compare batches with the exact forward."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from topoff.batching.node_sets import NodeSets
from topoff.compensation.embeddings import random_network
from topoff.compensation.fidelity import Forward, compare_gradients, gradient, output_error
from topoff.compensation.top import TOP
from topoff.forward.call import caller, evaluating
from topoff.forward.plan import make_plan
from topoff.forward.subgraph import Subgraph, whole_graph
from topoff.graph.graph import Graph
from topoff.methods.gas import Gas
from topoff.tasks.metrics import METRICS, metric_for
from topoff.tasks.task import default_loss

MEASURED = ("top", "cluster", "drop", "gas")  # methods whose batches are compared


@dataclass(frozen=True)
class FullBatchModel:
    """Hold a model that was trained full-batch."""

    model: nn.Module
    earlier: nn.Module | None  # the same some epochs before the end


def train_full_batch(
    model: nn.Module,
    data: Data,
    *,
    epochs: int,
    lr: float,
    age: int | None = None,
    seed: int = 0,
    tell: Callable[[int, float], None] | None = None,
) -> FullBatchModel:
    """Train on the whole graph with Adam, on the fast operator, and keep the weights `age` epochs before the end.

    Raises:
        ValueError: for an age that is longer than the training.
    """
    if age is not None and not 0 <= age <= epochs:
        raise ValueError(f"Expected refresh-age to be between 0 and epochs = {epochs} (got {age}).")
    graph = Graph(data)
    plan = make_plan(model, graph)
    whole, handler, run = whole_graph(graph, plan), Subgraph(plan.convs), caller(model)
    loss_of, optimiser = default_loss(data.y), torch.optim.Adam(model.parameters(), lr=lr)
    earlier = None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for epoch in range(epochs):
            if age is not None and epoch == epochs - age:
                earlier = copy.deepcopy(model)
            model.train()
            with handler.on(whole):
                out = run(model, whole)
            loss = loss_of(out[data.train_mask], data.y[data.train_mask]) / int(data.train_mask.sum())
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            if tell:
                tell(epoch + 1, float(loss.detach()))
    return FullBatchModel(model, copy.deepcopy(model) if age == 0 else earlier)


def measure(
    trained: FullBatchModel, data: Data, *, sets: NodeSets, methods: tuple[str, ...], lr: float = 0.01, **settings: Any
) -> dict[str, Any]:
    """Compare every method's batches with the exact forward: {method: {relative_error, ...}}.

    `settings` go to `TOP`: rank, inits, estimator, seed. `lr` is that of the epoch of GAS (see `_after_gas`).
    """
    check_methods(methods)
    top = TOP(trained.model, data, batches=sets, refresh="never", tolerance=float("inf"), **settings)
    seed, inits = settings.get("seed", 0), settings.get("inits", 2)
    random = [random_network(trained.model, number, seed=seed) for number in range(1, inits + 1)]
    networks = random if trained.earlier is None else [trained.earlier]
    runs: dict[str, Forward] = {}
    if "top" in methods:
        top.prepare(networks=networks)
        if trained.earlier is not None:
            top.certify(trained.model)
        runs["top"] = top
    drop = TOP(trained.model, data, batches=sets, rank=0, refresh="never")
    drop.prepare()
    run = caller(trained.model)
    others: dict[str, Forward] = {"cluster": lambda batch: run(trained.model, batch), "drop": drop}
    runs |= {name: others[name] for name in methods if name in others}
    comparison = _Comparison(trained.model, drop, data)
    result: dict[str, Any] = {}
    for name in methods:
        if name == "gas":
            result[name] = _after_gas(trained.model, data, sets=sets, lr=lr)
        else:
            result[name] = comparison.of(runs[name], (top if name == "top" else drop).prepare().batches())
    if "top" in result:
        result["top"]["certificate"] = top.certificate_
    return result


def _after_gas(model: nn.Module, data: Data, *, sets: NodeSets, lr: float) -> dict[str, float]:
    """Return the errors of histories as training has them: of one epoch of GAS, at the weights in which it ends.

    With frozen weights histories become exact, so their error is one of moving weights. The epoch begins with the
    trained weights and histories that are exact for them.
    """
    model = copy.deepcopy(model)
    gas = Gas(model, data, batches=sets.method, ratio=sets.ratio, parts=sets.parts, seed=sets.seed)
    gas.prepare()
    optimiser, loss_of = torch.optim.Adam(model.parameters(), lr=lr), default_loss(data.y)

    def mean_loss(out: Tensor, batch: Data) -> Tensor:
        """Return the mean loss of a batch's training nodes."""
        return loss_of(out[batch.train_mask], batch.y[batch.train_mask]) / int(batch.train_mask.sum())

    model.train()
    for batch in gas.batches():
        optimiser.zero_grad()
        gas.learn(batch, mean_loss)
        optimiser.step()
    bare = TOP(model, data, batches=sets, rank=0, refresh="never")
    return _Comparison(model, bare, data).of(gas.forward, list(gas.cover()))


def check_methods(methods: tuple[str, ...]) -> None:
    """Refuse unknown methods."""
    for method in methods:
        if method not in MEASURED:
            raise ValueError(f"Expected methods to be among {', '.join(MEASURED)} (got '{method}').")


class _Comparison:
    """Compare ways to run batches with one exact forward and one exact gradient."""

    def __init__(self, model: nn.Module, exact: TOP, data: Data) -> None:
        """Run the exact forward and the exact gradient, once for all comparisons."""
        self.model, self.data, self.loss = model, data, default_loss(data.y)
        self.truth = exact.predict()
        whole = whole_graph(exact.graph, make_plan(model, exact.graph))
        self.gradient = gradient(model, exact, [whole], loss=self.loss)
        self.metric = metric_name(data.y)

    def of(self, run: Forward, batches: list[Data]) -> dict[str, float]:
        """Return the errors of one way to run the batches."""
        with evaluating(self.model):
            error, out = output_error(run, batches, self.truth)
        estimate = gradient(self.model, run, batches, loss=self.loss)
        gradient_error, cosine = compare_gradients(estimate, self.gradient)
        return {
            "relative_error": error,
            "accuracy_degradation": self._score(self.truth) - self._score(out),
            "gradient_error": gradient_error,
            "gradient_cosine": cosine,
        }

    def _score(self, out: Tensor) -> float:
        mask = self.data.test_mask if bool(self.data.test_mask.any()) else self.data.train_mask
        return METRICS[self.metric](out[mask], self.data.y[mask])


def metric_name(y: Tensor) -> str:
    """Choose the score: ROC-AUC for two classes, as the heterophilous benchmarks do, else by the labels.

    >>> metric_name(torch.tensor([0, 1, 1])), metric_name(torch.tensor([0, 1, 2]))
    ('roc_auc', 'accuracy')
    """
    two = not torch.is_floating_point(y) and int(y.max()) == 1
    return "roc_auc" if two else metric_for(y)
