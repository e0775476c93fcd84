"""Check the encoding of an earlier table, which may come from a file that was damaged or written by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from topoff.data.refusal import refuse

Checks = dict[str, Callable[[Any], bool]]


def check_encoding(encoding: Any, *, origin: str = "'encoding'") -> None:
    """Refuse what no `read_tables` has made; `origin` names it, such as the path of a run's encoding.json.

    >>> check_encoding({"id": "id", "columns": [], "left_out": [], "label": None})
    >>> check_encoding({"id": 3, "columns": [], "left_out": [], "label": None})
    Traceback (most recent call last):
    ValueError: Expected 'encoding' to be that of an earlier read (got 3 for id); pass Tables.encoding, or train again.
    """
    keys = {"id": _is_text, "columns": _is_list, "left_out": _is_texts, "label": _is_label}
    if not isinstance(encoding, Mapping) or not keys.keys() <= set(encoding):
        given = ", ".join(map(str, encoding)) if isinstance(encoding, Mapping) else f"a {type(encoding).__name__}"
        _refuse(origin, given or "an empty one")
    for key, is_right in keys.items():
        if not is_right(encoding[key]):
            _refuse(origin, f"{_short(encoding[key])} for {key}")
    for number, entry in enumerate(encoding["columns"]):
        wrong = _wrong_key(entry)
        if wrong is not None:
            value = entry.get(wrong, "nothing") if isinstance(entry, Mapping) else entry
            _refuse(origin, f"{_short(value)} for {wrong} in columns[{number}]")


def _refuse(origin: str, got: str) -> None:
    remedy = "pass Tables.encoding, or train again"
    refuse(f"{origin} to be that of an earlier read", got, remedy)


def _short(value: Any) -> str:
    """Return a value in a few characters that can be printed."""
    text = ascii(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def _wrong_key(entry: Any) -> str | None:
    """Return the first key of a column's entry that is missing or wrong, None where all are right."""
    if not isinstance(entry, Mapping):
        return "an entry"
    number: Checks = {
        "mean": _is_number,
        "std": lambda value: _is_number(value) and bool(value > 0),
        "missing": _is_flag,
    }
    words: Checks = {"categories": _is_texts, "other": _is_flag, "missing": _is_flag}
    kinds: dict[str, Checks] = {"number": number, "words": words, "gaps": {}}
    kind = entry.get("kind")
    keys: Checks = {"name": _is_text, "kind": lambda value: _is_text(value) and value in kinds}
    keys |= kinds.get(kind, {}) if isinstance(kind, str) else {}
    return next((key for key, is_right in keys.items() if not is_right(entry.get(key))), None)


def _is_label(value: Any) -> bool:
    """Say whether it describes labels: classes or several with their names, a number, or none."""
    if value is None:
        return True
    kind = value.get("kind") if isinstance(value, Mapping) else None
    return kind == "number" or (kind in ("classes", "several") and _is_texts(value.get("names")))


def _is_text(value: Any) -> bool:
    """Say whether it is a string that can be written as UTF-8: JSON may hold halves of characters."""
    return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _is_texts(value: Any) -> bool:
    return _is_list(value) and all(_is_text(each) for each in value) and len(set(value)) == len(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)
