"""The ids of nodes: compared as they are written, never rounded, and handed back as they came.

Ids are compared as int64 or uint64 where all are plain integers, else as strings. Beside that the column stays as it
was in the file, so that what is written about the nodes can be joined with the file they came from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from topoff.data.columns import (
    Column,
    Ints,
    Table,
    as_strings,
    is_null,
    is_strings,
    parsed,
    places_in,
    refuse_first,
)
from topoff.data.refusal import refuse
from topoff.data.table_file import STRING

if TYPE_CHECKING:
    from pathlib import Path

    from torch_geometric.data import Data

EXACT = {"halffloat": 2**11, "float": 2**24, "double": 2**53}  # integers below are themselves in these types


def as_ids(table: Table, name: str) -> Column:
    """Return a column of ids as int64 or uint64 where all are the plain spelling of integers, else as strings.

    Raises ValueError for missing ids, for floats with a fraction or so large that they may have been rounded, and for
    strings with a NUL, which numpy would cut.

    >>> from pathlib import Path
    >>> as_ids(Table(Path("nodes.csv"), {"id": pa.array([2**64 - 1, 7], pa.uint64())}, 2), "id").to_pylist()
    [18446744073709551615, 7]
    """
    column = table.columns[name]
    remedy = "fill it in or remove the row"
    refuse_first(table, name, is_null(column), expected="to hold an id in every row", remedy=remedy)
    if pa.types.is_floating(column.type):
        _check_floats(table, name)
    if column.type == pa.uint64():
        return _smallest(column)
    strings = column if is_strings(column) else as_strings(column)
    zeros = np.asarray(pc.match_substring(strings, "\0"), bool)
    refuse_first(table, name, zeros, expected="to hold ids without NUL characters", remedy="rename it")
    return _integers(strings)


def unique_ids(nodes: Table, name: str) -> Column:
    """Return the ids (n,) of a table of nodes; refuse duplicates."""
    ids = as_ids(nodes, name)
    if pc.count_distinct(ids).as_py() < nodes.rows:
        counts = ids.value_counts()
        twice = counts.filter(pc.greater(counts.field(1), 1))
        got = f"'{twice.field(0)[0]}' {twice.field(1)[0]} times, {len(twice)} such ids in all"
        spaces = "; spaces around them do not count" if is_strings(ids) and name in nodes.original else ""
        remedy = f"remove or rename duplicates{spaces}"
        refuse(f"every id in the column '{name}' of {nodes.path} to be there once", got, remedy)
    return ids


def positions(edges: Table, name: str, ids: Column, *, nodes: Path) -> Ints:
    """Return int64 (E,) where in the table of nodes the ends of the edges are; refuse ends that are no ids."""
    ends = as_ids(edges, name)
    if ends.type != ids.type:
        ends, ids = ends.cast(STRING), ids.cast(STRING)
    found = places_in(ids, ends)
    unknown = np.flatnonzero(found < 0)
    if len(unknown):
        more = f"; {len(unknown)} such rows in all" if len(unknown) > 1 else ""
        got = f"'{ends[int(unknown[0])]}' in data row {edges.before + int(unknown[0]) + 1}{more}"
        remedy = "add these nodes or remove these edges"
        refuse(f"every {name} in {edges.path} to be an id of {nodes.name}", got, remedy)
    return found


def written_ids(table: Table, name: str, ids: Column) -> Column:
    """Return the ids as they are in the file; integers that a csv file spells out stay integers."""
    written = table.written(name)
    return ids if is_strings(written) and not is_strings(ids) else written


def node_ids(data: Data) -> Any:
    """Return the ids of a graph's nodes as a pyarrow.Array (n,), as they came from their file; else their numbers.

    >>> from torch_geometric.data import Data
    >>> node_ids(Data(num_nodes=2)).to_pylist()
    [0, 1]
    """
    names = data.get("names")
    ids = getattr(names, "ids", None)
    if ids is not None:
        return ids
    known = getattr(names, "node_ids", None)
    return id_array(range(int(data.num_nodes or 0)) if known is None or len(known) == 0 else known)


def id_array(ids: Sequence[Any]) -> Any:
    """Return names as a pyarrow.Array (n,): int64 or uint64 where all are integers that fit, else strings.

    >>> id_array([2**63, 1]).type, id_array([2**64]).to_pylist(), id_array(["a", 1]).to_pylist()
    (DataType(uint64), ['18446744073709551616'], ['a', '1'])
    """
    if not all(isinstance(name, int) and not isinstance(name, bool) for name in ids):
        return pa.array([str(name) for name in ids], STRING)
    low, high = (min(ids), max(ids)) if len(ids) else (0, 0)
    for kind, least, most in ((pa.int64(), -(2**63), 2**63 - 1), (pa.uint64(), 0, 2**64 - 1)):
        if least <= low and high <= most:
            return pa.array(ids, kind)
    return pa.array([str(name) for name in ids], STRING)


def simple(ids: Any) -> Any:
    """Return ids of any type as int64, uint64 or strings, which csv and .npz files hold: dates and the like as text."""
    if pa.types.is_integer(ids.type):
        return _smallest(ids.cast(pa.uint64())) if pa.types.is_unsigned_integer(ids.type) else ids.cast(pa.int64())
    return ids if is_strings(ids) else _integers(as_strings(ids))


def as_array(ids: Any) -> np.ndarray[Any, Any]:
    """Return ids as a numpy array of integers or strings."""
    plain = simple(ids)
    return np.array(plain.to_pylist(), str) if is_strings(plain) else plain.to_numpy()


def spreadsheet_safe(column: Any) -> Any:
    """Return a column whose strings no spreadsheet takes for a formula: those that might be one get an apostrophe.

    >>> spreadsheet_safe(pa.array(["=1+1", "-x", "a=b", None], STRING)).to_pylist()
    ["'=1+1", "'-x", 'a=b', None]
    """
    if not is_strings(column):
        return column
    return pc.replace_substring_regex(column, r"^([=+\-@\t\r\n\x{FF1D}\x{FF0B}\x{FF0D}\x{FF20}])", r"'\1")


def _integers(strings: Any) -> Any:
    """Return strings as int64 or uint64 where each is the plain spelling of an integer that fits."""
    found = (parsed(strings, kind) for kind in (pa.int64(), pa.uint64()))
    return next((whole for whole in found if whole is not None and whole.cast(STRING).equals(strings)), strings)


def _smallest(column: Any) -> Any:
    """Return uint64 as int64 where all fit."""
    largest = pc.max(column).as_py()
    return column.cast(pa.int64()) if largest is None or largest < 2**63 else column


def _check_floats(table: Table, name: str) -> None:
    """Refuse floats that are no integers, or may be rounded ones."""
    limit = EXACT[str(table.written(name).type)]
    values = table.columns[name].to_numpy()
    wrong = (values != np.round(values)) | (np.abs(values) >= limit)
    expected = f"to hold ids, and floats only if they are whole and below {limit:,}"
    remedy = "write the ids as integers or strings: floats are rounded"
    refuse_first(table, name, wrong, expected=expected, remedy=remedy)
