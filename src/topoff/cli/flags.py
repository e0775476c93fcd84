"""The flags that verbs share, and one for every field of `Config`, defined once for TOML and command line."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any, Literal

import typer

from topoff.training.config import FIELDS, Config

Verb = Callable[..., None]
# the flags that mean the same in every verb
Root = Annotated[str | None, typer.Option(help="Folder with the raw files of PyG datasets.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one line of JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print no progress; only the result, warnings and errors.")]


def with_settings(verb: Verb) -> Verb:
    """Give a verb a flag for every setting; those that are given arrive in its `**settings`, all others are absent.

    >>> def verb(dataset: str, **settings: object) -> None:
    ...     print(dataset, settings)
    >>> with_settings(verb)(dataset="wordnet", lr=0.1, epochs=None)
    wordnet {'lr': 0.1}
    """
    hints = typing.get_type_hints(Config, include_extras=True)
    own = [p for p in inspect.signature(verb, eval_str=True).parameters.values() if p.kind is not p.VAR_KEYWORD]
    flags = [_flag(name, hints[name]) for name in FIELDS if name not in {p.name for p in own}]
    own = [parameter.replace(kind=parameter.KEYWORD_ONLY) for parameter in own]

    def wrapped(**arguments: Any) -> None:
        """Call the verb with what was given."""
        given = {key: value for key, value in arguments.items() if key not in settings or value is not None}
        verb(**given)

    settings = {flag.name for flag in flags}
    parameters = [*own, *flags]
    wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    wrapped.__doc__, wrapped.__name__ = verb.__doc__, verb.__name__
    return wrapped


def _flag(name: str, hint: Any) -> inspect.Parameter:
    """Make the flag of one field: its type, its help, and the default in words."""
    kind, text = typing.get_args(hint)[0], next(item for item in hint.__metadata__ if isinstance(item, str))
    python, choices = _python_type(kind)
    default = FIELDS[name].default
    shown = default
    if default is None and name not in ("root", "parts", "inits"):
        shown = "the model's own" if name in ("norm", "residual") else "chosen from the graph"
    words = f"{text} [{choices}]" if choices else text
    words += "" if shown is None else f" [default: {shown if not isinstance(shown, bool) else str(shown).lower()}]"
    flag = f"--{name.replace('_', '-')}"
    spelling = f"{flag}/--no-{flag[2:]}" if python is bool else flag
    annotation = Annotated[python | None, typer.Option(spelling, help=words, show_default=False)]  # type: ignore[valid-type]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _python_type(kind: Any) -> tuple[type, str]:
    """Return the type that the command line parses, and the choices; what is more is left to the validation."""
    if typing.get_origin(kind) is Annotated:
        return _python_type(typing.get_args(kind)[0])
    if typing.get_origin(kind) is Literal:
        return str, "|".join(typing.get_args(kind))
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        members = [member for member in typing.get_args(kind) if member is not type(None)]
        return _python_type(members[0]) if len(members) == 1 else (str, "")
    return kind, ""
