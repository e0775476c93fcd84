"""Read one table, csv or parquet, into plain columns: strings, whole numbers or floats, null where a value is missing.

A csv file is read as strings throughout, so that what a column means never depends on its first rows, and an id such as
007 stays what it is; numbers are made of strings afterwards, where every known value of a column is one.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from topoff.data.refusal import refuse
from topoff.data.table_file import STRING, open_table

Column = Any  # a pyarrow.Array of large_string, int64, uint64, float64 or a decimal
Floats = np.ndarray[Any, np.dtype[np.float64]]
Singles = np.ndarray[Any, np.dtype[np.float32]]
Ints = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]
MISSING = ("", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null")  # how a missing value is written, but not in ids
NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
WHOLE = 2.0**53  # floats are exact integers up to here
PLAIN_INTEGER = r"^(-?(?:0|[1-9][0-9]*))(?:\.0*)?$"


@dataclass(frozen=True)
class Table:
    """Hold the columns of one file."""

    path: Path
    columns: dict[str, Column]
    rows: int
    original: dict[str, Any] = field(default_factory=dict)  # as in the file, where the plain column is not the same
    before: int = 0  # rows of the file before these, where they are a piece of it

    def written(self, name: str) -> Any:
        """Return a column as it is in the file: its type, and spaces around strings."""
        return self.original.get(name, self.columns[name])


def read_table(path: Path) -> Table:
    """Read a .csv (UTF-8, commas, one header row) or .parquet file; spaces around names and strings do not count.

    Raises ValueError in one sentence with the file, and the row and value where there is one.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "nodes.csv"
    ...     _ = path.write_text('id,name\\n007,"Bond, James"\\n')
    ...     table = read_table(path)
    >>> table.rows, table.columns["id"].to_pylist(), table.columns["name"].to_pylist()
    (1, ['007'], ['Bond, James'])
    """
    return plain_table(path, open_table(path))


def plain_table(path: Path, read: Any, *, before: int = 0) -> Table:
    """Return the columns of a pyarrow.Table that is, or might be, in a file; with rows `before`, a piece of one."""
    names = [name.strip() for name in read.column_names]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        refuse(f"the columns of {path} to have different names", f"'{twice}' twice", "rename one of them")
    columns, original = dict[str, Column](), dict[str, Any]()
    for i, name in enumerate(names):
        column = _decoded(read.column(i))
        columns[name] = _plain(column, name=name, path=path)
        if not _is_same(columns[name], column):
            original[name] = column
    return Table(path, columns, read.num_rows, original, before)


# ---- values


def is_strings(column: Column) -> bool:
    """Say whether a column is stored as strings, numbers in a csv file included."""
    return bool(column.type == STRING)


def known_strings(column: Column) -> Column:
    """Return the strings (n,), null for the strings that stand for a missing value."""
    return pc.if_else(pc.is_in(column, value_set=pa.array(MISSING, STRING)), pa.scalar(None, STRING), column)


def as_strings(column: Column) -> Column:
    """Return large strings (n,): whole floats and decimals as integers, TRUE and False as true and false."""
    if is_strings(column):
        lower = pc.utf8_lower(column)
        return pc.if_else(pc.is_in(lower, value_set=pa.array(["true", "false"], STRING)), lower, known_strings(column))
    if pa.types.is_floating(column.type):
        values = _floats(column).drop_null().to_numpy()
        if np.all((values == np.round(values)) & (np.abs(values) < WHOLE)):
            column = column.cast(pa.int64())
    strings = column.cast(STRING)
    return whole_strings(strings) if pa.types.is_decimal(column.type) else strings


def whole_strings(strings: Column) -> Column:
    """Return strings with plain integers for those that add nothing but a fraction of zeros: 1.0 and 1 are one."""
    return pc.replace_substring_regex(strings, PLAIN_INTEGER, r"\1")


def as_numbers(column: Column) -> Floats | None:
    """Return float64 (n,) with NaN for missing values, or None where a known value is no number."""
    strings = is_strings(column)
    numbers = parsed(known_strings(column), pa.float64()) if strings else _floats(column)
    return None if numbers is None else numbers.to_numpy(zero_copy_only=False)


def parsed(strings: Column, kind: Any) -> Column | None:
    """Return strings as numbers of a pyarrow type, or None where one of them is none."""
    try:
        strings.slice(0, 1000).cast(kind)  # first: pyarrow writes a sentence about each failure, a million of them
        return strings.cast(kind)
    except pa.ArrowInvalid:
        return None


def finite_numbers(table: Table, name: str, *, otherwise: str = "leave it empty where it is unknown") -> Floats:
    """Return float64 (n,) with NaN for missing values; refuse strings and infinity, with the first of them.

    `otherwise` is what to do where there is no number to write.
    """
    values = as_numbers(table.columns[name])
    if values is None:
        first = int(np.argmin(looks_numeric(table.columns[name])))
        refuse_value(table, name, first, expected="to hold numbers", remedy=f"write a number, or {otherwise}")
    expected, remedy = "to hold finite numbers", f"write another number, or {otherwise}"
    refuse_first(table, name, np.isinf(values), expected=expected, remedy=remedy)
    return values


def single_numbers(table: Table, name: str, *, otherwise: str = "leave it empty where it is unknown") -> Singles:
    """Return float32 (n,) as `finite_numbers`; refuse numbers that are too large for it."""
    values = finite_numbers(table, name, otherwise=otherwise)
    limit = float(np.finfo(np.float32).max)
    expected, remedy = f"to hold numbers up to {limit:.2g}", f"rescale the column, or {otherwise}"
    refuse_first(table, name, np.abs(values) > limit, expected=expected, remedy=remedy)
    return values.astype(np.float32)


def looks_numeric(column: Column) -> Bools:
    """Return (n,) bool: which strings are numbers or missing."""
    return np.asarray(pc.fill_null(pc.match_substring_regex(known_strings(column), NUMBER), fill_value=True), bool)


def is_null(column: Column) -> Bools:
    """Return (n,) bool: where nothing is given; strings that stand for a missing value count after `as_strings`."""
    return np.asarray(column.is_null(), bool)


def places_in(known: Column, column: Column) -> Ints:
    """Return int64 (n,) where in `known` each value of a column is, -1 where it is not."""
    return np.asarray(pc.fill_null(pc.index_in(column, value_set=known), -1), np.int64)


def codes_of(table: Table, name: str, strings: Column, known: list[str], *, expected: str, remedy: str) -> Ints:
    """Return int64 (n,) the place of each string of a column among the known ones, -1 where null; refuse others."""
    places = places_in(pa.array(known, STRING), strings)
    refuse_first(table, name, (places < 0) & ~is_null(strings), expected=expected, remedy=remedy)
    return places


def refuse_first(table: Table, name: str, wrong: Bools, *, expected: str, remedy: str) -> None:
    """Raise ValueError in one sentence about the first value that is `wrong`, (n,); none may be."""
    if wrong.any():
        refuse_value(table, name, int(wrong.argmax()), expected=expected, remedy=remedy)


def refuse_value(table: Table, name: str, row: int, *, expected: str, remedy: str) -> NoReturn:
    """Raise ValueError in one sentence about one value."""
    value = table.columns[name][row].as_py()
    text = str(value) if str(value).isprintable() else ascii(value)[1:-1]
    got = "nothing" if value is None else f"'{text[:60]}...'" if len(text) > 60 else f"'{text}'"
    refuse(f"the column '{name}' of {table.path} {expected}", f"{got} in data row {table.before + row + 1}", remedy)


def refuse_mixed(table: Table, name: str) -> None:
    """Refuse a column of numbers with a few strings in it: almost always a typing error, or a missing value."""
    if not is_strings(table.columns[name]):
        return
    numeric = looks_numeric(table.columns[name])
    numbers, strings = int((numeric & ~is_null(as_strings(table.columns[name]))).sum()), int((~numeric).sum())
    if numbers > strings:
        expected = f"to hold either numbers or strings, not {numbers} numbers and {strings} strings"
        remedy = "correct it, or leave it empty where the value is unknown"
        refuse_first(table, name, ~numeric, expected=expected, remedy=remedy)


# ---- types


def _decoded(column: Any) -> Any:
    """Return the chunks of a column as one array, without a dictionary; strings of any type as large strings."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if str(column.type) in ("string", "string_view"):  # by name, as older pyarrow has no string_view
        column = column.cast(STRING)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _plain(column: Any, *, name: str, path: Path) -> Column:
    """Bring any of the types of a file into five: strings, int64, uint64, float64 and decimals."""
    kind = column.type
    if kind == STRING:
        _check_unicode(column, name=name, path=path)
        column = pc.utf8_trim_whitespace(column)
        return pc.if_else(pc.equal(column, ""), pa.scalar(None, STRING), column)
    if pa.types.is_boolean(kind) or pa.types.is_temporal(kind) or pa.types.is_null(kind):
        return column.cast(STRING)
    if pa.types.is_integer(kind):
        return column if kind == pa.uint64() else column.cast(pa.int64())
    if pa.types.is_decimal(kind):
        return column
    if not pa.types.is_floating(kind):
        remedy = "write it as numbers or strings, one value per column, or leave it out"
        refuse(f"the column '{name}' of {path} to hold numbers, strings or booleans", str(kind), remedy)
    column = _floats(column)
    return pc.if_else(pc.is_nan(column), pa.scalar(None, pa.float64()), column)


def _floats(column: Any) -> Any:
    """Return numbers of any type as float64, rounded where they must be."""
    return column.cast(pa.float64(), safe=False)


def _check_unicode(column: Any, *, name: str, path: Path) -> None:
    """Refuse strings of a parquet file that are no UTF-8, which pyarrow reads without looking."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        for row, value in enumerate(column.cast(pa.large_binary()).to_pylist()):
            try:
                (value or b"").decode()
            except UnicodeDecodeError as wrong:
                got = f"the byte 0x{value[wrong.start]:02x} in data row {row + 1}"
                refuse(f"the column '{name}' of {path} to hold UTF-8", got, "write it again as UTF-8")
        raise ValueError(
            f"Expected the column '{name}' of {path} to be whole (got {error}); write the file again."
        ) from error


def _is_same(plain: Column, column: Any) -> bool:
    """Say whether nothing but the place of nulls changed: strings are only ever made shorter."""
    return bool(plain.type == column.type) and (not is_strings(plain) or _length(plain) == _length(column))


def _length(strings: Any) -> int:
    return int(pc.sum(pc.binary_length(strings)).as_py() or 0)
