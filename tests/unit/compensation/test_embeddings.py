"""Basic embeddings and random initialisations."""

import functools
import importlib
import linecache
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn
from torch.nn import functional as F

from graphs import communities
from topoff.compensation.embeddings import embed, reinitialized
from topoff.forward.fingerprint import fingerprint
from topoff.forward.trial import make_plan
from topoff.graph.graph import Graph


def embedded(model: nn.Module, n: int = 20) -> tuple[list[tuple[str, int, Tensor]], Tensor]:
    graph = Graph(communities(n))
    batches = [graph.induced(torch.arange(n)[i::2]) for i in range(2)]
    seen: list[tuple[str, int, Tensor]] = []

    def collect(place: str, rows: Tensor) -> None:
        name, _, hop = place.rsplit("/", 2)
        seen.append((name, int(hop), rows))

    return seen, embed(model, graph, batches, plan=make_plan(model, graph), collect=collect)


def test_embeddings_are_the_inputs_of_the_convs_without_the_raw_features() -> None:
    data, model = communities(20), gnn.GCN(5, 8, num_layers=2, out_channels=3).double()
    seen, out = embedded(model)
    assert [(name, hop) for name, hop, _ in seen] == [("convs.1", 0)]
    assert torch.allclose(seen[0][2], model.convs[0](data.x, data.edge_index).relu())
    assert torch.allclose(out, model(data.x, data.edge_index))


def test_fixed_propagations_of_the_features_are_left_out() -> None:
    seen, _ = embedded(gnn.SGConv(5, 3, K=3).double())
    assert seen == []


def test_inner_propagations_of_embeddings_are_kept() -> None:
    seen, _ = embedded(gnn.APPNP(3, 0.2))
    assert [hop for _, hop, _ in seen] == [1, 2]


def test_the_users_own_call_is_used() -> None:
    data, model = communities(20), gnn.GCN(5, 8, num_layers=2, out_channels=3).double()
    graph = Graph(data)

    def call(module: nn.Module, batch: object) -> Tensor:
        return 3 * module(batch.x, batch.edge_index)

    batches = [graph.induced(torch.arange(20))]
    out = embed(model, graph, batches, plan=make_plan(model, graph, call=call), collect=lambda *_: None, call=call)
    assert torch.allclose(out, 3 * model(data.x, data.edge_index))


