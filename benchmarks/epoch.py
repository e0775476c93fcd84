"""Time a training epoch: TOP against the same batches without compensation and against plain PyG on the whole graph.

    python benchmarks/epoch.py                          a graph of 169k nodes and 2.2M edges, GCN 3 x 256
    python benchmarks/epoch.py --dataset wordnet        the embedded graph, GCN 3 x 128
    python benchmarks/epoch.py --nodes 4000 --edges 40000 --communities 20 --hidden 32 --repeats 1

The graph: degree-corrected communities (Pareto weights), a quarter of the edges between communities, both directions
of each edge, nodes in no order. Every case runs in a process of its own, so that its peak memory is its own and plain
PyG runs with the allocator as users have it; the cases take turns, `--repeats` times, and the minimum counts. The last
line is one JSON object.
"""

import os
import sys

if sys.path[0] == os.path.dirname(os.path.abspath(__file__)):
    sys.path.pop(0)  # or the neighbour operator.py hides the standard library's

import argparse
import gc
import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from topoff.machine.memory import keep_freed_memory, peak_memory, readable

CASES = {
    "pyg": "plain PyG, full batch, as users run it",
    "pyg-allocator": "plain PyG, full batch, allocator set",
    "in-batch": "the same batches without compensation",
    "top": "TOP",
}
EPOCHS = 20  # of TOP from the start, refreshed by itself
TIMED = 3  # epochs of batches per turn
Measured = dict[str, float]  # what -> seconds or bytes


# ---- the graph


