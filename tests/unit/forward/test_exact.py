"""Exact inference in lockstep: what it returns, what it tells, what it refuses, what it leaves behind."""

import copy
import gc
import threading
from collections import namedtuple

import pytest
import torch
import torch_geometric.nn as gnn
from greenlet import greenlet
from torch import Tensor, nn
from torch_geometric.data import Data

from graphs import communities, corner_sets, corners
from topoff.forward.exact import exact
from topoff.forward.member import Member
from topoff.forward.rows import raise_rows
from topoff.forward.trial import make_plan
from topoff.graph.graph import Graph


def run(model: nn.Module, data: Data | None = None, **kwargs: object) -> Tensor:
    """Run the model exactly on the batches of the corners graph, or on three batches of another one."""
    sets = corner_sets() if data is None else [torch.arange(data.num_nodes)[i::3] for i in range(3)]
    graph = Graph(data or corners())
    return exact(
        model,
        graph,
        [graph.induced(nodes) for nodes in sets],
        plan=make_plan(model, graph, call=kwargs.get("call")),
        **kwargs,
    )


def sleeping() -> int:
    """Count the forwards that were begun and have not ended."""
    found = [each for each in gc.get_objects() if type(each) is greenlet]
    return sum(bool(each) and each.parent is not None for each in found)  # without those of threads themselves


class Mixed(nn.Module):
    """Both paths, several operators, several hops, a residual, jumping knowledge and a shared conv."""

    def __init__(self) -> None:
        super().__init__()
        self.gcn, self.sage = gnn.GCNConv(4, 6), gnn.SAGEConv(4, 6)
        self.gat, self.appnp, self.tag = gnn.GATConv(6, 6), gnn.APPNP(3, 0.2), gnn.TAGConv(6, 6, K=2)
        self.norm, self.out = nn.BatchNorm1d(6), nn.Linear(12, 3)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        h = self.norm(self.gcn(x, edge_index, edge_weight) + self.sage(x, edge_index)).relu()
        h = h + self.gat(h, edge_index)
        z = self.tag(self.appnp(h, edge_index), edge_index)
        return self.out(torch.cat([h, self.tag(z.relu(), edge_index)], dim=1))


class OneConv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = gnn.SAGEConv(4, 3)


class Pooled(OneConv):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(x, edge_index).mean(0, keepdim=True).expand(5, -1)


class PooledToNothing(OneConv):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(x, edge_index).sum()


class Broken(nn.Module):
    """Fails in the second layer of the batch of three nodes, when other batches are under way."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = gnn.SAGEConv(4, 4), gnn.SAGEConv(4, 4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.first(x + 1, edge_index)
        if len(x) == 3:
            raise ArithmeticError("the model's own trouble")
        return self.second(h, edge_index)


class Deeper(nn.Module):
    """One conv more for batches of more than one node."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = gnn.SAGEConv(4, 4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.conv(x + 1, edge_index)
        return self.conv(h, edge_index) if len(x) > 1 else h


