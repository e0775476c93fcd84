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

from topoff.data.check import refuse

Column = Any  # a pyarrow.Array of large_string, int64 or float64
Floats = np.ndarray[Any, np.dtype[np.float64]]
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


def find_table(folder: Path, name: str) -> Path | None:
    """Return the path of `name`.csv or `name`.parquet in a folder, None where there is neither; refuse both."""
    found = [path for path in (folder / f"{name}.csv", folder / f"{name}.parquet") if path.is_file()]
    if len(found) > 1:
        refuse(f"one table of {name} in {folder}", f"{found[0].name} and {found[1].name}", "remove one of them")
    return found[0] if found else None


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
    kind = pa.float64()
    numbers = parsed(known_strings(column), kind) if is_strings(column) else column.cast(kind, safe=False)
    if numbers is None:
        return None
    values: Floats = numbers.to_numpy(zero_copy_only=False)
    return values


def parsed(strings: Column, kind: Any) -> Column | None:
    """Return strings as numbers of a pyarrow type, or None where one of them is none.

    >>> parsed(pa.array(["1", "2"], STRING), pa.int64()).to_pylist(), parsed(pa.array(["1", "b"], STRING), pa.int64())
    ([1, 2], None)
    """
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
    infinite = np.flatnonzero(np.isinf(values))
    if len(infinite):
        remedy = "replace it, or leave it empty"
        refuse_value(table, name, int(infinite[0]), expected="to hold finite numbers", remedy=remedy)
    return values


def looks_numeric(column: Column) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return (n,) bool: which strings are numbers or missing."""
    alike = pc.match_substring_regex(known_strings(column), NUMBER)
    numeric: np.ndarray[Any, np.dtype[np.bool_]] = pc.fill_null(alike, fill_value=True).to_numpy(zero_copy_only=False)
    return numeric


def refuse_value(table: Table, name: str, row: int, *, expected: str, remedy: str) -> NoReturn:
    """Raise ValueError in one sentence about one value."""
    value = table.columns[name][row].as_py()
    got = "nothing" if value is None else f"'{value}'"
    refuse(f"the column '{name}' of {table.path} {expected}", f"{got} in data row {row + 1}", remedy)


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
