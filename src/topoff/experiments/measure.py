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
from topoff.forward.subgraph import Subgraph, whole_graph
from topoff.forward.trial import make_plan
from topoff.graph.graph import Graph
from topoff.methods.gas import Gas
from topoff.tasks.metrics import METRICS
from topoff.tasks.task import default_loss, task_of

MEASURED = ("top", "cluster", "drop", "gas")  # methods whose batches are compared


@dataclass(frozen=True)
class FullBatchModel:
    """Hold a model that was trained full-batch."""

    model: nn.Module
    earlier: nn.Module | None  # the same some epochs before the end


def standardized(data: Data) -> Data:
    """Return a graph whose regression targets have mean 0 and deviation 1, as training has them; others unchanged.

    >>> ring = torch.tensor([[0, 1, 2], [1, 2, 0]])
    >>> data = Data(x=torch.eye(3), edge_index=ring, y=torch.tensor([10.0, 20.0, 30.0]), train_mask=torch.ones(3) > 0)
    >>> standardized(data).y
    tensor([-1.,  0.,  1.])
    """
    task = task_of(data.y, train_mask=data.train_mask)
    if task.kind != "regression":
        return data
    changed = copy.copy(data)
    changed.y = ((data.y.double() - task.center) / task.scale).to(data.x.dtype)
    return changed


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
    loss_of, optimizer = default_loss(data.y), torch.optim.Adam(model.parameters(), lr=lr)
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
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if tell:
                tell(epoch + 1, float(loss.detach()))
    return FullBatchModel(model, copy.deepcopy(model) if age == 0 else earlier)


