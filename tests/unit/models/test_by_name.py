"""Models by their name: every option reaches its model, and the user's own classes get what they name."""

import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from graphs import communities
from topoff.models.by_name import MODELS, OPTIONS, make_model, options_of
from topoff.models.decoupled import SGC, SIGN
from topoff.models.networks import GAT, GCN, GCNII, PNA, ClusterGCN, GraphSAGE, LinearGNN, degree_histogram

SIZES = {"in_channels": 5, "hidden": 6, "out_channels": 3}
EVERYTHING: dict[str, Any] = {
    "layers": 2,
    "dropout": 0.3,
    "input_dropout": 0.4,
    "edge_dropout": 0.5,
    "norm": "batch",
    "residual": True,
    "jk": False,
    "linear": False,
    "heads": 2,
    "out_heads": 3,
    "alpha": 0.3,
    "theta": 0.7,
    "shared_weights": False,
    "aggregators": ["sum"],
    "scalers": ["linear"],
    "degrees": torch.tensor([1, 2, 3]),
    "diag_lambda": 0.6,
}
DECOUPLED = ("sgc", "sign")  # these have no stack of convs


@pytest.mark.parametrize("name", [name for name in MODELS if name not in DECOUPLED])
def test_every_name_makes_its_model_from_all_options(name: str) -> None:
    model = make_model(name, **SIZES, **EVERYTHING)
    kinds = {"gcn": GCN, "gcnii": GCNII, "gcnii-jk": GCNII, "sage": GraphSAGE, "gat": GAT, "pna": PNA}
    kinds["cluster-gcn"] = ClusterGCN
    assert type(model) is kinds.get(name, LinearGNN)
    assert repr(model).endswith("(5, 6, 3, num_layers=2)")
    assert (model.dropout, model.input_dropout) == (0.3, 0.4)
    assert isinstance(model.norms[0], nn.Identity if name == "linear" else nn.BatchNorm1d)
    assert model.residual == (name != "linear")
    assert (model.mix is not None) == (name == "gcnii-jk")


def test_models_that_propagate_features_only_are_made_from_all_options() -> None:
    assert set(DECOUPLED) < set(MODELS)
    sgc, sign = (make_model(name, **SIZES, **EVERYTHING) for name in DECOUPLED)
    assert (type(sgc), type(sign)) == (SGC, SIGN)
    assert (repr(sgc), repr(sign)) == ("SGC(5, 3, num_layers=2)", "SIGN(5, 6, 3, num_layers=2)")
    assert (sign.dropout, sign.input_dropout) == (0.3, 0.4)


def test_options_reach_their_model() -> None:
    gcnii, gat, pna = (make_model(name, **SIZES, **EVERYTHING) for name in ("gcnii", "gat", "pna"))
    assert (gcnii.convs[0].alpha, gcnii.convs[0].beta) == (0.3, math.log(1.7))
    assert gcnii.convs[0].weight2 is not None
    assert [conv.heads for conv in gat.convs] == [2, 3]
    assert pna.convs[0].aggr_module.scaler == ["linear"]
    assert "SumAggregation" in repr(pna.convs[0].aggr_module.aggr.aggrs)
    assert pna.convs[0].aggr_module.init_avg_deg_lin == pytest.approx(8 / 6)
    assert [conv.diag_lambda for conv in make_model("cluster-gcn", **SIZES, **EVERYTHING).convs] == [0.6, 0.6]
    assert make_model("gcn", **SIZES, **(EVERYTHING | {"linear": True})).first is not None
    assert make_model("sage", **SIZES, **(EVERYTHING | {"jk": True})).mix is not None


def test_options_left_out_are_the_models_own() -> None:
    assert len(make_model("gcnii", **SIZES).convs) == len(GCNII(5, 6, out_channels=3).convs) == 4
    assert isinstance(make_model("gcn", **SIZES).norms[0], nn.LayerNorm)


def test_lists_may_be_comma_separated_as_in_the_settings() -> None:
    degrees = torch.tensor([1, 2, 3])
    pna = make_model("pna", **SIZES, degrees=degrees, aggregators="sum, mean", scalers="linear")
    assert pna.convs[0].aggr_module.scaler == ["linear"]
    assert len(pna.convs[0].aggr_module.aggr.aggrs) == 2


def test_a_setting_that_no_model_has_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Expected settings of models: aggregators, .* \(got 'hiden'\)"):
        make_model("gcn", **SIZES, hiden=4)


def test_what_a_model_reads_follows_from_its_constructor() -> None:
    assert options_of("sgc") == {"layers"}
    assert options_of("sign") == options_of("linear") == {"layers", "hidden", "dropout", "input_dropout"}
    stack = {"norm", "residual", "jk", "linear", "edge_dropout"}
    assert options_of("sage") == options_of("gcn") == options_of("linear") | stack
    assert options_of("gcnii") == options_of("gcn") - {"linear"} | {"alpha", "theta", "shared_weights"}
    assert options_of("gcnii-jk") == options_of("gcnii") - {"jk"}
    assert set(EVERYTHING) - {"degrees"} | {"hidden"} == OPTIONS


