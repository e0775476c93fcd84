"""The check of a model looks at what could go wrong, not at a number that happens to be small; and it looks again."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
import torch_geometric.nn as gnn
import user_convs
import zoo
from torch import nn
from torch_geometric.data import Data
from user_net import EDGES, FEATURES, HIDDEN, MIXES, OUT, SIZE, Net, Two, first, last

from graphs import communities
from topoff import TOP, predict
from topoff.data.check import row_normalized
from topoff.forward.call import evaluating

LARGE = 300  # nodes: more than a check would look at
WORDS = 600  # of a bag: normalised, they make small numbers


def labelled(data: Data, edges: torch.Tensor) -> Data:
    """Return the graph with other edges."""
    data = copy.copy(data)
    data.edge_index = edges
    return data


def nodes(count: int = LARGE) -> Data:
    return communities(count, features=FEATURES, groups=OUT)


def path() -> Data:
    """Return a chain, every node sending to the next."""
    line = torch.arange(LARGE - 1)
    return labelled(nodes(), torch.stack([line, line + 1]))


def star(*, outward: bool) -> Data:
    """Return a hub that sends to all others, or receives from them."""
    ends = torch.stack([torch.zeros(LARGE - 1, dtype=torch.long), torch.arange(1, LARGE)])
    return labelled(nodes(), ends if outward else ends.flip(0))


def layered() -> Data:
    """Return an acyclic graph whose first edge comes from a node that nobody sends to."""
    data = communities(LARGE, features=FEATURES, directed=True, degree=8.0)
    edges = data.edge_index[:, data.edge_index[0] < data.edge_index[1]]
    return labelled(data, edges)


def apart() -> Data:
    """Return a graph whose first edges lie in small components of their own, the very first being a self-loop."""
    data = communities(LARGE, features=FEATURES, directed=True)
    inner = data.edge_index[:, (data.edge_index > 9).all(dim=0)]
    return labelled(data, torch.cat([torch.tensor([[3, 0, 2], [3, 1, 4]]), inner], dim=1))


HARD = {
    "path": path,
    "star outward": lambda: star(outward=True),
    "star inward": lambda: star(outward=False),
    "layered": layered,
    "apart": apart,
    "large": lambda: communities(LARGE, features=FEATURES, directed=True),
}


class Mixed(Net):
    """Add the mean over all nodes to the embeddings, times `amount(model)`."""

    def forward(self, x, edge_index):
        h = self.conv1(x, edge_index).tanh()
        return self.conv2(h + self.amount(self) * h.mean(dim=0), edge_index)


def mixed(amount, **parts) -> nn.Module:
    return Mixed(amount=amount, conv1=first(), conv2=last(), **parts).double()


def wrapped(model, data, **options):
    return TOP(model, data, ratio=0.3, rank=4, batches="random", tolerance=math.inf, **options)


def truth_of(model, data):
    with evaluating(model):
        return model(data.x, data.edge_index)


@pytest.mark.parametrize("graph", HARD)
def test_a_mean_over_all_nodes_is_seen_in_every_graph(graph):
    with pytest.raises(ValueError, match=MIXES):
        predict(mixed(lambda m: 1.0), HARD[graph](), ratio=0.3, batches="random")


@pytest.mark.parametrize("graph", ["path", "layered", "apart", "large"])
@pytest.mark.parametrize("change", ["largest weight", "number of edges"])
def test_what_mixes_all_edges_is_seen_in_every_graph(change, graph):
    class Edges(Net):
        def forward(self, x, edge_index, edge_weight):
            scale = edge_weight.max() if change == "largest weight" else edge_index.size(1)
            weight = edge_weight / scale
            return self.conv2(self.conv1(x, edge_index, weight).tanh(), edge_index, weight)

    data = HARD[graph]()
    data.edge_weight = 1 / (1 + torch.arange(data.num_edges, dtype=torch.float64))
    model = Edges(conv1=gnn.GraphConv(FEATURES, HIDDEN), conv2=gnn.GraphConv(HIDDEN, OUT)).double()
    with pytest.raises(ValueError, match=rf"{EDGES}|{SIZE}"):
        predict(model, data, ratio=0.1, batches="random")


@pytest.mark.parametrize("graph", HARD)
@pytest.mark.parametrize("conv", ["Tutorial", "OutDegree", "Laplacian", "Hops"])
def test_what_passes_the_check_is_exact_in_every_graph(conv, graph):
    data, kind = HARD[graph](), getattr(user_convs, conv)
    model = Two(conv1=kind(FEATURES, HIDDEN), conv2=kind(HIDDEN, OUT)).double()
    zoo.assert_near(predict(model, data, ratio=0.3, batches="random"), truth_of(model, data), tolerance=1e-9)


@pytest.mark.parametrize("conv", [gnn.GCNConv, gnn.SAGEConv, gnn.GATConv, user_convs.Tutorial])
def test_a_graph_without_edges_can_be_checked(conv):
    data = labelled(nodes(20), torch.empty(2, 0, dtype=torch.long))
    model = Two(conv1=conv(FEATURES, HIDDEN), conv2=conv(HIDDEN, OUT)).double()
    zoo.assert_near(predict(model, data, ratio=0.3, batches="random"), truth_of(model, data), tolerance=1e-9)


def _zero(module: nn.Module) -> None:
    if isinstance(module, nn.Linear) and module.out_features == 1:
        nn.init.zeros_(module.weight)


ZEROS = {
    "gate": lambda: mixed(lambda m: m.gate, gate=nn.Parameter(torch.zeros(1))),
    "gate behind tanh": lambda: mixed(lambda m: m.gate.tanh(), gate=nn.Parameter(torch.zeros(HIDDEN))),
    "two gates": lambda: mixed(
        lambda m: m.gate * m.other, gate=nn.Parameter(torch.zeros(1)), other=nn.Parameter(torch.zeros(1))
    ),
    "head": lambda: mixed(lambda m: m.head.weight[0], head=nn.Linear(HIDDEN, 1)).apply(_zero),
}


@pytest.mark.parametrize("kind", ZEROS)
def test_what_is_zero_at_first_is_looked_at_all_the_same(kind):
    data, model = nodes(60), ZEROS[kind]()
    weights = copy.deepcopy(model.state_dict())
    for run in (lambda: predict(model, data, ratio=0.3, batches="random"), lambda: wrapped(model, data).prepare()):
        with pytest.raises(ValueError, match=MIXES):
            run()
    assert all(bool((model.state_dict()[key] == value).all()) for key, value in weights.items())


class Counted(Mixed):
    """Mix all nodes after some calls in training mode."""

    def __init__(self, **parts):
        super().__init__(**parts)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x, edge_index):
        self.calls += self.training
        return super().forward(x, edge_index)


def _attribute():
    model = mixed(lambda m: m.on, on=0.0)
    return model, lambda: setattr(model, "on", 1.0)


def _buffer():
    model = mixed(lambda m: m.on)
    model.register_buffer("on", torch.zeros(1, dtype=torch.float64))
    return model, lambda: model.on.fill_(1)


def _counter():
    model = Counted(amount=lambda m: float(m.calls > 1), conv1=first(), conv2=last()).double()
    return model, lambda: None


SWITCHES = {"attribute": _attribute, "buffer": _buffer, "counter": _counter}
LOOKS = {
    "refresh": lambda top: top.refresh(),
    "evaluate": lambda top: top.evaluate(),
    "predict": lambda top: top.predict(),
    "exact": lambda top: top.exact(),
    "next refresh": lambda top: [None for _ in range(2) for _ in top],
}


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("switch", SWITCHES)
def test_what_is_switched_on_in_training_is_seen_at_the_next_look(switch, look):
    model, turn_on = SWITCHES[switch]()
    data = nodes(60)
    top = wrapped(model, data, refresh="every=1")
    for batch in top:
        top(batch).sum().backward()
    turn_on()
    with pytest.raises(ValueError, match=MIXES):
        LOOKS[look](top)


def test_what_is_switched_off_again_is_exact_again():
    model, turn_on = _attribute()
    data = nodes(60)
    top = wrapped(model, data)
    top.prepare()
    turn_on()
    with pytest.raises(ValueError, match=MIXES):
        top.refresh()
    model.on = 0.0
    zoo.assert_near(top.refresh(), truth_of(model, data), tolerance=1e-9)


class FA(Net):
    """The FAGCN of PyG's users: in the beginning all numbers are small, and so is what is wrong with them."""

    def forward(self, x, edge_index):
        h = first = F.relu(self.enter(x))
        for conv in self.convs:
            h = conv(h, first, edge_index)
        return self.leave(h)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_after_training_the_exact_forward_is_still_the_plain_one(dtype):
    data = communities(LARGE, dtype=dtype)
    data.x = (torch.rand(LARGE, WORDS) < 0.01 + 0.03 * (torch.arange(WORDS) % 4 == data.y.view(-1, 1))).to(dtype)
    data = row_normalized(data)
    convs = nn.ModuleList(gnn.FAConv(16, eps=0.3) for _ in range(2))
    model = FA(enter=nn.Linear(WORDS, 16), convs=convs, leave=nn.Linear(16, 4)).to(dtype)
    top = wrapped(model, data, refresh="every=2")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(6):
        for batch in top:
            optimizer.zero_grad()
            F.cross_entropy(top(batch)[batch.train_mask], batch.y[batch.train_mask]).backward()
            optimizer.step()
    tolerance = 1e-9 if dtype == torch.float64 else 1e-4
    truth = truth_of(model, data)
    zoo.assert_near(top.predict(), truth, tolerance=tolerance)
    zoo.assert_near(predict(model, data, ratio=0.3, batches="random"), truth, tolerance=tolerance)


