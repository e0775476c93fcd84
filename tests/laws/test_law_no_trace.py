"""Wrapping leaves no trace: the bare model is the user's own before, between and after batches, and after errors."""

import copy
from typing import Any

import pytest
import torch
import zoo
from torch import Tensor, nn
from torch_geometric.data import Data

from graphs import communities
from topoff import TOP, compensating, predict
from topoff.forward.exact import exact
from topoff.forward.trial import make_plan
from topoff.graph.graph import Graph

NAMES = [
    "gcn_weighted",
    "gcn_cached",
    "sg_cached",
    "sage_mean",
    "tag",
    "gcn2",
    "gat",
    "pna",
    "mixed",
    "nested",
    "shared",
]


def graph_of() -> Data:
    """Return a graph whose last nodes only receive: the piece on which a model is tried does not reach them."""
    data = communities(48, groups=3, directed=True, weighted=True, edge_features=2)
    return data.edge_subgraph(data.edge_index[0] < 42)


def snapshot(model: nn.Module) -> dict[str, dict[str, Any]]:
    """Return the attributes of every module, its hooks and registries copied one level deep."""
    return {
        name: {key: dict(value) if isinstance(value, dict) else value for key, value in vars(module).items()}
        for name, module in model.named_modules()
    }


def assert_untouched(model: nn.Module, before: dict[str, dict[str, Any]]) -> None:
    """Demand the same attributes, each the very same object, down to the entries of dicts."""
    after = snapshot(model)
    assert after.keys() == before.keys()
    for name, attributes in before.items():
        assert list(after[name]) == list(attributes), name
        for key, value in attributes.items():
            now = after[name][key]
            if isinstance(value, dict):
                assert list(now) == list(value), (name, key)
                assert all(now[entry] is value[entry] for entry in value), (name, key)
            else:
                assert now is value, (name, key)


def use(model: nn.Module, data: Data) -> TOP:
    """Do everything with a model that TOP can do, except training it."""
    top = TOP(model, data, ratio=0.25, rank=4, batches="random", tolerance=9.0)
    for batch in top:
        top(batch)
    top.evaluate()
    top.fidelity(gradients=True)
    top.refresh()
    return top


@pytest.mark.parametrize("name", NAMES)
def test_using_a_model_leaves_its_attributes_alone(name):
    data = graph_of()
    model = zoo.make(name, data).eval()
    before = snapshot(model)
    use(model, data)
    assert_untouched(model, before)
    predict(model, data, ratio=0.25, batches="random")
    assert_untouched(model, before)


@pytest.mark.parametrize("name", NAMES)
def test_using_a_model_leaves_its_face_alone(name):
    data = graph_of()
    model = zoo.make(name, data).eval()
    before, text = copy.deepcopy(model.state_dict()), repr(model)
    top = use(model, data)
    assert repr(model) == text
    assert list(model.state_dict()) == list(before) == list(top.state_dict())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert [module.training for module in model.modules()] == [False] * len(list(model.modules()))


@pytest.mark.parametrize("name", NAMES)
def test_the_bare_model_works_as_before(name):
    data = graph_of()
    model = zoo.make(name, data).eval()
    truth = zoo.full_batch(copy.deepcopy(model), data)
    top = TOP(model, data, ratio=0.25, rank=4, batches="random")
    for batch in top:
        assert torch.equal(zoo.full_batch(copy.deepcopy(model), data), truth)
        top(batch)
    assert torch.equal(zoo.full_batch(model, data), truth)


@pytest.mark.parametrize("name", ["gcn_cached", "sg_cached"])
def test_a_filled_cache_is_neither_used_nor_changed(name):
    data = graph_of()
    model = zoo.make(name, data).eval()
    truth = zoo.full_batch(model, data)
    before = snapshot(model)
    top = TOP(model, data, ratio=0.25, rank=4, batches="random")
    for batch in top:
        top(batch)
    zoo.assert_near(top.predict(), truth, tolerance=1e-10)
    assert_untouched(model, before)
    assert torch.equal(zoo.full_batch(model, data), truth)


@pytest.mark.parametrize("name", ["gcn_weighted", "gat", "mixed"])
def test_hooks_stay_and_fire(name):
    data = graph_of()
    model, calls = zoo.make(name, data).eval(), []
    conv = next(module for module in model.modules() if hasattr(module, "propagate"))
    conv.register_forward_hook(lambda module, given, out: calls.append(len(out)))
    top = TOP(model, data, ratio=0.25, rank=4, batches="random")
    (batch, *_) = top
    before = snapshot(model)
    calls.clear()
    top(batch)
    assert calls == [batch.num_nodes]
    assert_untouched(model, before)


class Fails(zoo.Stack):
    """Fail after the first conv when asked to."""

    failing = False

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.convs[0](x, edge_index)
        if self.failing:
            raise RuntimeError("the user's own mistake")
        return self.convs[1](x, edge_index)


@pytest.mark.parametrize("name", ["gcn", "sage_mean", "gat", "sage_max"])
def test_an_error_inside_a_batch_leaves_no_trace(name):
    data = graph_of()
    model = Fails(list(zoo.make(name, data).convs)).eval()
    truth = zoo.full_batch(model, data)
    top = TOP(model, data, ratio=0.25, rank=4, batches="random")
    (batch, *_) = top
    model.failing = True
    before = snapshot(model)
    with pytest.raises(RuntimeError, match="own mistake"):
        top(batch)
    assert_untouched(model, before)
    with pytest.raises(RuntimeError, match="own mistake"), compensating(model, batch):
        model(batch.x, batch.edge_index)
    assert_untouched(model, before)
    with pytest.raises(RuntimeError, match="own mistake"):
        top.evaluate()
    assert_untouched(model, before)
    model.failing = False
    assert torch.equal(zoo.full_batch(model, data), truth)
    assert torch.isfinite(top(batch)).all()


@pytest.mark.parametrize("name", ["gcn", "gat"])
def test_an_error_while_a_batch_sleeps_leaves_no_trace(name):
    """Exact inference runs all batches in step; the second one fails while the first waits."""
    data = graph_of()
    model, graph = zoo.make(name, data).eval(), Graph(data)
    before, calls = snapshot(model), []

    def call(module: nn.Module, batch: Data) -> Tensor:
        calls.append(batch)
        if len(calls) == 2:
            raise RuntimeError("the second batch")
        return module(batch.x, batch.edge_index)

    with pytest.raises(ValueError, match="second batch"):
        exact(
            model,
            graph,
            [graph.induced(nodes) for nodes in torch.arange(48).tensor_split(3)],
            plan=make_plan(model, graph),
            call=call,
        )
    assert_untouched(model, before)


@pytest.mark.parametrize("name", ["gcn", "gat"])
def test_a_forward_bound_to_the_instance_survives(name):
    """Libraries that bind `module.forward` (offloading, quantisation, tracing) find it again."""
    data = graph_of()
    model = zoo.make(name, data).eval()
    conv = model.convs[0]
    own = type(conv).forward
    conv.forward = lambda *args, **kwargs: 2 * own(conv, *args, **kwargs)
    truth, before = zoo.full_batch(model, data), snapshot(model)
    top = TOP(model, data, ratio=1.0, rank=4)
    (batch,) = top
    zoo.assert_near(top(batch), truth[batch.n_id], tolerance=1e-12)
    assert_untouched(model, before)
