"""Blocks of chosen messages, and the model that runs on them."""

import numpy as np
import pytest
import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data

from graphs import communities, corners
from topoff.forward.blocks import Layered, allows_trimming, takes_pairs, trial_batch
from topoff.forward.call import caller
from topoff.forward.convs import describe
from topoff.forward.neighbours import Chosen, Neighbors, neighbors_of
from topoff.forward.trial import make_plan
from topoff.graph.graph import Graph
from topoff.graph.operators import Operator

GCN = Operator(norm="gcn", self_loops=True)
MEAN = Operator(aggr="mean")
WEIGHTED = Operator(weight="edge_weight")


def neighbors(data: Data, *operators: Operator, general: bool = False) -> Neighbors:
    return Neighbors(Graph(data), operators=operators or (GCN,), general=general)


class Stack(nn.Module):
    """Apply convs, with what is done between them given as functions of the input, the output and the edges."""

    def __init__(self, *convs: nn.Module) -> None:
        super().__init__()
        self.convs = nn.ModuleList(convs)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for conv in self.convs:
            x = self.layer(conv, x, edge_index)
        return x

    def layer(self, conv: nn.Module, x: Tensor, edge_index: Tensor) -> Tensor:
        return conv(x, edge_index).tanh()


class Residual(Stack):
    def layer(self, conv: nn.Module, x: Tensor, edge_index: Tensor) -> Tensor:
        return x + conv(x, edge_index)


class CarefulResidual(Stack):
    def layer(self, conv: nn.Module, x: Tensor, edge_index: Tensor) -> Tensor:
        h = conv(x, edge_index)
        return x[: len(h)] + h


class ResidualWhereItFits(Stack):
    """Run without an error on fewer rows, but say something else then."""

    def layer(self, conv: nn.Module, x: Tensor, edge_index: Tensor) -> Tensor:
        h = conv(x, edge_index)
        return h + x if h.shape == x.shape else h


class Drops(Stack):
    """Drop edges in training."""

    def layer(self, conv: nn.Module, x: Tensor, edge_index: Tensor) -> Tensor:
        kept = torch.rand(edge_index.size(1)) < (0.5 if self.training else 2.0)
        return conv(x, edge_index[:, kept] if self.training else edge_index)


