"""What is wrong with the value of a setting, in one sentence."""

from __future__ import annotations

import datetime
import re
import typing
from typing import Any

LONGEST = 60  # characters of a value that is shown


def check_value(key: str, value: Any, *, kind: Any) -> None:
    """Refuse what pydantic would take for a number, and texts that name nothing; `kind` is the type of the setting.

    Raises:
        ValueError: a truth value for a number, an empty text, or one with characters that no name in UTF-8 has.

    >>> check_value("epochs", True, kind=int)
    Traceback (most recent call last):
    ValueError: Expected 'epochs' to be a number or a text (got true); give its value.
    """
    if isinstance(value, bool) and bool not in (kind, *typing.get_args(kind)):
        raise ValueError(f"Expected '{key}' to be a number or a text (got {str(value).lower()}); give its value.")
    if isinstance(value, str) and not value.strip():
        raise ValueError(f"Expected '{key}' to be given a value (got '{value}'); give one, or leave it out.")
    if isinstance(value, str) and re.search("[\0\ud800-\udfff]", value):
        raise ValueError(f"Expected '{key}' to be UTF-8 text (got {value!a}); rename what it names.")


def complaint(errors: list[Any]) -> str:
    """Turn pydantic's first complaint into one sentence."""
    error = errors[0]
    key = str(error["loc"][0])
    if error["type"] == "missing":
        return f"Expected '{key}' to be given (got nothing)."
    wishes = [_wish(e["msg"]) for e in errors if e["loc"][0] == key]
    return f"Expected '{key}' to be {' or '.join(dict.fromkeys(wishes))} (got {shortened(error['input'])})."


def located(sentence: str, origin: str) -> str:
    """Say in a sentence about a setting where that stands.

    >>> located("Expected 'lr' to be finite (got nan).", "own.toml")
    "Expected 'lr' in own.toml to be finite (got nan)."
    """
    return sentence.replace(" to be ", f" in {origin} to be ", 1) if origin else sentence


def _wish(text: str) -> str:
    """Return what pydantic wishes a value to be.

    >>> _wish("Input should be a valid integer, unable to parse string as an integer")
    'a valid integer'
    """
    if "exceeded maximum size" in text:
        return "a number of fewer digits"
    wish = text.removeprefix("Input should be ").replace("less than inf", "finite")
    return wish.partition(", ")[0] if "unable to" in wish or "fractional" in wish else wish


def shortened(value: Any) -> str:
    """Show a value, of a long one the beginning.

    >>> shortened(10**400)
    'a number of about 400 digits'
    """
    if isinstance(value, int) and value.bit_length() > 200:
        return f"a number of about {round(value.bit_length() * 0.30103)} digits"
    text = value.isoformat() if isinstance(value, datetime.date | datetime.time) else repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
