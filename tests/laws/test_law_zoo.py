"""Every conv and every model of PyG is exact, or refused with its true reason: `pyg_convs` and `pyg_models` decide."""

import copy
import runpy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_geometric.nn.conv
import torch_geometric.nn.models
import zoo
from pyg_convs import CONVS
from pyg_models import MODELS
from pyg_zoo import ABSENT, EXACT, GRAPHS, REFUSED, Variant
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from topoff import TOP, predict

ROOT = Path(__file__).parents[2]
ROWS = [(name, variant) for table in (CONVS, MODELS) for name, variants in table.items() for variant in variants]
RATIO = 0.14  # seven batches
QUIET = float("inf")  # no certificate of so small a basis is worth a warning


def rows(verdict: str, graphs: list[str] | None = None) -> list[Any]:
    """Return the variants with a verdict, each on every one of the graphs."""
    return [
        pytest.param(variant, graph, id=f"{name}({variant.what})-{graph}")
        for name, variant in ROWS
        for graph in graphs or GRAPHS
        if variant.verdict == verdict and graph not in variant.not_on
    ]


def lazy(model: nn.Module) -> bool:
    """Say whether a model draws its weights at the first call."""
    return any(map(is_lazy, model.parameters()))


def tensors(out: Any) -> list[Tensor]:
    """Return the tensors of an output, which may be a tuple or a dict of them."""
    if isinstance(out, Tensor):
        return [out]
    return [tensor for item in (out.values() if isinstance(out, dict) else out) for tensor in tensors(item)]


def pull(out: Tensor) -> Tensor:
    """Return the direction in which an output is pulled."""
    return torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)


def gradients(model: nn.Module, outs: list[Tensor]) -> list[Tensor]:
    """Pull at every output and return the gradient of every parameter, zero where there is none."""
    losses = [(out * pull(out)).sum() for out in outs if out.requires_grad]
    if losses:
        torch.stack(losses).sum().backward()
    return [torch.zeros_like(each) if each.grad is None else each.grad for each in model.parameters()]


@pytest.mark.parametrize(
    ("module", "table"),
    [(torch_geometric.nn.conv, CONVS), (torch_geometric.nn.models, MODELS)],
    ids=["convs", "models"],
)
def test_somebody_has_decided_about_every_class(module, table):
    assert table.keys() == set(module.__all__), "decide: exact, or refused with which reason?"


@pytest.mark.parametrize(("variant", "graph"), rows(EXACT))
def test_exact_in_batches(variant: Variant, graph: str):
    data = variant.graph(graph)
    model = variant.model(data)
    plain = copy.deepcopy(model)
    out = predict(model, data, ratio=RATIO, batches="random", call=variant.call)
    plain = model if lazy(plain) else plain  # its weights are drawn at the first call
    with torch.no_grad():
        truth = variant.full_batch(plain, data)
    zoo.assert_near(tensors(out), tensors(truth), tolerance=1e-9)


@pytest.mark.parametrize(("variant", "graph"), rows(EXACT, ["lonely"]))
def test_one_batch_is_the_full_batch_with_its_gradient(variant: Variant, graph: str):
    data = variant.graph(graph)
    model = variant.model(data)
    if lazy(model):
        variant.full_batch(model, data)  # draws its weights
    plain = copy.deepcopy(model)
    top = TOP(model, data, ratio=1.0, rank=4, tolerance=QUIET, call=variant.call)
    (batch,) = top
    outs = tensors(top(batch))
    truths = [out[batch.n_id] for out in tensors(variant.full_batch(plain, data))]
    zoo.assert_near(outs, truths, tolerance=1e-9)
    zoo.assert_near(gradients(model, outs), gradients(plain, truths), tolerance=1e-9)


@pytest.mark.parametrize(("variant", "graph"), rows(EXACT, ["undirected"]))
def test_compensated_batches_train(variant: Variant, graph: str):
    data = variant.graph(graph)
    model = variant.model(data)
    top = TOP(model, data, ratio=0.3, rank=8, batches="random", tolerance=QUIET, call=variant.call)
    for batch in top:
        outs = tensors(top(batch))
        assert all(len(out) == batch.batch_size and out.isfinite().all() for out in outs)
        assert all(gradient.isfinite().all() for gradient in gradients(model, outs))
    for each in model.parameters():  # away from the refresh: there, rows of zeros inside and outside are equally large
        if each.requires_grad and each.is_floating_point():
            each.data += 0.01 * torch.randn_like(each)
    assert_gradient_of_what_is_computed(model, lambda: tensors(top(batch)))


def assert_gradient_of_what_is_computed(model: nn.Module, run: Callable[[], list[Tensor]]) -> None:
    """Compare a gradient with central differences in one direction: what backward computes again is the same."""
    moving = [each for each in model.parameters() if each.requires_grad]
    model.zero_grad()
    gradients(model, run())
    ways = [torch.randn_like(each) for each in moving]
    slope = sum(float((each.grad * way).sum()) for each, way in zip(moving, ways, strict=True) if each.grad is not None)
    values = []
    for step in (1e-6, -2e-6):
        for each, way in zip(moving, ways, strict=True):
            each.data += step * way
        values.append(sum(float((out * pull(out)).sum().detach()) for out in run()))
    assert slope == pytest.approx((values[0] - values[1]) / 2e-6, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize(("variant", "graph"), rows(REFUSED, ["directed", "lonely"]))
def test_refused_with_the_reason(variant: Variant, graph: str):
    data = variant.graph(graph)
    for key in ("x", "edge_weight", "edge_attr", "pos", "normal"):
        if key in data:
            data[key] = data[key].float()  # as users have it
    model = variant.model(data)
    with warnings.catch_warnings(action="ignore"):
        variant.full_batch(copy.deepcopy(model), data)  # PyG itself can
    with pytest.raises((ValueError, TypeError), match=variant.match) as refusal:
        predict(model, data, ratio=RATIO, batches="random", call=variant.call)
    assert str(refusal.value).startswith("Expected")
    with pytest.raises((ValueError, TypeError), match=variant.match):
        TOP(model, data, ratio=RATIO, rank=2, batches="random", call=variant.call).prepare()


@pytest.mark.parametrize(("variant", "graph"), rows(ABSENT, ["directed"]))
def test_pyg_itself_asks_for_another_package(variant: Variant, graph: str):
    data = variant.graph(graph)
    with pytest.raises(ImportError):
        variant.full_batch(variant.model(data), data)


def test_whoever_is_refused_or_left_aside_is_told_why():
    assert all(variant.reason for _, variant in ROWS if variant.verdict != EXACT)
    assert all(variant.match for _, variant in ROWS if variant.verdict == REFUSED)


def test_page_and_readme_are_written_from_the_table():
    script = runpy.run_path(str(ROOT / "scripts" / "models.py"))
    for path, text in script["written"]().items():
        assert path.read_text() == text, f"{path.name} is stale: run python scripts/models.py"
