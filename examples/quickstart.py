"""Train a GCN on the WordNet graph, in mini-batches that behave like the whole graph.

python examples/quickstart.py                  about a minute on two cores
python examples/quickstart.py --epochs 5       a first look
"""

# ruff: noqa: E402
from topoff.machine.memory import keep_freed_memory, peak_memory, readable

keep_freed_memory()  # before torch allocates anything: large operations on the CPU become several times faster

import argparse
import time

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch_geometric.nn import GCN  # PyG's own, unmodified

import topoff


def main(epochs: int) -> None:
    """Load a graph, wrap a model, train it, look at the result."""
    torch.manual_seed(0)
    clock = [time.perf_counter()]
    with Progress(TextColumn("{task.description:24}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()) as bar:
        preparing, training = bar.add_task("loading", total=None), bar.add_task("training", total=epochs, start=False)

        def progress(what: str, done: int, total: int) -> None:
            bar.update(preparing, description=what, completed=done, total=total)

        data = topoff.load("wordnet")  # a plain PyG Data: 118k synsets, 350k edges, 45 classes
        model = GCN(data.num_features, 128, num_layers=3, out_channels=45)
        top = topoff.TOP(model, data, ratio=0.1, rank=64, progress=progress)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        clock.append(time.perf_counter())
        top.prepare()  # partition, basis, compensation; without this line, the first batch below would do it
        clock.append(time.perf_counter())
        bar.start_task(training)
        for _ in range(epochs):
            for batch in top:  # a PyG Data with 10 % of the nodes; every 5 epochs the compensation is refreshed
                out = top(batch)  # what the whole graph would give, at the cost of the batch
                loss = F.cross_entropy(out[batch.train_mask], batch.y[batch.train_mask])
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            bar.update(training, advance=1, description=f"training, loss {loss:.3f}")
        clock.append(time.perf_counter())
    report(top, epochs=epochs, clock=clock)


def report(top: topoff.TOP, *, epochs: int, clock: list[float]) -> None:
    """Print exact scores, fidelity, seconds and memory. `clock`: started, loaded, prepared, trained."""
    scores, fidelity = top.evaluate(), top.fidelity()  # both exact, on the whole graph, batch by batch
    started, loaded, prepared, trained = clock
    table = Table(show_header=False)
    for split, score in scores.items():
        table.add_row(f"exact {split} accuracy", f"{score:.1%}")
    table.add_row("fidelity of the batches", f"{fidelity.output:.1%}")
    table.add_row("pre-processing", f"{prepared - loaded:.1f} s")
    table.add_row("per epoch, refresh included", f"{(trained - prepared) / epochs:.2f} s")
    table.add_row("total, with loading and evaluation", f"{time.perf_counter() - started:.1f} s")
    table.add_row("peak memory", readable(peak_memory()))
    Console().print(repr(top), table, sep="\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=50)
    main(max(1, parser.parse_args().epochs))
