"""The flags that verbs share, and one for every field of `Config`, defined once for TOML and command line."""

from __future__ import annotations

import datetime
import inspect
import re
import shlex
import sys
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from topoff.training.config import EPOCHS, FIELDS, LARGEST_SEED, Config, read_config
from topoff.training.run_folder import RunFolder
from topoff.training.trust import refuse_foreign

Verb = Callable[..., None]
UNSET = {  # what a setting is that nobody gives, where it is not chosen from the graph
    "norm": "the model's own",
    "residual": "the model's own",
    "outer_decay": "as --weight-decay",
    "regroup": "the method's own",
    "offset": "with estimator ridge and a refresh",
    "memory": "what is free",
    "fanout": "the method's own",
    "mix": "the method's own",
    "accumulate": "as many as there are processes",
    "epochs": f"{EPOCHS}, without --seconds",
    **dict.fromkeys(("root", "parts", "inits", "seconds")),
}
_DATASET = typer.Argument(
    help="'wordnet', the name of a published graph (Cora, Reddit, ogbn-arxiv, ...; its raw files are looked for in "
    "--root), an .npz file, or a folder (of tables, or a store). ./Cora is always a path, "
    "name:Cora always the dataset."
)
# what means the same in every verb
Dataset = Annotated[str, _DATASET]
MaybeDataset = Annotated[str | None, _DATASET]  # where a config may name it
Run = Annotated[Path, typer.Argument(help="Folder of the run.")]
ConfigFile = Annotated[str | None, typer.Option(help="A TOML file, or the name of a config that ships with topoff.")]
Seeds = Annotated[str | None, typer.Option(help="Several seeds, such as 0-4 or 0,3: reports mean and deviation.")]
Split = Annotated[int, typer.Option(help="Which of the dataset's splits to use.", min=0)]
SplitSeed = Annotated[
    int, typer.Option(help="Random seed of the split, if the dataset has none.", min=0, max=LARGEST_SEED)
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the output if it exists.")]
Root = Annotated[
    str | None, typer.Option(help="Folder with raw files of published graphs, as PyG and OGB lay them out.")
]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust", help="Let files run code: raw files that are pickles, and the model of your own that a run names."
    ),
]
SpreadsheetSafe = Annotated[
    bool,
    typer.Option(
        "--spreadsheet-safe",
        help="In a .csv file, put an apostrophe before ids and labels that begin with = + - @, a tab or a line end, "
        "which spreadsheets run as formulas. Without it they stay as they are, and can be joined.",
    ),
]
OwnModel = Annotated[
    str | None, typer.Option("--model", help="The model of your own that the run names, module:Class, named again.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one line of JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print no progress; only the result, warnings and errors.")]


def command() -> str:
    """Return the command line of this process."""
    return " ".join(["topoff", *map(quoted, sys.argv[1:])])


def quoted(word: object) -> str:
    """Quote a word for the shell, in one line: where it has control characters, in bash's way.

    >>> quoted("a b"), quoted("two\\nlines")
    ("'a b'", "$'two\\\\nlines'")
    """
    text = str(word)
    if text.isprintable() or not any(ord(one) < 32 or ord(one) == 127 for one in text):
        return shlex.quote(text)
    letters = (one if ord(one) >= 32 and ord(one) != 127 else f"\\x{ord(one):02x}" for one in _escaped(text))
    return f"$'{''.join(letters)}'"


def _escaped(text: str) -> str:
    """Escape quotes, backslashes and the usual white space as bash does."""
    for letter, name in (("\\", "\\\\"), ("'", "\\'"), ("\n", "\\n"), ("\t", "\\t"), ("\r", "\\r")):
        text = text.replace(letter, name)
    return text


def refuse_foreign_run(run: Path, *, named: str | None, trust: bool) -> None:
    """Refuse a run whose settings name a model of its own that the user does not; say what to type instead."""
    folder = RunFolder(run).must_exist()
    if named is None:
        refuse_foreign(folder.settings().config.model, origin=run / "config.toml", trust=trust, command=command())


