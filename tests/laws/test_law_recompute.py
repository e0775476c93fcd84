"""What the backward pass computes again it computes on its own batch: gradients are those without checkpointing."""

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch_geometric.nn as gnn
import zoo
from test_law_no_trace import assert_untouched, snapshot
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch_geometric.data import Data

from graphs import communities, corner_sets, corners, node_sets
from topoff import TOP, compensating
from topoff.forward.call import Learner
from topoff.methods.registry import METHODS

pytestmark = [
    pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True"),  # reentrant, in eval mode
    pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True"),
]
WIDTH, CLASSES = 8, 4

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "gcn": lambda: gnn.GCNConv(WIDTH, WIDTH),
    "sage": lambda: gnn.SAGEConv(WIDTH, WIDTH),
    "tag": lambda: gnn.TAGConv(WIDTH, WIDTH, K=2),
    "gat": lambda: gnn.GATConv(WIDTH, WIDTH),
    "sage_max": lambda: gnn.SAGEConv(WIDTH, WIDTH, aggr="max"),
}


class Frugal(nn.Module):
    """Checkpoint every layer: conv, tanh and dropout. `saves` is None to keep everything, else "reentrant" or not."""

    def __init__(self, layer: Callable[[], nn.Module], saves: str | None) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.convs = nn.ModuleList(layer() for _ in range(3))
        self.saves, self.dropout = saves, nn.Dropout(0.3)

    def layer(self, number: int, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.dropout(self.convs[number](x, edge_index).tanh())

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.first(x).tanh()
        for number in range(3):
            if self.saves is None:
                x = self.layer(number, x, edge_index)
            else:
                x = checkpoint(self.layer, number, x, edge_index, use_reentrant=self.saves == "reentrant")
        return self.last(x)


class AllAtOnce(Frugal):
    """Checkpoint the whole model, its first conv, which reads the features, and its output included."""

    def whole(self, x: Tensor, edge_index: Tensor, _: Tensor) -> Tensor:
        for conv in self.convs[:-1]:
            x = self.dropout(conv(x, edge_index).tanh())
        return self.convs[-1](x, edge_index)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        given = x[:, : WIDTH // 2].repeat(1, 2) if x.size(1) != WIDTH else x, edge_index, self.first.weight
        if self.saves is None:
            return self.whole(*given)
        return checkpoint(self.whole, *given, use_reentrant=self.saves == "reentrant")


class Deep(nn.Module):
    """Stack PyG's own layers, which checkpoint their convs on request."""

    def __init__(self, layer: Callable[[], nn.Module], saves: str | None, *, block: str) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.layers = nn.ModuleList(
            gnn.DeepGCNLayer(
                layer(), nn.LayerNorm(WIDTH), nn.Tanh(), block=block, dropout=0.2, ckpt_grad=saves is not None
            )
            for _ in range(3)
        )

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x, edge_index)
        return self.last(x)


class Reversible(nn.Module):
    """Stack PyG's reversible layers, whose inputs are computed from their outputs during backward."""

    def __init__(self, layer: Callable[[], nn.Module], saves: str | None, *, groups: int = 2) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, groups * WIDTH), nn.Linear(groups * WIDTH, CLASSES)
        self.layers = nn.ModuleList(
            gnn.GroupAddRev(layer(), num_groups=groups, disable=saves is None) for _ in range(3)
        )

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x, edge_index)
        return self.last(x.tanh())


class Tied(Reversible):
    """Call one reversible layer three times."""

    def __init__(self, layer: Callable[[], nn.Module], saves: str | None) -> None:
        super().__init__(layer, saves)
        self.layers = nn.ModuleList([self.layers[0]] * 3)


Make = Callable[[Callable[[], nn.Module], str | None], nn.Module]
MODELS: dict[str, tuple[Make, str]] = {
    "checkpoint": (Frugal, "not reentrant"),
    "checkpoint, reentrant": (Frugal, "reentrant"),
    "one checkpoint": (AllAtOnce, "not reentrant"),
    "one checkpoint, reentrant": (AllAtOnce, "reentrant"),
    "DeepGCNLayer": (lambda layer, saves: Deep(layer, saves, block="res"), "ckpt_grad"),
    "DeepGCNLayer res+": (lambda layer, saves: Deep(layer, saves, block="res+"), "ckpt_grad"),
    "DeepGCNLayer plain": (lambda layer, saves: Deep(layer, saves, block="plain"), "ckpt_grad"),
    "GroupAddRev": (Reversible, "reversible"),
    "GroupAddRev, tied": (Tied, "reversible"),
    "GroupAddRev of 3": (lambda layer, saves: Reversible(layer, saves, groups=3), "reversible"),
}


