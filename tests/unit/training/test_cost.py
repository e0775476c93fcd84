"""What an epoch is estimated to cost, before it runs: counted against the method's own batches, and said in words."""

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.data import Data

from topoff.machine.rates import Rates
from topoff.methods.registry import METHODS
from topoff.training import cost as costs
from topoff.training.build import make_method, make_setup
from topoff.training.config import Config, make_config
from topoff.training.cost import REFRESH, STEP, estimate, workload
from topoff.training.cost_words import in_words
from topoff.training.defaults import choose

NODES, TRAINING = 2_000, 600


def graph(nodes: int, *, edges: int = 10, features: int = 1) -> Data:
    return Data(x=torch.ones(nodes, features), edge_index=torch.zeros(2, edges, dtype=torch.long))


def config(**settings: object) -> Config:
    return make_config({"dataset": "graph", **settings})


def cost(nodes: int, *, edges: int = 100, width: int = 32, **settings: object) -> tuple[float, int, int, int]:
    found = estimate(config(**settings), graph(nodes, edges=edges, features=16), nn.Linear(16, width))
    return found.epoch_seconds, found.memory, found.batches, found.batch_nodes


@pytest.fixture(autouse=True)
def same_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let estimates be compared: the machine's rates vary."""
    monkeypatch.setattr("topoff.training.cost.rates_of", lambda nodes, width: Rates(1e10, 1e10, 1e10, 1e10))
    monkeypatch.setattr(costs, "STEP", 0.0)


def test_every_step_takes_some_time(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = (cost(1_000, ratio=ratio, method="cluster")[0] for ratio in (0.5, 0.1))
    monkeypatch.setattr(costs, "STEP", STEP)
    assert cost(1_000, ratio=0.5, method="cluster")[0] == pytest.approx(few + 2 * STEP)
    assert cost(1_000, ratio=0.1, method="cluster")[0] == pytest.approx(many + 10 * STEP)


def test_the_cost_by_hand() -> None:
    seconds, memory, batches, nodes = cost(1_000, method="full")
    flops = 6 * 1_000 * 16 * 32
    moved = 2 * 4 * (100 + 1_000) * 32 + 20 * 4 * 1_000 * 32
    assert seconds == pytest.approx((flops + moved) / 1e10)
    held = 1_000 * 16 * 4 + 100 * (16 + 8 + 24) + 1_000 * 32 * 4 * 10 + 5 * 4 * (16 * 32 + 32)
    assert memory == 450 * 2**20 + held
    assert (batches, nodes) == (1, 1_000)


def test_more_of_everything_costs_more() -> None:
    settings = {"ratio": 0.1, "rank": 16}
    base = cost(1_000, **settings)
    for more in (cost(2_000, **settings), cost(1_000, edges=9_000, **settings), cost(1_000, width=64, **settings)):
        assert more[0] > base[0]
        assert more[1] > base[1]
    higher = cost(1_000, ratio=0.1, rank=64)
    assert higher[0] > base[0]
    assert higher[1] > base[1]


def test_smaller_batches_take_less_memory() -> None:
    small, large = cost(10_000, ratio=0.1, rank=16), cost(10_000, ratio=0.5, rank=16)
    assert small[1] < large[1]
    assert (small[2], small[3], large[2], large[3]) == (10, 1_000, 2, 5_000)


def test_a_rank_by_energy_is_left_out_of_the_estimate() -> None:
    assert cost(1_000, ratio=0.1, rank=0.9)[0] == cost(1_000, ratio=0.1, rank=0)[0]


def test_the_rates_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    found = estimate(config(method="full"), graph(100, features=16), nn.Linear(16, 4))
    assert 0 < found.epoch_seconds < 60


def test_nodes_that_are_not_batched_cost_no_time() -> None:
    data, model = graph(10_000, edges=100, features=16), nn.Linear(16, 32)
    data.train_mask = torch.arange(10_000) < 100
    settings = {"ratio": 0.1, "rank": 16, "refresh": "never"}
    whole, part = (estimate(config(**settings, train_only=only), data, model) for only in (False, True))
    assert part.epoch_seconds < whole.epoch_seconds / 50
    assert (whole.batch_nodes, part.batch_nodes) == (1_000, 10)


@pytest.mark.parametrize(("refresh", "share"), [("auto", 1.0), ("every=1", 1.0), ("every=2", 0.5)])
def test_refreshes_of_few_nodes_in_batches_cost_time(refresh: str, share: float) -> None:
    data, model = graph(10_000, edges=100, features=16), nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 4))
    data.train_mask = torch.arange(10_000) < 100
    settings = {"ratio": 0.1, "rank": 16, "train_only": True, "epochs": 5, "hidden": 32}
    never, found = (estimate(config(**settings, refresh=each), data, model) for each in ("never", refresh))
    columns, row = 3.5 * 16, 4 * 32
    forward = 2 * 10_000 * 16 * 32 + row * 100 + 4 * 16 * 100 + 2 * (18 * 2 * 10_000 * row + 32 * 100)
    estimates = 4 * 100 * 32 * 2 * columns + 10 * (30 * columns**3 + 6 * 10 * columns**2) + row * 2
    wanted = REFRESH + (forward + estimates) / 1e10
    assert found.epoch_seconds - never.epoch_seconds == pytest.approx(0.8 * share * wanted)