def new_folder(dataset: str, *words: str, kind: str = "") -> Path:
    """Name the folder of a run, or of something of another kind, by its graph, some words and the time."""
    parts = kind, Path(dataset).stem or dataset, *words, datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    return Path("runs") / "-".join(re.sub(r"[^A-Za-z0-9._-]+", "-", part).strip("-") for part in parts if part)


def given_settings(
    config: str | None, dataset: str | None, flags: dict[str, Any], pairs: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return the layers of settings, the weakest first: of a file, the graph, the flags, and --set."""
    return [
        {} if config is None else read_config(config),
        {} if dataset is None else {"dataset": dataset},
        flags,
        pairs,
    ]


def named_model(given: list[dict[str, Any]]) -> str | None:
    """Return the model that the user names, by a flag or by --set; one that a file names is not it.

    >>> named_model([{"model": "evil:Net"}, {}, {}, {}]), named_model([{}, {}, {"model": "my:Net"}, {}])
    (None, 'my:Net')
    """
    *_, flags, pairs = given
    named: str | None = pairs.get("model", flags.get("model"))
    return named


def refuse_two_seeds(seeds: str | None, *given: Mapping[str, object]) -> None:
    """Refuse a seed beside --seeds; one in a file may stand there.

    Raises:
        ValueError: both were given.

    >>> refuse_two_seeds("0-4", {"seed": 3})
    Traceback (most recent call last):
    ValueError: Expected --seeds or one seed, not both (got --seeds 0-4 and seed 3); leave one out.
    """
    for layer in given:
        if seeds is not None and layer.get("seed") is not None:
            got = f"--seeds {seeds} and seed {layer['seed']}"
            raise ValueError(f"Expected --seeds or one seed, not both (got {got}); leave one out.")


def with_settings(verb: Verb) -> Verb:
    """Give a verb a flag for every setting; those that are given arrive in its `**settings`, all others are absent.

    >>> def verb(dataset: str, **settings: object) -> None:
    ...     print(dataset, settings)
    >>> with_settings(verb)(dataset="wordnet", lr=0.1, epochs=None)
    wordnet {'lr': 0.1}
    """
    hints = typing.get_type_hints(Config, include_extras=True)
    own = [p for p in inspect.signature(verb, eval_str=True).parameters.values() if p.kind is not p.VAR_KEYWORD]
    settings = FIELDS.keys() - {p.name for p in own}
    parameters = [p.replace(kind=p.KEYWORD_ONLY) for p in own]
    parameters += [_flag(name, hints[name]) for name in FIELDS if name in settings]

    def wrapped(**arguments: Any) -> None:
        """Call the verb with what was given."""
        verb(**{key: value for key, value in arguments.items() if key not in settings or value is not None})

    vars(wrapped)["__signature__"] = inspect.Signature(parameters)
    wrapped.__annotations__ = {p.name: p.annotation for p in parameters}
    wrapped.__doc__, wrapped.__name__ = verb.__doc__, verb.__name__
    return wrapped


def _flag(name: str, hint: Any) -> inspect.Parameter:
    """Make the flag of one field: its type, its help, and the default in words."""
    kind, text = typing.get_args(hint)[0], next(item for item in hint.__metadata__ if isinstance(item, str))
    python, choices = _python_type(kind)
    shown = FIELDS[name].default
    if shown is None:
        shown = UNSET.get(name, "chosen from the graph")
    words = f"{text} [{choices}]" if choices else text
    words += "" if shown is None else f" [default: {str(shown).lower() if isinstance(shown, bool) else shown}]"
    flag = name.replace("_", "-")
    spelling = f"--{flag}/--no-{flag}" if python is bool else f"--{flag}"
    option = typer.Option(None, spelling, help=words, show_default=False)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=python | None)


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
