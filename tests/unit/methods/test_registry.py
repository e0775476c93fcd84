"""Every method under the one protocol: what it hands out, exact scores, and its state."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GCN, GCNConv

from graphs import communities
from topoff.methods.full import Full
from topoff.methods.protocol import Method
from topoff.methods.registry import METHODS
from topoff.methods.top import Top
from topoff.models.by_name import make_model
from topoff.training.config import FIELDS, MethodName

pytestmark = pytest.mark.filterwarnings("ignore:The compensation misses")
OWN = {name: kind.own_model for name, kind in METHODS.items() if hasattr(kind, "own_model")}
FIXED = ["top", "full", "cluster", "drop", "drop-ax", "gas", "ibmb", "ibmb-batch", "sgc", "sign", "lmc", "graphfm-ob"]
SETTINGS = {"ratio": 0.25, "rank": 6, "batches": "random", "refresh": "every=2", "seed": 0}
OTHER = {  # for every setting that a method reads, a value other than the usual one
    "batches": "metis", "ratio": 0.5, "parts": 5, "regroup": True, "train_only": True, "reach": 0,
    "rank": 3, "estimator": "paper", "inits": 1, "refresh": "never", "offset": False, "late": True,
    "fanout": 3, "hops": 1, "walk_length": 3, "mix": 0.5, "accumulate": 2,
}  # fmt: skip
UNREAD = {  # what a method takes although it reads it from no run
    **dict.fromkeys(("drop", "drop-ax"), ("estimator", "inits", "late", "reach")),  # take those of TOP
    "shadow-ppr": ("hops",),  # takes those of shadow
    "lmc": ("train_only",),  # takes it to refuse it in a sentence of its own
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPOFF_CACHE", str(tmp_path))


def graph() -> Data:
    return communities(dtype=torch.float32)


def gcn(**options: object) -> GCN:
    torch.manual_seed(1)
    return GCN(5, 16, num_layers=3, out_channels=4, **options)


def model_for(name: str, model: nn.Module | None = None) -> nn.Module:
    """Return the model that a method brings, else the given one, else a GCN."""
    if name not in OWN:
        return model or gcn()
    torch.manual_seed(1)
    return make_model(OWN[name], in_channels=5, hidden=16, out_channels=4, layers=2)


def made(name: str, model: nn.Module | None = None, **settings: object) -> Method:
    method = METHODS[name](model_for(name, model), graph(), **settings_of(name, **settings))
    method.prepare()
    return method


def settings_of(name: str, **settings: object) -> dict[str, object]:
    """Return those of the settings that a method reads."""
    return {key: value for key, value in (SETTINGS | settings).items() if key in (*METHODS[name].settings, "seed")}


def nodes_of(batches: list[Data]) -> list[list[int]]:
    return [batch.n_id.tolist() for batch in batches]


@pytest.mark.parametrize("name", METHODS)
def test_a_method_has_the_protocols_functions(name: str) -> None:
    verbs = [verb for verb, value in vars(Method).items() if inspect.isfunction(value) and not verb.startswith("_")]
    method = made(name)
    for verb in verbs:
        wanted, found = (inspect.signature(getattr(kind, verb)) for kind in (Method, type(method)))
        own = [parameter for parameter in found.parameters.values() if parameter.kind is not parameter.KEYWORD_ONLY]
        assert list(wanted.parameters) == [parameter.name for parameter in own], verb
    assert isinstance(method.model, nn.Module)


def test_settings_know_every_method() -> None:
    assert get_args(MethodName) == tuple(METHODS)


def test_every_setting_that_a_method_reads_is_one_of_a_run() -> None:
    read = {key for kind in METHODS.values() for key in kind.settings}
    assert read == set(OTHER)  # so that the test below tries them all
    assert read < set(FIELDS)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_takes_the_settings_that_it_reads_and_no_others(name: str) -> None:
    def takes(**settings: object) -> bool:
        try:
            METHODS[name](model_for(name), graph(), **settings)
        except TypeError:
            return False
        return True

    read = METHODS[name].settings
    assert takes(**{key: OTHER[key] for key in read}, seed=3, fast_dropout=True, progress=None)
    refused = [key for key in (*OTHER, "no_such_setting") if key not in (*read, *UNREAD.get(name, ()))]
    assert [key for key in refused if takes(**{key: OTHER.get(key)})] == []


@pytest.mark.parametrize("name", METHODS)
def test_an_epoch_visits_training_nodes(name: str) -> None:
    method = made(name)
    epoch = list(method.batches())
    assert 0 < len(epoch) <= len(method)
    for batch in epoch:
        out = method.forward(batch)
        assert out.shape == (batch.batch_size, 4)
        assert len(batch.train_mask) >= batch.batch_size
        assert batch.x.size(0) == batch.n_id.numel()


@pytest.mark.parametrize("name", METHODS)
def test_a_method_that_goes_on_sees_what_it_would_have_seen(name: str) -> None:
    method, other = made(name), made(name)
    list(method.batches())
    epoch = method.batches()
    next(epoch, None)
    state, weights = method.state(), {key: value.clone() for key, value in method.weights().items()}
    again = type(method)(other.model, graph(), **settings_of(name))
    again.restore(state, weights)
    assert again.state() == state
    assert nodes_of(list(epoch)) == nodes_of(list(again.batches()))
    assert nodes_of(list(method.batches())) == nodes_of(list(again.batches()))


@pytest.mark.parametrize("name", ["top", "full", "cluster", "drop", "drop-ax"])
def test_an_epoch_holds_every_node_once(name: str) -> None:
    method = made(name)
    for _ in range(2):
        batches = list(method.batches())
        assert len(batches) == len(method) == {"full": 1}.get(name, 4)
        assert sorted(torch.cat([batch.n_id for batch in batches]).tolist()) == list(range(60))


@pytest.mark.parametrize("name", METHODS)
def test_exact_outputs_are_those_of_the_plain_model(name: str) -> None:
    model = gcn(dropout=0.5, norm="batch_norm")
    method, data = made(name, model), graph()
    model = method.model
    before = torch.get_rng_state()
    out, _ = method.exact()
    assert model.training
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.allclose(out, model.eval()(data.x, data.edge_index), atol=1e-5)
    assert not out.requires_grad


@pytest.mark.parametrize("name", METHODS)
def test_a_sample_is_a_batch_of_the_epoch(name: str) -> None:
    method = made(name, gcn(dropout=0.5))
    samples = [method.sample(number) for number in range(len(method) + 1)]
    assert all(len(nodes) == len(seen) for nodes, seen in samples)
    assert all(torch.equal(a, b) for a, b in zip(samples[0], samples[-1], strict=True))
    assert (len(method) > 1) == (name != "full")
    if len(method) > 1:
        assert not torch.equal(samples[0][0], samples[1][0])
    if not name.startswith("saint"):  # which draws nodes, some of them never
        assert sum(len(nodes) for nodes, _ in samples[:-1]) >= int(graph().train_mask.sum())


@pytest.mark.parametrize("name", FIXED)
def test_a_sample_is_what_training_sees(name: str) -> None:
    method = made(name, gcn(dropout=0.5))
    nodes, seen = method.sample(2)
    whole = method.outputs()
    assert whole.shape == (60, 4)
    assert torch.allclose(whole[nodes], seen, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in METHODS if name != "sgc"])  # a model without dropout
def test_the_forward_has_gradients_and_the_models_mode(name: str) -> None:
    method = made(name, gcn(dropout=0.9))
    (batch, *_) = method.batches()
    first, second = method.forward(batch), method.forward(batch)
    assert not torch.equal(first, second)
    first.sum().backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is not None for parameter in method.model.parameters())


def test_the_whole_graph_misses_nothing() -> None:
    method, data = made("full"), graph()
    (batch,) = method.batches()
    assert torch.allclose(method.forward(batch), method.model(data.x, data.edge_index), atol=1e-5)
    assert method.certificate_ is None
    assert method.report() == []
    assert method.weights() == {}
    assert torch.allclose(method.outputs(), method.exact()[0], atol=1e-6)


def test_compensated_batches_are_described() -> None:
    method = made("top")
    certificate = method.certificate_
    assert certificate is not None
    assert 0 < certificate < 1
    assert [report.nodes for report in method.report()] == [15] * 4


def test_an_evaluation_refreshes_where_that_is_due() -> None:
    method = made("top", refresh="every=2")
    found = []
    for _ in range(4):
        list(method.batches())
        found.append(method.exact()[1])
    assert found == [False, True, False, True]


def test_the_whole_graph_is_never_refreshed() -> None:
    method = made("full")
    list(method.batches())
    assert method.exact()[1] is False


class Loose(nn.Module):
    """Has a parameter that nothing resets."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.first, self.second = nn.Parameter(torch.ones(5)), GCNConv(5, 8), GCNConv(8, 4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.first(x * self.scale, edge_index).relu(), edge_index)


