"""Whatever users write is exact, or refused in one sentence with its true reason; never silently wrong."""

import copy
import math
import re
from typing import Any, NamedTuple

import pytest
import torch
import torch_geometric.nn as gnn
import user_models as users
import zoo
from user_net import FEATURES, HIDDEN, OUT, Two, first, last

from graphs import communities
from topoff import TOP, predict
from topoff.forward.call import evaluating

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")  # torch announces its sparse tensors once
KNOWN = [name for name, user in users.ALL.items() if user.known]
REFUSAL = (ValueError, TypeError)
SENTENCE = r"Expected .*\(got .*\)"  # ours; torch and PyG say "Expected" too


def truth_of(name, model, data):
    """Return the plain forward of a copy in eval mode."""
    plain = copy.deepcopy(model)
    with evaluating(plain):
        return users.run_plain(name, plain, data)


def assert_same(value, truth, *, tolerance=1e-9):
    """Demand the same tensors in the same containers."""
    assert type(value) is type(truth)
    values, truths = users.tensors(value), users.tensors(truth)
    zoo.assert_near(values, truths, tolerance=tolerance)
    assert [tensor.dtype for tensor in values] == [tensor.dtype for tensor in truths]


def predicted(name, model, data):
    return predict(model, data, ratio=0.3, batches="random", call=users.ALL[name].call)


def wrapped(name, model, data, *, ratio):
    return TOP(model, data, ratio=ratio, rank=4, batches="random", tolerance=math.inf, call=users.ALL[name].call)


class Found(NamedTuple):
    """Hold the output of a batch, and its nodes."""

    out: Any
    nodes: torch.Tensor


def whole_batch(top):
    (batch,) = top
    return Found(top(batch), batch.n_id)


def unless_refused(reason, run):
    """Return what comes out, or None where it is refused in a sentence that says the reason."""
    try:
        return run()
    except REFUSAL as refusal:
        said = str(refusal)
    assert re.match(SENTENCE, said), said
    assert re.search(reason, said), said
    return None


def pulled(out):
    """Return a number whose gradient is different in every direction."""
    pull = torch.Generator().manual_seed(5)
    parts = [tensor for tensor in users.tensors(out) if tensor.is_floating_point()]
    return sum((part * torch.randn(part.shape, generator=pull, dtype=part.dtype)).sum() for part in parts)


