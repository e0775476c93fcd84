"""Targets: shares of a reference, with every seed its own, and times to them that the clock may cut off."""

import json
from pathlib import Path
from typing import Any

import pytest

from runs import make_result, write_json
from topoff.experiments.columns import COLUMNS, about_targets, best_of, cell, gap, length_of, time_to
from topoff.experiments.page import build_page
from topoff.experiments.table import TABLE, make_table
from topoff.experiments.targets import SHARES, Reference, check_target, reference_of

NAMES = {column.key: column for column in COLUMNS}


def test_the_reference_is_the_full_batch_or_else_the_best() -> None:
    scores = {"top": {0: 0.8, 1: 0.9}, "full": {0: 0.7, 1: 0.8}}
    base = reference_of(scores, metric="accuracy")
    assert (base.of, base.score) == ("full", pytest.approx(0.75))
    assert base.target("98", metric="accuracy", seed=1) == pytest.approx(0.98 * 0.8)
    assert base.target("98", metric="accuracy", seed=5) == pytest.approx(0.98 * 0.75)  # it has no such seed
    assert reference_of({"a": {0: 2.0}, "b": {0: 1.0}}, metric="mae").of == "b"
    assert reference_of({"a": {0: None}}, metric="mae") == Reference()
    assert Reference().target("95", metric="accuracy") is None


def test_targets_lie_on_the_worse_side() -> None:
    assert Reference(2.0).target("95", metric="rmse") == pytest.approx(2.1)
    assert Reference(-0.5).target("98", metric="r2") == pytest.approx(-0.51)


def test_a_reference_that_is_no_score_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"^Expected --reference to be a score that accuracy can have, 0 to 1 \(got 71"
    ):
        check_target(71, metric="accuracy", flag="--reference")


# ---- a comparison by seconds

CURVES = {  # validation scores by method and seed, after 1, 2, 3 and 4 seconds
    "top": ([0.60, 0.70, 0.79, 0.79], [0.80, 0.85, 0.89, 0.90]),
    "ns": ([0.10, 0.60, 0.70, 0.77], [0.50, 0.60, 0.70, 0.85]),
    "full": ([0.20, 0.40, 0.60, 0.80], [0.20, 0.40, 0.60, 0.90]),
}


@pytest.fixture
def table(tmp_path: Path) -> dict[str, Any]:
    """Make the folder of a comparison by seconds, and sum it up."""
    for method, curves in CURVES.items():
        for seed, scores in enumerate(curves):
            rows = [{"epoch": 1 + place // 2, "loss": 1.0, "val": score, "train": score, "test": score,
                     "fidelity": 1.0, "seconds": 2.0 * place, "train_seconds": 1.0 + place}
                    | ({} if place % 2 else {"share": 0.5}) for place, score in enumerate(scores)]  # fmt: skip
            folder = tmp_path / method / f"seed-{seed}"
            result = make_result(rows, seed=seed) | {"method": method, "steps": 7, "preprocess_seconds": 0.0}
            write_json(folder / "result.json", result | {"val": max(scores), "test": scores[-1], "metric": "accuracy"})
            (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            write_json(folder / "measured.json", {"load": [0.5, 1.0], "busy": 1.25 if method == "ns" else 0.1})
    about = {"dataset": "words", "model": "gcn", "epochs": None, "seconds": 4.0, "command": "x", "out": "y"}
    made = make_table(tmp_path, methods=list(CURVES), seeds=[0, 1], about=about)
    write_json(tmp_path / TABLE, made)
    return made


def test_every_seed_is_timed_to_its_own_target(table: dict[str, Any]) -> None:
    rows = table["methods"]
    assert table["targets"] == {"95": pytest.approx(0.8075), "98": pytest.approx(0.833), "99": pytest.approx(0.8415)}
    assert table["target"] == table["targets"]["98"]
    assert table["reference"] == {"score": pytest.approx(0.85), "of": "full", "steps": 7, "seeds": {0: 0.8, 1: 0.9}}
    assert rows["top"]["seconds_to"] == {"95": 3.0, "98": 3.0, "99": 4.0}
    assert rows["top"]["reached"] == {"95": 2, "98": 2, "99": 1}
    assert (rows["top"]["seconds_to_target"], rows["top"]["target_reached"]) == (3.0, 2)
    assert rows["ns"]["reached"] == {"95": 1, "98": 0, "99": 0}
    assert rows["ns"]["seconds_to"] == {"95": 4.0, "98": None, "99": None}
    assert rows["full"]["seconds_to"] == dict.fromkeys(SHARES, 4.0)
    assert time_to(rows["ns"], "95").replace("\xa0", " ") == "4.00 s (1 of 2 seeds)"
    assert time_to({"error": "no"}, "95") == "\N{EN DASH}"
    assert rows["ns"]["notes"][0].startswith("seconds were measured beside other work, which kept up to 1.2 processors")
    assert not rows["top"]["notes"]


def test_a_target_that_some_seeds_reach_is_said_to_be_so(tmp_path: Path, table: dict[str, Any]) -> None:
    about = {"dataset": "words", "model": "gcn", "epochs": None, "seconds": 4.0}
    made = make_table(tmp_path, methods=["top", "ns"], seeds=[0, 1], about=about, target=0.8)["methods"]
    assert (made["ns"]["seconds_to_target"], made["ns"]["target_reached"]) == (4.0, 1)
    assert cell(made["ns"], NAMES["seconds_to_target"], metric="accuracy").endswith("(1 of 2 seeds)")
    assert best_of(made, NAMES["seconds_to_target"], metric="accuracy") == set()  # neither has all of them
    given = make_table(tmp_path, methods=["top", "ns"], seeds=[0, 1], about=about, reference=0.7)
    assert (given["reference"]["of"], given["target"]) == (None, pytest.approx(0.686))
    assert best_of(given["methods"], NAMES["seconds_to_target"], metric="accuracy") == {"top"}
    assert "given as --reference" in about_targets(given)
    by_epochs = make_table(tmp_path, methods=["top", "ns"], seeds=[0, 1], about={"epochs": 2}, target=0.8)["methods"]
    assert (by_epochs["ns"]["seconds_to_target"], by_epochs["ns"]["target_reached"]) == (None, 1)


def test_differences_are_those_of_common_seeds(table: dict[str, Any]) -> None:
    rows = table["methods"]
    assert "paired" not in rows["top"]
    found = rows["ns"]["paired"]
    assert (found["minus"], found["mean"], found["seeds"]) == ("top", pytest.approx(-0.035), [0, 1])
    assert gap(rows["ns"], metric="accuracy").startswith("-3.50 (")
    assert gap(rows["top"], metric="accuracy") == "\N{EN DASH}"


def test_the_page_tells_of_seconds_targets_and_differences(tmp_path: Path, table: dict[str, Any]) -> None:
    page = build_page(tmp_path).replace("\xa0", " ")
    for words in ("4 seconds", "Time to shares of the reference", "4.00 s (1 of 2 seeds)", "is censored", "never",
                  "Test score minus that of top", "after 7 steps (perhaps not converged)", "beside other work",
                  "training time for all of them"):  # fmt: skip
        assert words in page, words
    assert page.count("<svg") == 2
    assert length_of(table) == "4 seconds"
