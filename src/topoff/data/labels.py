"""Read the labels and the split of a table of nodes: classes, a quantity or several labels; who trains, who tests."""

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa  # noqa: F401 - for the example
import pyarrow.compute as pc

from topoff.data.columns import (
    PLAIN_INTEGER,
    Bools,
    Column,
    Ints,
    Table,
    as_numbers,
    as_strings,
    codes_of,
    refuse_first,
    single_numbers,
    whole_strings,
)
from topoff.data.layout import MASKS
from topoff.data.refusal import refuse
from topoff.machine.cache import Arrays

SEVERAL = "label:"
CODES = {"train": 0, "val": 1, "valid": 1, "validation": 1, "test": 2, "0": 0, "1": 1, "2": 2, "-1": -1}  # of splits


@dataclass(frozen=True)
class Labels:
    """Hold the labels of a table; nothing where it has none."""

    y: np.ndarray[Any, Any] | None = None  # int64 (n,), float32 (n,) or float32 (n, c); -1 or NaN where unknown
    entry: dict[str, Any] | None = None  # JSON: kind (classes | number | several), names
    notes: tuple[str, ...] = ()


def is_reserved(column: str) -> bool:
    """Say whether a column of this name holds labels or the split, and no feature."""
    return column in ("label", "target", "split") or column.startswith(SEVERAL)


def read_labels(nodes: Table, *, entry: dict[str, Any] | None = None, optional: bool = False) -> Labels:
    """Return the labels as `entry` of an earlier table says, or as the columns themselves say where there is none.

    Raises ValueError for two kinds of labels, for labels that the earlier table had not, for values that are no label,
    and, unless they are `optional`, for columns without any value.

    >>> from pathlib import Path
    >>> labels = read_labels(Table(Path("nodes.csv"), {"label": pa.array([10, None, 9])}, 3))
    >>> labels.y.tolist(), labels.entry
    ([1, -1, 0], {'kind': 'classes', 'names': ['9', '10']})
    """
    names = _label_columns(nodes)
    if not names:
        return Labels(entry=entry)
    if all(as_strings(nodes.columns[name]).null_count == nodes.rows for name in names):
        if optional:
            return Labels(entry=entry, notes=(f"{names[0]}: no value at all, read as a graph without labels",))
        remedy = "fill it in for some nodes at least"
        refuse(f"the column '{names[0]}' of {nodes.path} to hold a value", f"{nodes.rows} empty rows", remedy)
    fitted = _fit(nodes, names) if entry is None else entry
    _check_same_kind(nodes, names, fitted)
    if fitted["kind"] == "number":
        y: np.ndarray[Any, Any] = single_numbers(nodes, names[0])
    elif fitted["kind"] == "several":
        y = _several(nodes, fitted["names"])
    else:
        y = _classes(nodes, names[0], fitted["names"])
    return Labels(y, fitted, (_describe(names[0], y, fitted),))


def read_split(nodes: Table, y: np.ndarray[Any, Any] | None) -> tuple[Arrays, list[str]]:
    """Return the masks of the column 'split', without the nodes that have no label, and notes; none without either.

    Raises ValueError for an unknown string, and for columns called like masks, which would be taken for features.
    """
    masks = [name for name in MASKS if name in nodes.columns]
    if masks:
        remedy = "write train, val or test into one column 'split', and delete these"
        refuse(f"{nodes.path} to say its split in the column 'split'", f"the columns {', '.join(masks)}", remedy)
    if y is None or "split" not in nodes.columns:
        return {}, []
    strings = pc.utf8_lower(_exact_strings(nodes.columns["split"]))
    if strings.null_count == nodes.rows:
        return {}, ["split: no value at all, so that a split is drawn"]
    remedy = "write train, val or test, or nothing for a node in none of them"
    found = codes_of(nodes, "split", strings, list(CODES), expected="to name the split", remedy=remedy)
    codes = np.array([*CODES.values(), -1])[found]  # -1, nothing, is the last one
    labeled = _labeled(y)
    lost = int((~labeled & (codes >= 0)).sum())
    notes = [f"split: {lost} nodes have a split but no label, and are in no mask"] if lost else []
    return {name: (codes == code) & labeled for code, name in enumerate(MASKS)}, notes


def _labeled(y: np.ndarray[Any, Any]) -> Bools:
    """Return (n,) bool: which nodes have a label."""
    return np.asarray(y >= 0 if y.dtype == np.int64 else ~np.isnan(y.reshape(len(y), -1)).any(axis=1))


