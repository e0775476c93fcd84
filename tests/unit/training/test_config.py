"""Settings: validated, written and read back, and every one of them changes something."""

import dataclasses
import math
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from graphs import communities
from topoff.data.sources import known_name
from topoff.methods.protocol import Method
from topoff.models.by_name import OPTIONS
from topoff.training.build import Setup, make_method, make_setup
from topoff.training.config import (
    EPOCHS,
    FIELDS,
    Config,
    difference,
    make_config,
    parse_config,
    read_config,
    shipped_configs,
    write_toml,
)
from topoff.training.loop import Training
from topoff.training.run_folder import RunFolder
from topoff.training.trained import graph_of
from topoff.training.words import parse_seeds, parse_settings

# layers of settings


def test_every_option_of_a_model_is_a_setting() -> None:
    assert not OPTIONS - FIELDS.keys()


def test_later_settings_win_and_none_is_as_good_as_absent() -> None:
    config = make_config({"dataset": "a", "lr": 0.1}, {"lr": 0.2, "hidden": 7}, {"lr": None, "hidden": 8})
    assert (config.dataset, config.lr, config.hidden) == ("a", 0.2, 8)
    assert config.epochs == EPOCHS


def test_texts_become_numbers_and_truth_values() -> None:
    config = make_config({"dataset": "a", "lr": "1e-3", "epochs": "7", "jk": "true", "rank": "0.5", "ratio": "0.25"})
    assert (config.lr, config.epochs, config.jk, config.rank, config.ratio) == (0.001, 7, True, 0.5, 0.25)
    assert isinstance(make_config({"dataset": "a", "rank": "64"}).rank, int)


@pytest.mark.parametrize(
    ("key", "remedy"),
    [
        ("hiden", r"did you mean 'hidden'\?"),
        ("learning_rate", r"the settings are dataset, root, "),
        ("weight-decay", r"did you mean 'weight_decay'\?"),
        ("epoch", r"did you mean 'epochs'\?"),
    ],
)
def test_an_unknown_setting_is_refused_with_the_nearest(key: str, remedy: str) -> None:
    with pytest.raises(ValueError, match=rf"a known setting \(got '{key}'\); {remedy}"):
        make_config({"dataset": "a"}, {key: 1})


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("method", "half", r"'top', 'full', .* or 'adapt' \(got 'half'\)"),
        ("batches", "kmeans", r"'kaminpar', 'metis', .* or 'ibmb' \(got 'kmeans'\)"),
        ("epochs", 0, r"greater than or equal to 1 \(got 0\)"),
        ("epochs", 1.5, r"a valid integer \(got 1.5\)"),
        ("epochs", "many", r"a valid integer \(got 'many'\)"),
        ("lr", 0, r"greater than 0 \(got 0\)"),
        ("lr", "nan", r"finite \(got 'nan'\)"),
        ("dropout", 1, r"less than 1 \(got 1\)"),
        ("ratio", -0.5, r"greater than 0 \(got -0.5\)"),
        ("rank", "high", r"a valid integer or a valid number \(got 'high'\)"),
        ("seed", -1, r"greater than or equal to 0 \(got -1\)"),
        ("regroup", "maybe", r"a valid boolean \(got 'maybe'\)"),
        ("dataset", 3, r"a valid string \(got 3\)"),
        ("refresh", 5, r"a valid string \(got 5\)"),
    ],
)
def test_a_value_that_a_setting_cannot_have_is_one_sentence(key: str, value: object, expected: str) -> None:
    with pytest.raises(ValueError, match=rf"^Expected '{key}' to be {expected}\.$"):
        make_config({"dataset": "a"}, {key: value})


def test_a_graph_must_be_named() -> None:
    with pytest.raises(ValueError, match=r"^Expected 'dataset' to be given \(got nothing\)\.$"):
        make_config({"lr": 0.1})


def test_every_setting_has_its_help() -> None:
    hints = typing.get_type_hints(Config, include_extras=True)
    for key in FIELDS:
        text = [note for note in hints[key].__metadata__ if isinstance(note, str)]
        assert len(text) == 1, key
        assert text[0].endswith("."), key


# TOML


def test_defaults_are_read_back() -> None:
    config = make_config({"dataset": "wordnet"})
    text = write_toml(config, command="topoff train wordnet")
    assert text.splitlines()[0] == "# topoff train wordnet"
    assert make_config(parse_config(text, origin="it")) == config
    assert "ratio" not in text  # what is left open stays so