@pytest.mark.parametrize(("epochs", "count"), [(1, 0), (5, 4), (9, 8), (17, 12), (50, 18)])
def test_refreshes_of_few_nodes_grow_rare(epochs: int, count: int) -> None:
    data = graph(10_000, edges=100, features=16)
    data.train_mask = torch.arange(10_000) < 100
    made = config(ratio=0.1, rank=16, train_only=True, epochs=epochs)
    assert costs._refreshes(made, data, workload(made, data)) == count / epochs


def test_the_halo_of_a_general_conv_does_not_make_batches_large() -> None:
    data = graph(1_000, edges=50_000, features=16)
    data.edge_index = torch.randint(1_000, (2, 50_000), generator=torch.Generator().manual_seed(0))
    data.train_mask = torch.arange(1_000) < 100
    made = config(ratio=0.1, rank=16, train_only=True, epochs=5, model="gat", batches="random")
    work = workload(made, data)
    assert work.rows[0] > 1_000
    assert costs._refreshes(made, data, work) == 0.8


def test_deep_models_of_large_graphs_wait_for_the_disk() -> None:
    def seconds(nodes: int, model: str) -> float:
        """Return the seconds of an epoch with its refresh."""
        data = graph(nodes, edges=100, features=16)
        data.train_mask = torch.arange(nodes) < 100
        settings = {"ratio": 0.1, "rank": 1, "train_only": True, "epochs": 5, "hidden": 256, "layers": 5}
        return estimate(config(**settings, model=model), data, nn.Linear(16, 256)).epoch_seconds

    parked = [seconds(1_000_000, model) - seconds(999_999, model) for model in ("gcnii", "gcnii-jk")]
    layer, limit = 1_000_000 * 256 * 4, 2**29
    wanted = [2 * 0.8 * 16 * (count * layer - 5 * limit) / 1e10 for count in (10, 20)]
    assert parked == pytest.approx(wanted, rel=1e-3)


def test_a_model_that_encodes_its_features_has_a_place_more_and_factors_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "STEP", STEP)
    data, model = graph(10_000, edges=100, features=16), nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 4))
    data.train_mask = torch.arange(10_000) < 100
    settings = {"ratio": 0.1, "rank": 16, "train_only": True, "epochs": 5, "hidden": 32}
    plain, encoding = (estimate(config(**settings, model=name), data, model) for name in ("gcn", "gcnii"))
    assert encoding.epoch_seconds - plain.epoch_seconds > 0.8 * 10 * STEP


def test_where_a_quarter_of_the_nodes_is_batched_only_refreshes_that_are_asked_for_count() -> None:
    data, model = graph(10_000, edges=100, features=16), nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 4))
    data.train_mask = torch.arange(10_000) < 2_500
    settings = {"ratio": 0.1, "rank": 16, "train_only": True, "epochs": 5, "hidden": 32}
    never, auto, each = (
        estimate(config(**settings, refresh=refresh), data, model) for refresh in ("never", "auto", "every=1")
    )
    assert auto.epoch_seconds == pytest.approx(never.epoch_seconds)
    assert each.epoch_seconds > never.epoch_seconds + 0.8 * REFRESH


def test_histories_and_parked_layers_count_in_the_memory() -> None:
    few, many = (cost(nodes, ratio=0.1, method=method)[1] for nodes, method in ((10_000, "cluster"), (10_000, "gas")))
    assert many - few >= 2 * 10_000 * 32 * 4
    small, large = (cost(nodes, width=1024, ratio=0.001, method="cluster")[1] for nodes in (999_999, 1_000_000))
    assert small - large > 2**31, "sleeping batches of a large graph are on disk"


def test_gas_pays_for_the_rows_that_it_pulls() -> None:
    data, model = graph(1_000, features=16), nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 4))
    data.edge_index = torch.stack([torch.arange(1_000), torch.arange(1_000).roll(1)])
    settings = {"ratio": 0.1, "layers": 2, "hidden": 32}
    without = estimate(config(method="cluster", **settings), data, model).epoch_seconds
    for batches, share in ("random", 1.0), ("kaminpar", 1 / 9):  # of one neighbour per node, where 8 would be a half
        found = estimate(config(method="gas", batches=batches, **settings), data, model).epoch_seconds
        halo = 10 * 1_000 * (1 - 0.1) * -np.expm1(-0.1)  # nodes outside of a batch that one inside hears
        assert found - without == pytest.approx(16 * 4 * 32 * halo * share / 1e10, rel=1e-4)


