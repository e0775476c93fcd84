"""What an adversary found: each was wrong without a word once, and is right now, or refused for its true reason."""

import copy

import pytest
import torch
import torch_geometric.nn as gnn
import zoo
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.utils import degree, dropout_edge

from graphs import communities
from topoff import TOP, predict
from topoff.forward.trial import make_plan
from topoff.graph.graph import Graph
from topoff.methods.registry import METHODS

MIXES = "node and its neighbours alone"


def graph(size: int = 60) -> Data:
    return communities(size, directed=True, weighted=True, edge_features=3)


def top_of(model: nn.Module, data: Data, **settings: object) -> TOP:
    return TOP(model, data, **{"ratio": 0.3, "rank": 8, "batches": "random", "tolerance": 9.0} | settings)


class Net(nn.Module):
    """Two convs, with something done to features and edges before them."""

    def __init__(self, data: Data, conv: type[nn.Module] = gnn.GCNConv) -> None:
        super().__init__()
        self.conv1, self.conv2 = conv(data.num_features, 6), conv(6, 3)

    def before(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        return x, edge_index

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x, edge_index = self.before(x, edge_index)
        return self.conv2(self.conv1(x, edge_index).tanh(), edge_index)


class Dropping(Net):
    """Read the edges, and leave them as they are (almost surely)."""

    def before(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        return x, dropout_edge(edge_index, 1e-9, training=self.training)[0]


# ---- the loop changes the batch


@pytest.mark.parametrize("kind", [Net, Dropping])
@pytest.mark.parametrize("key", ["x", "edge_index"])
def test_a_batch_that_the_loop_changes_is_refused(kind, key):
    data = graph()
    top = top_of(kind(data).double(), data)
    batch = next(iter(top))
    batch[key] = batch.x * 0.5 if key == "x" else batch.edge_index[:, 1:]
    with pytest.raises(ValueError, match=f"a batch as it was handed out \\(got another '{key}'"):
        top(batch)


def test_a_batch_that_is_written_to_is_refused():
    data = graph()
    top = top_of(Net(data).double(), data)
    batch = next(iter(top))
    batch.x.mul_(0.5)
    with pytest.raises(ValueError, match="or one that was written to"):
        top(batch)


def test_a_perturbation_that_is_learnt_reaches_the_batch():
    data = graph()
    model = Net(data).double()
    (batch,) = top = top_of(model, data, ratio=1.0)
    noise = torch.randn_like(batch.x).requires_grad_()
    clean, batch.x = batch.x, batch.x + noise
    out = top(batch)
    truth = model((clean + noise)[batch.n_id.argsort()], data.edge_index)[batch.n_id]
    zoo.assert_near(out, truth, tolerance=1e-12)
    assert torch.autograd.grad(out.sum(), noise)[0].abs().sum() > 0


# ---- norms


class EdgeEncoder(Net):
    """Normalise features of the edges, in batches of them."""

    def __init__(self, data: Data, conv: type[nn.Module] = gnn.GCNConv) -> None:
        super().__init__(data, conv)
        self.norm, self.lin = nn.BatchNorm1d(3), nn.Linear(3, 1)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        weight = self.lin(self.norm(edge_attr)).sigmoid().view(-1)
        return self.conv2(self.conv1(x, edge_index, weight).tanh(), edge_index, weight)


@pytest.mark.parametrize("training", [True, False])
def test_a_batch_norm_over_edges_sees_all_of_them(training):
    data = graph()
    model = EdgeEncoder(data).double().train(training)
    plain = copy.deepcopy(model)
    (batch,) = top = top_of(model, data, ratio=1.0)
    truth = plain(data.x, data.edge_index, data.edge_attr)[batch.n_id]
    zoo.assert_near(top(batch), truth, tolerance=1e-12)


class Normed(Dropping):
    """Normalise an embedding of the features in front of the first conv, in a model that reads edges."""

    def __init__(self, data: Data, norm: nn.Module) -> None:
        super().__init__(data, gnn.SAGEConv)
        self.conv2, self.norm = nn.Linear(6, 3), norm

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x, edge_index = self.before(x, edge_index)
        return self.conv2(self.conv1(self.norm(20 * x + 50), edge_index).tanh())


@pytest.mark.parametrize("norm", [gnn.GraphNorm(5), gnn.PairNorm(), gnn.InstanceNorm(5), nn.LayerNorm(5)], ids=repr)
def test_a_norm_before_the_first_conv_of_a_wide_model_reaches_the_halo(norm):
    data = graph()
    model = Normed(data, norm).double()
    top = top_of(model, data)
    assert top.fidelity().output == pytest.approx(1.0, abs=1e-9)
    assert top.plan.wide
    truth = copy.deepcopy(model).train()(data.x, data.edge_index)
    for batch in top:
        zoo.assert_near(top(batch), truth[batch.n_id], tolerance=1e-9)


def test_moments_are_fresh_where_only_a_norm_needs_a_refresh():
    data = graph()
    model = nn.Sequential()
    model = gnn.Sequential(
        "x, edge_index", [(gnn.GCNConv(5, 6), "x, edge_index -> x"), gnn.GraphNorm(6), nn.Linear(6, 3)]
    ).double()
    top = top_of(model, data, refresh="every=1")
    list(top)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
    batches = list(top)  # refreshed before it
    truth = model(data.x, data.edge_index)
    for batch in batches:
        zoo.assert_near(top(batch), truth[batch.n_id], tolerance=1e-9)


# ---- statistics of the whole graph


class Relative(Net):
    """Divide by the largest degree of all nodes."""

    def before(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        found = degree(edge_index[1], len(x), dtype=x.dtype)
        return x * (found / found.max()).unsqueeze(1), edge_index


class Counting(Net):
    """Divide by the number of edges."""

    def before(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        return x / edge_index.size(1), edge_index


class Scaled(Dropping):
    """Divide by the largest features of all nodes."""

    def before(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        return super().before(x / x.abs().amax(0), edge_index)


@pytest.mark.parametrize("size", [40, 100, 300])
@pytest.mark.parametrize("kind", [Relative, Counting, Scaled])
def test_statistics_of_the_whole_graph_are_refused_in_graphs_of_any_size(kind, size):
    data = communities(size, directed=True)
    with pytest.raises(ValueError, match=MIXES):
        predict(kind(data).double(), data, ratio=0.3, batches="random")


# ---- hooks, replaced layers, training


def test_hooks_on_messages_are_kept():
    data = graph()
    model = Net(data).double()
    model.conv1.register_message_forward_hook(lambda conv, given, out: 2 * out)
    out = predict(model, data, ratio=0.3, batches="random")
    zoo.assert_near(out, model(data.x, data.edge_index), tolerance=1e-12)


def test_a_conv_that_is_replaced_later_is_refused():
    data = graph()
    model = Net(data).double()
    top = top_of(model, data)
    list(top)
    model.conv2 = gnn.GCNConv(6, 3).double()
    for look in (top.predict, top.refresh, top.fidelity):
        with pytest.raises(ValueError, match="layers that were there when the model was prepared"):
            look()


class Hops(gnn.MessagePassing):
    """Propagate more often in training."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for _ in range(3 if self.training else 1):
            x = self.propagate(edge_index, x=x)
        return x


def test_a_conv_that_propagates_more_often_in_training_is_refused():
    data = graph()
    model = gnn.Sequential("x, edge_index", [(Hops(), "x, edge_index -> x"), nn.Linear(5, 3)]).double()
    with pytest.raises(ValueError, match=r"as often in training as in eval mode \(got 3 times instead of 1\)"):
        predict(model, data)


class Centred(Net):
    """Subtract the mean of all rows in training."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.conv1(x, edge_index).tanh()
        return self.conv2(h - h.mean(0) if self.training else h, edge_index)


def test_rows_that_training_mixes_are_told(caplog):
    data = graph()
    caplog.set_level("INFO", logger="topoff")
    top = top_of(Centred(data).double(), data)
    top.prepare()
    assert top.plan.mixes
    assert "in training mode, rows read other rows of their batch" in caplog.text
    for kind in (Net, Dropping):
        assert not make_plan(kind(data).double(), Graph(data)).mixes


class Functional(Dropping):
    """Normalise by hand in training, over all rows that are there."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x, edge_index = self.before(x, edge_index)
        h = self.conv1(x, edge_index)
        h = F.batch_norm(h, torch.zeros(6).to(h), torch.ones(6).to(h), training=self.training)
        return self.conv2(h, edge_index)


def test_rows_outside_the_batch_that_training_reads_are_seen():
    data = graph()
    with pytest.raises(ValueError, match="treat each row alone in training mode"):
        predict(Functional(data).double(), data)


class Loss(Net):
    """Return a number in training."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out = super().forward(x, edge_index)
        return out.sum() if self.training else out


def test_a_loss_instead_of_rows_is_refused():
    data = graph()
    with pytest.raises(ValueError, match="the output in training mode to have one row per node"):
        top_of(Loss(data).double(), data).prepare()


# ---- outputs, modes, tables


class Prototypes(Net):
    """Return weights with as many rows as a batch has, beside the rows."""

    def __init__(self, data: Data) -> None:
        super().__init__(data)
        self.prototypes = nn.Parameter(torch.randn(30, 2))

    def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        return super().forward(x, edge_index), self.prototypes


def test_rows_are_not_taken_for_nodes_by_chance():
    data = graph(300)
    model = Prototypes(data).double()
    out, prototypes = predict(model, data, ratio=0.1, batches="random")
    assert len(out) == 300
    zoo.assert_near(prototypes, model.prototypes, tolerance=0)


def test_inference_mode_is_welcome():
    data = graph()
    model = Net(data).double()
    top = top_of(model, data)
    list(top)
    with torch.inference_mode():
        zoo.assert_near(top.predict(), model(data.x, data.edge_index), tolerance=1e-12)
        zoo.assert_near(predict(model, data), model(data.x, data.edge_index), tolerance=1e-12)


def test_a_table_indexed_by_n_id_is_exact_in_large_graphs():
    data = graph(300)
    table, model = torch.randn(300, 5, dtype=torch.float64), Net(data).double()
    out = predict(model, data, batches="random", call=lambda m, batch: m(batch.x + table[batch.n_id], batch.edge_index))
    zoo.assert_near(out, model(data.x + table, data.edge_index), tolerance=1e-12)


def test_weights_that_have_diverged_are_not_called_wrong():
    data = graph()
    model = Net(data).double()
    top = top_of(model, data)
    list(top)
    with torch.no_grad():
        model.conv1.lin.weight.fill_(float("nan"))
    assert top.predict().isnan().all()


@pytest.mark.parametrize("method", ["gas", "lmc", "ns", "ladies"])
def test_methods_that_know_neighbours_alone_refuse_wide_models(method):
    data = graph()
    with pytest.raises(ValueError, match="reads a node's neighbours alone"):
        METHODS[method](Dropping(data).double(), data, ratio=0.3).prepare()


class Predicting(Net):
    """Run in eval mode alone."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        if self.training:
            raise RuntimeError("nothing to learn here")
        return super().forward(x, edge_index)


def test_a_model_that_cannot_train_can_predict():
    data = graph()
    model = Predicting(data).double()
    out = predict(model, data, ratio=0.3, batches="random")
    zoo.assert_near(out, model.eval()(data.x, data.edge_index), tolerance=1e-12)


def test_attention_that_is_held_but_not_used_leaves_no_hook_behind():
    data = graph()
    model = Net(data).double()
    model.later = gnn.GPSConv(4, gnn.GCNConv(4, 4), heads=1).double()
    run = model.conv1.forward
    model.conv1.forward = lambda *args, **kwargs: run(*args, **kwargs)  # the model itself is tried, not a copy
    predict(model, data, ratio=0.3, batches="random")
    assert not model.later._forward_pre_hooks


@pytest.mark.parametrize("method", ["full", "cluster"])
def test_methods_notice_a_conv_that_was_replaced(method):
    data = graph()
    model = Net(data).double()
    learner = METHODS[method](model, data)
    learner.prepare()
    model.conv2 = gnn.GCNConv(6, 3).double()
    with pytest.raises(ValueError, match=r"layers that were there .*got others: conv2"):
        learner.exact()