@pytest.mark.parametrize(
    "changes",
    [
        {"dataset": 'quo"te \\ back\nline\ttab \x7f\x01 ünï 😀'},
        {"dataset": "a # b = c", "root": "C:\\graphs"},
        {"lr": 1e-7, "weight_decay": 5e-05, "clip": 1e22, "ratio": 1 / 3},
        {"checkpoint_seconds": math.inf},
        {"rank": 0.9},
        {"rank": 64, "jk": True, "residual": False, "seed": 12},
    ],
    ids=str,
)
def test_odd_values_are_read_back(changes: dict[str, Any]) -> None:
    config = make_config({"dataset": "a"}, changes)
    again = make_config(parse_config(write_toml(config, command="c"), origin="it"))
    assert again == config
    assert type(again.rank) is type(config.rank)


def test_a_command_of_several_lines_stays_a_comment() -> None:
    text = write_toml(make_config({"dataset": "a"}), command="topoff train \\\n  a\nlr = 3")
    assert text.startswith("# topoff train \\ a lr = 3\n")
    assert make_config(parse_config(text, origin="it")).lr == 0.01


def test_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text('# command\ndataset = "a"\nlr = 0.5\n')
    assert read_config(tmp_path / "own.toml") == {"dataset": "a", "lr": 0.5}


@pytest.mark.parametrize("name", shipped_configs())
def test_shipped_configs_are_sound(name: str) -> None:
    found = read_config(name)
    assert known_name(make_config(found).dataset) == found["dataset"]


def test_an_unknown_file_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(
        FileNotFoundError, match=r"a TOML file or the name of a config \(got 'gcn-cors'\).*'gcn-cora'\?"
    ):
        read_config("gcn-cors")
    with pytest.raises(FileNotFoundError, match=r"\(got 'nowhere/x.toml'\); the names are gat-citeseer, "):
        read_config("nowhere/x.toml")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lr: 0.1", r"own.toml to be TOML, one 'key = value' per line \(got .*line 1.*\)"),
        ("[model]\nlayers = 3", r"own.toml to be flat \(got a table or list 'model'\); write 'key = value' lines"),
        ("hidden = [8, 8]", r"own.toml to be flat \(got a table or list 'hidden'\)"),
        ("hiden = 8", r"a known setting in .* \(got 'hiden'\); did you mean 'hidden'\?"),
    ],
)
def test_a_file_that_is_no_flat_toml_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "own.toml").write_text(text)
    with pytest.raises(ValueError, match=expected):
        read_config(tmp_path / "own.toml")


# --set, --seeds


def test_pairs_are_read_as_toml_or_else_as_they_stand() -> None:
    pairs = ["lr=0.5", " hidden = 64 ", "model=my.models:Net", "jk=true", 'dataset="a b"', "root=", "refresh=every=3"]
    expected = {"lr": 0.5, "hidden": 64, "model": "my.models:Net", "jk": True, "dataset": "a b", "root": ""}
    assert parse_settings(pairs) == expected | {"refresh": "every=3"}
    assert parse_settings(["lr=1", "aggregators=mean,max"]) == {"lr": 1, "aggregators": "mean,max"}
    assert parse_settings([]) == {}


@pytest.mark.parametrize("pair", ["lr", "", "=3", " =3"])
def test_other_pairs_are_refused(pair: str) -> None:
    with pytest.raises(ValueError, match=rf"--set to be key=value \(got '{pair}'\); for example --set lr=0.005"):
        parse_settings([pair])


@pytest.mark.parametrize(
    ("text", "seeds"), [("3", [3]), ("0-3", [0, 1, 2, 3]), ("5,1", [5, 1]), (" 0 - 1, 7 ", None), ("2-2", [2])]
)
def test_seeds_are_numbers_and_ranges(text: str, seeds: list[int] | None) -> None:
    if seeds is None:
        with pytest.raises(ValueError, match=r"--seeds to be numbers and ranges, such as 0-9 or 0,3,5 \(got ' 0 - 1"):
            parse_seeds(text)
    else:
        assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "a", "1,", "3-1", "-1", "1.5", "0..3"])
def test_other_seeds_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=rf"--seeds to be numbers and ranges, .* \(got '{text}'\)"):
        parse_seeds(text)


def test_a_seed_is_named_once() -> None:
    with pytest.raises(ValueError, match=r"--seeds to name each seed once \(got 2 twice\)"):
        parse_seeds("0-4,2")


def test_differences_are_listed() -> None:
    one, two = make_config({"dataset": "a"}), make_config({"dataset": "a", "lr": 0.5, "rank": 3})
    assert difference(one, one) == []
    assert difference(one, two) == ["rank: None -> 3", "lr: 0.01 -> 0.5"]