def community_graph(
    nodes: int, edges: int, *, communities: int, between: float = 0.25, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Return edge_index (2, edges), both directions of each edge, and the community of every node (n,)."""
    rng = np.random.default_rng(seed)
    community = rng.integers(communities, size=nodes)
    weight = np.minimum(1 + rng.pareto(2.0, nodes), 100.0)  # expected degrees, up to a factor
    members = np.argsort(community, kind="stable")  # nodes, community by community
    cumulative = np.append(0.0, np.cumsum(weight[members]))
    first = np.searchsorted(community[members], np.arange(communities + 1))  # where each community begins

    def inside(count: int) -> np.ndarray:
        one = _draw(rng, cumulative, np.zeros(count), np.full(count, cumulative[-1]))
        own = community[members[one]]
        other = _draw(rng, cumulative, cumulative[first[own]], cumulative[first[own + 1]])
        pairs: np.ndarray = members[np.stack([one, other])]
        return pairs

    def across(count: int) -> np.ndarray:
        pairs = _draw(rng, cumulative, np.zeros((2, count)), np.full((2, count), cumulative[-1]))
        ends: np.ndarray = members[pairs]
        kept: np.ndarray = ends[:, community[ends[0]] != community[ends[1]]]
        return kept

    half = edges // 2
    wanted = ((inside, half - round(between * half)), (across, round(between * half)))
    pairs = np.concatenate([_distinct(draw, count, nodes=nodes) for draw, count in wanted], axis=1)
    return rng.permutation(np.concatenate([pairs, pairs[::-1]], axis=1), axis=1), community


def _draw(rng: np.random.Generator, cumulative: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Draw positions in proportion to their weight, between two values of the cumulative weights."""
    position = np.searchsorted(cumulative, low + (high - low) * rng.random(low.shape), side="right") - 1
    found: np.ndarray = np.minimum(position, len(cumulative) - 2)
    return found


def _distinct(draw: Callable[[int], np.ndarray], count: int, *, nodes: int) -> np.ndarray:
    """Draw until there are `count` pairs of different nodes, none twice; (2, count)."""
    keys = np.empty(0, dtype=np.int64)
    for _ in range(100):
        low, high = np.sort(draw(count), axis=0)
        drawn = (low * nodes + high)[low != high]
        keys = np.concatenate([keys, drawn])
        _, where = np.unique(keys, return_index=True)
        keys = keys[np.sort(where)]  # in the order of drawing, so that cutting off is unbiased
        if len(keys) >= count:
            return np.stack(np.divmod(keys[:count], nodes))
    raise ValueError(f"Expected room for {count} edges (got {len(keys)}): fewer edges or communities, or more nodes.")


def write_graph(path: Path, args: argparse.Namespace) -> None:
    """Write the graph as an .npz file for `topoff.load`: a class for every few communities, noisy features."""
    edge_index, community = community_graph(args.nodes, args.edges, communities=args.communities)
    rng = np.random.default_rng(1)
    y = community % args.classes
    x = rng.standard_normal((args.nodes, args.features), dtype=np.float32)
    x += rng.standard_normal((args.classes, args.features), dtype=np.float32)[y]
    np.savez(path, edge_index=edge_index, x=x, y=y, split=rng.choice(3, size=args.nodes, p=(0.5, 0.25, 0.25)))


# ---- one case, in its own process


def run_case(name: str, graph: str, args: argparse.Namespace) -> Measured:
    """Measure one case in this process."""
    if name != "pyg":
        keep_freed_memory()
    import torch

    from topoff import TOP, NodeSets, load
    from topoff.models.networks import GCN

    torch.manual_seed(0)
    data = load(graph)
    model = GCN(data.num_features, args.hidden, out_channels=int(data.y.max()) + 1, num_layers=args.layers)
    if name.startswith("pyg"):
        return measure_full_batch(model, data)
    if name == "in-batch":
        return measure_batches(model, TOP(model, data, ratio=0.1, rank=0, refresh="never"))
    sets = NodeSets(method="kaminpar", ratio=0.1)
    partition = seconds(lambda: sets.fit(data))
    top = TOP(model, data, batches=sets, rank=args.rank)
    measured = measure_batches(model, top)
    count = count_refreshes(model, TOP(model, data, batches=sets, rank=args.rank))
    measured["all"] = measured["epoch"] + count * measured["refresh"] / EPOCHS  # of minima, as all others are
    again = []
    del top
    for _ in range(3):
        gc.collect()  # the memory of the one before is used again: first touch of memory is not what is measured
        again.append(seconds(TOP(model, data, batches=sets, rank=args.rank).prepare))
    return measured | {"partition": partition, "pre-processing": min(again)}


def measure_full_batch(model: Any, data: Any) -> Measured:
    """Time an epoch as in PyG's examples: the model on the whole graph, one step."""
    step = stepper(model)

    def epoch() -> None:
        step(model(data.x, data.edge_index), data)

    epoch()
    return {"epoch": seconds(epoch), "peak": peak_memory()}


def measure_batches(model: Any, top: Any) -> Measured:
    """Time epochs and, where there is something to refresh, refreshes."""
    step = stepper(model)

    def epoch() -> None:
        for batch in top:
            step(top(batch), batch)

    top.prepare()
    top.frozen = True  # refreshes are timed apart
    epoch()
    times: dict[str, list[float]] = {"epoch": [], "refresh": []}
    for _ in range(TIMED):
        times["epoch"].append(seconds(epoch))
        if top.refreshing.interval:
            times["refresh"].append(seconds(top.refresh))
    return {what: min(each) for what, each in times.items() if each} | {"peak": peak_memory()}


def count_refreshes(model: Any, top: Any) -> int:
    """Train for some epochs from the start; return how often that was found worth a refresh."""
    step = stepper(model)
    for _ in range(EPOCHS):
        for batch in top:
            step(top(batch), batch)
    count: int = top.refreshing.count
    return count


def stepper(model: Any) -> Callable[[Any, Any], None]:
    """Return a function that makes one step of Adam on the training nodes of a graph or batch."""
    import torch
    from torch.nn import functional as F

    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def step(out: Any, batch: Any) -> None:
        loss = F.cross_entropy(out[batch.train_mask], batch.y[batch.train_mask])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def seconds(work: Callable[[], Any]) -> float:
    """Time one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


# ---- all cases, in turns


def run_all(graph: str, args: argparse.Namespace, *, console: Console) -> dict[str, Measured]:
    """Run every case `repeats` times, in turns; the minimum of the times, the maximum of the peaks."""
    best: dict[str, Measured] = {}
    for turn in range(args.repeats):
        for name in CASES:
            with console.status(f"turn {turn + 1} of {args.repeats}: {CASES[name]}"):
                command = [sys.executable, __file__, *sys.argv[1:], "--case", name, "--graph", graph]
                lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
            new = json.loads(lines[-1])
            old = best.setdefault(name, new)
            best[name] = {key: (max if key == "peak" else min)(old[key], value) for key, value in new.items()}
    return best


def compare(best: dict[str, Measured]) -> dict[str, tuple[float, float]]:
    """Return what must be shown: the ratio and its bound."""
    top, in_batch, plain = best["top"], best["in-batch"], best["pyg"]
    return {
        "TOP / in-batch": (top["epoch"] / in_batch["epoch"], 1.15),
        "TOP with all refreshes / in-batch": (top["all"] / in_batch["epoch"], 1.25),
        "TOP with all refreshes / full batch in PyG": (top["all"] / plain["epoch"], 1 / 16),
        "pre-processing / TOP epoch": (top["pre-processing"] / top["epoch"], 2.0),
        "peak memory, TOP / full batch in PyG": (top["peak"] / plain["peak"], 1 / 6),
    }


def show(console: Console, best: dict[str, Measured], *, ratios: dict[str, tuple[float, float]]) -> None:
    """Print seconds and memory of each case, then the ratios."""
    table = Table("epoch", "seconds", "peak memory")
    for name, label in CASES.items():
        table.add_row(label, f"{best[name]['epoch']:.3f}", readable(best[name]["peak"]))
    top = best["top"]
    table.add_row(f"TOP, all refreshes of its first {EPOCHS} epochs spread over them", f"{top['all']:.3f}", "")
    table.add_section()
    table.add_row("one refresh", f"{top['refresh']:.3f}", "")
    table.add_row("pre-processing of TOP, without the partition", f"{top['pre-processing']:.3f}", "")
    table.add_row("partition (KaMinPar)", f"{top['partition']:.3f}", "")
    console.print(table)
    table = Table("ratio", "measured", "at most", "")
    for label, (ratio, bound) in ratios.items():
        table.add_row(label, f"{ratio:.3f}", f"{bound:.3g}", "met" if ratio <= bound else "[bold red]missed")
    console.print(table)


def arguments() -> argparse.Namespace:
    """Read the command line; what is left out depends on the graph."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", help="a name or file for topoff.load, instead of the generated graph")
    parser.add_argument("--nodes", type=int, default=169_000)
    parser.add_argument("--edges", type=int, default=2_200_000, help="directed edges")
    parser.add_argument("--communities", type=int, default=300)
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument("--classes", type=int, default=40)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--hidden", type=int, help="default: 256, or 128 with --dataset")
    parser.add_argument("--rank", type=int, help="default: TOP's own")
    parser.add_argument("--repeats", type=int, default=3, help="turns of every case")
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)  # for the processes that this one starts
    parser.add_argument("--graph", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.hidden = args.hidden or (128 if args.dataset else 256)
    return args


def main() -> None:
    """Measure one case, or all of them in processes of their own."""
    args = arguments()
    if args.case:
        measured = run_case(args.case, args.graph, args)
        print(json.dumps(measured | {"threads": sys.modules["torch"].get_num_threads()}))
        return
    console, load = Console(), round(os.getloadavg()[0], 2)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "graph.npz"
        if not args.dataset:
            write_graph(file, args)
        best = run_all(args.dataset or str(file), args, console=console)
    graph = args.dataset or f"communities, {args.nodes:,} nodes, {args.edges:,} directed edges"
    ratios = compare(best)
    console.print(
        f"{graph}; GCN {args.layers} x {args.hidden}, rank {args.rank or 'by default'}; best of {args.repeats} turns"
    )
    show(console, best, ratios=ratios)
    setting = {"threads": best["top"]["threads"], "load_average_before": load}
    console.print(", ".join(f"{key.replace('_', ' ')} {value}" for key, value in setting.items()))
    generated = ("nodes", "edges", "communities", "features", "classes") if args.dataset else ()
    flags = {key: value for key, value in vars(args).items() if key not in ("case", "graph", *generated)}
    verdicts = {key: {"ratio": ratio, "at_most": bound} for key, (ratio, bound) in ratios.items()}
    met = all(ratio <= bound for ratio, bound in ratios.values())
    print(json.dumps({**flags, **setting, "cases": best, "ratios": verdicts, "met": met}))


if __name__ == "__main__":
    main()
