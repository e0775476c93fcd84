"""Flat TOML: read with errors that name the line, and written so that it reads back equal."""

from __future__ import annotations

import json
import math
import re
import tomllib
from typing import Any

LARGEST = 2**20  # bytes: settings are short
MARKS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16", b"\x00": "binary data"}  # with which other contents begin
CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f]")  # which a comment must not hold
REMEDY = "write 'key = value' lines, texts in double quotes"


def parse_toml(content: bytes | str, *, origin: str) -> dict[str, Any]:
    """Return the keys of a flat TOML file; `origin` names it in errors.

    Raises:
        ValueError: it is no TOML, or not flat; the line is named.

    >>> parse_toml("lr = 0.1 # slow", origin="own.toml")
    {'lr': 0.1}
    """
    text = _decode(content, origin=origin) if isinstance(content, bytes) else content
    try:
        keys = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a ValueError: numbers of thousands of digits
        raise ValueError(
            f"Expected {origin} to be TOML, one 'key = value' per line (got {_found(text, error)}); {REMEDY}."
        ) from error
    for key, value in keys.items():
        if isinstance(value, dict | list):
            raise ValueError(f"Expected {origin} to be flat (got a table or list '{key}'); write 'key = value' lines.")
    return keys


def _decode(content: bytes, *, origin: str) -> str:
    """Decode a file: UTF-8, with or without a byte order mark."""
    if len(content) > LARGEST:
        raise ValueError(
            f"Expected {origin} to be a TOML file of settings, at most {LARGEST:,} bytes (got more); name another file."
        )
    found = next((name for mark, name in MARKS.items() if content.startswith(mark)), None)
    try:
        if found is None and b"\x00" not in content:
            return content.decode("utf-8-sig")
        found = found or "binary data"
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        found = f"bytes that are not UTF-8 in line {line}"
    raise ValueError(f"Expected {origin} to be TOML in UTF-8 (got {found}); save it as UTF-8 text.")


def _found(text: str, error: Exception) -> str:
    """Say what is wrong, with the line and its text."""
    if isinstance(error, RecursionError):
        return "brackets too deep inside each other"
    reason, lines = str(error), text.splitlines() or [""]
    place = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)$", reason)
    if not place:  # of Python: a number of thousands of digits
        number = next((at for at, line in enumerate(lines, 1) if re.search("[0-9_]{4000}", line)), 1)
        return f"a number of too many digits in line {number}"
    number = min(int(place[1] or len(lines)), len(lines))
    line = lines[number - 1].strip()
    shown = line if len(line) <= 60 else f"{line[:60]}..."
    reason = reason[: place.start()]
    return f"'{shown}' in line {number}: {reason[:1].lower()}{reason[1:]}"


def toml_value(value: Any) -> str:
    """Write a text, a number or a truth value; TOML takes what JSON writes, but for infinity and character 127.

    >>> toml_value('a "b"'), toml_value(True), toml_value(math.inf)
    ('"a \\\\"b\\\\""', 'true', 'inf')
    """
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_comment(text: str) -> str:
    """Write a text as one line that a comment may hold: lines are joined, control characters and halves escaped.

    >>> toml_comment("topoff train a\\nlr = 3" + chr(27))
    'topoff train a lr = 3\\\\x1b'
    """
    line = " ".join(line.strip() for line in re.split(r"[\r\n]+", text))
    line = CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", line)
    return line.encode(errors="backslashreplace").decode()
