"""Open a table, csv or parquet, as pyarrow's; say of a file that is none what it is instead, and what to do.

A csv file is UTF-8 and separated by commas. Other separators are named, not guessed: with semicolons often goes a
decimal comma, and 1,5 would silently become a category.
"""

import csv
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from topoff.data.refusal import refuse

STRING = pa.large_string()
BLOCK = 1 << 24  # bytes parsed at a time; a row must fit into it
KINDS = {  # by the first bytes of a file
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
    b"PK\x03\x04": "a spreadsheet or zip file",
    b"\x1f\x8b": "a gzip file",
    b"PAR1": "a parquet file",
}
SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "vertical bars", " ": "spaces"}
NAMES = {"id", "node", "node_id", "source", "target", "label", "split", "weight"}  # that a header of ours may hold
MAGIC = b"PAR1"


@dataclass(frozen=True)
class _Scan:
    """Hold what is in the bytes of a csv file."""

    start: bytes
    quotes: bool  # anywhere
    later_quotes: bool  # below the first line: files that programs write often have some in their header alone
    zero_line: int | None  # of the first NUL byte
    blank: bool


def open_table(path: Path) -> Any:
    """Return a .csv (every column as strings) or .parquet file as a pyarrow.Table.

    Raises ValueError in one sentence with the file, and the line or row and value where there is one.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "nodes.csv"
    ...     _ = path.write_text("id|age\\n1|2,5\\n")
    ...     try:
    ...         open_table(path)
    ...     except ValueError as error:
    ...         print(str(error).partition("nodes.csv ")[2].partition(";")[0])
    to be separated by commas (got vertical bars in its first line, 'id|age')
    """
    return _read_csv(path) if path.suffix == ".csv" else _read_parquet(path)


def open_pieces(path: Path, *, rows: int = 1 << 21) -> Iterator[Any]:
    """Yield a table of either format as pyarrow.Tables of some rows, with the same strings and refusals.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "edges.csv"
    ...     _ = path.write_text("source,target\\na,b\\n")
    ...     [piece.num_rows for piece in open_pieces(path)]
    [1]
    """
    if path.suffix == ".csv":
        yield from _csv_pieces(path)
        return
    with path.open("rb") as handle:
        try:
            file = pyarrow.parquet.ParquetFile(handle)
            for batch in file.iter_batches(batch_size=rows):
                yield pa.Table.from_batches([batch])
            if not file.metadata.num_rows:
                yield file.schema_arrow.empty_table()
        except (pa.ArrowException, OSError) as error:
            got, remedy = _explain_parquet(path, error)
            raise ValueError(f"Expected {path} to be a whole parquet file (got {got}); {remedy}.") from error


# ---- csv


def _read_csv(path: Path) -> Any:
    """Read every column of a csv file as strings."""
    with _checked_csv(path) as found:
        return _parse(path, found.names, threads=True) if found.rest else _empty(found.names)


def _csv_pieces(path: Path) -> Iterator[Any]:
    """Read every column of a csv file as strings, block by block."""
    with _checked_csv(path) as found, pa.OSFile(os.fsencode(path)) as handle:
        if not found.rest:
            yield _empty(found.names)
            return
        for batch in pyarrow.csv.open_csv(handle, **_options(found.names, threads=True)):
            yield pa.Table.from_batches([batch])


def _empty(names: list[str]) -> Any:
    """Return a table without rows; pyarrow wants more than a header."""
    return pa.Table.from_arrays([pa.array([], STRING) for _ in names], names=names)


@dataclass(frozen=True)
class _Header:
    """Hold the first line of a csv file."""

    names: list[str]
    rest: bool  # whether there is more


@contextmanager
def _checked_csv(path: Path) -> Iterator[_Header]:
    """Look at a csv file before it is read, and say what is wrong with one that cannot be read inside `with`."""
    found = _scan(path)
    _check_bytes(path, found)
    header: list[str] = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as handle:
            header = next((row for row in csv.reader(handle) if row), [])
            rest = any(line.strip("\r\n") for line in handle)
            _check_separator(path, header)
            if found.quotes:  # also where an open one makes a header of all lines
                handle.seek(0)
                _check_quotes(path, csv.reader(handle, strict=True), header_only=not found.later_quotes)
        yield _Header(header, rest)
    except (pa.ArrowInvalid, UnicodeDecodeError, csv.Error) as error:
        got, remedy = _explain_csv(path, header, error)
        raise ValueError(
            f"Expected {path} to be a UTF-8 table with a header and {len(header) or 'as many'} values in every row "
            f"(got {got}); {remedy}."
        ) from error


def _blocks(handle: BinaryIO) -> Iterator[bytes]:
    return iter(lambda: handle.read(BLOCK), b"")


def _scan(path: Path) -> _Scan:
    """Look at the bytes of a file once, block by block."""
    start, quotes, later, zero, lines, blank, below = b"", False, False, None, 1, True, False
    with path.open("rb") as handle:
        for block in _blocks(handle):
            start = start or block[:100]
            quotes = quotes or b'"' in block
            later = later or b'"' in (block if below else block[_line_end(block) :])
            below = below or _line_end(block) < len(block)
            if zero is None and b"\0" in block:
                zero = lines + block.count(b"\n", 0, block.index(b"\0"))
            lines += block.count(b"\n") if zero is None else 0
            blank = blank and not block.removeprefix(b"\xef\xbb\xbf").strip()
    return _Scan(start, quotes, later, zero, blank)


def _line_end(block: bytes) -> int:
    """Return where the first line ends, at its line feed or carriage return; the length where it does not."""
    return min((at for at in map(block.find, (b"\n", b"\r")) if at >= 0), default=len(block))


