"""Command lines that cannot be understood, in one sentence: unknown flags, missing or empty values, other bytes."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import typer
from typer.core import TyperCommand

# click's UsageError, wherever this version of typer keeps click
UsageError: type[Exception] = typer.BadParameter.__mro__[1]


class Verb(TyperCommand):
    """Parse the words after a verb."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse empty values before anything takes them for "not given".

        Raises:
            ValueError: a value is empty.
        """
        options = [option for option in self.params if not getattr(option, "is_flag", False)]
        flags = {name for option in options for name in option.opts if name.startswith("--")}
        for before, word in pairwise(["", *args]):
            if word == "" and before not in flags:
                raise ValueError("Expected a name or a path (got ''); give one, or leave it out.")
            if word == "" or (word.endswith("=") and word[:-1] in flags):
                flag = word[:-1] or before
                raise ValueError(f"Expected {flag} to be given a value (got ''); give one, or leave the flag out.")
        return super().parse_args(ctx, args)


def check_words(words: Sequence[str]) -> None:
    """Refuse words that are not UTF-8: no file that topoff writes could record them.

    Raises:
        ValueError: a word has other bytes.

    >>> check_words(["train", "gr\\udcff.npz"])
    Traceback (most recent call last):
    ValueError: Expected the command in UTF-8 (got 'gr\\udcff.npz'); rename what it names.
    """
    for word in words:
        if any("\ud800" <= letter <= "\udfff" for letter in word):
            raise ValueError(f"Expected the command in UTF-8 (got {word!a}); rename what it names.")


def usage_sentence(error: Any, words: Sequence[str]) -> str:
    """Say in one sentence what click did not understand of a command line, with the nearest flag or verb."""
    context = getattr(error, "ctx", None)
    verb, command = (context.command_path, context.command) if context else ("topoff", None)
    remedy = f"see {verb} --help."
    text = " ".join(error.format_message().split()).rstrip(".")
    if text.startswith("No such option"):
        known = [name for option in command.params for name in option.opts] if command else []
        return f"Expected a flag of {verb} (got '{error.option_name}'); {_near(error.option_name, known) or remedy}"
    if text.startswith("No such command"):
        word = next((word for word in words if not word.startswith("-")), "")
        verbs = list(getattr(command, "commands", ()))
        return f"Expected a verb of {verb} (got '{word}'); {_near(word, verbs) or remedy}"
    if text.startswith("Missing "):
        return f"Expected {text.removeprefix('Missing ')} to be given (got nothing); {remedy}"
    if "extra argument" in text:  # click calls it unexpected, which is our word for a bug
        return f"Expected no further argument of {verb} (got {text.partition('(s) (')[2].rstrip(')')}); {remedy}"
    wish = text.partition("Input should be ")[2]
    if wish and getattr(error, "param", None) is not None:
        names = [name for name in error.param.opts if name.startswith("--")]
        got = _value_of(names, words)
        return f"Expected {(names or [error.param.name])[0]} to be {wish.partition(',')[0]}{got}; {remedy}"
    return f"{text}; {remedy}"


def _near(word: str, known: Sequence[str]) -> str:
    """Name the nearest word, if one is near."""
    near = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {near[0]}?" if near else ""


def _value_of(names: Sequence[str], words: Sequence[str]) -> str:
    """Quote what a flag was given last: " (got 'x')"; nothing where that is not found.

    >>> _value_of(["--split"], ["info", "g", "--split", "x"]), _value_of(["--split"], ["--split=y"])
    (" (got 'x')", " (got 'y')")
    """
    apart = [after for before, after in pairwise(words) if before in names]
    joined = [word.partition("=")[2] for word in words if word.partition("=")[0] in names and "=" in word]
    found = [*apart, *joined]
    return f" (got '{found[-1]}')" if found else ""