class Single(Net):
    """Write `.float()` where single precision is meant, as most do: the model runs in that precision alone."""

    def forward(self, x, edge_index):
        sign = F.one_hot((x[:, 0] > 0).long(), 2).float()
        h = torch.zeros(x.size(0), HIDDEN)
        h[:] = self.conv1(torch.cat([x, self.lin(sign)], dim=1), edge_index).tanh()
        return self.conv2(h, edge_index)


def test_a_model_that_runs_in_single_precision_alone_can_be_checked():
    data = communities(60, features=FEATURES, dtype=torch.float32)
    model = Single(lin=nn.Linear(2, 2), conv1=gnn.GCNConv(FEATURES + 2, HIDDEN), conv2=last())
    zoo.assert_near(predict(model, data, ratio=0.3, batches="random"), truth_of(model, data), tolerance=1e-5)


@pytest.mark.parametrize("limit", [100, 200, LARGE - 1])
def test_a_branch_on_the_number_of_nodes_is_seen_wherever_it_lies(limit):
    class Branch(Two):
        def forward(self, x, edge_index):
            out = super().forward(x, edge_index)
            return 2 * out if x.size(0) > limit else out

    with pytest.raises(ValueError, match=SIZE):
        predict(Branch(conv1=first(), conv2=last()).double(), nodes(), ratio=0.2, batches="random")


def test_the_check_leaves_model_graph_and_generator_as_they_were():
    data = communities(60, features=FEATURES)
    norm, conv = nn.BatchNorm1d(HIDDEN), gnn.GATConv(HIDDEN, OUT, dropout=0.5)
    model = Counted(amount=lambda m: 0, conv1=nn.Identity(), conv2=conv, norm=norm)
    model.conv1 = gnn.Sequential("x, edge_index", [(first(), "x, edge_index -> x"), norm, nn.Dropout(0.5)])
    model.double().train()
    state, values = copy.deepcopy(model.state_dict()), copy.deepcopy(data.to_dict())
    before = torch.get_rng_state()
    predict(model, data, ratio=0.3, batches="random")
    top = wrapped(model, data)
    top.prepare()
    top.refresh()
    assert bool((torch.get_rng_state() == before).all())
    assert all(module.training for module in model.modules())
    assert all(bool((model.state_dict()[key] == value).all()) for key, value in state.items())
    assert set(data.keys()) == set(values)
    assert all(bool((data[key] == value).all()) for key, value in values.items())
    assert all(parameter.grad is None for parameter in model.parameters())
