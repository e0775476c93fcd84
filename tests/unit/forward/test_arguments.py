"""What a user's model is called with on a batch: one rule, and a question where it leaves a choice."""

from typing import Any

import pytest
import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from torch_geometric.data import Data

import topoff
from graphs import communities, corners
from topoff.forward.arguments import Arguments, call_text, fill, settle, signature_of
from topoff.forward.call import caller
from topoff.models.decoupled import SGC

EDGES = {"x": "x", "edge_index": "edge_index"}


def graph(**more: Tensor) -> Data:
    """Return six nodes and four edges, with labels and masks, and more attributes."""
    n, edges = 6, torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    train = torch.arange(n) < 3
    masks = {"train_mask": train, "val_mask": ~train, "test_mask": train & ~train}
    return Data(x=torch.ones(n, 3), edge_index=edges, y=torch.arange(n) % 2, **masks, **more)


def rows(*shape: int) -> Tensor:
    return torch.rand(6, *shape)


def values(*shape: int) -> Tensor:
    return torch.rand(4, *shape)


class Recorder(nn.Module):
    """A model that notes what it is called with; subclasses give `forward` its signature."""

    given: dict[str, Any]

    def note(self, given: dict[str, Any]) -> None:
        self.given = {name: value for name, value in given.items() if name not in ("self", "__class__")}


class ByName(Recorder):
    def forward(self, edge_index: Tensor, x: Tensor) -> None:
        self.note(locals())


class WithWeight(Recorder):
    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None, scale: float = 2.0) -> None:
        self.note(locals())


class WithAttr(Recorder):
    def forward(self, x, edge_index, edge_attr=None) -> None:  # type: ignore[no-untyped-def]
        self.note(locals())


class WithBoth(Recorder):
    def forward(self, x, edge_index, edge_weight=None, edge_attr=None) -> None:  # type: ignore[no-untyped-def]
        self.note(locals())


class WithWeightAlways(Recorder):
    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> None:
        self.note(locals())


class WithPositions(Recorder):
    def forward(self, x, edge_index, pe=None) -> None:  # type: ignore[no-untyped-def]
        self.note(locals())


class WithSwitches(Recorder):
    def forward(  # type: ignore[no-untyped-def]
        self,
        x,
        edge_index,
        batch=None,
        batch_size=None,
        num_nodes=None,
        num_sampled_nodes_per_hop=None,
        return_attention_weights=None,
        mask=None,
        root_index=None,
        depth: int | None = None,
        scale=1.0,
    ) -> None:
        self.note(locals())


class WithLabels(Recorder):
    def forward(self, x: Tensor, edge_index: Tensor, y: Tensor) -> None:
        self.note(locals())


class WithOptionalLabels(Recorder):
    def forward(self, x: Tensor, edge_index: Tensor, y: Tensor | None = None) -> None:
        self.note(locals())


class WithOptionalMask(Recorder):
    def forward(self, x: Tensor, edge_index: Tensor, train_mask: Tensor | None = None) -> None:
        self.note(locals())


class OnBatch(Recorder):
    def forward(self, data: Data) -> None:
        self.note(locals())


class OnAnnotatedBatch(Recorder):
    def forward(self, x: Data) -> None:
        self.note(locals())


class OnBatchWithOptions(Recorder):
    def forward(self, batch: Any, verbose: int = 0, edge_weight: Tensor | None = None) -> None:
        self.note(locals())


class OnFeatures(Recorder):
    def forward(self, x: Tensor) -> None:
        self.note(locals())


class OnPositions(Recorder):
    def forward(self, pos: Tensor) -> None:
        self.note(locals())


class WithRest(Recorder):
    def forward(self, x: Tensor, edge_index: Tensor, *args: Any, **kwargs: Any) -> None:
        self.note(locals())


def call(model: Recorder, data: Data) -> dict[str, Any]:
    caller(model, arguments=settle(model, data))(model, data)
    return model.given


