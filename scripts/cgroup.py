"""Train and evaluate a graph that does not fit in memory, under a limit on memory that the system enforces.

    python scripts/cgroup.py --folder /tmp/large                 # 20M nodes, 300M edges, 6 GiB
    python scripts/cgroup.py --folder /tmp/large --nodes 2000000 --edges 30000000 --limit 1.5

The store is generated once (outside of the limit, by `topoff generate`); `topoff train` runs in a memory control group
(version 1) of its own: beyond the limit the system takes back pages of files, and kills the process where that does not
help. Printed, and written to docs/results/scale.d: seconds, scores, the peak of the group, and that of memory
that no file backs.
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from topoff.machine.memory import machine

ROOT = Path(__file__).parents[1]
GROUPS = Path("/sys/fs/cgroup/memory")
EVERY = 0.5  # seconds between looks at the memory


def main() -> None:
    """Generate, train in the group, and write down what was measured."""
    given = arguments()
    given.folder.mkdir(parents=True, exist_ok=True)
    store, run = given.folder / "store", given.folder / "run"
    generated = generate(given, store) if not store.exists() else None
    command = [sys.executable, "-m", "topoff", "train", str(store), *train_flags(given), "--out", str(run)]
    if not given.resume:
        command.append("--overwrite")
    print(" ".join(command[1:]), flush=True)
    forget(store)
    found = limited(command, int(given.limit * 2**30), cache=given.folder / "cache")
    result = json.loads((run / "result.json").read_text()) if (run / "result.json").exists() else {}
    record = {
        "what": "a graph larger than memory, in a memory control group",
        "command": " ".join(["python", "scripts/cgroup.py", *sys.argv[1:]]),
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "nodes": given.nodes,
        "edges": given.edges,
        "features": given.features,
        "limit_gib": given.limit,
        "generate": generated,
        **found,
        "result": {key: result.get(key) for key in KEPT},
    }
    text = json.dumps(record, indent=1).replace(str(given.folder), "DIR")  # a machine's folders are nobody's business
    print(text)
    place = ROOT / "docs" / "results" / "scale.d" / f"cgroup-{given.nodes}{'-all' if given.all else ''}.json"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text + "\n")
    if found["returncode"]:
        sys.exit(1)


KEPT = ("train", "val", "test", "epochs", "steps", "seconds", "preprocess_seconds", "epoch_seconds", "peak_rss_mb",
        "fidelity", "certificate", "model", "method")  # fmt: skip


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="for the store, the run and the matrices on disk")
    parser.add_argument("--nodes", type=int, default=20_000_000)
    parser.add_argument("--edges", type=int, default=300_000_000)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--classes", type=int, default=16)
    parser.add_argument("--limit", type=float, default=6.0, help="GiB")
    parser.add_argument("--model", default="sage")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batches", default=None, help="left out: chosen by the memory that is free")
    parser.add_argument("--all", action="store_true", help="batch all nodes, not the training nodes alone")
    parser.add_argument("--resume", action="store_true")
    return parser.parse_args()


def train_flags(given: argparse.Namespace) -> list[str]:
    """Return the flags of `topoff train`."""
    flags = ["--model", given.model, "--layers", str(given.layers), "--hidden", str(given.hidden)]
    flags += ["--reach", str(given.nodes)] if given.all else ["--train-only"]  # no node is further away
    flags += ["--epochs", str(given.epochs), "--eval-every", str(given.epochs), "--dropout", "0"]
    return [*flags, *(["--batches", given.batches] if given.batches else []), "--json"]


def generate(given: argparse.Namespace, store: Path) -> Any:
    """Write the stand-in; 1 % of its nodes are for training, as few as in papers100M."""
    command = [
        sys.executable,
        "-m",
        "topoff",
        "generate",
        "--out",
        str(store),
        "--json",
        "--quiet",
        "--dtype",
        "float16",
    ]
    for name in ("nodes", "edges", "features", "classes"):
        command += [f"--{name}", str(getattr(given, name))]
    flags = ["--split", "0.01,0.002,0.003", "--seed", "1", "--dtype", "float16"]
    done = subprocess.run([*command, *flags], check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


def forget(store: Path) -> None:
    """Let the system forget what it has read of a store: pages that are there already count for nobody's limit."""
    os.sync()
    for path in store.rglob("*"):
        if path.is_file():
            file = os.open(path, os.O_RDONLY)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)


def limited(command: list[str], limit: int, *, cache: Path) -> dict[str, Any]:
    """Run a command in a group of its own; return how long it took and what memory it had."""
    group = GROUPS / f"topoff-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(limit))
        entering = f'echo $$ > {group}/cgroup.procs && exec "$@"'  # the shell enters, and becomes the command
        start, lines, most = time.perf_counter(), [], {"rss": 0, "mapped_file": 0}
        environment = os.environ | {"TOPOFF_CACHE": str(cache)}
        process = subprocess.Popen(["sh", "-c", entering, "sh", *command], env=environment, stdout=subprocess.PIPE)
        while process.poll() is None:
            stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            most = {name: max(value, int(stat[name])) for name, value in most.items()}
            time.sleep(EVERY)
        assert process.stdout is not None
        lines = process.stdout.read().decode().splitlines()
        print("\n".join(lines[-3:]))
        return {
            "returncode": process.returncode,
            "seconds": round(time.perf_counter() - start, 1),
            "peak_gib": round(int((group / "memory.max_usage_in_bytes").read_text()) / 2**30, 3),
            "peak_without_files_gib": round(most["rss"] / 2**30, 3),
            "peak_mapped_gib": round(most["mapped_file"] / 2**30, 3),
            "times_at_the_limit": int((group / "memory.failcnt").read_text()),
        }
    finally:
        time.sleep(0.2)
        group.rmdir()


if __name__ == "__main__":
    main()
