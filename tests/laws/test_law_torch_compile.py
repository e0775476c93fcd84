"""A compiled model gives what the eager one gives: outputs and gradients, in batches and bare."""

import copy
import shutil
from collections.abc import Iterator

import pytest
import torch
import zoo
from torch import nn
from torch_geometric.data import Data

from graphs import communities, node_sets
from topoff import TOP, NodeSets

pytestmark = [  # of the compiler's own, in its own modules
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """Compile anew in every test."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def graph_of() -> Data:
    return communities(40, groups=3, directed=True, weighted=True)


def uneven() -> NodeSets:
    """Return batches of four sizes: what was compiled for one must serve the others."""
    order = torch.randperm(40, generator=torch.Generator().manual_seed(3))
    return node_sets(list(order.split([18, 12, 6, 4])))


def assert_batches_equal(model: nn.Module, compiled: nn.Module, data: Data, *, passes: int = 2) -> None:
    """Demand the eager model's outputs, gradients and predictions; in a second pass nothing is compiled anew."""
    eager = copy.deepcopy(model)
    tops = TOP(compiled, data, batches=uneven(), rank=3), TOP(eager, data, batches=uneven(), rank=3)
    for _ in range(passes):
        for batch, other in zip(*(top.prepare().batches() for top in tops), strict=True):
            assert torch.equal(batch.n_id, other.n_id)
            out, truth = tops[0](batch), tops[1](other)
            zoo.assert_near(out, truth, tolerance=1e-10)
            pull = torch.randn_like(truth)
            zoo.assert_near(
                zoo.gradients(model, (out * pull).sum()), zoo.gradients(eager, (truth * pull).sum()), tolerance=1e-10
            )
    zoo.assert_near(tops[0].predict(), tops[1].predict(), tolerance=1e-10)


def bare(model: nn.Module, data: Data) -> torch.Tensor:
    """Call the model on the whole graph, compiled or not."""
    weights = (data.edge_weight,) if isinstance(getattr(model, "_orig_mod", model), zoo.Weighted) else ()
    return model(data.x, data.edge_index, *weights)


@pytest.mark.parametrize(
    ("name", "bare_first"),
    [
        ("gcn_weighted", True),
        ("gcn_weighted", False),
        ("sage_mean", True),
        ("gin", False),
        ("gat", True),
        ("gat", False),
    ],
)
def test_compiled_equals_eager(name, bare_first):
    data = graph_of()
    model = zoo.make(name, data)
    compiled = torch.compile(model, backend="aot_eager")
    if bare_first:
        zoo.assert_near(bare(compiled, data), bare(copy.deepcopy(model), data), tolerance=1e-12)
    assert_batches_equal(model, compiled, data)
    zoo.assert_near(bare(compiled, data), bare(copy.deepcopy(model), data), tolerance=1e-12)


@pytest.mark.parametrize(("name", "when"), [("sage_mean", "after"), ("gat", "before")])
def test_a_model_compiled_in_place_equals_eager(name, when):
    """Before it is wrapped, or after the batches were prepared."""
    data = graph_of()
    model = zoo.make(name, data)
    eager = copy.deepcopy(model)
    tops = TOP(model, data, batches=uneven(), rank=3), TOP(eager, data, batches=uneven(), rank=3)
    if when == "after":
        tops[0].prepare()
    model.compile(backend="aot_eager")
    for batch, other in zip(*(top.prepare().batches() for top in tops), strict=True):
        zoo.assert_near(tops[0](batch), tops[1](other), tolerance=1e-10)


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler, and there is none")
def test_inductor_equals_eager():
    data = graph_of()
    model = zoo.make("gcn_weighted", data)
    assert_batches_equal(model, torch.compile(model), data, passes=1)