def graph_for(name: str) -> Data:
    """Return the graph, with as many features as a model needs that gives them to a conv."""
    return communities(48, features=WIDTH if name.startswith("one") else 5, directed=True)


def both(name: str, layer: str) -> tuple[nn.Module, nn.Module]:
    """Return the model that computes again, and the same one that keeps everything."""
    make, saves = MODELS[name]
    torch.manual_seed(0)
    frugal, lavish = make(LAYERS[layer], saves).double(), make(LAYERS[layer], None).double()
    lavish.load_state_dict(frugal.state_dict())
    return frugal, lavish


def wrapped(model: nn.Module, data: Data, **settings: Any) -> TOP:
    settings = {"ratio": 0.25, "batches": "random", "rank": 6, **settings}
    if isinstance(model, Tied):
        settings["offset"] = False  # nobody could say which of its calls is run again
    top = TOP(model, data, tolerance=9.0, **settings)
    top.prepare()
    return top


def each(top: Learner, batches: list[Data]) -> None:
    """Run one batch after the other."""
    for batch in batches:
        top(batch).square().sum().backward()


def together(top: Learner, batches: list[Data]) -> None:
    """Run one backward pass for all."""
    losses = [top(batch).square().sum() for batch in batches]
    torch.stack(losses).sum().backward()


def crossed(top: Learner, batches: list[Data]) -> None:
    """Run one backward pass for all, losses in another order than forwards, each twice in two ways."""
    outs = [top(batch) for batch in batches]
    losses = [weight * out.square().sum() for weight, out in zip((1.0, 3.0, 2.0, 0.5), outs, strict=False)]
    losses += [out.sin().sum() for out in reversed(outs)]
    sum(losses, torch.zeros(())).backward()


def stepwise(top: Learner, batches: list[Data]) -> None:
    """Run all forwards first, then a backward pass for each, the first forward first."""
    for loss in [top(batch).square().sum() for batch in batches]:
        loss.backward()


def gradients(top: Learner, batches: list[Data], way: Callable[[Learner, list[Data]], None]) -> list[Tensor]:
    top.model.train()
    top.model.zero_grad()
    torch.manual_seed(5)  # of dropout
    way(top, batches)
    return grads_of(top.model)


def grads_of(model: nn.Module) -> list[Tensor]:
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]


WAYS = [("gcn", each), ("gcn", crossed), ("gcn", stepwise), *((layer, together) for layer in LAYERS)]


