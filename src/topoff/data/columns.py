"""Read one table, csv or parquet, into plain columns: strings, whole numbers or floats, null where a value is missing.

A csv file is read as strings throughout, so that what a column means never depends on its first rows, and an id such as
007 stays what it is; numbers are made of strings afterwards, where every known value of a column is one.
"""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from topoff.data.refusal import refuse

Column = Any  # a pyarrow.Array of large_string, int64 or float64
Floats = np.ndarray[Any, np.dtype[np.float64]]
Ints = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]
STRING = pa.large_string()
MISSING = ("", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null")  # how a missing value is written, but not in ids
NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
WHOLE = 2.0**53  # floats are exact integers up to here
BLOCK = 1 << 24  # bytes parsed at a time; a row must fit into it


@dataclass(frozen=True)
class Table:
    """Hold the columns of one file."""

    path: Path
    columns: dict[str, Column]
    rows: int


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
    read = _read_csv(path) if path.suffix == ".csv" else _read_parquet(path)
    names = [name.strip() for name in read.column_names]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        refuse(f"the columns of {path} to have different names", f"'{twice}' twice", "rename one of them")
    columns = {name: _plain(read.column(i), name=name, path=path) for i, name in enumerate(names)}
    return Table(path, columns, read.num_rows)


# ---- values


def is_strings(column: Column) -> bool:
    """Say whether a column is stored as strings, numbers in a csv file included."""
    return bool(column.type == STRING)


def known_strings(column: Column) -> Column:
    """Return the strings (n,), null for the strings that stand for a missing value."""
    return pc.if_else(pc.is_in(column, value_set=pa.array(MISSING, STRING)), pa.scalar(None, STRING), column)


def as_strings(column: Column) -> Column:
    """Return large strings (n,): whole floats are written as integers, TRUE and False as true and false."""
    if is_strings(column):
        lower = pc.utf8_lower(column)
        return pc.if_else(pc.is_in(lower, value_set=pa.array(["true", "false"], STRING)), lower, known_strings(column))
    if pa.types.is_floating(column.type):
        values = column.drop_null().to_numpy()
        if np.all((values == np.round(values)) & (np.abs(values) < WHOLE)):
            column = column.cast(pa.int64())
    return column.cast(STRING)


def as_numbers(column: Column) -> Floats | None:
    """Return float64 (n,) with NaN for missing values, or None where a known value is no number."""
    strings = is_strings(column)
    numbers = parsed(known_strings(column), pa.float64()) if strings else column.cast(pa.float64(), safe=False)
    return None if numbers is None else numbers.to_numpy(zero_copy_only=False)


def parsed(strings: Column, kind: Any) -> Column | None:
    """Return strings as numbers of a pyarrow type, or None where one of them is none."""
    try:
        strings.slice(0, 1000).cast(kind)  # first: pyarrow writes a sentence about each failure, a million of them
        return strings.cast(kind)
    except pa.ArrowInvalid:
        return None


def finite_numbers(table: Table, name: str) -> Floats:
    """Return float64 (n,) with NaN for missing values; refuse strings and infinity, with the first of them."""
    values = as_numbers(table.columns[name])
    if values is None:
        first = int(np.argmin(looks_numeric(table.columns[name])))
        refuse_value(table, name, first, expected="to hold numbers", remedy="write a number, or nothing where unknown")
    remedy = "replace it, or leave it empty"
    refuse_first(table, name, np.isinf(values), expected="to hold finite numbers", remedy=remedy)
    return values


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


def as_ids(table: Table, name: str) -> Column:
    """Return a column of ids as int64 where every id is the plain spelling of an integer, else as strings."""
    column = table.columns[name]
    remedy = "fill it in or remove the row"
    refuse_first(table, name, is_null(column), expected="to hold an id in every row", remedy=remedy)
    strings = column if is_strings(column) else as_strings(column)
    whole = parsed(strings, pa.int64())
    return whole if whole is not None and whole.cast(STRING).equals(strings) else strings


def refuse_first(table: Table, name: str, wrong: Bools, *, expected: str, remedy: str) -> None:
    """Raise ValueError in one sentence about the first value that is `wrong`, (n,); none may be."""
    if wrong.any():
        refuse_value(table, name, int(wrong.argmax()), expected=expected, remedy=remedy)


def refuse_value(table: Table, name: str, row: int, *, expected: str, remedy: str) -> NoReturn:
    """Raise ValueError in one sentence about one value."""
    value = table.columns[name][row].as_py()
    got = "nothing" if value is None else f"'{value}'"
    refuse(f"the column '{name}' of {table.path} {expected}", f"{got} in data row {row + 1}", remedy)


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


def _plain(column: Any, *, name: str, path: Path) -> Column:
    """Bring any of the types of a file into three: strings, int64, float64."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], kind)
    if str(kind) in ("string", "large_string", "string_view"):  # string_view: by name, as older pyarrow has none
        column = pc.utf8_trim_whitespace(column.cast(STRING))
        return pc.if_else(pc.equal(column, ""), pa.scalar(None, STRING), column)
    if pa.types.is_boolean(kind) or pa.types.is_temporal(kind) or pa.types.is_null(kind):
        return column.cast(STRING)
    if pa.types.is_integer(kind) and kind != pa.uint64():
        return column.cast(pa.int64())
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        remedy = "spread it over columns with one value each, or leave it out"
        refuse(f"the column '{name}' of {path} to hold numbers, strings or booleans", str(kind), remedy)
    column = column.cast(pa.float64(), safe=False)
    return pc.if_else(pc.is_nan(column), pa.scalar(None, pa.float64()), column)


# ---- files


def _read_csv(path: Path) -> Any:
    """Read every column of a csv file as strings."""
    if _count_quotes(path) % 2:  # pyarrow would take all that follows for one value, silently
        remedy = 'close each one, and write a quote inside a value twice ("")'
        refuse(f"the quotes of {path} to come in pairs", "an odd number of them", remedy)
    header: list[str] = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as handle:
            header = next((row for row in csv.reader(handle) if row), [])
        return _parse(path, header, threads=True)
    except (pa.ArrowInvalid, UnicodeDecodeError, csv.Error) as error:
        got, remedy = _explain_csv(path, header, error)
        raise ValueError(
            f"Expected {path} to be a UTF-8 table with a header and {len(header) or 'as many'} values in every row "
            f"(got {got}); {remedy}."
        ) from error


def _count_quotes(path: Path) -> int:
    """Count the double quotes of a file, block by block."""
    with path.open("rb") as handle:
        return sum(block.count(b'"') for block in iter(lambda: handle.read(BLOCK), b""))


def _parse(path: Path, header: list[str], *, threads: bool, on_bad_row: Any = None) -> Any:
    """Let pyarrow read the columns of a header as strings."""
    types = dict.fromkeys(header, STRING)
    return pyarrow.csv.read_csv(
        path,
        read_options=pyarrow.csv.ReadOptions(use_threads=threads, block_size=BLOCK),
        parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True, invalid_row_handler=on_bad_row),
        convert_options=pyarrow.csv.ConvertOptions(strings_can_be_null=False, column_types=types),
    )


def _explain_csv(path: Path, header: list[str], error: Exception) -> tuple[str, str]:
    """Say what is wrong with a csv file and what to do: empty, not UTF-8, a row of another length, or else."""
    content = path.read_bytes()
    if not content.removeprefix(b"\xef\xbb\xbf").strip():
        return "an empty file", "write the names of its columns first"
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as wrong:
        line = content.count(b"\n", 0, wrong.start) + 1
        return f"the byte 0x{content[wrong.start]:02x} in line {line}", "save it again as UTF-8"
    bad: list[Any] = []

    def stop(row: Any) -> str:
        """Note the row, and end the reading."""
        bad.append(row)
        return "error"

    try:  # once more on one thread: only then does pyarrow know the number of the row
        _parse(path, header, threads=False, on_bad_row=stop)
    except pa.ArrowInvalid:
        if bad:
            got = f"{bad[0].actual_columns} in data row {bad[0].number - 1}, '{bad[0].text.strip()}'"
            return got, "complete that row, and quote values that hold commas"
    return str(error).splitlines()[0], "correct it"


def _read_parquet(path: Path) -> Any:
    """Read a parquet file alone, whatever the folders around it are called."""
    try:
        with path.open("rb") as handle:
            return pyarrow.parquet.ParquetFile(handle).read()
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"Expected {path} to be a whole parquet file (got {reason.rstrip('.')}); write it again."
        ) from error