# every setting is read


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write graphs: two names, two folders, two splits."""
    root = tmp_path_factory.mktemp("graphs")
    (root / "b").mkdir()
    files = [(root, "one"), (root, "two"), (root / "b", "one"), (root, "twosome"), (root, "counts")]
    for number, (folder, name) in enumerate(files):
        data = communities(60, groups=3, seed=number, dtype=torch.float32)
        arrays = {key: data[key].numpy() for key in ("x", "edge_index", "y")}
        if name == "twosome":
            arrays["y"] = arrays["y"] % 2
        if name == "counts":
            arrays["x"] = np.floor(np.abs(5 * arrays["x"]))
        for key in ("train_mask", "val_mask", "test_mask"):
            mask = data[key].numpy()
            arrays[key] = np.stack([mask, np.roll(mask, 1)], axis=1)
        np.savez(folder / f"{name}.npz", **arrays)
    return root


@pytest.mark.parametrize("method", ["cluster", "gas", "lmc"])
def test_sets_that_overlap_are_for_compensated_methods(method: str) -> None:
    with pytest.raises(
        ValueError, match=rf"batches to be kaminpar, metis, ldg, stored or random for method {method} \(got 'shadow'\)"
    ):
        make_config({"dataset": "x", "method": method, "batches": "shadow"})
    assert make_config({"dataset": "x", "method": "top", "batches": "shadow"}).batches == "shadow"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPOFF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("topoff.training.state.versions", dict)  # looking them up takes longer than a tiny run


Observe = Callable[[Config, Path], Any]


def graph(config: Config, where: Path) -> Any:
    data = graph_of(config)
    return [data.x.sum().item(), data.train_mask.tolist()]


def plan(config: Config) -> Setup:
    return make_setup(config, graph_of(config))


def prepared(config: Config) -> Method:
    made = make_method(plan(config))
    made.prepare()
    return made


def task(config: Config, where: Path) -> Any:
    return dataclasses.replace(plan(config).task, weight=None)


def method(config: Config, where: Path) -> Any:
    return type(make_method(plan(config)))


def batches(config: Config, where: Path) -> Any:
    """Return the nodes of the batches of two epochs."""
    made = prepared(config)
    return [[batch.n_id.tolist() for batch in made.batches()] for _ in range(2)]


def compensation(config: Config, where: Path) -> Any:
    made = prepared(config)
    return [batch.compensation.read.tolist() for batch in made.batches()]


def output(config: Config, where: Path) -> Any:
    """Return the model's output, in training."""
    data, model = graph_of(config), plan(config).model
    torch.manual_seed(0)
    return model(data.x, data.edge_index).tolist()


def device(config: Config, where: Path) -> Any:
    try:
        return {parameter.device.type for parameter in plan(config).model.parameters()}
    except ValueError as error:  # there is one device everywhere: it shows in the refusal of another
        return str(error)


def trained(config: Config, where: Path) -> Training:
    data = graph_of(config)
    made = Training(make_setup(config, data), folder=RunFolder(where / str(len(list(where.iterdir())))).create())
    made.run()
    return made


def records(config: Config, where: Path) -> Any:
    """Return the lines of a run, without times."""
    found = trained(config, where).folder.metrics()
    return [{key: value for key, value in record.line().items() if not key.endswith("seconds")} for record in found]


def rates(config: Config, where: Path) -> Any:
    return [record["lr"] for record in records(config, where)]


def refreshes(config: Config, where: Path) -> Any:
    return [record["refreshed"] for record in records(config, where)]


def evaluations(config: Config, where: Path) -> Any:
    return [record["epoch"] for record in records(config, where) if "val" in record]


def epochs(config: Config, where: Path) -> Any:
    return len(records(config, where))


def weights(config: Config, where: Path) -> Any:
    return [value.tolist() for value in trained(config, where).model.state_dict().values()]


def kept(config: Config, where: Path) -> Any:
    return [value.tolist() for value in trained(config, where).best_weights.values()]


def losses(config: Config, where: Path) -> Any:
    return [record["loss"] for record in records(config, where)]


def checkpoints(config: Config, where: Path) -> Any:
    """Count the checkpoints that are written."""
    saved = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFolder, "save", lambda folder, checkpoint: saved.append(checkpoint))
        trained(config, where)
    return len(saved)


def shelf(config: Config, where: Path) -> Any:
    """Say whether matrices of all nodes lie on disk."""
    return trained(config, where).method.graph.shelf is not None