def measure(
    trained: FullBatchModel,
    data: Data,
    *,
    sets: NodeSets,
    methods: tuple[str, ...],
    lr: float = 0.01,
    gradients: bool = True,
    truth: Tensor | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Compare every method's batches with the exact forward: {method: {relative_error, ...}}.

    `settings` go to `TOP`: rank, inits, estimator, seed; with `refresh` and an earlier model, batches have its offset.
    GAS has histories of the earlier model, too, where there is one; else those of an epoch of its own with the rate
    `lr`, at whose end it is measured, at other weights (see `_after_gas`). Without `gradients` theirs are not compared,
    and their keys are absent: a backward pass of every batch and of the whole graph is most of the time. `truth`
    (n, out) is the model's exact output, where the caller has it (`exact_output`).
    """
    check_methods(methods)
    settings = {"refresh": "never", **settings}
    top = TOP(trained.model, data, batches=sets, tolerance=float("inf"), **settings)
    if "top" in methods and trained.earlier is not None:
        top.prepare(networks=[trained.earlier])
        top.certify(trained.model)
    elif "top" in methods:
        seed, inits = settings.get("seed", 0), settings.get("inits", 2)
        top.prepare(networks=[random_network(trained.model, number, seed=seed) for number in range(1, inits + 1)])
    drop, run = _bare(trained.model, data, sets=sets), caller(trained.model)
    runs: dict[str, Forward] = {"top": top, "drop": drop, "cluster": lambda batch: run(trained.model, batch)}
    comparison = _Comparison(trained.model, drop, data, gradients=gradients, truth=truth)
    result: dict[str, Any] = {}
    for name in methods:
        if name == "gas" and trained.earlier is not None:
            result[name] = _aged_gas(trained, data, sets=sets, gradients=gradients, truth=comparison.truth)
        elif name == "gas":
            result[name] = _after_gas(trained.model, data, sets=sets, lr=lr, gradients=gradients)
        else:
            result[name] = comparison.of(runs[name], (top if name == "top" else drop).prepare().batches())
    if "top" in result:
        result["top"]["certificate"] = top.certificate_
    return result


def exact_output(model: nn.Module, data: Data, *, sets: NodeSets) -> Tensor:
    """Return the output of all nodes, in eval mode; (n, out)."""
    out: Tensor = _bare(model, data, sets=sets).predict()
    return out


def _bare(model: nn.Module, data: Data, *, sets: NodeSets) -> TOP:
    """Return batches that see nothing outside but the first layer's messages; nothing is done before they are used."""
    return TOP(model, data, batches=sets, rank=0, refresh="never", offset=False)


def _after_gas(model: nn.Module, data: Data, *, sets: NodeSets, lr: float, gradients: bool) -> dict[str, float]:
    """Return the errors of histories as training has them: of one epoch of GAS, at the weights in which it ends.

    With frozen weights histories become exact, so their error is one of moving weights. The epoch begins with the
    trained weights and histories that are exact for them.
    """
    model = copy.deepcopy(model)
    gas = Gas(model, data, batches=sets)
    gas.prepare()
    optimizer, loss_of = torch.optim.Adam(model.parameters(), lr=lr), default_loss(data.y)

    def mean_loss(out: Tensor, batch: Data) -> Tensor:
        """Return the mean loss of a batch's training nodes."""
        return loss_of(out[batch.train_mask], batch.y[batch.train_mask]) / int(batch.train_mask.sum())

    model.train()
    for batch in gas.batches():
        optimizer.zero_grad()
        gas.learn(batch, mean_loss)
        optimizer.step()
    return _Comparison(model, _bare(model, data, sets=sets), data, gradients=gradients).of(
        gas.forward, list(gas.cover())
    )


def _aged_gas(
    trained: FullBatchModel, data: Data, *, sets: NodeSets, gradients: bool, truth: Tensor
) -> dict[str, float]:
    """Return the errors of histories that are exact for the weights of the earlier model, at the weights of now."""
    model = copy.deepcopy(trained.earlier)
    assert model is not None
    gas = Gas(model, data, batches=sets)
    gas.prepare()
    model.load_state_dict(trained.model.state_dict())
    comparison = _Comparison(model, _bare(model, data, sets=sets), data, gradients=gradients, truth=truth)
    return comparison.of(gas.forward, list(gas.cover()))


def check_methods(methods: tuple[str, ...]) -> None:
    """Refuse unknown methods, and one that stands twice.

    >>> check_methods(("top", "lmc"))
    Traceback (most recent call last):
    ValueError: Expected methods to be among top, cluster, drop, gas (got 'lmc').
    """
    for method in methods:
        if method not in MEASURED:
            raise ValueError(f"Expected methods to be among {', '.join(MEASURED)} (got '{method}').")
        if methods.count(method) > 1:
            raise ValueError(f"Expected methods to name each method once (got '{method}' twice).")


class _Comparison:
    """Compare ways to run batches with one exact forward and, where `gradients` are wanted, one exact gradient."""

    def __init__(
        self, model: nn.Module, exact: TOP, data: Data, *, gradients: bool, truth: Tensor | None = None
    ) -> None:
        """Run the exact forward, where its output is not given, and the exact gradient, once for all comparisons."""
        self.model, self.y, self.loss = model, data.y, default_loss(data.y)
        self.truth = exact.predict() if truth is None else truth
        self.gradient: Tensor | None = None
        if gradients:
            exact.prepare()
            whole = whole_graph(exact.graph, make_plan(model, exact.graph))
            self.gradient = gradient(model, exact, [whole], loss=self.loss)
        self.score = METRICS[task_of(data.y, train_mask=data.train_mask).metric]
        self.scored = data.test_mask if bool(data.test_mask.any()) else data.train_mask

    def of(self, run: Forward, batches: list[Data]) -> dict[str, float]:
        """Return the errors of one way to run the batches."""
        with evaluating(self.model):
            error, out = output_error(run, batches, self.truth)
        seen = torch.zeros(len(out), dtype=torch.bool)
        seen[torch.cat([batch.n_id for batch in batches])] = True  # sampled sets may leave nodes out
        scored = self.scored & seen
        found = {
            "relative_error": error,
            "accuracy_degradation": self._lost(out, scored) if bool(scored.any()) else float("nan"),
            "mean_degradation": self._mean_lost(out, [batch.n_id for batch in batches]),
        }
        if self.gradient is None:
            return found
        estimate = gradient(self.model, run, batches, loss=self.loss)
        gradient_error, cosine = compare_gradients(estimate, self.gradient)
        return found | {"gradient_error": gradient_error, "gradient_cosine": cosine}

    def _lost(self, out: Tensor, nodes: Tensor) -> float:
        """Return how much lower than the exact score that of some outputs is."""
        return self.score(self.truth[nodes], self.y[nodes]) - self.score(out[nodes], self.y[nodes])

    def _mean_lost(self, out: Tensor, sets: list[Tensor]) -> float:
        """Return the same as the paper has it: a mean over batches, of their own test nodes."""
        scored = [nodes[self.scored[nodes]] for nodes in sets]
        lost = [self._lost(out, nodes) for nodes in scored if len(nodes)]
        known = [value for value in lost if value == value]  # a batch of one class has no ROC-AUC
        return sum(known) / len(known) if known else float("nan")
