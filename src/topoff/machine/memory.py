"""Memory of the process: a faster allocator setting, and the peak."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from pathlib import Path
from typing import Any

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -2, -3, -8  # glibc's malloc.h


def keep_freed_memory() -> bool:
    """Let glibc keep freed blocks instead of returning them to the system; return whether it could be set.

    It makes large elementwise operations on the CPU 4 to 7 times faster and, if called before torch allocates anything,
    the first use of memory twice as fast. It changes the whole process, so only the command line and the benchmarks
    call it. Without glibc it does nothing.
    """
    if not sys.platform.startswith("linux"):
        return False
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # torch reads it at its first allocation: huge pages
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # one arena: that of another thread cannot hold large blocks
    wanted = ((M_ARENA_MAX, 1), (M_MMAP_THRESHOLD, 1 << 30), (M_TRIM_THRESHOLD, 2**31 - 1), (M_TOP_PAD, 1 << 28))
    return all(mallopt(name, value) == 1 for name, value in wanted)


def peak_memory() -> int:
    """Return the peak resident memory of this process in bytes.

    On Linux from VmHWM: the usual ru_maxrss is inherited by a process that a large one started.
    """
    import resource

    if line := _line("/proc/self/status", "VmHWM"):
        return int(line.split()[0]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def trim() -> None:
    """Give freed memory back to the system, where that is Linux with glibc."""
    if sys.platform.startswith("linux"):
        give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if give_back is not None:
            give_back(0)


def forget_peak() -> bool:
    """Give freed memory back and measure the peak from here on; return whether the system can forget one (Linux)."""
    if not sys.platform.startswith("linux"):
        return False
    trim()
    try:
        Path("/proc/self/clear_refs").write_text("5")  # proc(5): resets VmHWM to what is resident now
    except OSError:
        return False
    return True


def readable(size: float) -> str:
    """Write a number of bytes in a readable unit.

    >>> readable(3_200_000_000)
    '3.0 GiB'
    """
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit in ("B", "KiB", "MiB") else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} EiB"


def machine() -> dict[str, Any]:
    """Describe the machine, without its name."""
    import torch  # late: the allocator is set before torch allocates

    cpu = _line("/proc/cpuinfo", "model name") or platform.machine()
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0
    found: dict[str, Any] = {"cpu": cpu, "cores": os.cpu_count(), "threads": torch.get_num_threads()}
    return found | {"memory_gb": round(pages / 2**30, 1), "system": platform.system()}


def free_memory() -> int | None:
    """Return the bytes that this process could take; None if the system does not say.

    A limit on a group of processes, such as a container's, counts, too.
    """
    if line := _line("/proc/meminfo", "MemAvailable"):
        return min(int(line.split()[0]) * 1024, *_group_memory())
    names = getattr(os, "sysconf_names", {})
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if "SC_AVPHYS_PAGES" in names else None


def _group_memory(root: Path = Path("/sys/fs/cgroup"), groups: Path = Path("/proc/self/cgroup")) -> list[int]:
    """Return the bytes that the limits on this process leave, of its control group and those around it; at least one.

    What of the memory in use could be given back (pages of files) counts as free, as in the system's MemAvailable.
    """
    found = [sys.maxsize]
    for line in groups.read_text().splitlines() if groups.is_file() else ():
        _, controllers, own = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        names = (
            ("memory.max", "memory.current") if not controllers else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        )
        place = root / controllers / own.lstrip("/")
        for folder in (place, *place.parents):
            limit, used = (_number(folder / name) for name in names)
            if limit is not None and used is not None and limit < 2**60:
                found.append(max(0, limit - used + _given_back(folder / "memory.stat")))
            if folder == root:
                break
    return found


def _given_back(stat: Path) -> int:
    """Return the bytes of files in a group's memory; of version 1 with those of the groups in it."""
    found = 0
    for name in ("inactive_file", "active_file"):
        found += int(_line(str(stat), f"total_{name}", sign=" ") or _line(str(stat), name, sign=" ") or "0")
    return found


def _number(path: Path) -> int | None:
    """Return the number in a file; None where there is none, or "max"."""
    text = path.read_text().strip() if path.is_file() else ""
    return int(text) if text.isdecimal() else None


def _line(path: str, name: str, *, sign: str = ":") -> str | None:
    """Return what a file of /proc says under a name; None where there is no such file or line."""
    lines = Path(path).read_text().splitlines() if Path(path).is_file() else []
    return next((line.partition(sign)[2].strip() for line in lines if line.startswith(name)), None)
