"""Mixed and half precision: what PyG computes with fewer digits TOP computes so too, near the float32 result."""

import copy
from collections.abc import Callable

import pytest
import torch
import torch_geometric.nn as gnn
import zoo
from torch import Tensor, nn
from torch_geometric.data import Data

from graphs import communities
from topoff import TOP, predict
from topoff.methods.registry import METHODS

NEAR = {torch.bfloat16: 0.05, torch.float16: 0.01}  # relative, of outputs; gradients: four times that
WIDTHS = (8, 4)

LAYERS: dict[str, Callable[[int, int], nn.Module]] = {
    "gcn": gnn.GCNConv,
    "gcn_unbiased": lambda a, b: gnn.GCNConv(a, b, bias=False),
    "sage": gnn.SAGEConv,
    "graph": gnn.GraphConv,
    "tag": gnn.TAGConv,
    "gin": lambda a, b: gnn.GINConv(nn.Linear(a, b)),
    "gat": gnn.GATConv,
    "sage_max": lambda a, b: gnn.SAGEConv(a, b, aggr="max"),
}


def network(name: str) -> nn.Module:
    torch.manual_seed(0)
    return zoo.Stack([LAYERS[name](5, WIDTHS[0]), LAYERS[name](*WIDTHS)])


def wrapped(model: nn.Module, data: Data, **settings: object) -> TOP:
    return TOP(model, data, ratio=0.25, rank=8, batches="random", tolerance=9.0, **settings)


def near(got: Tensor, truth: Tensor) -> float:
    got, truth = got.detach().double(), truth.detach().double()
    return float((got - truth).norm() / truth.norm())


def run(top: TOP, batch: Data) -> tuple[Tensor, Tensor]:
    """Return the output of a batch and the gradient of its squares."""
    out = top(batch)
    parts = torch.autograd.grad(out.float().square().sum(), list(top.model.parameters()))
    return out, torch.cat([part.float().view(-1) for part in parts])


@pytest.mark.parametrize("dtype", NEAR)
@pytest.mark.parametrize("name", LAYERS)
def test_autocast_is_near_float32_and_has_the_type_of_pyg(name: str, dtype: torch.dtype) -> None:
    data = communities(64, dtype=torch.float32)
    model = network(name)
    top = wrapped(model, data)
    for batch in top.cover():
        truth, gradient = run(top, batch)
        with torch.autocast("cpu", dtype=dtype):
            out, halved = run(top, batch)
            assert out.dtype == model(data.x, data.edge_index).dtype
        assert 0 < near(out, truth) < NEAR[dtype]
        assert 0 < near(halved, gradient) < 4 * NEAR[dtype]


@pytest.mark.parametrize("name", LAYERS)
def test_exact_inference_runs_under_autocast_as_the_plain_model_does(name: str) -> None:
    data, model = communities(64, dtype=torch.float32), network(name).eval()
    top = wrapped(model, data)
    top.prepare()
    with torch.autocast("cpu"), torch.no_grad():
        truth = model(data.x, data.edge_index)
        out = top.predict()
    assert out.dtype == truth.dtype
    assert near(out, truth) < 0.02
    assert near(top.predict(), truth) > 0, "outside of autocast the digits are back"


@pytest.mark.parametrize("name", ["gcn", "sage", "gat"])
def test_all_that_is_measured_under_autocast_is_near_what_is_measured_without(name: str) -> None:
    data, model = communities(64, dtype=torch.float32), network(name).eval()
    plain, mixed = wrapped(model, data), wrapped(model, data)
    with torch.autocast("cpu"):
        mixed.refresh()
        seen, scores, certificate = mixed.fidelity(gradients=True), mixed.evaluate(), mixed.certify()
    plain.refresh()
    truth = plain.fidelity(gradients=True)
    assert seen.output == pytest.approx(truth.output, abs=0.02)
    assert [error for _, error in seen.layers] == pytest.approx([error for _, error in truth.layers], abs=0.02)
    assert seen.gradient_error == pytest.approx(truth.gradient_error, abs=0.05)
    assert certificate == pytest.approx(plain.certify(), rel=0.05)
    assert scores.keys() == plain.evaluate().keys()
    for batch in mixed.cover():
        assert batch.compensation.read.dtype == torch.float32, "estimated in full precision"


@pytest.mark.parametrize("dtype", NEAR)
@pytest.mark.parametrize("name", LAYERS)
def test_a_model_in_half_precision_is_near_the_same_in_float32(name: str, dtype: torch.dtype) -> None:
    data = communities(64, dtype=dtype)
    model, whole = network(name).to(dtype), communities(64, dtype=torch.float32)
    whole.x = data.x.float()
    top, truth = wrapped(model, data), wrapped(copy.deepcopy(model).float(), whole)
    for batch, same in zip(top.cover(), truth.cover(), strict=True):
        assert batch.x.dtype == dtype
        (out, gradient), (true_out, true_gradient) = run(top, batch), run(truth, same)
        assert out.dtype == dtype
        assert near(out, true_out) < NEAR[dtype]
        assert near(gradient, true_gradient) < 4 * NEAR[dtype]
    assert top.refresh().dtype == dtype
    assert top.fidelity(gradients=True).output == pytest.approx(truth.fidelity().output, abs=0.02)
    assert top.evaluate()["train"] >= 0
    with torch.no_grad():
        plain = model.eval()(data.x, data.edge_index)
    assert near(predict(model, data, ratio=0.5, batches="random"), plain) < NEAR[dtype]


def test_half_precision_can_be_cached(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TOPOFF_CACHE", str(tmp_path))
    data = communities(64, dtype=torch.bfloat16)
    outs = []
    for _ in range(2):
        top = wrapped(network("gcn").bfloat16(), data, cache=True)
        outs.append(top(top.cover()[0]))
    assert torch.equal(*outs)


def test_features_in_half_precision_are_widened_for_a_model_in_float32() -> None:
    top = wrapped(network("gcn"), communities(64, dtype=torch.bfloat16))
    assert top(next(iter(top))).dtype == torch.float32


def test_a_model_in_half_precision_on_wider_features_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Expected the model in the type of the features, torch.float32 \(got torch"):
        wrapped(network("gcn").bfloat16(), communities(64, dtype=torch.float32)).prepare()


@pytest.mark.parametrize("half", ["autocast", "model"])
@pytest.mark.parametrize("name", ["full", "cluster", "gas", "ns", "lmc", "graphfm-ob", "vrgcn"])
def test_other_methods_are_near_float32_too(name: str, half: str) -> None:
    found = []
    for few in (False, True):
        dtype = torch.bfloat16 if few and half == "model" else torch.float32
        model, kind = network("gcn").to(dtype), METHODS[name]
        settings = {"ratio": 0.25, "batches": "random"}
        method = kind(
            model, communities(64, dtype=dtype), **{key: settings[key] for key in settings if key in kind.settings}
        )
        method.prepare()
        with torch.autocast("cpu", enabled=few and half == "autocast"):
            method.learn(next(iter(method.batches())), lambda out, _: out.float().square().sum())
        found.append(torch.cat([parameter.grad.float().view(-1) for parameter in model.parameters()]))
    assert 0 < near(found[1], found[0]) < 4 * NEAR[torch.bfloat16]