class Weighs(Stack):
    """Use the edge weights in training only."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        for conv in self.convs:
            x = conv(x, edge_index, edge_weight if self.training else None)
        return x


def convs(kind: type[nn.Module], width: int = 5, count: int = 2) -> list[nn.Module]:
    return [kind(width, width).double() for _ in range(count)]


def batch_of(
    model: nn.Module, data: Data, targets: list[int], *, tried: nn.Module | None = None
) -> tuple[Layered, Data]:
    """Return a batch with all neighbours, and the handler for it; `tried`: a model with the same convs to plan for."""
    graph = Graph(data)
    plan = make_plan(tried or model, graph)
    near = neighbors_of(graph, plan)
    batch = near.batch(np.array(targets), depth=plan.depth, choose=lambda nodes, step: near.all_of(nodes))
    layered = Layered(plan.convs)
    layered.trims = allows_trimming(model, near, plan)
    return layered, batch


# ---- neighbours and blocks


def test_neighbors_are_distinct_and_never_the_node_itself() -> None:
    data = corners()
    near = neighbors(data)
    sender, receiver = data.edge_index
    for node in range(14):
        expected = sorted(set(sender[receiver == node].tolist()) - {node})
        assert near.ids[near.offsets[node] : near.offsets[node + 1]].tolist() == expected
        assert near.degree[node] == len(expected)


@pytest.mark.parametrize("operator", [GCN, MEAN, WEIGHTED])
def test_all_messages_of_a_block_are_rows_of_the_operator(operator: Operator) -> None:
    data = corners()
    near = neighbors(data, operator)
    nodes = np.array([12, 4, 8, 2])
    sources, block = near.block(nodes, near.all_of(nodes))
    assert sources[:4].tolist() == nodes.tolist()
    assert len(np.unique(sources)) == len(sources) == block.sources
    dense = np.zeros((4, 14))
    dense[:, sources] = (block.matrices[operator] @ torch.eye(len(sources), dtype=torch.float64)).numpy()
    assert np.allclose(dense, near.graph.aggregation(operator).matrix.toarray()[nodes], atol=1e-15)


def test_chosen_messages_are_scaled_and_own_rows_are_not() -> None:
    data = corners()
    near = neighbors(data)
    nodes = np.array([4, 12])
    start = near.offsets[4]
    chosen = Chosen(np.array([start + 1, start + 1]), np.array([0, 0]), np.array([3.0, 0.5]))
    sources, block = near.block(nodes, chosen)
    matrix = near.graph.aggregation(GCN).matrix.toarray()
    sender = near.ids[start + 1]
    assert sources.tolist() == [4, 12, sender]
    dense = (block.matrices[GCN] @ torch.eye(3, dtype=torch.float64)).numpy()
    expected = [[matrix[4, 4], 0, 3.5 * matrix[4, sender]], [0, matrix[12, 12], 0]]  # twice the same adds up
    assert np.allclose(dense, expected)


def test_the_general_path_gets_every_edge_behind_a_pair_and_the_loops() -> None:
    data = corners()
    near = neighbors(data, general=True)
    nodes = np.array([12, 4, 2, 7])
    sources, block = near.block(nodes, near.all_of(nodes))
    wanted = torch.isin(data.edge_index[1], torch.from_numpy(nodes))
    found = torch.from_numpy(sources)[block.edge_index]
    value = data.edge_attr[wanted]
    assert sorted(found.T.tolist()) == sorted(data.edge_index[:, wanted].T.tolist())
    order = block.values["edge_attr"][:, 0].argsort()
    assert torch.equal(block.values["edge_attr"][order], value[value[:, 0].argsort()])
    assert (found[1] == torch.from_numpy(nodes)[block.edge_index[1]]).all()


def test_a_batch_holds_prefixes() -> None:
    data = communities()
    near = neighbors(data)
    seen = []

    def choose(nodes: np.ndarray, step: int) -> Chosen:
        seen.append((step, nodes.tolist()))
        return near.all_of(nodes)

    batch = near.batch(np.array([3, 50]), depth=3, choose=choose)
    assert [step for step, _ in seen] == [2, 1, 0]
    for _, nodes in seen:
        assert batch.n_id[: len(nodes)].tolist() == nodes
    steps = batch.blocks.steps
    assert [step.targets for step in steps] == [len(nodes) for _, nodes in reversed(seen)]
    assert [step.sources for step in steps] == [batch.num_nodes, steps[0].targets, steps[1].targets]
    assert batch.batch_size == 2
    assert batch.y.tolist() == data.y[[3, 50]].tolist()
    assert batch.x.equal(data.x[batch.n_id])


def test_a_batch_moves_with_its_blocks() -> None:
    data = corners()
    near = neighbors(data, general=True)
    batch = near.batch(np.array([0, 1]), depth=2, choose=lambda nodes, step: near.all_of(nodes)).to("meta")
    for step in batch.blocks.steps:
        tensors = [step.edge_index, *step.values.values(), *step.matrices[GCN].tensors]
        assert all(tensor.device.type == "meta" for tensor in tensors)


def test_one_flow_for_all_operators() -> None:
    with pytest.raises(ValueError, match=r"Expected all convs of a sampled model to have flow='source_to_target'"):
        neighbors(corners(), GCN, Operator(flow="target_to_source"))


def test_one_flow_for_all_general_convs() -> None:
    model = Stack(gnn.GATConv(4, 4), gnn.GATConv(4, 4, flow="target_to_source")).double()
    graph = Graph(corners())
    with pytest.raises(ValueError, match=r"to have flow='source_to_target' \(got another one, too\)"):
        neighbors_of(graph, make_plan(model, graph))


# ---- the model on blocks


class PairOfTwo(nn.Module):
    """Hand a conv one tensor as source and another one as target."""

    def __init__(self) -> None:
        super().__init__()
        self.root, self.conv = nn.Linear(5, 5), gnn.SAGEConv((5, 5), 5)
        self.last = gnn.SAGEConv((5, 5), 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.conv((x, self.root(x)), edge_index).tanh()
        return self.last((h, None), edge_index)


def test_a_pair_keeps_its_second_part() -> None:
    data, model = communities(), PairOfTwo().double().eval()
    layered, batch = batch_of(model, data, [1, 30, 8])
    with layered.on(batch):
        out = caller(model)(model, batch)[:3]
    assert torch.allclose(out, model(data.x, data.edge_index)[[1, 30, 8]], atol=1e-12)


def test_convs_that_take_pairs() -> None:
    both = [gnn.SAGEConv(2, 2), gnn.GINConv(nn.Linear(2, 2)), gnn.SimpleConv()]
    one = [gnn.SimpleConv(combine_root="self_loop"), gnn.GCNConv(2, 2), gnn.APPNP(2, 0.1), gnn.GCN2Conv(2, 0.1)]
    assert [takes_pairs(conv) for conv in describe(nn.ModuleList([*both, *one]))] == [True] * 3 + [False] * 4


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (Stack(*convs(gnn.GCNConv)), True),
        (Stack(*convs(gnn.GATConv)), True),
        (CarefulResidual(*convs(gnn.GCNConv)), True),
        (Residual(*convs(gnn.GCNConv)), False),
        (Residual(*convs(gnn.GATConv, count=1)), False),
        (ResidualWhereItFits(*convs(gnn.GCNConv)), False),
        (gnn.GCN(5, 8, 2, 5, jk="cat").double(), False),
        (gnn.GraphSAGE(5, 8, 3, 5).double(), True),
    ],
)
@pytest.mark.parametrize("edges", [True, False])
def test_trimming_is_tried(model: nn.Module, expected: object, edges: object) -> None:
    data = communities()
    if not edges:  # all that is tried is isolated, but for one pair: the shapes differ all the same
        data.edge_index = torch.tensor([[7, 8], [8, 7]])
    graph = Graph(data)
    plan = make_plan(model, graph)
    assert allows_trimming(model, neighbors_of(graph, plan), plan) is expected


def test_trying_leaves_no_trace() -> None:
    data, model = communities(), gnn.GCN(5, 8, 2, 5, dropout=0.5, norm="batch_norm").double().train()
    graph = Graph(data)
    plan = make_plan(model, graph)
    before, state = torch.get_rng_state(), {key: value.clone() for key, value in model.state_dict().items()}
    assert allows_trimming(model, neighbors_of(graph, plan), plan)
    assert model.training
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


def test_a_trial_loses_rows_in_every_step() -> None:
    for edge_index in (torch.empty(2, 0, dtype=torch.int64), torch.tensor([[0, 1], [1, 0]])):
        data = Data(x=torch.ones(2, 1), edge_index=edge_index)
        steps = trial_batch(neighbors(data), depth=3).blocks.steps
        assert all(step.sources > step.targets > 1 for step in steps)


def test_an_error_of_the_model_is_not_hidden() -> None:
    class Broken(Stack):
        def layer(self, conv: nn.Module, x: Tensor, edge_index: Tensor) -> Tensor:
            if len(x) != 60:
                raise RuntimeError("a bug of its own")
            return conv(x, edge_index)

    model, graph = Broken(*convs(gnn.GCNConv)), Graph(communities())
    plan = make_plan(Stack(*model.convs), graph)
    with pytest.raises(RuntimeError, match="a bug of its own"):
        allows_trimming(model, neighbors_of(graph, plan), plan)


@pytest.mark.parametrize("kind", [gnn.GCNConv, gnn.GATConv])
def test_edges_that_a_model_drops_are_noticed(kind: type[nn.Module]) -> None:
    model = Drops(*convs(kind)).eval()
    layered, batch = batch_of(model, communities(), [0, 1], tried=Stack(*model.convs))
    with layered.on(batch):
        caller(model)(model, batch)
    model.train()
    with layered.on(batch), pytest.raises(ValueError, match="to receive the batch's own 'edge_index'"):
        caller(model)(model, batch)


def test_a_model_that_computes_with_the_edges_is_refused() -> None:
    with pytest.raises(ValueError, match="reads a node's neighbours alone, one propagation at a time"):
        batch_of(Drops(*convs(gnn.GATConv)), communities(), [0, 1])


def test_weights_that_come_in_training_only_are_refused() -> None:
    model = Weighs(*convs(gnn.GCNConv)).eval()
    layered, batch = batch_of(model, communities(weighted=True), [0, 1], tried=Stack(*model.convs))
    with layered.on(batch):
        caller(model)(model, batch)
    model.train()
    with layered.on(batch), pytest.raises(ValueError, match="to weigh its edges in training as in eval mode"):
        caller(model)(model, batch)


def test_padded_rows_are_zero() -> None:
    model = Stack(*convs(gnn.GCNConv, count=1)).eval()
    layered, batch = batch_of(model, communities(), [0, 1])
    layered.trims = False
    with layered.on(batch):
        out = model.convs[0](batch.x, batch.edge_index)
    assert len(out) == batch.num_nodes > 2
    assert not out[2:].any()
    assert F.relu(out[:2]).any()


def test_several_outputs_are_refused() -> None:
    class Pair(Stack):
        def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
            out = super().forward(x, edge_index)
            return out, out

    model, graph = Pair(*convs(gnn.GCNConv)), Graph(communities())
    plan = make_plan(model, graph)
    with pytest.raises(ValueError, match=r"one tensor for a method that samples \(got a tuple\)"):
        allows_trimming(model, neighbors_of(graph, plan), plan)
