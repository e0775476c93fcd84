"""Values that no setting can have, each in one sentence."""

import datetime
import math
from pathlib import Path

import pytest

from topoff.training.config import LARGEST_SEED, make_config, read_config
from topoff.training.words import parse_seeds


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("epochs", True, r"a number or a text \(got true\); give its value"),
        ("lr", False, r"a number or a text \(got false\)"),
        ("rank", True, r"a number or a text \(got true\)"),
        ("dataset", True, r"a number or a text \(got true\)"),
        ("epochs", math.nan, r"a finite number \(got nan\)"),
        ("lr", math.inf, r"finite \(got inf\)"),
        ("rank", math.nan, r"a finite number or less than 1"),
        ("rank", 1.5, r"a valid integer or less than 1 \(got 1\.5\)"),
        ("epochs", 10**400, r"less than \d+ \(got a number of about 400 digits\)"),
        ("epochs", "9" * 5000, r"a number of fewer digits \(got '9{59}\.\.\.\)"),
        ("seed", 2**32, r"less than or equal to 4294967295"),
        ("epochs", datetime.date(2020, 1, 2), r"a valid integer \(got 2020-01-02\)"),
        ("epochs", [3], r"a valid integer \(got \[3\]\)"),
        ("epochs", {"a": 1}, r"a valid integer"),
        ("model", "", r"given a value \(got ''\); give one, or leave it out"),
        ("root", "  ", r"given a value"),
        ("dataset", "a\0b", r"UTF-8 text \(got 'a\\x00b'\)"),
        ("dataset", "a\udcff", r"UTF-8 text \(got 'a\\udcff'\); rename"),
    ],
)
def test_a_wrong_value_is_one_sentence(key: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=rf"^Expected '{key}' to be {message}"):
        make_config({"dataset": "a"}, {key: value})


@pytest.mark.parametrize(("key", "value", "means"), [("epochs", 3.0, 3), ("rank", 3.0, 3), ("epochs", "1_000", 1000)])
def test_a_value_that_means_a_number_is_one(key: str, value: object, means: int) -> None:
    assert vars(make_config({"dataset": "a"}, {key: value}))[key] == means


def test_the_file_of_a_wrong_value_is_named(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text("epochs = true\n")
    with pytest.raises(ValueError, match=r"^Expected 'epochs' in .*own\.toml to be a number or a text \(got true\)"):
        read_config(tmp_path / "own.toml")
    (tmp_path / "own.toml").write_text("lr = nan\n")
    with pytest.raises(ValueError, match=r"^Expected 'lr' in .*own\.toml to be finite \(got nan\)"):
        read_config(tmp_path / "own.toml")


def test_a_folder_is_no_config(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\(got the folder '.*'\); name a file"):
        read_config(tmp_path)
    (tmp_path / "config.toml").touch()
    with pytest.raises(ValueError, match=r"\(got the folder '.*'\); name .*config\.toml"):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0-200000", r"at most 1,000 seeds \(got more in '0-200000'\)"),
        ("0-999999999999", r"at most 4294967295 \(got 999999999999\)"),
        ("1" + "0" * 19, r"at most 4294967295"),
        ("1" + "0" * 30, r"numbers and ranges"),
        ("0-" + "9" * 5000, r"numbers and ranges, .* \(got '0-9{58}\.\.\.'\)"),
        ("0-600,601-1200", r"at most 1,000 seeds"),
        ("٣", "numbers and ranges"),
        ("1e3", "numbers and ranges"),
        ("0,,1", "numbers and ranges"),
        ("0-5,3", r"each seed once \(got 3 twice\)"),
    ],
)
def test_too_many_seeds_are_one_sentence(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=rf"^Expected --seeds to .*{message}"):
        parse_seeds(text)


def test_the_largest_seed_is_one() -> None:
    assert parse_seeds(str(LARGEST_SEED)) == [LARGEST_SEED]
    assert len(parse_seeds("0-999")) == 1000
