"""Settings of any kind, from TOML and from flags: a plan, or one sentence; what is written reads back equal."""

import tomllib
from functools import cache
from pathlib import Path

from damage import TEXT, damaged, retyped
from hypothesis import example, given
from hypothesis import strategies as st
from outcomes import new_folder, outcome_of

from graph_files import ring
from topoff.data.write import write_npz
from topoff.training.config import FIELDS, make_config, write_toml

VALUES = st.one_of(
    st.sampled_from(["true", "false", "0", "1", "-1", "3", "0.5", "1.0", "nan", "inf", "1e400", "10" * 30]),
    st.sampled_from(["[]", "{a = 1}", "1979-05-27", "0x7f", '"gcn"', '"top"', '""', '"nowhere:Model"', '"every=0"']),
    TEXT.map(lambda word: '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'),
)  # fmt: skip
SMALL = 'dataset = "g.npz"\nepochs = 2\nhidden = 4\nlr = 0.01\nmethod = "top"\nmodel = "gcn"\nratio = 0.5\nrank = 2\n'
WITHOUT = ("dataset", "root", "device")  # that would find other graphs


@cache
def _graph() -> bytes:
    with new_folder() as folder:
        write_npz(ring(), folder / "g.npz")
        return (folder / "g.npz").read_bytes()


def _plan(folder: Path, *flags: str, kind: str) -> None:
    (folder / "g.npz").write_bytes(_graph())
    outcome_of("train", *flags, "--dry-run", "--json", kind=kind, beside=folder)


@given(st.dictionaries(st.sampled_from([key for key in FIELDS if key not in WITHOUT]), VALUES, min_size=1, max_size=3))
def test_toml_values(values: dict[str, str]) -> None:
    with new_folder() as folder:
        lines = [line for line in SMALL.splitlines() if line.split()[0] not in values]
        text = "\n".join([*lines, *(f"{key} = {value}" for key, value in values.items())])
        (folder / "c.toml").write_bytes(text.encode("utf-8", "surrogatepass"))
        _plan(folder, "--config", "c.toml", kind="values of settings")


@given(st.one_of(damaged(SMALL.encode()), retyped(SMALL).map(lambda text: text.encode("utf-8", "surrogatepass"))))
@example(b"")
@example(b"\xff\xfe" + SMALL.encode("utf-16-le"))
@example(b"[" * 10_000)
@example(b"a = " + b"[" * 5_000)
def test_toml_bytes(content: bytes) -> None:
    with new_folder() as folder:
        (folder / "c.toml").write_bytes(content)
        _plan(folder, "--config", "c.toml", kind="bytes of a TOML file")


FLAGS = [f"--{key.replace('_', '-')}" for key in FIELDS if key not in ("dataset", "device")]
GIVEN = TEXT.filter(lambda word: "\x00" not in word)  # which no command line can hold


@given(
    st.lists(
        st.tuples(st.sampled_from([*FLAGS, "--set", "--seeds", "--config", "--hiden"]), GIVEN), min_size=1, max_size=3
    )
)
def test_flags(flags: list[tuple[str, str]]) -> None:
    with new_folder() as folder:
        _plan(folder, "g.npz", *(word for flag in flags for word in flag), kind="flags")


@given(st.text(), st.text(), st.text())
@example(*[chr(code) for code in (0, 0x85, 0x2028)])
@example('"', "\\", "\r\n")
@example("\ud800", "\x7f", "# chosen: x")
def test_settings_read_back_equal(name: str, root: str, command: str) -> None:
    try:
        config = make_config({"dataset": name, "root": root, "model": "gcn"})
    except ValueError:  # texts that no file system and no TOML can hold
        assert not name or not root or not f"{name}{root}".isprintable()
        return
    written = write_toml(config, command=command, reasons={"dataset": root})
    read = tomllib.loads(written.encode("utf-8", "surrogatepass").decode("utf-8", "surrogatepass"))
    assert make_config(read) == config