# by name


def test_arguments_are_filled_by_name() -> None:
    data = corners()
    given = call(ByName(), data)
    assert given["x"] is data.x
    assert given["edge_index"] is data.edge_index


def test_edge_values_are_filled_where_the_graph_has_them() -> None:
    data = corners()
    given = call(WithBoth(), data)
    assert given["edge_weight"] is data.edge_weight
    assert given["edge_attr"] is data.edge_attr
    assert call(WithWeight(), data)["edge_weight"] is data.edge_weight
    assert call(WithWeight(), graph())["edge_weight"] is None


def test_an_optional_argument_gets_the_attribute_of_its_name() -> None:
    data = graph(pe=rows(2))
    assert call(WithPositions(), data)["pe"] is data.pe


def test_defaults_other_than_none_stay() -> None:
    data = graph(scale=torch.tensor(7.0))
    assert call(WithWeight(), data)["scale"] == 2.0


def test_an_optional_argument_is_not_filled_with_what_is_no_tensor() -> None:
    data = graph()
    data.pe = "random walk"
    assert call(WithPositions(), data)["pe"] is None


def test_other_arguments_without_default_are_filled_too() -> None:
    data = corners()
    assert call(WithLabels(), data)["y"] is data.y


def test_switches_are_left_alone_whatever_the_batch_holds() -> None:
    data = graph(pos=rows(3), batch=torch.zeros(6, dtype=torch.int64))
    data.batch_size, data.num_nodes = 6, 6
    assert {name for name, value in call(WithSwitches(), data).items() if value is not None} == {*EDGES, "scale"}


def test_an_argument_that_the_graph_lacks_is_named_with_the_remedy() -> None:
    data, model = Data(x=torch.eye(2), edge_index=torch.tensor([[0], [1]])), WithLabels()
    with pytest.raises(ValueError, match=r"have 'y', an argument of WithLabels.forward \(got edge_index, x\).*call="):
        settle(model, data)
    with pytest.raises(ValueError, match=r"have 'y', an argument of WithLabels.forward \(got edge_index, x\).*call="):
        caller(model)(model, data)


# weights in edge_attr


@pytest.mark.parametrize("model", [WithWeight(), WithWeightAlways()], ids=["optional", "required"])
def test_weights_that_transforms_keep_in_edge_attr_are_weights(model: Recorder) -> None:
    data = graph(edge_attr=values())
    assert call(model, data)["edge_weight"] is data.edge_attr


def test_edge_attr_goes_to_a_model_that_takes_it() -> None:
    data = graph(edge_attr=values())
    given = call(WithBoth(), data)
    assert given["edge_attr"] is data.edge_attr
    assert given["edge_weight"] is None


def test_integers_are_no_weights_but_may_be_meant_by_edge_attr() -> None:
    assert call(WithWeight(), graph(edge_attr=torch.arange(4)))["edge_weight"] is None
    with pytest.raises(ValueError, match=r"optional 'edge_attr' of WithAttr .* data.edge_type, which may be meant"):
        settle(WithAttr(), graph(edge_type=torch.arange(4)))


def test_gdc_weights_reach_gcn_in_training_and_in_prediction() -> None:
    data = communities(40, seed=2)
    data.edge_attr = 0.5 + torch.rand(data.num_edges, dtype=torch.float64)
    model = gnn.GCN(5, 8, num_layers=2, out_channels=3).double().eval()
    expected = model(data.x, data.edge_index, edge_weight=data.edge_attr)
    top = topoff.TOP(model, data, ratio=0.25, rank=8, batches="random", tolerance=10.0)
    assert torch.allclose(top.predict(), expected)
    assert torch.allclose(topoff.predict(model, data, ratio=0.25, batches="random"), expected)
    assert not torch.allclose(model(data.x, data.edge_index), expected)
    whole = topoff.TOP(model, data, ratio=1.0, rank=8, batches="random", tolerance=10.0)
    batch = next(iter(whole))
    assert torch.allclose(whole(batch), expected[batch.n_id])