@pytest.mark.parametrize(("layer", "way"), WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_without_recomputation(name, layer, way):
    data, (frugal, lavish) = graph_for(name), both(name, layer)
    top, plain = wrapped(frugal, data), wrapped(lavish, data)
    frugal.train()
    before = snapshot(frugal)
    got, truth = gradients(top, top.cover(), way), gradients(plain, plain.cover(), way)
    zoo.assert_near(got, truth, tolerance=1e-10)
    assert max(float(part.abs().max()) for part in truth) > 0.1
    assert_untouched(frugal, before)


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_right_in_every_corner(name):
    data = corners()
    data.x = data.x[:, :1].repeat(1, WIDTH) if name.startswith("one") else torch.cat([data.x, data.x[:, :1]], 1)
    frugal, lavish = both(name, "gcn")
    sets: dict[str, Any] = {"batches": node_sets(corner_sets()), "rank": 1}
    top, plain = wrapped(frugal, data, **sets), wrapped(lavish, data, **sets)
    got, truth = gradients(top, top.cover(), together), gradients(plain, plain.cover(), together)
    zoo.assert_near(got, truth, tolerance=1e-10)


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("name", ["checkpoint", "checkpoint, reentrant"])
def test_dropout_draws_the_same_masks_again(name, fast):
    data, (frugal, lavish) = graph_for(name), both(name, "sage")
    top, plain = wrapped(frugal, data, fast_dropout=fast), wrapped(lavish, data, fast_dropout=fast)
    got, truth = gradients(top, top.cover(), together), gradients(plain, plain.cover(), together)
    zoo.assert_near(got, truth, tolerance=1e-12)
    assert type(frugal.dropout) is nn.Dropout


@pytest.mark.parametrize("name", MODELS)
def test_fidelity_is_that_without_recomputation(name):
    data, (frugal, lavish) = graph_for(name), both(name, "gcn")
    got, truth = (wrapped(model.eval(), data).fidelity(gradients=True) for model in (frugal, lavish))
    assert (got.output, got.gradient_error) == pytest.approx((truth.output, truth.gradient_error), abs=1e-10)


@pytest.mark.parametrize("name", ["checkpoint", "checkpoint, reentrant"])
def test_a_graph_may_be_walked_twice(name):
    top = wrapped(both(name, "gcn")[0], graph_for(name))
    first, second = (top(batch).square().sum() for batch in top.cover()[:2])
    (first + second).backward(retain_graph=True)
    once = [parameter.grad.clone() for parameter in top.model.parameters()]
    first.backward()
    second.backward()
    zoo.assert_near([parameter.grad for parameter in top.model.parameters()], [2 * g for g in once], tolerance=1e-10)


@pytest.mark.parametrize("name", MODELS)
def test_the_bare_model_is_plain_between_forward_and_backward_and_after_it(name):
    data, (frugal, lavish) = graph_for(name), both(name, "gcn")
    frugal.eval(), lavish.eval()
    top, before = wrapped(frugal, data), snapshot(frugal)
    truth = lavish(data.x, data.edge_index)
    out = top(top.cover()[0])
    assert_untouched(frugal, before)
    zoo.assert_near(frugal(data.x, data.edge_index), truth, tolerance=1e-12)
    frugal(data.x, data.edge_index).square().sum().backward()
    zoo.assert_near(grads_of(frugal), zoo.gradients(lavish, truth.square().sum()), tolerance=1e-10)
    copied = copy.deepcopy(frugal)
    out.sum().backward()
    assert_untouched(frugal, before)
    zoo.assert_near(copied(data.x, data.edge_index), truth, tolerance=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_a_backward_pass_that_fails_leaves_no_trace(name):
    data, (frugal, lavish) = graph_for(name), both(name, "gcn")
    frugal.eval(), lavish.eval()
    top, before = wrapped(frugal, data), snapshot(frugal)
    weight = frugal.convs[0].lin.weight if hasattr(frugal, "convs") else frugal.first.weight
    bound = []

    def fail(_: Tensor) -> None:
        bound.append("_bound_in_backward" in vars(frugal))
        raise RuntimeError("the user's own mistake")

    hook = weight.register_hook(fail)
    for batch in top.cover()[:2]:
        loss = top(batch).square().sum()
        with pytest.raises(RuntimeError, match="own mistake"):
            loss.backward()
        del loss
        assert_untouched(frugal, before)
    assert bound == [True, True], "it failed while the model was bound"
    hook.remove()
    truth = lavish(data.x, data.edge_index)
    zoo.assert_near(frugal(data.x, data.edge_index), truth, tolerance=1e-12)
    plain = wrapped(lavish, data)
    zoo.assert_near(gradients(top, top.cover(), each), gradients(plain, plain.cover(), each), tolerance=1e-10)


@pytest.mark.parametrize("name", MODELS)
def test_no_gradients_need_no_backward(name):
    data, (frugal, lavish) = graph_for(name), both(name, "gcn")
    frugal.eval(), lavish.eval()
    top, plain = wrapped(frugal, data), wrapped(lavish, data)
    with torch.no_grad():
        for one, other in zip(top.cover(), plain.cover(), strict=True):
            zoo.assert_near(top(one), plain(other), tolerance=1e-12)
            assert not top.handler.recomputes


def test_a_model_that_keeps_everything_has_no_hook():
    _, lavish = both("checkpoint", "gcn")
    top = wrapped(lavish, graph_for("checkpoint"))
    out = top(top.cover()[0])
    assert not top.handler.recomputes
    assert out._backward_hooks is None
    with torch.autograd.graph.save_on_cpu():  # around the whole forward: nothing is computed again
        top(top.cover()[0])
    assert not top.handler.recomputes


class Twice(Frugal):
    """Call one conv on the features and on what it made of them."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for _ in range(2):
            x = checkpoint(self.convs[0], x, edge_index, use_reentrant=False).tanh()
        return x


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (False, "read features in all its calls or in none"),
        (True, "run once in a forward that backward computes again"),
    ],
)
def test_calls_that_cannot_be_told_apart_are_refused(offset, expected):
    top = wrapped(Twice(LAYERS["gcn"], "").double(), graph_for("one"), offset=offset)
    loss = top(top.cover()[0]).sum()
    with pytest.raises(ValueError, match=rf"GCNConv 'convs.0' to {expected} \(got 2 calls"):
        loss.backward()


@pytest.mark.parametrize("name", MODELS)
def test_gradients_of_gradients_are_refused(name):
    top = wrapped(both(name, "gcn")[0], graph_for(name))
    loss = top(top.cover()[0]).square().sum()
    with pytest.raises(ValueError, match=r"Expected first gradients of a model that computes parts again"):
        loss.backward(create_graph=True)


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_compensating_keeps_its_batch_through_backward(name, inside):
    data, (frugal, lavish) = graph_for(name), both(name, "gcn")
    top, plain = wrapped(frugal, data), wrapped(lavish, data)
    frugal.train()
    before, losses = snapshot(frugal), []
    torch.manual_seed(5)
    for batch in top.cover():
        with compensating(frugal, batch):
            losses.append(frugal(batch.x, batch.edge_index).square().sum())
            if inside:
                losses.pop().backward()
        assert_untouched(frugal, before)
    if not inside:
        torch.stack(losses).sum().backward()
    assert_untouched(frugal, before)
    zoo.assert_near(grads_of(frugal), gradients(plain, plain.cover(), each), tolerance=1e-10)
    with compensating(frugal, top.cover()[0]), torch.no_grad():
        assert not frugal(top.cover()[0].x, top.cover()[0].edge_index).requires_grad


def test_compensating_refuses_parts_that_it_would_lose():
    frugal = both("checkpoint", "gcn")[0]
    batch = wrapped(frugal, graph_for("checkpoint")).cover()[0]
    before = snapshot(frugal)
    message = r"Expected the model itself to be called in `with compensating"
    with pytest.raises(ValueError, match=message), compensating(frugal, batch):
        checkpoint(frugal.layer, 0, frugal.first(batch.x), batch.edge_index, use_reentrant=False)
    assert_untouched(frugal, before)


# ---- other methods

OWN = {"sgc", "sign"}  # bring their own model, without convs
ONCE = {"gas", "lmc", "graphfm-ob", "graphfm-ib", "vrgcn", "ns", "labor", "labor-star", "fastgcn", "ladies", "adapt"}
SETTINGS: dict[str, Any] = {"ratio": 0.25, "rank": 6, "batches": "random", "refresh": "every=2", "seed": 0}


def method(name: str, model: nn.Module, data: Data) -> Any:
    kind = METHODS[name]
    made = kind(model, data, **{key: value for key, value in SETTINGS.items() if key in kind.settings})
    made.prepare()
    return made


def squares(out: Tensor, batch: Data) -> Tensor:
    return out.square().sum()


@pytest.mark.filterwarnings("ignore:The compensation misses")
@pytest.mark.parametrize("saves", ["checkpoint", "checkpoint, reentrant"])
@pytest.mark.parametrize("name", sorted(METHODS.keys() - OWN))
def test_every_method_is_right_or_refuses(name, saves):
    data, models = graph_for(saves), both(saves, "gcn")
    found = []
    for model, refuses in zip(models, (name in ONCE, False), strict=True):
        run, before = method(name, model, data), snapshot(model)
        batch = next(iter(run.batches()))
        torch.manual_seed(7)
        message = r"Expected GCNConv 'convs.\d' to run once per step \(got a second run during backward"
        with pytest.raises(ValueError, match=message) if refuses else nullcontext():
            run.learn(batch, squares)
        assert_untouched(model, before)
        found.append(grads_of(model))
    if name not in ONCE:
        zoo.assert_near(*found, tolerance=1e-10)
