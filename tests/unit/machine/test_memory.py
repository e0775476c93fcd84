"""The allocator setting and the peak."""

import ctypes
import os
import platform
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from topoff.machine.memory import _group_memory, free_memory, keep_freed_memory, machine, peak_memory, readable

KEEP = "from topoff.machine.memory import keep_freed_memory as keep; import os; print(keep(), os.environ.get('{}'))"


def in_a_process_of_its_own(variable: str, **environment: str) -> str:
    """Set the allocator where it cannot touch the tests; return what it said and a variable of the environment."""
    command = [sys.executable, "-c", KEEP.format(variable)]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | environment)
    return run.stdout.strip()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator setting is glibc's")
def test_freed_memory_is_kept_on_glibc_and_huge_pages_are_asked_for() -> None:
    assert in_a_process_of_its_own("THP_MEM_ALLOC_ENABLE") == "True 1"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator setting is glibc's")
def test_the_users_own_choice_of_huge_pages_stays() -> None:
    assert in_a_process_of_its_own("THP_MEM_ALLOC_ENABLE", THP_MEM_ALLOC_ENABLE="0") == "True 0"


def test_nothing_is_done_elsewhere_than_on_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert keep_freed_memory() is False


def test_nothing_is_done_without_mallopt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THP_MEM_ALLOC_ENABLE", "0")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace())
    assert keep_freed_memory() is False


def test_a_refused_setting_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THP_MEM_ALLOC_ENABLE", "0")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace(mallopt=lambda name, value: 0))
    assert keep_freed_memory() is False


def test_the_peak_is_in_bytes_and_never_falls() -> None:
    """In a process of its own, whose peak is not above what it is about to use."""
    code = "from topoff.machine.memory import peak_memory as peak; a = peak(); b = b'x' * (64 << 20); c = peak(); del b"
    run = subprocess.run([sys.executable, "-c", f"{code}; print(a, c, peak())"], capture_output=True, check=True)
    before, during, after = map(int, run.stdout.split())
    assert 60 << 20 < during - before < 80 << 20
    assert after > during - (1 << 20)  # the kernel adds up the counts of its CPUs in batches


@pytest.mark.parametrize(("system", "unit"), [("darwin", 1), ("linux", 1024)])  # getrusage(2) of either
def test_without_proc_the_peak_comes_from_getrusage_in_the_systems_own_unit(
    monkeypatch: pytest.MonkeyPatch, system: str, unit: int
) -> None:
    monkeypatch.setattr(Path, "is_file", lambda _: False)  # no /proc/self/status
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(resource, "getrusage", lambda _: SimpleNamespace(ru_maxrss=123_456))
    assert peak_memory() == 123_456 * unit


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (5 << 20, "5 MiB"), (3 << 30, "3.0 GiB"), (5 << 40, "5.0 TiB")],
)
def test_sizes_are_readable(size: int, text: str) -> None:
    assert readable(size) == text


@pytest.mark.skipif(not Path("/proc/meminfo").is_file(), reason="other systems count pages")
def test_free_memory_is_in_bytes_and_a_part_of_the_whole() -> None:
    free, whole = free_memory(), machine()["memory_gb"] * 2**30
    assert free is not None
    assert whole / 1000 < free <= 1.1 * whole  # the whole is rounded


@pytest.mark.parametrize("version", [1, 2])
def test_a_limit_on_the_group_counts(tmp_path: Path, version: int) -> None:
    place = tmp_path / ("memory/one/two" if version == 1 else "one/two")
    place.mkdir(parents=True)
    names = (
        ("limit_in_bytes", "usage_in_bytes", "total_inactive_file")
        if version == 1
        else ("max", "current", "inactive_file")
    )
    (place.parent / f"memory.{names[0]}").write_text("1000\n")
    (place.parent / f"memory.{names[1]}").write_text("700\n")
    (place.parent / "memory.stat").write_text(f"cache 5\n{names[2]} 50\n{names[2].replace('inactive', 'active')} 30\n")
    (place / f"memory.{names[0]}").write_text("max\n" if version == 2 else "9223372036854771712\n")
    (place / f"memory.{names[1]}").write_text("600\n")
    (tmp_path / "cgroup").write_text("4:cpu:/else\n3:memory:/one/two\n" if version == 1 else "0::/one/two\n")
    assert min(_group_memory(tmp_path, tmp_path / "cgroup")) == 380
    assert min(_group_memory(tmp_path, tmp_path / "missing")) > 2**60