def parameters(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


class Bare(nn.Module):
    """Has a parameter that nothing resets."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.scale = gnn.GCNConv(5, 3), nn.Parameter(torch.ones(3))


class Nested(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner


class Responsible(Nested):
    """Resets its inner module's parameters itself."""

    def reset_parameters(self) -> None:
        nn.init.normal_(self.inner.scale)


def test_random_initializations_are_deterministic_by_seed() -> None:
    model = gnn.GCN(5, 8, num_layers=2)
    assert torch.equal(parameters(reinitialized(model, 3)), parameters(reinitialized(model, 3)))
    assert not torch.equal(parameters(reinitialized(model, 3)), parameters(reinitialized(model, 4)))


def test_a_random_initialization_changes_every_weight_of_the_copy_and_none_of_the_model() -> None:
    model = gnn.GCN(5, 8, num_layers=2)
    before = parameters(model).clone()
    fresh = reinitialized(model, 0)
    assert torch.equal(parameters(model), before)
    for old, new in zip(model.parameters(), fresh.parameters(), strict=True):
        assert old.dim() == 1 or not torch.equal(old, new)


def test_the_global_generator_is_left_alone() -> None:
    model, before = gnn.GCN(5, 8, num_layers=2), torch.get_rng_state()
    reinitialized(model, 7)
    assert torch.equal(torch.get_rng_state(), before)


def test_running_statistics_start_anew() -> None:
    model = gnn.GCN(5, 8, num_layers=2, norm="batch_norm")
    model.norms[0].module.running_mean += 5
    assert bool((reinitialized(model, 0).norms[0].module.running_mean == 0).all())


@pytest.mark.parametrize(("model", "name"), [(Bare(), "scale"), (Nested(Bare()), "inner.scale")], ids=["top", "nested"])
def test_a_parameter_that_nothing_resets_is_an_error(model: nn.Module, name: str) -> None:
    expected = rf"reset_parameters\(\) \(got parameter '{name}' that nothing resets\).*inits=1"
    with pytest.raises(ValueError, match=expected):
        reinitialized(model, 0)


def test_a_module_above_may_reset_the_parameter() -> None:
    fresh = reinitialized(Responsible(Bare()), 0)
    assert not torch.equal(fresh.inner.scale, torch.ones(3))


def test_the_generator_is_left_alone_after_an_error_too() -> None:
    model, before = Bare(), torch.get_rng_state()
    with pytest.raises(ValueError, match="nothing resets"):
        reinitialized(model, 0)
    assert torch.equal(torch.get_rng_state(), before)


# fingerprints


class Own(nn.Module):
    """Holds settings of every kind, none of them a weight."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.conv = gnn.GCNConv(5, 3)
        for name, value in settings.items():
            setattr(self, name, value)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(x, edge_index)


class Box:
    """Holds the settings of a model."""

    def __init__(self, inner: object) -> None:
        self.inner = inner

    def get(self) -> object:
        return self.inner


def buffered(value: float) -> nn.Module:
    model = Own()
    model.register_buffer("scale", torch.tensor(value), persistent=False)
    return model


def scaled(factor: float) -> Callable[[Tensor], Tensor]:
    return lambda x: factor * x


def shifted(x: Tensor, by: float = 1.0) -> Tensor:
    return x + by


def moved(x: Tensor, by: float = 2.0) -> Tensor:
    return x + by


SETTINGS: list[tuple[object, object]] = [
    (1, 2),
    (0.1, 0.2),
    ("relu", "tanh"),
    (None, False),
    ((1, 2), (2, 1)),
    ([{"a": 1}], [{"a": 2}]),
    ({1, 2}, {1, 3}),
    (torch.zeros(3), torch.ones(3)),
    (torch.zeros(3), torch.zeros(3, dtype=torch.int32)),
    (torch.relu, torch.tanh),
    (F.relu, F.elu),
    (nn.ReLU, nn.ELU),
    (scaled(1.0), scaled(2.0)),
    (lambda x: x + 1, lambda x: x + 2),
    (lambda x: [y + 1 for y in x], lambda x: [y + 2 for y in x]),
    (shifted, moved),  # the same code
    (functools.partial(shifted, by=3.0), functools.partial(shifted, by=4.0)),
    (Box(1), Box(2)),
    (Box(Box(1)), Box(Box(2))),
    (Box(1).get, Box(2).get),
    ([reinitialized(nn.Linear(2, 2), 0)], [reinitialized(nn.Linear(2, 2), 1)]),  # held without being registered
]


@pytest.mark.parametrize(("one", "two"), SETTINGS, ids=lambda value: type(value).__name__)
def test_a_setting_without_weights_tells_models_apart(one: object, two: object) -> None:
    assert fingerprint(Own(setting=one)) != fingerprint(Own(setting=two))
    assert fingerprint(Own(setting=one)) == fingerprint(Own(setting=one))
    assert fingerprint(nn.Sequential(Own(setting=one))) != fingerprint(nn.Sequential(Own(setting=two)))


def test_weights_modes_and_gradients_do_not_matter() -> None:
    one, two = Own(), Own().eval()
    two.conv.lin.weight.grad = torch.zeros_like(two.conv.lin.weight)
    assert fingerprint(one) == fingerprint(two)


def test_an_address_is_not_part_of_it() -> None:
    models = [Own(box=Box(object()), function=scaled(2.0), method=Box(1).get) for _ in range(2)]
    assert fingerprint(models[0]) == fingerprint(models[1])


def test_buffers_that_are_not_saved_matter() -> None:
    assert fingerprint(buffered(1.0)) != fingerprint(buffered(2.0))


def test_settings_of_layers_matter() -> None:
    assert fingerprint(gnn.GCN(5, 8, 2)) != fingerprint(gnn.GCN(5, 8, 2, act="elu"))
    assert fingerprint(gnn.GCNConv(5, 3)) != fingerprint(gnn.GCNConv(5, 3, improved=True))
    assert fingerprint(gnn.SAGEConv(5, 3)) != fingerprint(gnn.SAGEConv(5, 3, aggr="max"))


def test_a_layer_used_twice_is_not_two_layers() -> None:
    layer = nn.Linear(3, 3)
    assert fingerprint(nn.Sequential(layer)) != fingerprint(nn.Sequential(layer, layer))


def test_settings_that_hold_themselves_come_to_an_end() -> None:
    box = Box(1)
    box.inner = box
    assert fingerprint(Own(box=box))

    def recursive(x: int) -> int:
        return recursive(x - 1) if x else 0

    assert fingerprint(Own(function=recursive))


def test_a_name_that_is_not_yet_bound_is_left_out() -> None:
    def outer() -> Callable[[], object]:
        def inner() -> object:
            return later

        model = fingerprint(Own(function=inner))
        later = model
        return lambda: later

    assert outer()()


def written(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    """Import a model from a file of the user's, anew."""
    (folder / "users_own_model.py").write_text(text)
    monkeypatch.syspath_prepend(folder)
    sys.modules.pop("users_own_model", None)
    importlib.invalidate_caches()
    linecache.clearcache()
    return importlib.import_module("users_own_model").Net()


MODULE = """
import torch
def step(x):
    return {step}
class Base(torch.nn.Module):
    def forward(self, x):
        return {forward}
class Net(Base):
    pass
"""


def test_the_code_of_the_users_own_module_matters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # files that change within a second
    plain = fingerprint(written(tmp_path, MODULE.format(step="x", forward="step(x)"), monkeypatch))
    same = fingerprint(written(tmp_path, MODULE.format(step="x", forward="step(x)"), monkeypatch))
    inherited = fingerprint(written(tmp_path, MODULE.format(step="x", forward="step(2 * x)"), monkeypatch))
    called = fingerprint(written(tmp_path, MODULE.format(step="2 * x", forward="step(x)"), monkeypatch))
    sys.modules.pop("users_own_model")
    assert plain == same
    assert len({plain, inherited, called}) == 3


def test_classes_without_a_file_are_told_apart_by_their_code() -> None:
    found = []
    for step in ("x", "x + 1", "x + 2", "x"):
        space: dict[str, Any] = {"__name__": "nowhere", "Module": nn.Module}
        exec(f"class Net(Module):\n    def forward(self, x):\n        return {step}", space)
        found.append(fingerprint(space["Net"]()))
    assert len(set(found)) == 3
    assert found[0] == found[3]
