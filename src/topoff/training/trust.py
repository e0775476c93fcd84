"""Which code a file may make topoff run: none, unless the user says so.

A model of the user's own, "module:Class", is code: to import it is to run it. Named on the command line, or in a
script, it is the user's wish; named by a file alone (a foreign config, the folder of a foreign run) it is not.

>>> refuse_foreign("gcn", origin="config.toml")
>>> refuse_foreign("evil:Net", origin="config.toml", named="evil:Net")
>>> refuse_foreign("evil:Net", origin="config.toml")  # doctest: +ELLIPSIS
Traceback (most recent call last):
    ...
ValueError: Expected --trust, or --model evil:Net, to import the module that config.toml names: ...
"""

from __future__ import annotations

import shlex


def is_foreign(model: str) -> bool:
    """Whether a model's name is that of a class to be imported."""
    return ":" in model


def refuse_foreign(
    model: str, *, origin: object, named: str | None = None, trust: bool = False, command: str = ""
) -> None:
    """Refuse a model of its own that a file names, and the user does not.

    `named` is the model that the user names; `command` is what was typed, to be repeated in the remedy.

    Raises:
        ValueError: the module is not to be imported.
    """
    if trust or model == named or not is_foreign(model):
        return
    flag = f"--model {shlex.quote(model)}"
    remedy = f"type: {command} {flag}" if command else f"add {flag}."
    raise ValueError(
        f"Expected --trust, or {flag}, to import the module that {origin} names: that runs its code (got neither); if "
        f"you trust it, {remedy}"
    )