def _label_columns(nodes: Table) -> list[str]:
    """Return the columns that hold the labels, all of one kind."""
    several = [name for name in nodes.columns if name.startswith(SEVERAL)]
    found = [name for name in ("label", "target") if name in nodes.columns] + several[:1]
    if len(found) > 1:
        refuse(f"{nodes.path} to have one kind of labels", f"the columns {' and '.join(found)}", "rename all but one")
    return several or found


def _fit(nodes: Table, names: list[str]) -> dict[str, Any]:
    """Choose between several labels, a quantity and classes."""
    if names[0].startswith(SEVERAL):
        return {"kind": "several", "names": [name.removeprefix(SEVERAL) for name in names]}
    if names[0] == "target":
        return {"kind": "number"}
    values = as_numbers(nodes.columns[names[0]])
    if values is not None:
        known = values[~np.isnan(values)]
        if not np.isfinite(known).all() or np.any(known != np.round(known)):
            return {"kind": "number"}
    classes = _exact_strings(nodes.columns[names[0]]).drop_null().unique()
    integers = pc.all(pc.match_substring_regex(classes, PLAIN_INTEGER)).as_py()
    return {"kind": "classes", "names": sorted(classes.to_pylist(), key=Decimal if integers else None)}


def _check_same_kind(nodes: Table, names: list[str], entry: dict[str, Any]) -> None:
    """Refuse columns that cannot hold what the earlier table's did."""
    several = [SEVERAL + name for name in entry.get("names", ())]
    allowed = {"classes": ["label"], "number": ["label", "target"], "several": several}[entry["kind"]]
    if not (set(several) == set(names) if allowed is several else names[0] in allowed):
        expected = f"{nodes.path} to have the label columns of the first table"
        refuse(f"{expected}, {' or '.join(allowed[:5])}", ", ".join(names), "rename or complete them")


# ---- values


def _exact_strings(column: Column) -> Column:
    """Return strings (n,): where all are numbers, 1.0 and 1 are one class; 007 and 1e5 stay as they are written.

    Nothing goes through floats, which would make one class of 10**17 + 1 and 10**17 + 2.
    """
    strings = as_strings(column)
    return strings if as_numbers(column) is None else whole_strings(strings)


def _classes(nodes: Table, name: str, names: list[str]) -> Ints:
    """Return int64 (n,) the class of each node, -1 where it has none."""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    expected = f"to hold classes of the first table, {', '.join(names[:5])}{more}"
    strings, remedy = _exact_strings(nodes.columns[name]), "correct it, or leave it empty"
    zeros = np.asarray(pc.fill_null(pc.match_substring(strings, "\0"), fill_value=False), bool)
    refuse_first(nodes, name, zeros, expected="to hold classes without NUL characters", remedy="rename it")
    return codes_of(nodes, name, strings, names, expected=expected, remedy=remedy)


def _several(nodes: Table, names: list[str]) -> np.ndarray[Any, Any]:
    """Return float32 (n, c) of 0 and 1; NaN in all of a row where some are unknown."""
    y = np.zeros((nodes.rows, len(names)), dtype=np.float32)
    known, remedy = ["0", "1", "false", "true"], "write 1 where the node has this label"
    for number, name in enumerate(SEVERAL + each for each in names):
        strings = _exact_strings(nodes.columns[name])
        codes = codes_of(nodes, name, strings, known, expected="to hold 0 and 1", remedy=remedy)
        y[:, number] = np.where(codes < 0, np.nan, codes % 2)
    y[np.isnan(y).any(axis=1)] = np.nan
    return y


def _describe(name: str, y: np.ndarray[Any, Any], entry: dict[str, Any]) -> str:
    """Say what the labels are and how many nodes have none."""
    known, missing = int(_labeled(y).sum()), int((~_labeled(y)).sum())
    what = "a quantity" if entry["kind"] == "number" else f"{len(entry['names'])} classes"
    if entry["kind"] == "several":
        name, what = SEVERAL[:-1], f"{len(entry['names'])} labels, of which a node may have several"
    elif 2 * len(entry.get("names", ())) > known and all(each.lstrip("-").isdigit() for each in entry["names"]):
        what += f" for {known} labelled nodes (if it is a quantity, call the column target)"
    return f"{name}: {what}" + (f"; {missing} of {len(y)} nodes have none and are in no mask" if missing else "")