def _check_bytes(path: Path, found: _Scan) -> None:
    """Refuse an empty file, one of another kind, and NUL bytes."""
    expected = f"{path} to be a UTF-8 table with a header"
    if found.blank:
        refuse(expected, "an empty file", "write the names of its columns first")
    kind = next((kind for mark, kind in KINDS.items() if found.start.startswith(mark)), None)
    if kind == "a parquet file":
        refuse(expected, kind, f"rename it to {path.stem}.parquet")
    if kind is not None:
        refuse(expected, f"{kind}, by its first bytes", "save it again as csv, UTF-8, with commas")
    if found.zero_line is not None:
        got = f"a NUL byte in line {found.zero_line}"
        refuse(expected, got, "save it again as UTF-8; text in UTF-16 is full of such bytes")


def _check_separator(path: Path, header: list[str]) -> None:
    """Refuse a header that another separator than the comma cuts into names of ours."""
    line = " ".join(",".join(header).splitlines())
    if {name.strip().lower() for name in header} & NAMES:
        return
    for separator, name in SEPARATORS.items():
        parts = [part.strip().lower() for part in next(csv.reader([line], delimiter=separator), [])]
        several = len(NAMES.intersection(parts)) > 1
        sure = several if separator == " " else several or len(header) == 1 or parts[0] in NAMES
        if len(parts) > 1 and sure:
            got = f"{name} in its first line, '{' '.join(line.split())[:60]}'"
            remedy = "save it again with commas between the values, and points in decimal numbers"
            refuse(f"{path} to be separated by commas", got, remedy)


def _check_quotes(path: Path, rows: Any, *, header_only: bool) -> None:
    """Refuse a quoted value that does not end where a value ends: pyarrow would join rows, silently."""
    begin = 1
    try:
        for row in rows:
            begin = rows.line_num + 1
            if header_only and row and begin == 2:
                return
    except csv.Error as error:
        long = "field limit" in str(error)
        got = f"a value of over {csv.field_size_limit():,} characters" if long else "one that does not"
        remedy = 'close it, and write a quote inside a value twice ("")'
        raise ValueError(
            f"Expected every quoted value of {path} to end with a quote before the next comma or line (got {got}, in "
            f"the row that begins in line {begin}); {remedy}."
        ) from error


def _parse(path: Path, header: list[str], *, threads: bool, on_bad_row: Any = None) -> Any:
    """Let pyarrow read the columns of a header as strings."""
    with pa.OSFile(os.fsencode(path)) as handle:  # a path as a string must be UTF-8
        return pyarrow.csv.read_csv(handle, **_options(header, threads=threads, on_bad_row=on_bad_row))


def _options(header: list[str], *, threads: bool, on_bad_row: Any = None) -> dict[str, Any]:
    """Return how pyarrow is to read a csv file."""
    strings = dict.fromkeys(header, STRING)
    return {
        "read_options": pyarrow.csv.ReadOptions(use_threads=threads, block_size=BLOCK),
        "parse_options": pyarrow.csv.ParseOptions(newlines_in_values=True, invalid_row_handler=on_bad_row),
        "convert_options": pyarrow.csv.ConvertOptions(strings_can_be_null=False, column_types=strings),
    }


def _explain_csv(path: Path, header: list[str], error: Exception) -> tuple[str, str]:
    """Say what is wrong with a csv file and what to do: not UTF-8, a row of another length, or else."""
    content = path.read_bytes()
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as wrong:
        line = content.count(b"\n", 0, wrong.start) + 1
        row = content.split(b"\n")[line - 1].decode("latin-1").strip()[:60]
        remedy = "save it again as UTF-8" + (f"; as Latin-1 this line reads '{row}'" if row.isprintable() else "")
        return f"the byte 0x{content[wrong.start]:02x} in line {line}", remedy
    bad: list[Any] = []

    def stop(row: Any) -> str:
        """Note the row, and end the reading."""
        bad.append(row)
        return "error"

    try:  # once more on one thread: only then does pyarrow know the number of the row
        _parse(path, header, threads=False, on_bad_row=stop)
    except pa.ArrowInvalid:
        if bad:
            text = bad[0].text.strip()
            start = text if len(text) <= 100 else text[:100] + "..."
            got = f"{bad[0].actual_columns} in data row {bad[0].number - 1}, '{start}'"
            return got, "complete that row, and quote values that hold commas"
    return str(error).splitlines()[0], "correct it"


# ---- parquet


def _read_parquet(path: Path) -> Any:
    """Read a parquet file alone, whatever the folders around it are called."""
    with path.open("rb") as handle:
        try:
            return pyarrow.parquet.ParquetFile(handle).read()
        except (pa.ArrowException, OSError, ValueError) as error:
            got, remedy = _explain_parquet(path, error)
            raise ValueError(f"Expected {path} to be a whole parquet file (got {got}); {remedy}.") from error


def _explain_parquet(path: Path, error: Exception) -> tuple[str, str]:
    """Say what a file is that is no parquet, and what to do: empty, encrypted, text, cut off, or else."""
    content = path.read_bytes()
    start, end = content[:4], content[-4:]
    if not content:
        return "an empty file", "write it again"
    if b"PARE" in (start, end) or "ncrypt" in str(error):
        return "an encrypted one", "write it again without encryption"
    if start != MAGIC:
        begin = content.splitlines()[0][:40].decode("utf-8", "replace")
        remedy = f"rename it to {path.stem}.csv if it is one" if begin.isprintable() else "write it again"
        return f"something else, which begins with '{begin}'" if begin.isprintable() else "something else", remedy
    if end != MAGIC:
        return f"the first {len(content):,} bytes of one, without its end", "copy or write it again"
    return f"a damaged one, {str(error).splitlines()[0].rstrip('.')}", "write it again"
