"""Damaged and strange graphs in files: `topoff info` describes them, or refuses them in one sentence."""

import io
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from damage import TEXT, damaged
from hypothesis import example, given
from hypothesis import strategies as st
from outcomes import new_folder, outcome_of
from pyarrow import parquet

from graph_files import arrays
from table_files import EDGES, NODES
from topoff.data.layout import LAYOUT

DTYPES = (
    *("bool", "int8", "uint8", "int64", "uint64", ">i4", "float16", "float32", ">f8", "longdouble", "complex64"),
    *("U3", "S4", "datetime64[s]", "V8", "i4,f8"),
)
SHAPES = st.sampled_from(((), (0,), (1,), (6,), (6, 1), (6, 2), (2, 5), (2, 0), (0, 2), (5,), (6, 2, 2), (7,), (5, 3)))


@st.composite
def strange_arrays(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    """Draw an array of any dtype and shape, with the values that people forget."""
    dtype, shape = np.dtype(draw(st.sampled_from(DTYPES))), draw(SHAPES)
    size = int(np.prod(shape))
    if dtype.kind in "iufb":
        wanted = st.sampled_from([0, 1, 2, 5, 6, -1, 100, 127, 2**31, 2**62, float("nan"), float("inf"), 1e300, 0.5])
        with np.errstate(all="ignore"):
            values = np.array(draw(st.lists(wanted, min_size=size, max_size=size)), dtype=np.float64)
            drawn: np.ndarray[Any, Any] = np.nan_to_num(values, nan=3) if dtype.kind != "f" else values
            return drawn.astype(dtype).reshape(shape)
    return np.zeros(shape, dtype=dtype)


@given(st.dictionaries(st.sampled_from([*LAYOUT, "edges", "node_features"]), strange_arrays(), min_size=1, max_size=2),
       st.lists(st.sampled_from(list(arrays())), max_size=2))  # fmt: skip
def test_npz_members(members: dict[str, np.ndarray[Any, Any]], without: list[str]) -> None:
    kept = {name: value for name, value in arrays(vocab=None).items() if name not in without}
    with new_folder() as folder:
        np.savez(folder / "g.npz", **kept | members)
        outcome_of("info", "g.npz", "--json", kind="arrays in an .npz file", beside=folder)


@cache
def _whole_npz() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays(vocab=None))
    return buffer.getvalue()


@given(damaged(_whole_npz()))
@example(b"")
@example(_whole_npz()[:-1])
def test_npz_bytes(content: bytes) -> None:
    with new_folder() as folder:
        (folder / "g.npz").write_bytes(content)
        outcome_of("info", "g.npz", "--json", kind="bytes of an .npz file", beside=folder)


@given(st.sampled_from(["x", "y", "edge_index", "edge_weight", "x_indptr"]), st.data())
def test_npy_headers(name: str, data: st.DataObject) -> None:
    """An array's header may claim terabytes, or be no header at all; the archive around it is whole."""
    buffer = io.BytesIO()
    np.save(buffer, arrays(x_indptr=np.arange(7)).get(name), allow_pickle=False)
    member = buffer.getvalue()
    claimed = data.draw(st.sampled_from([b"(6, 2)", b"(9000000000000, 9)", b"(-1,)", b"(2, 5.0)", b"None", b"(" * 99]))
    start, end = member.index(b"(") if b"(" in member else 0, member.index(b")") + 1
    changed = member[:start] + claimed[: end - start + 60].ljust(end - start) + member[end:]
    changed = data.draw(st.one_of(st.just(changed), damaged(member)))
    with new_folder() as folder:
        with zipfile.ZipFile(folder / "g.npz", "w") as archive:
            for other, value in arrays(vocab=None).items():
                part = io.BytesIO()
                np.save(part, value, allow_pickle=False)
                archive.writestr(f"{other}.npy", changed if other == name else part.getvalue())
            if name not in arrays():
                archive.writestr(f"{name}.npy", changed)
        outcome_of("info", "g.npz", "--json", kind="headers of arrays", beside=folder)


@given(st.sampled_from(["nodes", "edges"]), st.data())
def test_csv_bytes(name: str, data: st.DataObject) -> None:
    tables = {"nodes": NODES, "edges": EDGES}
    content = data.draw(damaged(tables[name].encode()))
    with new_folder() as folder:
        _write(folder / "g", {other: text.encode() for other, text in tables.items()} | {name: content})
        outcome_of("info", "g", "--json", kind="bytes of a .csv file", beside=folder)


@given(st.sampled_from(["nodes", "edges"]), st.data())
def test_csv_cells(name: str, data: st.DataObject) -> None:
    tables = {"nodes": NODES, "edges": EDGES}
    rows = [line.split(",") for line in tables[name].splitlines()]
    for _ in range(data.draw(st.integers(1, 4))):
        row = data.draw(st.sampled_from(rows))
        row[data.draw(st.integers(0, len(row) - 1))] = data.draw(TEXT).replace('"', '""')
    separator = data.draw(st.sampled_from([",", ",", ",", ";", "\t", "|", " "]))
    text = "\n".join(separator.join(f'"{cell}"' if cell.strip() != cell else cell for cell in row) for row in rows)
    content = text.encode(data.draw(st.sampled_from(["utf-8", "utf-8", "utf-8-sig", "utf-16"])), "surrogatepass")
    with new_folder() as folder:
        _write(folder / "g", {other: text.encode() for other, text in tables.items()} | {name: content})
        outcome_of("info", "g", "--json", kind="cells of a .csv file", beside=folder)


VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float64(): st.one_of(st.none(), st.floats()),
    pa.string(): st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"]), max_size=3)),
    pa.decimal128(9, 2): st.decimals(-999, 999, places=2),
    pa.date32(): st.dates(),
    pa.timestamp("us"): st.datetimes(),
    pa.binary(): st.binary(max_size=3),
    pa.list_(pa.int64()): st.lists(st.integers(0, 3), max_size=2),
    pa.bool_(): st.booleans(),
    pa.null(): st.none(),
}
COLUMNS = st.sampled_from(list(VALUES)).flatmap(
    lambda kind: st.lists(VALUES[kind], min_size=4, max_size=4).map(lambda values: pa.array(values, kind))
)


@given(
    st.dictionaries(
        st.sampled_from(["id", "label", "target", "split", "age", "label:a"]), COLUMNS, min_size=1, max_size=3
    )
)
def test_parquet_columns(columns: dict[str, Any]) -> None:
    nodes = {
        "id": pa.array(list("abcd")),
        "x": pa.array([1.0, 2.0, 3.0, 5.0]),
        "label": pa.array([0, 1, 0, 1]),
    } | columns
    if "target" in columns or "label:a" in columns:
        del nodes["label"]
    ids = nodes["id"]
    edges = {"source": ids.take(pa.array([0, 1, 2])), "target": ids.take(pa.array([1, 2, 3]))}
    with new_folder() as folder:
        (folder / "g").mkdir()
        for name, table in (("nodes", nodes), ("edges", edges)):
            parquet.write_table(pa.table(table), str(folder / "g" / f"{name}.parquet"))
        outcome_of("info", "g", "--json", kind="columns of a .parquet file", beside=folder)


def _write(folder: Path, tables: dict[str, bytes]) -> None:
    folder.mkdir()
    for name, content in tables.items():
        (folder / f"{name}.csv").write_bytes(content)