class Branching(nn.Module):
    """Another conv for batches of one node."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.many = gnn.SAGEConv(4, 4), gnn.SAGEConv(4, 4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return (self.one if len(x) == 1 else self.many)(x + 1, edge_index)


# what it returns


@pytest.mark.parametrize(
    "model",
    [
        gnn.GCN(4, 8, num_layers=3, out_channels=3, norm="batch_norm", jk="cat"),
        gnn.GraphSAGE(4, 8, num_layers=2, out_channels=3),
        gnn.GAT(4, 8, num_layers=2, out_channels=3, heads=2, edge_dim=2),
        gnn.GIN(4, 8, num_layers=2, out_channels=3),
        Mixed(),
    ],
    ids=["GCN", "GraphSAGE", "GAT", "GIN", "mixed"],
)
def test_equals_the_full_forward_on_the_corners_graph(model: nn.Module) -> None:
    data = corners()
    model = model.double().eval()
    given = {"edge_weight": data.edge_weight} if isinstance(model, (gnn.GCN, Mixed)) else {}
    given |= {"edge_attr": data.edge_attr} if isinstance(model, gnn.GAT) else {}
    expected = model(data.x, data.edge_index, **given)
    out = run(model)
    assert (out - expected).abs().max() < 1e-10
    assert not out.requires_grad


def test_dropout_is_off_and_the_mode_is_restored() -> None:
    model = gnn.GCN(4, 8, num_layers=2, out_channels=3, dropout=0.9, norm="batch_norm").double()
    model.norms[0].eval()
    first, second = run(model), run(model)
    assert torch.equal(first, second)
    assert model.training
    assert not model.norms[0].training


def test_the_users_own_call_is_used() -> None:
    data, model = corners(), gnn.GCN(4, 8, num_layers=2, out_channels=3).double()
    out = run(model, call=lambda module, batch: 2 * module(batch.x, batch.edge_index))
    assert torch.allclose(out, 2 * model(data.x, data.edge_index))


def test_one_batch_is_enough() -> None:
    data, model = corners(), gnn.GCN(4, 8, num_layers=2, out_channels=3).double()
    graph = Graph(data)
    out = exact(model, graph, [graph.induced(torch.arange(14))], plan=make_plan(model, graph))
    assert torch.allclose(out, model(data.x, data.edge_index, data.edge_weight))


def test_nothing_of_the_model_changes() -> None:
    model = gnn.GCN(4, 8, num_layers=2, cached=True).double()
    state, before = copy.deepcopy(model.state_dict()), [dict(vars(conv)) for conv in model.convs]
    run(model)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert [dict(vars(conv)) for conv in model.convs] == before


# what it tells


def collected(model: nn.Module, data: Data | None = None) -> list[tuple[str, int, Tensor]]:
    seen: list[tuple[str, int, Tensor]] = []

    def remember(place: str, rows: Tensor) -> None:
        name, _, hop = place.rsplit("/", 2)
        seen.append((name, int(hop), rows))

    run(model, data, remember=remember)
    return seen


@pytest.mark.parametrize("kind", [gnn.GCN, gnn.GraphSAGE, gnn.GAT], ids=lambda kind: kind.__name__)
def test_it_tells_the_input_of_every_conv_but_the_raw_features(kind: type[nn.Module]) -> None:
    data = communities(21)
    model = kind(5, 8, num_layers=3, out_channels=3).double().eval()
    first = model.convs[0](data.x, data.edge_index).relu()
    second = model.convs[1](first, data.edge_index).relu()
    seen = collected(model, data)
    assert [(name, hop) for name, hop, _ in seen] == [("convs.1", 0), ("convs.2", 0)]
    assert torch.allclose(seen[0][2], first)
    assert torch.allclose(seen[1][2], second)


def test_collecting_does_not_change_the_output() -> None:
    model = Mixed().double().eval()
    assert torch.allclose(run(model), run(model, remember=lambda *_: None), atol=1e-12)


def test_it_counts_the_hops_of_a_conv() -> None:
    data, model = communities(21), gnn.SGConv(5, 3, K=3).double()
    assert [(name, hop) for name, hop, _ in collected(model, data)] == [("", 1), ("", 2)]


def test_a_user_can_evaluate_in_a_thread_of_theirs() -> None:
    found: dict[int, Tensor] = {}
    models = [gnn.GCN(4, 8, num_layers=3, out_channels=3).double() for _ in range(2)]
    for number in range(2):  # one after the other: a trial sets the default type of the process
        thread = threading.Thread(target=lambda i=number: found.update({i: run(models[i])}))
        thread.start()
        thread.join()
    assert all(torch.equal(found[number], run(model)) for number, model in enumerate(models))


def test_precision_around_one_layer_stays_there() -> None:
    class Half(nn.Module):
        """Run a middle layer in another precision than the others."""

        def __init__(self) -> None:
            super().__init__()
            self.convs = nn.ModuleList(gnn.GraphConv(4, 4) for _ in range(3))
            self.seen: set[tuple[int, bool]] = set()

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            for number, conv in enumerate(self.convs):
                with torch.autocast("cpu", enabled=number == 1):
                    x = conv(x + 1, edge_index).float()
                    self.seen.add((number, torch.is_autocast_enabled("cpu")))
            return x

    model, data = Half().float().eval(), corners()
    data.x = data.x.float()
    out = run(model, data)
    assert model.seen == {(0, False), (1, True), (2, False)}
    assert torch.allclose(out, model(data.x, data.edge_index), rtol=1e-2)
    assert not torch.is_autocast_enabled("cpu")


# what it refuses


def test_an_error_in_the_model_surfaces_and_all_forwards_end() -> None:
    before = sleeping()
    with pytest.raises(ValueError, match="the model's own trouble"):
        run(Broken().double())
    assert sleeping() == before


def test_all_forwards_end_after_success() -> None:
    before = sleeping()
    run(Mixed().double())
    assert sleeping() == before


def test_the_model_is_restored_after_an_error() -> None:
    model = Broken().double()
    with pytest.raises(ValueError, match="trouble"):
        run(model)
    assert model.training
    assert "forward" not in vars(model.first)


@pytest.mark.parametrize(
    ("model", "got"), [(Pooled(), r"shape \(5, 3\)"), (PooledToNothing(), r"shape \(\)")], ids=["pooled", "a number"]
)
def test_outputs_that_are_not_one_row_per_node_are_refused(model: nn.Module, got: str) -> None:
    before = sleeping()
    with pytest.raises(ValueError, match=rf"one row per node \(got {got} for a batch of .*pool outside"):
        run(model.double())
    assert sleeping() == before


def test_an_output_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the output to have one row per node \(got str for a batch of 4 nodes\)"):
        raise_rows("text", of="the output", size=4, whole=14)


def test_a_table_of_all_nodes_is_refused() -> None:
    class Table(OneConv):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(14, 3)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.table.weight + 0 * self.conv(x, edge_index).sum()

    with pytest.raises(ValueError, match=r"got a row for every node of the graph, 14 for .*indexed by batch.n_id"):
        run(Table().double())


def test_an_output_beside_the_rows_must_be_common_to_all_batches() -> None:
    class Beside(OneConv):
        def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
            out = self.conv(x, edge_index)
            return out, out.sum()

    with pytest.raises(ValueError, match=r"not to depend on the nodes \(got shape \(\) that is another one for every"):
        run(Beside().double())


def test_a_depth_that_depends_on_the_batch_is_refused() -> None:
    before = sleeping()
    with pytest.raises(ValueError, match=r"every batch to pass the same convs \(got a forward whose depth depends"):
        run(Deeper().double())
    assert sleeping() == before


def test_convs_that_depend_on_the_batch_are_refused() -> None:
    with pytest.raises(ValueError, match=r"every batch to pass the same convs \(got SAGEConv 'many' for one batch"):
        run(Branching().double())


# outputs of several parts, norms over all nodes, notes on modules


def test_tuples_and_dicts_are_gathered_part_by_part() -> None:
    Pair = namedtuple("Pair", "first second")

    class Parts(OneConv):
        def forward(self, x: Tensor, edge_index: Tensor) -> dict[str, object]:
            out = self.conv(x, edge_index)
            return {"pair": Pair(out, x), "list": [out.tanh()], "penalty": self.conv.lin_l.weight.sum(), "name": "n"}

    data, model = corners(), Parts().double().eval()
    expected, out = model(data.x, data.edge_index), run(model)
    assert torch.allclose(out["pair"].first, expected["pair"].first, atol=1e-12)
    assert torch.equal(out["pair"].second, data.x)
    assert torch.allclose(out["list"][0], expected["list"][0], atol=1e-12)
    assert out["penalty"] == expected["penalty"]
    assert out["name"] == "n"


class Normed(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.conv, self.norm, self.last = gnn.SAGEConv(4, 6), norm, gnn.GATConv(6, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.last(self.norm(self.conv(x, edge_index)).relu(), edge_index)


@pytest.mark.parametrize("norm", [gnn.GraphNorm(6), gnn.PairNorm(), gnn.LayerNorm(6), gnn.GraphSizeNorm()], ids=str)
def test_norms_over_all_nodes_are_exact_and_tell_their_moments(norm: nn.Module) -> None:
    data, model, moments = corners(), Normed(norm).double().eval(), {}
    out = run(model, moments=moments)
    assert torch.allclose(out, model(data.x, data.edge_index), atol=1e-12)
    h = model.conv(data.x, data.edge_index)
    assert moments.keys() == {"norm/0/0"}
    found = moments["norm/0/0"]
    assert torch.allclose(found.means, torch.stack([h.mean(0), h.square().mean(0)]), atol=1e-12)
    assert torch.allclose(sum(found.own.values()), 14 * found.means, atol=1e-12)


def test_remember_is_told_the_places() -> None:
    places = []
    run(gnn.GraphSAGE(4, 8, num_layers=3).double(), remember=lambda place, rows: places.append((place, rows.shape)))
    assert places == [("convs.1/0/0", (14, 8)), ("convs.2/0/0", (14, 8))]


def test_what_one_batch_notes_on_a_module_does_not_reach_another() -> None:
    class Noting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = gnn.SAGEConv(4, 4), gnn.SAGEConv(4, 4)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            self.kept = x  # read again after the convs, when other batches have run
            h = self.second(self.first(x + 1, edge_index), edge_index)
            return h + self.kept

    data, model = corners(), Noting().double().eval()
    out = run(model)
    assert "kept" not in vars(model)
    assert torch.allclose(out, model(data.x, data.edge_index), atol=1e-12)


def test_what_batches_hold_is_freed_at_once_and_not_at_some_collection() -> None:
    data, model = communities(), gnn.GCN(5, 8, num_layers=2, out_channels=3).double()
    graph = Graph(data)
    pieces, plan = [graph.induced(torch.arange(60)[i::3]) for i in range(3)], make_plan(model, graph)
    gc.collect()
    gc.disable()
    try:
        exact(model, graph, pieces, plan=plan)
        assert not [item for item in gc.get_objects() if type(item) is Member]
    finally:
        gc.enable()


@pytest.mark.parametrize("loops", [0, 20])
@pytest.mark.parametrize(
    "conv",
    [gnn.ChebConv(4, 3, K=3), gnn.APPNP(3, 0.1, dropout=0.5), gnn.FeaStConv(4, 3, heads=2)],
    ids=lambda conv: type(conv).__name__,
)
def test_a_batch_without_edges_is_exact_where_convs_add_loops_themselves(conv: nn.Module, loops: int) -> None:
    torch.manual_seed(0)
    ring = torch.stack([torch.arange(20), torch.arange(20).roll(1)])
    own = torch.arange(20, 20 + loops).expand(2, -1)
    data = Data(x=torch.rand(60, 4), edge_index=torch.cat([ring, ring.flip(0), own], dim=1), y=torch.zeros(60).long())
    width = 4 if isinstance(conv, gnn.APPNP) else 3
    model = gnn.Sequential("x, edge_index", [(conv, "x, edge_index -> x"), nn.Linear(width, 2)])
    graph = Graph(data)
    batches = [graph.induced(nodes) for nodes in (torch.arange(20), torch.arange(20, 40), torch.arange(40, 60))]
    found = exact(model, graph, batches, plan=make_plan(model, graph))
    assert torch.allclose(found, model.eval()(data.x, data.edge_index), atol=1e-6)