def gradients(model, loss):
    """Return the gradient of every parameter that has one, zero where the loss does not depend on it."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]


@pytest.mark.parametrize("graph", ["acyclic", "corners"])  # on the directed one below, after training
@pytest.mark.parametrize("name", users.EXACT)
def test_predict_equals_the_plain_forward(name, graph):
    data = users.graph_for(name, graph)
    model = users.make(name, data)
    assert_same(predicted(name, model, data), truth_of(name, model, data))


@pytest.mark.parametrize(("graph", "mode"), [("directed", "train"), ("corners", "eval")])
@pytest.mark.parametrize("name", users.EXACT)
def test_one_batch_has_the_outputs_and_gradients_of_the_plain_forward(name, graph, mode):
    data = users.graph_for(name, graph)
    model = users.make(name, data).train(mode == "train")
    plain = copy.deepcopy(model)
    top = wrapped(name, model, data, ratio=1.0)
    top.prepare()
    torch.manual_seed(3)
    out, nodes = whole_batch(top)
    torch.manual_seed(3)
    truth = users.rows(users.run_plain(name, plain, data), nodes, data.num_nodes)
    if users.ALL[name].random_edges and mode == "train":
        assert [tensor.shape for tensor in users.tensors(out)] == [tensor.shape for tensor in users.tensors(truth)]
        return
    assert_same(out, truth)
    if any(parameter.requires_grad for parameter in model.parameters()):
        zoo.assert_near(gradients(model, pulled(out)), gradients(plain, pulled(truth)), tolerance=1e-8)
    zoo.assert_near(list(model.buffers()), list(plain.buffers()), tolerance=1e-9)


@pytest.mark.parametrize("name", users.EXACT)
def test_batches_train(name):
    data = users.graph_for(name, "directed")
    model = users.make(name, data)
    top = wrapped(name, model, data, ratio=0.3)
    for batch in top:
        out = top(batch)
        (main, *_) = users.tensors(out)
        assert len(main) == batch.batch_size
        if main.requires_grad:
            pulled(out).backward()
    found = [p.grad for p in model.parameters() if p.grad is not None]
    assert bool(found) == any(p.requires_grad for p in model.parameters())
    assert all(bool(grad.isfinite().all()) for grad in found)
    with evaluating(model):
        assert_same(top.predict(), users.run_plain(name, model, data))


@pytest.mark.parametrize("graph", ["acyclic", "corners"])
@pytest.mark.parametrize("name", KNOWN)
def test_a_first_layer_is_exact_in_training_however_the_graph_is_cut(name, graph):
    data = users.graph_for(name, graph)
    model = users.make(name, data).train()
    truth = users.run_plain(name, copy.deepcopy(model), data)
    top = wrapped(name, model, data, ratio=0.3)
    for batch in top:
        assert_same(top(batch), truth[batch.n_id])


@pytest.mark.parametrize("graph", ["acyclic"])
@pytest.mark.parametrize("name", users.REFUSED)
def test_what_cannot_be_batched_is_refused_for_its_true_reason(name, graph):
    data = users.graph_for(name, graph)
    model = users.ALL[name].make(data).double()  # as it is made: gates that are zero stay zero
    for run in (lambda: predicted(name, model, data), lambda: wrapped(name, model, data, ratio=0.3).prepare()):
        with pytest.raises(REFUSAL, match=users.ALL[name].refused) as refusal:
            run()
        assert re.match(SENTENCE, str(refusal.value))


@pytest.mark.parametrize("graph", ["acyclic", "corners"])
@pytest.mark.parametrize("name", users.EITHER)
def test_what_may_be_refused_is_exact_where_it_is_not(name, graph):
    data = users.graph_for(name, graph)
    model, reason = users.make(name, data), users.ALL[name].refused
    out = unless_refused(reason, lambda: predicted(name, model, copy.deepcopy(data)))
    if out is not None:
        assert_same(out, truth_of(name, model, data))
    plain = copy.deepcopy(model)
    found = unless_refused(reason, lambda: whole_batch(wrapped(name, model, copy.deepcopy(data), ratio=1.0)))
    if found is not None:
        truth = users.run_plain(name, plain, data)
        assert_same(found.out, users.rows(truth, found.nodes, data.num_nodes))


@pytest.mark.parametrize("called", [False, True])
@pytest.mark.parametrize("kind", ["GCNConv", "SAGEConv", "GATConv"])
def test_a_lazy_conv_is_made_by_its_first_call_or_asked_for_one(kind, called):
    data, conv = communities(30, features=FEATURES), getattr(gnn, kind)
    model = Two(conv1=conv(-1, HIDDEN), conv2=conv(-1, OUT)).double()
    if called:
        model(data.x, data.edge_index)
    out = unless_refused("lazy|-1", lambda: predict(model, data, ratio=0.3, batches="random"))
    assert out is not None or not called
    if out is not None:
        with evaluating(model):
            zoo.assert_near(out, model(data.x, data.edge_index), tolerance=1e-9)


@pytest.mark.parametrize(
    "name", ["tutorial GCN", "own two hops", "gcn_norm by hand", "edge encoder", "norm: GraphNorm"]
)
def test_single_precision_is_kept(name):
    data = users.graph_for(name, "directed")
    for key in ("x", "edge_attr"):
        if key in data:
            data[key] = data[key].float()
    model = users.make(name, data, dtype=torch.float32)
    assert_same(predicted(name, model, data), truth_of(name, model, data), tolerance=1e-5)


def test_features_of_three_dimensions_are_exact_or_refused_by_their_shape():
    data = communities(30, features=FEATURES)
    data.x = data.x.view(30, 2, 2)
    model = Steps3(conv=gnn.GCNConv(2, OUT)).double()
    reason = r"'x' to have shape \(nodes, features\).*\(30, 2, 2\)"
    out = unless_refused(reason, lambda: predict(model, data, ratio=0.3, batches="random"))
    if out is not None:
        with evaluating(model):
            zoo.assert_near(out, model(data.x, data.edge_index), tolerance=1e-9)


class Steps3(Two):
    """Apply a conv to every time step of features (nodes, steps, width)."""

    def forward(self, x, edge_index):
        return sum(self.conv(x[:, t], edge_index).tanh() for t in range(x.size(1)))


def test_a_cache_of_the_convs_is_neither_read_nor_filled():
    data = communities(30, features=FEATURES)
    model = Two(conv1=first(cached=True), conv2=last()).double()
    predict(model, data, ratio=0.3, batches="random")
    assert model.conv1._cached_edge_index is None
