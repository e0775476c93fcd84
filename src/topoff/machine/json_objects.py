"""Objects in JSON files: read with a sentence for whatever is wrong with them, written without NaN.

>>> parse_object(b'{"a": [1, 2}', path=Path("x.json"))
Traceback (most recent call last):
ValueError: Expected x.json to hold a JSON object (got Expecting ',' delimiter in line 1); repair it or run again.
"""

from __future__ import annotations

import json
import math
import zlib
from pathlib import Path
from typing import Any


def parse_object(text: bytes, *, path: Path, line: int = 1) -> dict[str, Any]:
    """Parse a JSON object that starts in some line of a file.

    Raises:
        ValueError: it is none.
    """
    try:
        found = json.loads(text.decode())
    except json.JSONDecodeError as error:
        reason, line = error.msg, line + error.lineno - 1
    except UnicodeDecodeError as error:
        reason, line = "bytes that are not UTF-8", line + text.count(b"\n", 0, error.start)
    except ValueError:
        reason = "a number of thousands of digits"
    except RecursionError:
        reason = "lists or objects nested too deeply"
    else:
        if isinstance(found, dict):
            return found
        reason = f"a {type(found).__name__}"
    raise ValueError(f"Expected {path} to hold a JSON object (got {reason} in line {line}); repair it or run again.")


def plain(value: Any) -> Any:
    """Replace NaN and infinity, which JSON does not know, by null.

    >>> plain({"a": [math.nan, 1.5]})
    {'a': [None, 1.5]}
    """
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def checksum(content: bytes | Any) -> str:
    """Return the CRC-32 of bytes, or of a value as JSON, whatever the order of its keys; 8 hexadecimal digits.

    >>> checksum({"a": 1, "b": None}) == checksum({"b": math.nan, "a": 1})
    True
    """
    if not isinstance(content, bytes):
        content = json.dumps(plain(content), sort_keys=True).encode()
    return f"{zlib.crc32(content):08x}"
