"""Basic embeddings and random initialisations."""

import pytest
import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn

from graphs import communities
from topoff.convs import Conv
from topoff.embeddings import embed, reinitialised
from topoff.graph import Graph
from topoff.plan import make_plan


def embedded(model: nn.Module, n: int = 20) -> tuple[list[tuple[str, int, Tensor]], Tensor]:
    graph = Graph(communities(n))
    batches = [graph.induced(torch.arange(n)[i::2]) for i in range(2)]
    seen: list[tuple[str, int, Tensor]] = []

    def collect(conv: Conv, hop: int, rows: Tensor) -> None:
        seen.append((conv.name, hop, rows))

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


def test_random_initialisations_are_deterministic_by_seed() -> None:
    model = gnn.GCN(5, 8, num_layers=2)
    assert torch.equal(parameters(reinitialised(model, 3)), parameters(reinitialised(model, 3)))
    assert not torch.equal(parameters(reinitialised(model, 3)), parameters(reinitialised(model, 4)))


def test_a_random_initialisation_changes_every_weight_of_the_copy_and_none_of_the_model() -> None:
    model = gnn.GCN(5, 8, num_layers=2)
    before = parameters(model).clone()
    fresh = reinitialised(model, 0)
    assert torch.equal(parameters(model), before)
    for old, new in zip(model.parameters(), fresh.parameters(), strict=True):
        assert old.dim() == 1 or not torch.equal(old, new)


def test_the_global_generator_is_left_alone() -> None:
    model, before = gnn.GCN(5, 8, num_layers=2), torch.get_rng_state()
    reinitialised(model, 7)
    assert torch.equal(torch.get_rng_state(), before)


def test_running_statistics_start_anew() -> None:
    model = gnn.GCN(5, 8, num_layers=2, norm="batch_norm")
    model.norms[0].module.running_mean += 5
    assert bool((reinitialised(model, 0).norms[0].module.running_mean == 0).all())


@pytest.mark.parametrize(("model", "name"), [(Bare(), "scale"), (Nested(Bare()), "inner.scale")], ids=["top", "nested"])
def test_a_parameter_that_nothing_resets_is_an_error(model: nn.Module, name: str) -> None:
    expected = rf"reset_parameters\(\) \(got parameter '{name}' that nothing resets\).*inits=1"
    with pytest.raises(ValueError, match=expected):
        reinitialised(model, 0)


def test_a_module_above_may_reset_the_parameter() -> None:
    fresh = reinitialised(Responsible(Bare()), 0)
    assert not torch.equal(fresh.inner.scale, torch.ones(3))


def test_the_generator_is_left_alone_after_an_error_too() -> None:
    model, before = Bare(), torch.get_rng_state()
    with pytest.raises(ValueError, match="nothing resets"):
        reinitialised(model, 0)
    assert torch.equal(torch.get_rng_state(), before)
