"""Training and evaluation from a store on disk, in hardly any memory, have the bits of those in memory."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import topoff
from topoff import TOP
from topoff.batching.node_sets import NodeSets
from topoff.data.by_part import write_by_part
from topoff.data.generate import generate
from topoff.data.pieces import data_pieces
from topoff.data.recipe import Recipe
from topoff.models.by_name import make_model

LITTLE = 1e-9  # GiB: everything is larger
RECIPE = Recipe(
    nodes=600, edges=6000, features=9, classes=4, split=(0.15, 0.1, 0.1)
)  # batches of training nodes hold few of all


@pytest.fixture(scope="module", params=["float16", "float32"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("store") / "graph"
    generate(RECIPE, place, seed=1, dtype=request.param)
    return place


def trained(store: Path, model: str, *, in_memory: bool, memory: float | None, **settings: Any) -> list[torch.Tensor]:
    """Train for three epochs with a refresh, evaluate, and return weights, outputs and scores."""
    data = topoff.load(store, in_memory=in_memory)
    torch.manual_seed(0)
    network = make_model(model, in_channels=9, out_channels=4, hidden=8, layers=3)
    given = {"ratio": 0.25, "rank": 4, "refresh": "every=2", "tolerance": float("inf"), **settings}
    top = TOP(network, data, memory=memory, **given)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(3):
        for batch in top:
            optimizer.zero_grad()
            chosen = batch.train_mask
            nn.functional.cross_entropy(top(batch)[chosen], batch.y[chosen]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    assert (top.graph.shelf is not None) == (memory == LITTLE)
    scores = top.evaluate()
    certificates = [torch.tensor(top.certificate_), torch.tensor(list(scores.values()))]
    return [*(weight.clone() for weight in network.state_dict().values()), top.predict(), *certificates]


@pytest.mark.parametrize("model", ["gcn", "sage", "gat", "gcnii", "sgc"])
@pytest.mark.parametrize(
    "settings",
    [
        {"train_only": True},
        {},
        {"batches": "ldg", "train_only": True},
        {"train_only": True, "rank": 12},  # more than features
        {"train_only": True, "accumulate": 2},  # all rows are kept, not what batches see of them
    ],
    ids=str,
)
def test_the_bits_of_training_in_memory(
    model: str, settings: dict[str, Any], store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOPOFF_CACHE", str(tmp_path))
    memory = trained(store, model, in_memory=True, memory=None, **settings)
    for given in ({"in_memory": False, "memory": None}, {"in_memory": False, "memory": LITTLE}):
        disk = trained(store, model, **given, **settings)
        assert all(torch.equal(one, other) for one, other in zip(memory, disk, strict=True)), given
    assert not list((tmp_path / "shelf").iterdir()), "a matrix on disk has a name"


@pytest.mark.parametrize("model", ["gcn", "pna"])
def test_prediction_from_a_store(model: str, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPOFF_CACHE", str(tmp_path))
    outputs = []
    for in_memory, memory in ((True, None), (False, None), (False, LITTLE)):
        data = topoff.load(store, in_memory=in_memory)
        torch.manual_seed(0)
        degrees = torch.tensor([1, 2, 3])
        network = make_model(model, in_channels=9, out_channels=4, hidden=8, layers=3, degrees=degrees)
        outputs.append(topoff.predict(network, data, ratio=0.2, memory=memory))
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


@pytest.mark.parametrize("model", ["gcn", "sage", "gat"])
def test_nodes_that_lie_by_part_have_the_outputs_of_the_same_nodes_elsewhere(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Order the nodes of a store by part: the outputs are those of the old order, up to the order of sums."""
    monkeypatch.setenv("TOPOFF_CACHE", str(tmp_path / "cache"))
    generate(RECIPE, tmp_path / "plain", seed=1, dtype="float64")
    plain = topoff.load(tmp_path / "plain", in_memory=False)
    parts = NodeSets(method="metis", ratio=0.25, parts=12).fit(plain).parts_
    assert parts is not None
    write_by_part(tmp_path / "ordered", data_pieces(plain), lambda store: parts.numpy())
    ordered = topoff.load(tmp_path / "ordered", in_memory=False)
    network = make_model(model, in_channels=9, out_channels=4, hidden=8, layers=3).double()
    wanted = topoff.predict(network, plain)
    came = topoff.predict(network, ordered, batches="stored")
    torch.testing.assert_close(came, wanted[torch.tensor(ordered.names.ids.to_pylist())], rtol=1e-10, atol=1e-12)
