"""What a comparison is told and what it finds in its folder: targets that exist, files that are its own."""

import warnings
from pathlib import Path

import pytest

from topoff.cli.compare import _warn_of_unused
from topoff.experiments.jobs import MEASURED, config_of, read_measured
from topoff.experiments.measure import check_methods
from topoff.experiments.targets import check_target
from topoff.training.run_folder import RunFolder


@pytest.mark.parametrize(
    ("target", "metric", "message"),
    [
        (75, "accuracy", r"0 to 1 \(got 75\); write 75 % as 0\.75"),
        (1.01, "roc_auc", "0 to 1"),
        (-0.1, "micro_f1", r"0 to 1 \(got -0\.1\); choose such a one"),
        (1.5, "r2", "at most 1"),
        (-1, "rmse", "at least 0"),
        (float("nan"), "mae", "at least 0"),
    ],
)
def test_a_target_that_is_no_score_is_refused(target: float, metric: str, message: str) -> None:
    with pytest.raises(ValueError, match=rf"^Expected --target to be a score that {metric} can have, {message}"):
        check_target(target, metric=metric)


def test_targets_that_are_scores_are_taken() -> None:
    for target, metric in ((0, "accuracy"), (1, "accuracy"), (-3, "r2"), (75, "rmse"), (0.75, "roc_auc")):
        check_target(target, metric=metric)


@pytest.mark.parametrize(
    "text", ['{"load": "x"}', '{"gradient_error": "x"}', '{"gradient_cosine": true}', '{"note": 3}']
)
def test_a_file_that_is_no_measurement_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / MEASURED).write_text(text)
    with pytest.raises(ValueError, match=r"measured\.json to hold what was measured \(got .* as .*\); remove the file"):
        read_measured(RunFolder(tmp_path))


def test_a_method_is_measured_once() -> None:
    with pytest.raises(ValueError, match=r"methods to name each method once \(got 'top' twice\)"):
        check_methods(("top", "top"))


def test_settings_that_nobody_reads_are_told() -> None:
    own = {"full": {"rank": 3}, "top": {}}
    configs = [config_of(name, 0, base={"dataset": "x"}, own=own[name]) for name in own]
    with pytest.warns(UserWarning, match="has no effect") as found:
        _warn_of_unused(configs, [{"fanout": 2, "inits": 2}], own)
    told = [str(warning.message) for warning in found]
    assert [text.split()[0] for text in told] == ["rank", "fanout"]  # inits is read by one of them
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _warn_of_unused(configs, [{"lr": 0.1}], {"full": {}, "top": {"rank": 2}})
