"""Read the words of a command line: settings as key=value, and seeds.

>>> parse_seeds("0-2,7")
[0, 1, 2, 7]
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from typing import Any

from topoff.training.config import LARGEST_SEED

MOST_SEEDS = 1000  # of one command: each is a training


def parse_settings(pairs: Iterable[str]) -> dict[str, Any]:
    """Read `key=value` pairs, values as in TOML, or else as they stand.

    Raises:
        ValueError: no such pair, or a key that stands twice.

    >>> parse_settings(["lr=0.5", "model=sage", "residual=false", "refresh=every=3"])
    {'lr': 0.5, 'model': 'sage', 'residual': False, 'refresh': 'every=3'}
    """
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = (piece.strip() for piece in pair.partition("="))
        if not equals or not key:
            raise ValueError(f"Expected --set to be key=value (got '{pair}'); for example --set lr=0.005.")
        if key in settings:
            raise ValueError(f"Expected --set to give each key once (got '{key}' twice); keep one of them.")
        settings[key] = _parse_value(text)
    return settings


def _parse_value(text: str) -> Any:
    """Read a value as TOML does; what it does not take is a text."""
    try:
        found = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return found["value"] if found.keys() == {"value"} else text


def parse_seeds(text: str) -> list[int]:
    """Read seeds: a list of numbers and ranges, at most `MOST_SEEDS` of them.

    Raises:
        ValueError: something else, too many of them, or one that stands twice.

    >>> parse_seeds("0-2,7")
    [0, 1, 2, 7]
    """
    seeds: dict[int, None] = {}
    for piece in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,20})(?:-([0-9]{1,20}))?\s*", piece)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if last < first:
            shown = text if len(text) <= 60 else f"{text[:60]}..."
            raise ValueError(f"Expected --seeds to be numbers and ranges, such as 0-9 or 0,3,5 (got '{shown}').")
        if last > LARGEST_SEED:
            raise ValueError(f"Expected --seeds to be at most {LARGEST_SEED} (got {last}); choose smaller ones.")
        if len(seeds) + last - first >= MOST_SEEDS:
            raise ValueError(
                f"Expected --seeds to name at most {MOST_SEEDS:,} seeds (got more in '{piece.strip()}'); every one is "
                "a training of its own."
            )
        for seed in range(first, last + 1):
            if seed in seeds:
                raise ValueError(f"Expected --seeds to name each seed once (got {seed} twice).")
            seeds[seed] = None
    return list(seeds)