@pytest.mark.parametrize(
    ("name", "row"),
    [  # the paper's architectures with the most options, smaller
        ("gcn", {"layers": 2, "dropout": 0.0, "norm": "batch", "residual": True, "linear": True}),
        ("gcn", {"layers": 2, "dropout": 0.3, "input_dropout": 0.3, "norm": "batch", "residual": False}),
        ("gcnii", {"layers": 4, "dropout": 0.3, "norm": "batch", "shared_weights": True, "alpha": 0.2, "theta": 0.5}),
        ("gcnii-jk", {"layers": 5, "dropout": 0.0, "alpha": 0.1, "theta": 0.5}),
        ("pna", {"layers": 3, "dropout": 0.5, "input_dropout": 0.5, "norm": "batch", "residual": True, "jk": True}),
        ("gat", {"layers": 2, "heads": 8, "out_heads": 8, "dropout": 0.6, "input_dropout": 0.6, "norm": "none"}),
    ],
)
def test_the_papers_architectures_can_be_made(name: str, row: dict[str, Any]) -> None:
    data = communities(20, dtype=torch.float32)
    degrees = degree_histogram(data.edge_index, 20)
    model = make_model(name, **SIZES, **row, degrees=degrees, aggregators=["mean", "max"], scalers=["identity"])
    assert model(data.x, data.edge_index).isfinite().all()


@pytest.mark.parametrize(
    ("name", "hint"), [("gcni", "did you mean 'gcnii'"), ("graphsage", "'sage'"), ("zzz", "models of your own")]
)
def test_unknown_names_get_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(ValueError, match=rf"Expected model to be one of gcn, gcnii, .* \(got '{name}'\); .*{hint}"):
        make_model(name, **SIZES)


def test_pna_needs_degrees() -> None:
    with pytest.raises(ValueError, match=r"Expected degrees to be the histogram .* 'pna' \(got None\)"):
        make_model("pna", **SIZES)


OWN = """
import colleague
from torch import nn
from torch_geometric.nn import GCNConv

class Own(nn.Module):
    def __init__(self, in_channels, hidden_channels, out_channels, num_layers=7, *, heads, norm="layer", jk="cat",
                 name="own", **kwargs):
        super().__init__()
        self.seen = [in_channels, hidden_channels, out_channels, num_layers, heads, norm, jk, name, kwargs]
        self.conv = GCNConv(in_channels, out_channels)

class Short(nn.Module):
    def __init__(self, hidden, layers, norm, jk):
        super().__init__()
        self.seen = [hidden, layers, norm, jk]

class Needy(nn.Module):
    def __init__(self, in_channels, flavour):
        super().__init__()

class Plain:
    pass

number = 5
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder with a module of the user's, which imports another one there."""
    (tmp_path / "own_models.py").write_text(OWN)
    (tmp_path / "colleague.py").write_text("")
    (tmp_path / "broken_models.py").write_text("import colleague_who_left")
    monkeypatch.chdir(tmp_path)
    for name in ("own_models", "colleague", "broken_models"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


@pytest.mark.usefixtures("own_module")
def test_classes_of_ones_own_get_the_arguments_that_they_name() -> None:
    path = list(sys.path)
    model = make_model("own_models:Own", **SIZES, **EVERYTHING)
    assert model.seen == [5, 6, 3, 2, 2, "batch", "cat", "own", {}]
    assert make_model("own_models:Short", **SIZES, **EVERYTHING).seen == [6, 2, "batch", False]
    assert sys.path == path


def test_pygs_models_can_be_named() -> None:
    model = make_model("torch_geometric.nn:GraphSAGE", **SIZES, **EVERYTHING)
    assert repr(model) == "GraphSAGE(5, 3, num_layers=2)"
    assert model.dropout.p == 0.3
    assert model.jk_mode is None
    assert isinstance(model.norms[0], nn.Identity)


@pytest.mark.usefixtures("own_module")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "absent_models:Own",
            r"model 'absent_models:Own' to name a module .* \(got: No module named 'absent_models'\)",
        ),
        (
            "broken_models:Own",
            r"model 'broken_models:Own' .* \(got: No module named 'colleague_who_left', in broken_models.py, line 1\)",
        ),
        ("own_models:Other", r"'Other' in own_models to be a subclass of torch.nn.Module \(got no such name\)"),
        ("own_models:Plain", r"'Plain' in own_models to be a subclass .* \(got <class 'own_models.Plain'>\)"),
        ("own_models:number", r"'number' in own_models to be a subclass of torch.nn.Module \(got 5\)"),
        ("own_models:Needy", r"the constructor of own_models:Needy to need only .* \(got 'flavour'\)"),
        ("own_models:", r"model to be one of gcn, .* \(got 'own_models:'\)"),
        (".own_models:Own", r"model to be one of gcn, .* \(got '.own_models:Own'\)"),
    ],
)
def test_classes_that_cannot_be_used_are_refused(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"Expected {message}"):
        make_model(name, **SIZES)
