"""Turn columns of a table into features, and remember how, so that another table is encoded exactly alike.

Numbers are standardised over their known values; words and booleans become one column per category. Gaps are filled
(with the mean, with zeros) and marked by a column of their own. What says nothing is left out. All of it is reported.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from topoff.data.check import refuse
from topoff.data.columns import (
    WORD,
    Column,
    Table,
    as_numbers,
    as_words,
    finite_numbers,
    is_words,
    looks_numeric,
    refuse_value,
)

Entry = dict[str, Any]  # JSON: name, kind (number | words | gaps), mean, std, categories, other, missing
MOST = 64  # categories with a column of their own

NUMBERS = "{}, standardised"
CONSTANT = "{} with one value only, left out"
EMPTY = "{} without any value, left out"
DIFFERENT = "{} of words that are all different, left out"


def fit_columns(table: Table, names: Sequence[str]) -> tuple[list[Entry], list[str]]:
    """Choose how each column is encoded; return one entry for each that is kept, and what was done in words.

    Raises ValueError for a column that mixes numbers and words, and for infinite numbers.

    >>> from pathlib import Path
    >>> words = pa.array(["red", "blue", "red"], WORD)
    >>> fit_columns(Table(Path("nodes.csv"), {"colour": words}, 3), ["colour"])[0]
    [{'name': 'colour', 'kind': 'words', 'categories': ['blue', 'red'], 'other': False, 'missing': False}]
    """
    entries: list[Entry] = []
    notes: list[str] = []
    alike: dict[str, list[str]] = {NUMBERS: [], CONSTANT: [], EMPTY: [], DIFFERENT: []}
    for name in names:
        numeric = as_numbers(table.columns[name]) is not None
        entry, note = _fit_numbers(table, name) if numeric else _fit_words(table, name)
        if entry is not None:
            entries.append(entry)
        if note in alike:
            alike[note].append(name)
        else:
            notes.append(f"{name}: {note}")
    common = [_together(names, note) for note, names in alike.items() if names]
    return entries, common + notes


def encode_columns(table: Table, entries: Sequence[Entry]) -> tuple[np.ndarray[Any, Any], list[str]]:
    """Encode a table as the entries say: float32 (n, d), and in words what this table has that the first had not.

    Raises ValueError for missing columns and for words where numbers are due.

    >>> from pathlib import Path
    >>> table = Table(Path("nodes.csv"), {"age": pa.array([30.0, None])}, 2)
    >>> x, notes = encode_columns(table, [{"name": "age", "kind": "number", "mean": 20.0, "std": 5.0, "missing": True}])
    >>> x.tolist()
    [[2.0, 0.0], [0.0, 1.0]]
    """
    missing = [entry["name"] for entry in entries if entry["name"] not in table.columns]
    if missing:
        got = f"no {', '.join(missing)}, but {', '.join(table.columns)}"
        refuse(
            f"{table.path} to have the feature columns of the first table", got, "add them; empty values are allowed"
        )
    x = np.zeros((table.rows, sum(_width(entry) for entry in entries)), dtype=np.float32)
    notes: list[str] = []
    start = 0
    for entry in entries:
        block = x[:, start : start + _width(entry)]
        notes += (_encode_words if entry["kind"] == "words" else _encode_numbers)(table, entry, block)
        start += _width(entry)
    return x, notes


def _width(entry: Entry) -> int:
    """Return how many features a column becomes."""
    if entry["kind"] == "gaps":
        return 1
    own = 1 if entry["kind"] == "number" else len(entry["categories"]) + entry["other"]
    return int(own + entry["missing"])


def _together(names: list[str], note: str) -> str:
    """Say one thing about several columns, without a list of hundreds."""
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    kind = "number" if note == NUMBERS else "column"
    return f"{shown}: {note.format(f'a {kind}' if len(names) == 1 else f'{len(names)} {kind}s')}"


# ---- choosing


def _fit_numbers(table: Table, name: str) -> tuple[Entry | None, str]:
    """Choose for a column of numbers: mean and deviation of the known ones, or nothing."""
    values = finite_numbers(table, name)
    known = values[~np.isnan(values)]
    gaps = table.rows - len(known)
    if len(known) == 0:
        return None, EMPTY
    if known.min() == known.max():
        return _fit_constant(name, str(known[0]), gaps=gaps, rows=table.rows)
    scale = float(np.abs(known).max())  # keeps the squares of huge numbers finite
    mean, std = scale * float((known / scale).mean()), scale * float((known / scale).std())
    entry = {"name": name, "kind": "number", "mean": mean, "std": std, "missing": gaps > 0}
    return entry, f"{gaps} of {table.rows} missing, filled with the mean {mean:.4g} and marked" if gaps else NUMBERS


def _fit_constant(name: str, value: str, *, gaps: int, rows: int) -> tuple[Entry | None, str]:
    """Leave out a column with one value, unless it is missing somewhere: then whether it is given is the feature."""
    if gaps == 0:
        return None, CONSTANT
    return {"name": name, "kind": "gaps"}, f"{gaps} of {rows} missing, else always {value}; kept as the mark of a gap"


def _fit_words(table: Table, name: str) -> tuple[Entry | None, str]:
    """Choose for a column of words: its most frequent ones, or nothing."""
    if is_words(table.columns[name]):
        _refuse_mixture(table, name)
    words = as_words(table.columns[name])
    known = words.drop_null()
    counts = known.value_counts()
    order = pa.table({"word": counts.field(0), "count": counts.field(1)}).sort_by(
        [("count", "descending"), ("word", "ascending")]
    )
    gaps, distinct = table.rows - len(known), order.num_rows
    if distinct == 1:
        return _fit_constant(name, f"'{order['word'][0]}'", gaps=gaps, rows=table.rows)
    if distinct == len(known):
        return None, DIFFERENT
    categories = sorted(order["word"][:MOST].to_pylist())
    entry = {"name": name, "kind": "words", "categories": categories, "other": distinct > MOST, "missing": gaps > 0}
    note = f"{distinct} categories, one column each"
    if distinct > MOST:
        note = f"{distinct} categories, one column for each of the {MOST} most frequent and one for all others"
    return entry, note + (f"; {gaps} of {table.rows} missing, marked" if gaps else "")


def _refuse_mixture(table: Table, name: str) -> None:
    """Refuse a column of numbers with a few words in it: almost always a typing error, or a mark for a gap."""
    column = table.columns[name]
    numeric = looks_numeric(column) & ~as_words(column).is_null().to_numpy(zero_copy_only=False)
    words = np.flatnonzero(~looks_numeric(column))
    if len(words) and numeric.sum() > len(words):
        expected = f"to hold either numbers or words, not {int(numeric.sum())} numbers and {len(words)} words"
        remedy = "correct it, or leave it empty where the value is unknown"
        refuse_value(table, name, int(words[0]), expected=expected, remedy=remedy)


# ---- encoding


def _encode_numbers(table: Table, entry: Entry, out: np.ndarray[Any, Any]) -> list[str]:
    """Write the standardised number and the mark of a gap into `out` (n, width)."""
    name = entry["name"]
    if entry["kind"] == "gaps":
        out[:, 0] = _gaps(table.columns[name])
        return []
    values = finite_numbers(table, name)
    gaps = np.isnan(values)
    out[:, 0] = (np.where(gaps, entry["mean"], values) - entry["mean"]) / entry["std"]
    if entry["missing"]:
        out[:, 1] = gaps
    elif gaps.any():
        return [f"{name}: {int(gaps.sum())} of {table.rows} missing, filled with the first table's mean, not marked"]
    return []


def _encode_words(table: Table, entry: Entry, out: np.ndarray[Any, Any]) -> list[str]:
    """Write one column per category, one for the others and the mark of a gap into `out` (n, width)."""
    words, categories = as_words(table.columns[entry["name"]]), entry["categories"]
    found = pc.fill_null(pc.index_in(words, value_set=pa.array(categories, WORD)), -1).to_numpy()
    gaps = _gaps(table.columns[entry["name"]])
    rows = np.flatnonzero(found >= 0)
    out[rows, found[rows]] = 1.0
    others = np.flatnonzero((found < 0) & ~gaps)
    if entry["other"]:
        out[others, len(categories)] = 1.0
    if entry["missing"]:
        out[:, -1] = gaps
    notes = []
    if len(others):
        share = "count as other" if entry["other"] else "have zeros only"
        what = f"hold words without a column of their own (such as '{words[int(others[0])]}')"
        notes.append(f"{entry['name']}: {len(others)} of {table.rows} {what} and {share}")
    if gaps.any() and not entry["missing"]:
        notes.append(f"{entry['name']}: {int(gaps.sum())} of {table.rows} missing, all zeros, not marked")
    return notes


def _gaps(column: Column) -> np.ndarray[Any, Any]:
    """Return (n,) bool: where nothing is given."""
    gaps: np.ndarray[Any, Any] = as_words(column).is_null().to_numpy(zero_copy_only=False)
    return gaps