BASE: dict[str, Any] = {"dataset": "one.npz", "batches": "random", "ratio": 0.5, "rank": 6, "refresh": "never"}
BASE |= {"layers": 2, "hidden": 6, "epochs": 1, "eval_every": 1}
FULL = {"method": "full"}  # where the method does not matter, the quickest
GCNII, PNA = {"model": "gcnii", "dropout": 0.0}, {"model": "pna", "dropout": 0.0}
# What a setting changes: what to look at, the new value, and the settings around it.
CASES: dict[str, tuple[Observe, Any, dict[str, Any]]] = {
    "dataset": (graph, "two.npz", {}),
    "root": (graph, "b", {}),
    "split": (graph, 1, {}),
    "row_normalize": (graph, True, {"dataset": "counts.npz"}),
    "standardize": (graph, True, {}),
    "seed": (weights, 1, FULL),
    "metric": (task, "accuracy", {"dataset": "twosome.npz"}),
    "method": (method, "full", {}),
    "batches": (batches, "metis", {"batches": "kaminpar"}),
    "ratio": (batches, 0.25, {}),
    "parts": (batches, 12, {"batches": "kaminpar", "parts": 4}),
    "regroup": (batches, True, {}),
    "train_only": (batches, True, {}),
    "reach": (batches, 0, {}),
    "rank": (compensation, 0.5, {}),
    "estimator": (compensation, "paper", {}),
    "inits": (compensation, 2, {"inits": 1}),
    "refresh": (refreshes, "every=3", {"epochs": 4}),
    "late": (losses, True, {"rank": 1, "refresh": "auto", "epochs": 2}),
    "offset": (losses, True, {"rank": 1, "epochs": 2}),
    "fanout": (batches, 1, {"method": "ns", "fanout": 4}),
    "hops": (batches, 1, {"method": "shadow"}),
    "walk_length": (batches, 9, {"method": "saint-walk"}),
    "mix": (losses, 0.9, {"method": "lmc", "mix": 0.1, "epochs": 2}),
    "model": (output, "sage", {}),
    "layers": (output, 3, {}),
    "hidden": (output, 7, {}),
    "dropout": (output, 0.9, {}),
    "input_dropout": (output, 0.5, {}),
    "edge_dropout": (output, 0.5, {}),
    "norm": (output, "none", {}),
    "residual": (output, False, {"layers": 3}),
    "jk": (output, True, {}),
    "linear": (output, True, {}),
    "heads": (output, 2, {"model": "gat", "dropout": 0.0}),
    "out_heads": (output, 3, {"model": "gat", "dropout": 0.0}),
    "alpha": (output, 0.5, GCNII),
    "theta": (output, 2.0, GCNII),
    "shared_weights": (output, False, GCNII),
    "diag_lambda": (output, 2.0, {"model": "cluster-gcn", "dropout": 0.0}),
    "aggregators": (output, "min,sum", PNA),
    "scalers": (output, "identity, attenuation", PNA),
    "fast_dropout": (losses, True, FULL | {"model": "torch_geometric.nn:GCN", "dropout": 0.5}),
    "memory": (shelf, 1e-9, {}),
    "seconds": (rates, 0.1, FULL | {"schedule": "linear"}),
    "epochs": (epochs, 2, FULL),
    "optimizer": (weights, "sgd", FULL),
    "lr": (weights, 0.5, FULL),
    "weight_decay": (weights, 0.5, FULL),
    "outer_decay": (weights, 0.5, FULL),
    "schedule": (rates, "cosine", FULL | {"epochs": 2}),
    "warmup": (rates, 1, FULL),
    "average": (kept, False, FULL | {"epochs": 3}),
    "accumulate": (losses, 2, {"epochs": 2}),
    "clip": (weights, 0.001, FULL | {"optimizer": "sgd"}),
    "patience": (epochs, 1, FULL | {"epochs": 4, "lr": 1e-9}),
    "class_weight": (losses, "balanced", FULL),
    "checkpoint_seconds": (checkpoints, 0.0, FULL),
    "device": (device, "cuda:77", {}),
    "eval_every": (evaluations, 2, FULL | {"epochs": 2}),
}


@pytest.mark.filterwarnings("ignore:The compensation misses")
@pytest.mark.parametrize("key", FIELDS)
def test_every_setting_changes_something(key: str, place: Path, tmp_path: Path) -> None:
    assert key in CASES, f"'{key}' is new: say in CASES what it changes"
    observe, value, around = CASES[key]
    base = make_config(BASE, {"root": str(place)}, around)
    changed = make_config(vars(base), {key: str(place / value) if key == "root" else value})
    assert difference(base, changed)[0].startswith(f"{key}: ")
    where = tmp_path / "runs"
    where.mkdir()
    before = observe(base, where)
    assert observe(base, where) == before, "what is looked at must not vary by itself"
    assert observe(changed, where) != before


def test_every_case_is_a_setting() -> None:
    assert set(CASES) == set(FIELDS)