@pytest.mark.parametrize("make", [lambda: made("full", Loose()), lambda: made("top", Loose(), rank=0, refresh="never")])
def test_no_random_initialization_is_drawn_where_nothing_is_compensated(make: Callable[[], Method]) -> None:
    assert make().exact()[0].shape == (60, 4)


# states


def test_the_whole_graph_goes_on_after_its_step() -> None:
    method = made("full")
    epoch = method.batches()
    next(epoch)
    state = method.state()
    other = Full(gcn(), graph(), seed=0)
    other.restore(state, method.weights())
    assert other.state() == state
    assert list(other.batches()) == []  # the step was taken
    assert len(list(other.batches())) == 1
    assert list(epoch) == []
    other = Full(gcn(), graph(), seed=0)
    other.restore(method.state(), {})
    assert len(list(other.batches())) == 1  # it was not yet


def test_an_epoch_of_the_whole_graph_that_was_left_early_does_not_shorten_the_next() -> None:
    method = made("full")
    next(method.batches())
    assert len(list(method.batches())) == 1


def test_compensated_batches_go_on_in_the_middle_of_an_epoch() -> None:
    method = made("top", refresh="every=1")
    list(method.batches())
    epoch = method.batches()
    next(epoch)
    state, weights = method.state(), method.weights()
    other = Top(gcn(), graph(), **(SETTINGS | {"refresh": "every=1"}))
    other.restore(state, weights)
    assert other.state() == state
    rest, again = list(epoch), list(other.batches())
    assert nodes_of(rest) == nodes_of(again)
    for one, two in zip(rest, again, strict=True):
        assert torch.equal(one.compensation.read, two.compensation.read)
    assert nodes_of(list(method.batches())) == nodes_of(list(other.batches()))


@pytest.mark.parametrize("name", METHODS)
def test_a_batch_that_is_printed_names_what_it_carries(name: str) -> None:
    batch = next(iter(made(name).batches()))
    assert len(repr(batch)) < 500
    page = (Path(__file__).parents[3] / "ARCHITECTURE.md").read_text()
    carried = set(batch.keys()) - set(graph().keys()) - {"n_id", "batch_size", "num_nodes"}
    assert all(f"| `{attribute}` |" in page for attribute in carried), carried


@pytest.mark.parametrize("name", METHODS)
def test_batches_carry_all_that_the_graph_carries(name: str) -> None:
    data = graph()
    data.u, data.texts, data.kind, data.title = (
        torch.rand(1, 3),
        [f"text {i}" for i in range(60)],
        torch.arange(60),
        "t",
    )
    method = METHODS[name](model_for(name), data, **settings_of(name))
    method.prepare()
    for batch in method.batches():
        assert batch.texts == [f"text {i}" for i in batch.n_id.tolist()]
        assert batch.kind.equal(batch.n_id)
        assert batch.u.equal(data.u)
        assert batch.title == "t"
        assert method.forward(batch).shape == (batch.batch_size, 4)