def test_messages_count_once_in_a_layer_of_several_matrices() -> None:
    data = graph(1_000, edges=50_000, features=16)
    one, two = nn.Linear(16, 32), nn.Sequential(nn.Linear(16, 32), nn.Linear(16, 32))
    settings = config(method="full", layers=1)
    dense = (6 * 16 + 2 * 4 + 20 * 4) * 1_000 * 32 / 1e10  # of one more matrix
    assert estimate(settings, data, two).epoch_seconds - estimate(settings, data, one).epoch_seconds == pytest.approx(
        dense
    )


def test_sampled_neighbors_cost_time() -> None:
    data, model = graph(1_000, features=16), nn.Linear(16, 32)
    data.edge_index = torch.randint(1_000, (2, 20_000), generator=torch.Generator().manual_seed(0))
    data.train_mask = torch.arange(1_000) < 100
    settings = {"method": "ns", "ratio": 0.5}
    seconds = [estimate(config(fanout=fanout, **settings), data, model).epoch_seconds for fanout in (1, 3, 20)]
    assert seconds == sorted(seconds)
    assert seconds[2] > 2 * seconds[0]


@pytest.fixture(scope="module")
def data() -> Data:
    """Make a graph with a ring of close nodes, some far edges, and a third of training nodes."""
    rng = np.random.default_rng(0)
    near = np.arange(NODES).repeat(3)
    edges = np.stack([near, (near + rng.integers(1, 6, len(near))) % NODES])
    edges = torch.from_numpy(np.unique(np.concatenate([edges, edges[::-1]], axis=1), axis=1))
    graph = Data(x=torch.randn(NODES, 6), edge_index=edges, y=torch.from_numpy(rng.integers(0, 3, NODES)))
    graph.train_mask = torch.from_numpy(rng.permutation(NODES) < TRAINING)
    graph.val_mask, graph.test_mask = ~graph.train_mask, torch.zeros(NODES, dtype=torch.bool)
    return graph


def chosen(data: Data, method: str, **settings: object) -> Config:
    keys = {"dataset": "graph", "method": method, "layers": 2, "hidden": 8, "ratio": 0.1, "rank": 4}
    return choose(make_config(keys, settings), data)[0]


@pytest.mark.parametrize("method", METHODS)
def test_batches_and_rows_are_about_those_of_the_method(data: Data, method: str) -> None:
    config = chosen(data, method)
    work, made = workload(config, data), make_method(make_setup(config, data))
    made.prepare()
    batches = list(made.batches())
    assert work.batches == len(made)
    assert len(work.rows) == len(work.messages) == config.layers
    if method == "lmc":  # its batches do not count their halo, whose rows cost two thirds
        halo = workload(chosen(data, "graphfm-ob"), data).rows[0] - NODES
        assert work.rows[0] - NODES == pytest.approx(2 / 3 * halo)
        return
    assert work.rows[0] / work.batches == pytest.approx(np.mean([batch.num_nodes for batch in batches]), rel=1.0)


@pytest.mark.parametrize("method", ["top", "drop", "drop-ax", "cluster", "gas"])
def test_with_train_only_the_training_nodes_alone_are_counted(data: Data, method: str) -> None:
    work = workload(chosen(data, method, train_only=True), data)
    assert work.rows == [TRAINING, TRAINING]
    assert work.targets == TRAINING / 10


def test_with_a_reach_the_nodes_near_training_nodes_are_counted(data: Data) -> None:
    assert workload(chosen(data, "top", reach=0), data).rows == [TRAINING, TRAINING]
    assert TRAINING < workload(chosen(data, "top", reach=1), data).rows[0] <= NODES


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("full", "full: the whole graph at once"),
        ("top", "top: 10 kaminpar batches of about 200 nodes, messages from outside compensated at rank 4, refresh au"),
        ("cluster", "cluster: 10 kaminpar batches of about 200 nodes, messages from outside left out, the rest"),
        ("ns", "ns: 10 batches of about 60 training nodes, 10 sampled neighbours per node and layer"),
        ("shadow", "shadow: 10 batches of about 60 training nodes, each in its own sampled 2-hop subgraph"),
        ("saint-walk", "saint-walk: 10 batches of about 200 nodes, subgraphs of random walks of 2 steps"),
        ("sgc", "sgc: 10 batches of about 60 training nodes, features propagated once, beforehand"),
    ],
)
def test_in_words(data: Data, method: str, words: str) -> None:
    config = chosen(data, method)
    work = workload(config, data)
    assert in_words(config, batches=work.batches, batch_nodes=work.targets).startswith(words)


def test_every_method_has_words_of_its_own(data: Data) -> None:
    sentences = {in_words(chosen(data, method), batches=1, batch_nodes=1) for method in METHODS}
    assert len({sentence.partition(": ")[2] for sentence in sentences}) >= len(METHODS) - 1  # sgc and sign share theirs
    assert not any("None" in sentence or "{" in sentence for sentence in sentences)
