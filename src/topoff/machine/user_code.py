"""Say in one sentence where an error came from that code of the user's has raised.

>>> with user_code("the model to be built", remedy="correct it"):
...     exec(compile("def make():\\n    raise RuntimeError('no\\\\nidea')\\nmake()", "mine.py", "exec"))
Traceback (most recent call last):
ValueError: Expected the model to be built (got mine.py, line 2, in make: RuntimeError: no idea); correct it.
"""

from __future__ import annotations

import errno
import linecache
import os
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = str(Path(__file__).resolve().parents[1])
STANDARD = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
INSTALLED = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
# In these nothing is the user's own; other installed packages may be.
LIBRARIES = {
    *("torch", "torch_geometric", "torch_sparse", "torch_scatter", "numpy", "scipy", "typer", "click", "rich"),
    *("filelock", "jinja2", "kaminpar", "matplotlib", "pyarrow", "pydantic", "pydantic_core", "pymetis", "safetensors"),
    "tensorboard",
}
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)  # not the code is wrong, whoever writes
LONG = 400  # characters of an error's own words


@contextmanager
def user_code(expected: str, *, remedy: str, anything: bool = True) -> Iterator[None]:
    """Turn what code of the user's raises inside `with`, `sys.exit` included, into one sentence.

    Sentences of ours, lack of memory or disk and Ctrl-C stay what they are; where not `anything` inside is the user's
    code, so does an error that passed no line of it.

    Raises:
        ValueError: what was expected, the user's file and line, and the error in its own words.
    """
    try:
        yield
    except GeneratorExit:
        raise
    except BaseException as error:
        known = is_ours(error) or is_out_of_memory(error) or getattr(error, "errno", None) in DISK
        if known or _is_wish(error) or not (anything or place_of(error)):
            raise
        raise ValueError(f"Expected {expected} (got {told(error)}); {remedy}.") from error


def told(error: BaseException) -> str:
    """Return where an error came from and what it says: "my.py, line 12, in forward: ValueError: ..."."""
    place, words = place_of(error), f"{type(error).__name__}: {_words(error)}".removesuffix(": ")
    return f"{place}: {words}" if place else words


def place_of(error: BaseException) -> str | None:
    """Return the last line of the user's own code that an error has passed, below ours; None where there is none."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return f"{_short(error.filename)}, line {error.lineno}"
    below = traceback.extract_tb(error.__traceback__)
    first = next((number for number, frame in enumerate(below) if _is_within(frame.filename, HERE)), len(below))
    own = [frame for frame in below[first:] if not _is_library(frame.filename)]
    if not own:
        return None
    last = own[-1]
    inside = "" if last.name == "<module>" else f", in {last.name}"
    return f"{_short(last.filename)}, line {last.lineno}{inside}"


def is_ours(error: BaseException) -> bool:
    """Whether an error is a sentence of ours: raised in our own code."""
    frames = traceback.extract_tb(error.__traceback__)
    return (
        isinstance(error, ValueError | TypeError | OSError) and bool(frames) and _is_within(frames[-1].filename, HERE)
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory could not be allocated.

    >>> is_out_of_memory(RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: ...")), \\
    ... is_out_of_memory(MemoryError()), is_out_of_memory(RuntimeError("memory format option"))
    (True, True, False)
    """
    text = _words(error).lower()
    words = ("out of memory", "allocate memory", "storage size calculation overflowed", "invalid size, tried to alloc")
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and any(word in text for word in words))


def _is_wish(error: BaseException) -> bool:
    """Whether an error is a real Ctrl-C: one that no line of code raises, but for our own handler of signals."""
    if not isinstance(error, KeyboardInterrupt):
        return False
    last = traceback.extract_tb(error.__traceback__)[-1]
    raised = linecache.getline(last.filename, last.lineno or 0).strip().startswith("raise")
    return not raised or _is_within(last.filename, HERE)


def _words(error: BaseException) -> str:
    """Return what an error says, in one line, not too long."""
    try:
        text = " ".join((error.msg if isinstance(error, SyntaxError) else str(error)).split())
    except Exception as problem:  # an error of the user's that cannot say what it is
        return f"without words ({type(problem).__name__})"
    return text if len(text) <= LONG else f"{text[:LONG]} ..."


def _is_library(path: str) -> bool:
    """Whether a file is none of the user's: of ours, of Python or of the libraries that models are built on."""
    if path.startswith("<") or Path(path).name.startswith("torch_geometric.") or _is_within(path, HERE):  # generated
        return True
    for folder in INSTALLED:
        if _is_within(path, folder):
            return Path(path).relative_to(folder).parts[0] in LIBRARIES
    return any(_is_within(path, folder) for folder in STANDARD)


def _is_within(path: str, folder: str | None) -> bool:
    return folder is not None and path.startswith(folder + os.sep)


def _short(path: str) -> str:
    """Return a path as seen from here, where it lies below."""
    here = os.getcwd() + os.sep
    return path.removeprefix(here)