# questions


@pytest.mark.parametrize(
    ("model", "more", "option", "key"),
    [
        (WithPositions(), {"random_walk_pe": rows(4)}, "pe", "random_walk_pe"),
        (WithPositions(), {"pos": rows(3)}, "pe", "pos"),
        (WithPositions(), {"node_pe": torch.arange(6)}, "pe", "node_pe"),
        (WithAttr(), {"edge_weight": values()}, "edge_attr", "edge_weight"),
        (WithAttr(), {"edge_features": values(3)}, "edge_attr", "edge_features"),
        (WithWeight(), {"edge_attr": values(3)}, "edge_weight", "edge_attr"),
        (WithWeight(), {"edge_attr": values(1)}, "edge_weight", "edge_attr"),
        (gnn.GCN(3, 4, num_layers=1), {"edge_attr": values(1)}, "edge_weight", "edge_attr"),
        (gnn.GAT(3, 4, num_layers=1, edge_dim=1), {"edge_weight": values()}, "edge_attr", "edge_weight"),
    ],
)
def test_an_attribute_that_may_be_meant_is_asked_for(
    model: nn.Module, more: dict[str, Tensor], option: str, key: str
) -> None:
    data = graph(**more)
    with pytest.raises(
        ValueError,
        match=rf"what the optional '{option}' of {type(model).__name__} is .*data.{key}, .*set data.{option}, d",
    ):
        settle(model, data)
    with pytest.raises(ValueError, match=r"give call=lambda model, batch: model\(batch.x, batch.edge_index, ...\)"):
        topoff.TOP(model, data)
    assert topoff.TOP(model, data, call=lambda model, batch: model(batch.x, batch.edge_index)).arguments is None


@pytest.mark.parametrize("model", [WithOptionalLabels(), WithOptionalMask()], ids=["y", "mask"])
def test_labels_and_masks_are_handed_to_no_model_unasked(model: Recorder) -> None:
    with pytest.raises(
        ValueError, match=r"told whether WithOptional.* labels and masks are handed to no model unasked"
    ):
        settle(model, graph())
    data = graph()
    del data.y, data.train_mask
    assert settle(model, data).given == EDGES


@pytest.mark.parametrize(
    ("model", "more"),
    [
        (WithWeight(), {"node_year": torch.arange(6), "node_species": rows(1)}),  # of nodes, beside an edge's option
        (WithWeight(), {"edge_type": torch.arange(4), "edge_mask": values() > 0, "e_id": torch.arange(4)}),
        (WithPositions(), {"node_year": torch.arange(6), "train_idx": torch.arange(3), "n_id": torch.arange(6)}),
        (WithPositions(), {"edge_weight": values(), "u": torch.rand(1, 2)}),
        (ByName(), {"edge_weight": values(), "pe": rows(2)}),  # nothing is open
        (gnn.GCN(3, 4, num_layers=1), {"edge_attr": values(3)}),  # it says that it takes no edge features
        (SGC(3, out_channels=2), {"edge_attr": values(3)}),  # so do our own
    ],
)
def test_nothing_is_asked_where_nothing_can_be_meant(model: nn.Module, more: dict[str, Tensor]) -> None:
    assert settle(model, graph(**more)).given == EDGES


# PyG's own models


