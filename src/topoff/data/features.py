"""Turn columns of a table into features, and remember how, so that another table is encoded exactly alike.

Numbers are standardised over their known values; strings and booleans become one column per category. Missing values
are filled in (with the mean, with zeros) and marked by a column of their own. Columns that carry no information are
left out. All of it is reported.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from topoff.data.columns import (
    Table,
    as_numbers,
    as_strings,
    finite_numbers,
    is_null,
    places_in,
    refuse_first,
    refuse_mixed,
)
from topoff.data.refusal import refuse
from topoff.data.table_file import STRING

# JSON: name, kind (number; words: a column of strings; gaps: whether there is a value),
# mean, std, categories, other, missing
Entry = dict[str, Any]
MOST = 64  # categories with a column of their own

NUMBERS = "{}, standardised"
CONSTANT = "{} with one value only, left out"
EMPTY = "{} without any value, left out"
DIFFERENT = "{} of strings that are all different, left out"


def fit_columns(table: Table, names: Sequence[str]) -> tuple[list[Entry], list[str]]:
    """Choose how each column is encoded; return one entry for each that is kept, and a sentence on each.

    Raises ValueError for a column that mixes numbers and strings, and for infinite numbers.
    """
    entries, notes = [], []
    alike: dict[str, list[str]] = {NUMBERS: [], CONSTANT: [], EMPTY: [], DIFFERENT: []}
    for name in names:
        numeric = as_numbers(table.columns[name]) is not None
        entry, note = _fit_numbers(table, name) if numeric else _fit_strings(table, name)
        if entry is not None:
            entries.append(entry)
        if note in alike:
            alike[note].append(name)
        else:
            notes.append(f"{name}: {note}")
    common = [_together(names, note) for note, names in alike.items() if names]
    return entries, common + notes


def encode_columns(table: Table, entries: Sequence[Entry]) -> tuple[np.ndarray[Any, Any], list[str]]:
    """Encode a table as the entries say: float32 (n, d), and sentences on what this table has that the first had not.

    Raises ValueError for missing columns and for strings where numbers are due.

    >>> from pathlib import Path
    >>> table = Table(Path("nodes.csv"), {"age": pa.array([30.0, None])}, 2)
    >>> x, notes = encode_columns(table, [{"name": "age", "kind": "number", "mean": 20.0, "std": 5.0, "missing": True}])
    >>> x.tolist()
    [[2.0, 0.0], [0.0, 1.0]]
    """
    missing = [entry["name"] for entry in entries if entry["name"] not in table.columns]
    if missing:
        got = f"no {', '.join(missing)}, but {', '.join(table.columns)}"
        expected = f"{table.path} to have the feature columns of the first table"
        refuse(expected, got, "add them; empty values are allowed")
    x = np.zeros((table.rows, sum(_width(entry) for entry in entries)), dtype=np.float32)
    notes, start = [], 0
    for entry in entries:
        block = x[:, start : start + _width(entry)]
        notes += (_encode_strings if entry["kind"] == "words" else _encode_numbers)(table, entry, block)
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
    missing = table.rows - len(known)
    if len(known) == 0:
        return None, EMPTY
    if known.min() == known.max():
        return _fit_constant(name, str(known[0]), missing=missing, rows=table.rows)
    scale = float(np.abs(known).max())  # keeps the squares of huge numbers finite
    mean, std = scale * float((known / scale).mean()), scale * float((known / scale).std())
    entry = {"name": name, "kind": "number", "mean": mean, "std": std, "missing": missing > 0}
    filled = f"{missing} of {table.rows} missing, filled with the mean {mean:.4g} and marked"
    return entry, filled if missing else NUMBERS


def _fit_constant(name: str, value: str, *, missing: int, rows: int) -> tuple[Entry | None, str]:
    """Leave out a column with one value, unless it is missing somewhere: then whether it is given is the feature."""
    note = f"{missing} of {rows} missing, else always {value}; kept to mark missing values"
    return ({"name": name, "kind": "gaps"}, note) if missing else (None, CONSTANT)


def _fit_strings(table: Table, name: str) -> tuple[Entry | None, str]:
    """Choose for a column of strings: its most frequent ones, or nothing."""
    refuse_mixed(table, name)
    strings = as_strings(table.columns[name])
    known = strings.drop_null()
    counts = known.value_counts()
    found = pa.table({"string": counts.field(0), "count": counts.field(1)})
    order = found.sort_by([("count", "descending"), ("string", "ascending")])
    missing, distinct = table.rows - len(known), order.num_rows
    if distinct == 1:
        return _fit_constant(name, f"'{order['string'][0]}'", missing=missing, rows=table.rows)
    if distinct == len(known):
        return None, DIFFERENT
    categories = sorted(order["string"][:MOST].to_pylist())
    entry = {"name": name, "kind": "words", "categories": categories, "other": distinct > MOST, "missing": missing > 0}
    note = f"{distinct} categories, one column each"
    if distinct > MOST:
        note = f"{distinct} categories, one column for each of the {MOST} most frequent and one for all others"
    return entry, note + (f"; {missing} of {table.rows} missing, marked" if missing else "")


# ---- encoding


def _encode_numbers(table: Table, entry: Entry, out: np.ndarray[Any, Any]) -> list[str]:
    """Write the standardised number and the mark of a missing value into `out` (n, width)."""
    name = entry["name"]
    if entry["kind"] == "gaps":
        out[:, 0] = is_null(as_strings(table.columns[name]))
        return []
    values = finite_numbers(table, name)
    missing = np.isnan(values)
    with np.errstate(over="ignore"):
        out[:, 0] = (np.where(missing, entry["mean"], values) - entry["mean"]) / entry["std"]
    limit = f"to hold numbers like those of the first table, {entry['mean']:.3g} on average"
    refuse_first(table, name, ~np.isfinite(out[:, 0]), expected=limit, remedy="correct it, or leave it empty")
    if entry["missing"]:
        out[:, 1] = missing
    elif missing.any():
        return [f"{name}: {int(missing.sum())} of {table.rows} missing, filled with the first table's mean, not marked"]
    return []


def _encode_strings(table: Table, entry: Entry, out: np.ndarray[Any, Any]) -> list[str]:
    """Write one column per category, one for the others and the mark of a missing value into `out` (n, width)."""
    strings = as_strings(table.columns[entry["name"]])
    found, missing = places_in(pa.array(entry["categories"], STRING), strings), is_null(strings)
    rows = np.flatnonzero(found >= 0)
    out[rows, found[rows]] = 1.0
    others = np.flatnonzero((found < 0) & ~missing)
    if entry["other"]:
        out[others, len(entry["categories"])] = 1.0
    if entry["missing"]:
        out[:, -1] = missing
    notes = []
    if len(others):
        share = "count as other" if entry["other"] else "have zeros only"
        what = f"hold strings without a column of their own (such as '{strings[int(others[0])]}')"
        notes.append(f"{entry['name']}: {len(others)} of {table.rows} {what} and {share}")
    if missing.any() and not entry["missing"]:
        notes.append(f"{entry['name']}: {int(missing.sum())} of {table.rows} missing, all zeros, not marked")
    return notes
