"""Run verbs of the command line: in this process, which takes no import of torch, or in one of their own.

A test file imports them with `from commands import Command, Done`; the fixture `command` is in `conftest.py`.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from topoff.cli import app

ROOT = Path(__file__).resolve().parents[1]
KEPT = ("PATH", "HOME", "TOPOFF_CACHE", "PYTHONPATH")  # of the environment, so that a process runs the same package


@dataclass(frozen=True)
class Done:
    """Hold what a command left behind."""

    code: int  # exit code
    out: str  # all of stdout
    err: str  # all of stderr

    @property
    def json(self) -> dict[str, Any]:
        """Return the JSON on the last line, as strict readers take it."""
        found: dict[str, Any] = json.loads(self.out.splitlines()[-1], parse_constant=pytest.fail)
        return found


Command = Callable[..., Done]


def call(*arguments: object, capture: pytest.CaptureFixture[str], code: int = 0) -> Done:
    """Run a verb in this process through the entry point of `python -m topoff`; demand its exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["topoff", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            app.main()
    done = Done(int(left.value.code or 0), *capture.readouterr())
    assert done.code == code, done.err
    return done


def start(
    *arguments: object, folder: Path, stderr: int = subprocess.PIPE, ignored: signal.Signals | None = None
) -> subprocess.Popen[str]:
    """Start Python in a folder, in a process of its own with a small environment, that Ctrl-C can stop.

    A signal may be `ignored`, as SIGINT is for what a script starts in the background.
    """
    environment = {key: os.environ[key] for key in KEPT if key in os.environ}
    wish = signal.SIG_IGN if ignored == signal.SIGINT else signal.default_int_handler
    before = signal.signal(signal.SIGINT, wish)  # `nohup make test &` ignores it: so would a child
    try:
        return subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            cwd=folder,
            env=environment | {"OMP_NUM_THREADS": "1", "TERM": "xterm"},
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    finally:
        signal.signal(signal.SIGINT, before)


def start_verb(
    *arguments: object, folder: Path, stderr: int = subprocess.PIPE, ignored: signal.Signals | None = None
) -> subprocess.Popen[str]:
    """Start a verb in a process of its own."""
    return start("-m", "topoff", *arguments, folder=folder, stderr=stderr, ignored=ignored)


def finish(process: subprocess.Popen[str]) -> Done:
    """Wait for the end of a process."""
    out, err = process.communicate(timeout=300)
    return Done(process.returncode, out, err)