@pytest.mark.parametrize(
    ("model", "taken"),
    [
        (gnn.GCN(4, 8, num_layers=2), {"edge_weight"}),
        (gnn.GraphSAGE(4, 8, num_layers=2), set()),
        (gnn.GIN(4, 8, num_layers=2), set()),
        (gnn.EdgeCNN(4, 8, num_layers=2), set()),
        (gnn.GAT(4, 8, num_layers=2), set()),
        (gnn.GAT(4, 8, num_layers=2, edge_dim=2), {"edge_attr"}),
        (gnn.GAT(4, 8, num_layers=2, v2=True), set()),
        (gnn.PNA(4, 8, num_layers=2, aggregators=["mean"], scalers=["identity"], deg=torch.arange(4)), set()),
        (
            gnn.PNA(4, 8, num_layers=2, aggregators=["mean"], scalers=["identity"], deg=torch.arange(4), edge_dim=2),
            {"edge_attr"},
        ),
    ],
)
def test_pygs_models_get_the_edge_values_that_they_use(model: nn.Module, taken: set[str]) -> None:
    data = corners()
    found = settle(model, data)
    assert set(found.given) == {*EDGES, *taken}
    assert set(found.unused) == {"edge_weight", "edge_attr"} - taken
    assert len(caller(model.double(), arguments=found)(model, data)) == data.num_nodes


def test_gat_without_edge_dim_predicts_on_a_graph_with_edge_features() -> None:
    data, model = corners(), gnn.GAT(4, 8, num_layers=2, out_channels=3).double().eval()
    assert torch.allclose(topoff.predict(model, data, ratio=0.5, batches="random"), model(data.x, data.edge_index))


# the batch itself


@pytest.mark.parametrize("model", [OnBatch(), OnAnnotatedBatch(), OnBatchWithOptions()], ids=lambda m: type(m).__name__)
def test_a_single_argument_gets_the_batch(model: Recorder) -> None:
    data = corners()
    given = call(model, data)
    assert next(iter(given.values())) is data
    assert given.get("edge_weight") is None
    assert settle(model, data).line == "calling model(data)"


def test_a_single_argument_with_the_name_of_an_attribute_gets_that() -> None:
    data = graph(pos=rows(3))
    assert call(OnFeatures(), data)["x"] is data.x
    assert call(OnPositions(), data)["pos"] is data.pos


# wrappers


class Passing(nn.Module):
    def __init__(self, **children: nn.Module) -> None:
        super().__init__()
        for name, child in children.items():
            setattr(self, name, child)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return next(self.children())(*args, **kwargs)


class Positional(Passing):
    def forward(self, *args: Any) -> Any:
        return next(self.children())(*args)


class Scaled(Passing):
    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        return next(self.children())(2 * x, *args, **kwargs)


def gcn() -> nn.Module:
    return gnn.GCN(4, 8, num_layers=2, out_channels=3).double().eval()


@pytest.mark.parametrize(
    "wrap",
    [
        AveragedModel,
        nn.DataParallel,
        gnn.GAE,
        gnn.VGAE,
        lambda model: gnn.ARGVA(model, nn.Linear(3, 1)),
        lambda model: Passing(net=model, head=nn.Linear(3, 3)),
        lambda model: Passing(model=model, ema=gcn()),
        lambda model: Scaled(net=model),
        lambda model: AveragedModel(Passing(inner=model)),
    ],
)
def test_wrappers_have_the_arguments_of_what_they_wrap(wrap: Any) -> None:
    data, model = corners(), wrap(gcn()).double().eval()
    found = settle(model, data)
    assert found.given == EDGES | {"edge_weight": "edge_weight"}
    plain = model(data.x, data.edge_index, edge_weight=data.edge_weight)
    assert torch.allclose(caller(model)(model, data), plain)
    assert torch.allclose(topoff.predict(model, data, ratio=0.5, batches="random"), plain)


def test_an_averaged_model_trains_and_predicts() -> None:
    data = communities(40)
    model = AveragedModel(gnn.GCN(5, 8, num_layers=2, out_channels=4).double()).eval()
    top = topoff.TOP(model, data, ratio=0.25, rank=8, batches="random", tolerance=10.0, inits=1)
    top(next(iter(top))).sum().backward()
    assert torch.allclose(top.predict(), model(data.x, data.edge_index))


