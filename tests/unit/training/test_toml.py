"""TOML: whatever is written reads back equal, and what is no TOML is one sentence with its line."""

import math
import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topoff.training.config import make_config, parse_config, write_toml
from topoff.training.toml import LARGEST, parse_toml, toml_comment, toml_value

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1).filter(str.strip)
ODD = st.lists(st.sampled_from(['"', "\\", "\n", "\r", "\t", "\x7f", "\x1b", "'", "#", "\u2028", "é", '"""', "a"]))


@settings(derandomize=True, deadline=None, max_examples=60)
@given(dataset=TEXTS, command=st.text() | ODD.map("".join), why=ODD.map("".join))
def test_any_text_reads_back_equal(dataset: str, command: str, why: str) -> None:
    config = make_config({"dataset": dataset, "rank": 3})
    text = write_toml(config, command=command, reasons={"rank": why})
    assert make_config(parse_config(text.encode(), origin="it")) == config
    assert len(text.split("\n")) == len(write_toml(config, command="c").split("\n"))  # the command is one line


@pytest.mark.parametrize("value", [math.inf, -math.inf, 1e-300, 0.1, True, 7, ""])
def test_values_read_back_equal(value: object) -> None:
    assert tomllib.loads(f"a = {toml_value(value)}")["a"] == value
    assert toml_value(math.nan) == "nan"


def test_halves_of_characters_are_escaped_in_comments() -> None:
    assert toml_comment("a\udcff b\x00") == "a\\udcff b\\x00"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"lr = 0.1\nfoo bar\n", r"\(got 'foo bar' in line 2: expected '='.*\); write 'key = value' lines, texts in"),
        (b"= 3", r"\(got '= 3' in line 1: invalid "),
        (b"model = gcn", r"\(got 'model = gcn' in line 1: invalid value\); .* double quotes"),
        (b"a = 1\na = 2\n", r"'a = 2' in line 2: cannot overwrite"),
        (b'a = "x\n', r"in line 1: "),
        (b"a = [" + b"[" * 5000, r"brackets too deep"),
        (b"b = 1\na = " + b"9" * 5000, r"a number of too many digits in line 2"),
        ("lr = 1".encode("utf-16"), r"UTF-8 \(got UTF-16\); save it as UTF-8"),
        ("lr = 1".encode("utf-16-le"), r"UTF-8 \(got binary data\)"),
        (bytes(range(256)), r"UTF-8 \(got binary data\)"),
        (b"a = 1\nb = '\xe9'\n", r"UTF-8 \(got bytes that are not UTF-8 in line 2\)"),
        (b"#" * (LARGEST + 1), r"at most 1,048,576 bytes \(got more\)"),
        (b"[model]\nlayers = 3\n", r"flat \(got a table or list 'model'\)"),
        (b"[[model]]\nlayers = 3\n", r"flat \(got a table or list 'model'\)"),
        (b"a.b = 3\n", r"flat \(got a table or list 'a'\)"),
    ],
)
def test_what_is_no_flat_toml_is_one_sentence(content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=rf"^Expected own\.toml to be .*{message}"):
        parse_toml(content, origin="own.toml")


def test_a_mark_of_the_byte_order_is_skipped() -> None:
    assert parse_toml(b"\xef\xbb\xbflr = 1\r\nhidden = 2", origin="it") == {"lr": 1, "hidden": 2}
    assert parse_toml(b"", origin="it") == {}
