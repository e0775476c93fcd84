"""The records of a run: their keys and the order of these, and files that lack some."""

import json

from topoff.training.records import Epoch, Result, Spread, Summary, summarize

LINE = ["epoch", "loss", "lr", "refreshed", "train", "val", "test", "fidelity", "certificate", "seconds"]
LINE += ["train_seconds"]
RESULT = "train val test metric task outputs center scale classes best_epoch epochs steps seconds preprocess_seconds"
RESULT += (
    " epoch_seconds peak_rss_mb train_peak_rss_mb fidelity certificate processes bytes_per_epoch bytes_per_refresh"
)
RESULT += " rivals_bytes_per_epoch parameters dataset stand_in nodes edges"
RESULT += " features data_hash model method seed stopped_early command date versions machine chosen"
SUMMARY = "metric task dataset stand_in nodes edges features model method parameters date versions machine chosen seeds"
SUMMARY += " train val test epoch_seconds preprocess_seconds seconds peak_rss_mb train_peak_rss_mb fidelity epochs"
SUMMARY += " command runs"


def test_the_keys_of_the_files_are_these_in_this_order() -> None:
    assert list(Epoch(1, evaluated=True).line()) == LINE
    assert list(Epoch(1).line()) == [*LINE[:4], *LINE[-2:]]
    assert list(Result().json()) == RESULT.split()
    assert list(summarize([Result()], command="").json()) == SUMMARY.split()


def test_records_are_read_as_they_were_written() -> None:
    epoch = Epoch(3, 0.5, 0.01, True, 0.9, 0.8, None, 0.99, None, 1.5, 1.25, evaluated=True)
    assert Epoch.of(json.loads(json.dumps(epoch.line()))) == epoch
    assert Epoch.of(Epoch(3).line()) == Epoch(3)
    result = Result(
        test=0.5, seed=4, classes=["a"], chosen=[{"what": "rank", "value": 8, "why": "so"}], machine={"a": 1}
    )
    assert Result.of(json.loads(json.dumps(result.json()))) == result
    summary = summarize([result, Result(test=0.7, seed=5)], command="topoff train x")
    assert Summary.of(json.loads(json.dumps(summary.json()))) == summary
    assert (summary.seeds, summary.runs[0]) == ([4, 5], result)


def test_what_a_file_lacks_is_missing_and_what_it_has_more_is_left() -> None:
    assert Result.of({"test": 0.5, "chosen": None, "new": 1}) == Result(test=0.5)
    assert Epoch.of({"epoch": 1, "val": None, "new": 1}) == Epoch(1, evaluated=True)
    assert Summary.of({"runs": [{"seed": 1}], "test": {"mean": 0.5, "std": None}}).test == Spread(0.5, None)


def test_the_mean_of_partial_results_is_over_those_that_are_known() -> None:
    results = [Result(test=0.5), Result(test=0.7, fidelity=0.9), Result()]
    assert summarize(results, command="").fidelity == Spread(None, None)
    found = summarize(results, command="", partial=True)
    assert (found.test, found.fidelity, found.val) == (Spread.over([0.5, 0.7]), Spread(0.9, 0.0), None)