def test_a_wrapper_without_keywords_is_called_by_position() -> None:
    data, model = corners(), Positional(net=gcn())
    found = settle(model, data)
    assert str(found) == "model(data.x, data.edge_index, data.edge_weight)"
    expected = model.net(data.x, data.edge_index, data.edge_weight)
    assert torch.equal(caller(model, arguments=found)(model, data), expected)


def test_a_wrapper_without_keywords_cannot_leave_one_out() -> None:
    model = Positional(net=gnn.GAT(4, 8, num_layers=2, edge_dim=2))
    with pytest.raises(
        ValueError, match=r"name its arguments \(got a wrapper's forward\(\*args\), which cannot .*call="
    ):
        settle(model, corners())


@pytest.mark.parametrize("inside", [{}, {"a": gcn(), "b": gcn()}, {"module": gcn(), "model": gcn()}])
def test_a_wrapper_of_several_modules_asks_for_a_call(inside: dict[str, nn.Module]) -> None:
    with pytest.raises(
        ValueError, match=r"Passing.forward to name its arguments .*no single module inside.*call=lambda"
    ):
        settle(Passing(**inside), corners())


def test_further_arguments_are_not_filled() -> None:
    given = call(WithRest(), corners())
    assert given["args"] == ()
    assert given["kwargs"] == {}


def test_a_model_of_features_alone_may_take_further_arguments() -> None:
    assert signature_of(Scaled(net=nn.Linear(2, 2))).required == ["x"]


def test_pygs_sequential_says_its_arguments() -> None:
    layers = [
        (gnn.GCNConv(4, 8), "x, edge_index, edge_weight -> x"),
        nn.ReLU(),
        (gnn.SAGEConv(8, 3), "x, edge_index -> x"),
    ]
    data, model = corners(), gnn.Sequential("x, edge_index, edge_weight", layers).double().eval()
    assert signature_of(model).required == ["x", "edge_index", "edge_weight"]
    expected = model(data.x, data.edge_index, data.edge_weight)
    assert torch.allclose(topoff.predict(model, data, ratio=0.5, batches="random"), expected)


# what is said


def test_the_line_names_the_call_and_what_is_left_out() -> None:
    found = settle(ByName(), corners())
    assert found.line == (
        "calling model(edge_index=data.edge_index, x=data.x); data.edge_attr is not used; data.edge_weight is not used"
    )
    assert found == Arguments({"edge_index": "edge_index", "x": "x"}, unused=("edge_attr", "edge_weight"))


def test_a_sentence_can_name_the_call() -> None:
    data = graph()
    assert call_text(ByName(), data) == "model(edge_index=data.edge_index, x=data.x)"
    assert call_text(ByName(), data, lambda model, batch: None) == "call(model, data)"


def test_filling_asks_nothing() -> None:
    assert fill(signature_of(WithWeight()), graph(edge_attr=values(2))).given == EDGES


def test_top_says_once_how_the_model_is_called(caplog: pytest.LogCaptureFixture) -> None:
    data, model = corners(), gcn()
    with caplog.at_level("INFO", "topoff"):
        top = topoff.TOP(model, data, ratio=0.5, rank=4, batches="random", tolerance=10.0)
        assert caplog.messages == []
        for _ in range(2):
            for batch in top:
                top(batch)
        top.predict()
    line = (
        "calling model(x=data.x, edge_index=data.edge_index, edge_weight=data.edge_weight); data.edge_attr is not used"
    )
    assert caplog.messages == [line]


def test_predict_says_how_the_model_is_called_unless_it_is_told(caplog: pytest.LogCaptureFixture) -> None:
    data, model = graph(), gnn.SAGEConv(3, 2)
    with caplog.at_level("INFO", "topoff"):
        topoff.predict(model, data, ratio=0.5, batches="random")
        assert caplog.messages == ["calling model(x=data.x, edge_index=data.edge_index)"]
        own = topoff.predict(model, data, ratio=0.5, batches="random", call=lambda m, b: m(b.x, b.edge_index))
    assert len(own) == 6
    assert len(caplog.messages) == 1
