"""The promises of speed and memory, measured as ratios against a peer: met or missed, by one table.

Every case is a training in a process of its own, as `topoff train` runs it, or plain PyG on the whole graph as users
run it. Times of TOP and of its batches without compensation are the least of several runs, memory is the most; what is
far from its bound (GAS, plain PyG, estimates) is run once. A promise is met within a margin of 10 %.

>>> Promise("TOP / in-batch epoch", 1.3, at_most=1.25).met, Promise("PyG / TOP epoch", 14, at_least=16).met
(True, False)
"""

from __future__ import annotations

import dataclasses
import math
import multiprocessing
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topoff.data.generate import generate
from topoff.data.recipe import PRESETS, scaled
from topoff.experiments.jobs import Job, Watcher, read_measured
from topoff.experiments.plain import Plain, plain_epoch
from topoff.experiments.processes import train_apart
from topoff.methods.registry import METHODS as ALL
from topoff.training.config import make_config
from topoff.training.cost import estimate
from topoff.training.records import Result
from topoff.training.run_folder import RunFolder

MARGIN = 0.1  # by which a promise of time or memory may be missed: the machine is noisy
GIB = 2**30
RIVAL = 0.25  # of the size of products, at most, where GAS is compared: beyond, its histories take tens of gigabytes
FIDELITY = 0.97  # of batches of training nodes alone, at least
GCN: dict[str, Any] = {"model": "gcn", "layers": 3, "hidden": 256, "ratio": 0.1}
SAGE: dict[str, Any] = {"model": "sage", "layers": 3, "hidden": 256}
FEW: dict[str, Any] = {"epochs": 5, "train_only": True, **SAGE}
DEEP: dict[str, Any] = {"model": "gcnii-jk", "layers": 5, "hidden": 128}
EPOCHS: dict[str, Any] = {"epochs": 20, "eval_every": 20}  # of TOP, refreshed by itself
METHODS = ("top", "cluster", "gas", "ns")  # whose estimated cost is compared with what they take, in short


@dataclass(frozen=True)
class Promise:
    """Hold a ratio that was measured, and its bound."""

    name: str
    measured: float
    at_most: float | None = None
    at_least: float | None = None
    note: str = ""  # what was compared with what
    margin: float = MARGIN  # by which it may be missed; none for errors, which no other process disturbs

    @property
    def met(self) -> bool | None:
        """Whether it holds, within the margin; None where nothing was promised."""
        if self.at_most is None and self.at_least is None:
            return None
        high = math.inf if self.at_most is None else self.at_most * (1 + self.margin)
        low = -math.inf if self.at_least is None else self.at_least * (1 - self.margin)
        return low <= self.measured <= high

    def json(self) -> dict[str, Any]:
        """Return it as an object of JSON."""
        return dataclasses.asdict(self) | {"met": self.met}


@dataclass(frozen=True)
class Trained:
    """Hold what several runs of one training came to: the least of the times, the most of the memory."""

    epoch: float  # seconds, refreshes spread over all epochs
    bare: float  # seconds of an epoch without a refresh
    preparation: float  # seconds
    evaluation: float  # seconds of an exact pass over the whole graph
    train_peak: float  # bytes, before the first evaluation
    peak: float  # bytes
    fidelity: float
    gradient_error: float | None

    @classmethod
    def best(cls, runs: Sequence[Trained]) -> Trained:
        """Return the best times, the largest memory and the worst errors of some runs."""
        most = {"train_peak", "peak", "gradient_error"}
        found: dict[str, Any] = {}
        for name in (field.name for field in dataclasses.fields(cls)):
            values = [value for run in runs if (value := getattr(run, name)) is not None]
            found[name] = (max(values) if name in most else min(values)) if values else None
        return cls(**found)

    @classmethod
    def of(cls, folder: RunFolder) -> Trained:
        """Read a finished run."""
        result, lines = Result.of(folder.read_json("result.json")), folder.metrics()
        steps, passes, before, waited = list[float](), list[float](), 0.0, 0.0
        for line in lines:
            trained, seconds = line.train_seconds or 0.0, line.seconds or 0.0
            if not line.refreshed:
                steps.append(trained - before)
            if line.evaluated:
                passes.append(seconds - trained - waited)
            before, waited = trained, seconds - trained
        mega = 2.0**20
        return cls(
            epoch=result.epoch_seconds or math.nan,
            bare=min(steps, default=result.epoch_seconds or math.nan),
            preparation=result.preprocess_seconds or 0.0,
            evaluation=min(passes, default=math.nan),
            train_peak=(result.train_peak_rss_mb or math.nan) * mega,
            peak=(result.peak_rss_mb or math.nan) * mega,
            fidelity=math.nan if result.fidelity is None else result.fidelity,
            gradient_error=read_measured(folder).get("gradient_error"),
        )


class Bench:
    """Measure the promises in a folder; what is finished there is not measured again.

    Args:
        folder: of graphs and runs.
        scale: of the products-sized graph, 1 for its full size.
        repeats: runs of every case.
        every: whether all methods' estimates are looked at.
        watcher: hears of the runs.
        say: told what is being done.
    """

    def __init__(
        self,
        folder: Path,
        *,
        scale: float,
        repeats: int,
        every: bool = False,
        watcher: Watcher,
        say: Callable[[str], None],
    ) -> None:
        self.folder, self.scale, self.repeats, self.every = folder, scale, repeats, every
        self.watcher, self.say = watcher, say

    def cases(self) -> dict[str, Callable[[], Iterator[Promise]]]:
        """Name what can be measured."""
        return {"epoch": self.epoch, "products": self.products, "estimates": self.estimates}

    def epoch(self) -> Iterator[Promise]:
        """Compare epochs on a stand-in of arxiv: TOP, the same batches without compensation, and plain PyG."""
        graph = self.graph("arxiv", scale=self.smaller)
        top = self.train("top", graph, gradients=True, **EPOCHS, **GCN)
        drop = self.train("drop", graph, epochs=5, eval_every=5, **GCN)
        plain = self.plain(graph)
        yield Promise("TOP epoch with all refreshes / in-batch epoch", top.epoch / drop.epoch, at_most=1.25)
        yield Promise("plain PyG's full batch / TOP epoch with all refreshes", plain.epoch / top.epoch, at_least=16)
        peak = min(top.train_peak, top.peak) / plain.peak
        yield Promise("peak memory in training, TOP / plain PyG's full batch", peak, at_most=1 / 6)
        yield Promise("output error of batches after training", 1 - top.fidelity, at_most=0.01, margin=0)
        if top.gradient_error is not None:
            error = top.gradient_error
            yield Promise("gradient error of an epoch after training", error, at_most=0.1, margin=0)

    def products(self) -> Iterator[Promise]:
        """Train SAGE on the training nodes of a stand-in of products, and compare with GAS where that has room."""
        graph, small = self.graph("products", scale=self.scale), min(self.scale, RIVAL)
        top, note = self._few(graph), f"stand-in of products at scale {self.scale:g}"
        most = 8 if self.scale == 1 else None  # promised of all of it: small graphs are kept in memory whole
        yield Promise("peak memory, GiB", top.peak / GIB, at_most=most, note=note)
        passes = top.preparation / top.evaluation
        yield Promise("preparation / exact pass over the graph", passes, at_most=10, note=note)
        yield Promise("fidelity of train_only batches", top.fidelity, at_least=FIDELITY, note=note, margin=0)
        given: dict[str, Any] = {"method": "top", **FEW}
        yield from self._estimated("top, train_only, with refreshes", top, graph, seconds=top.epoch, **given)
        if self.scale == 1:  # smaller graphs have smaller batches, which follow a deep model less well
            deep, note = self.train("top", graph, eval_every=5, **FEW | DEEP), f"GCNII + JK, {note}"
            yield Promise("peak memory, GiB", deep.peak / GIB, at_most=most, note=note)
            yield Promise("fidelity of train_only batches", deep.fidelity, at_least=FIDELITY, note=note, margin=0)
        shared, note = self.graph("products", scale=small), f"stand-in of products at scale {small:g}"
        top = top if shared == graph else self._few(shared)
        gas = self.train("gas", shared, repeats=1, epochs=1, eval_every=1, **SAGE)
        yield Promise("GAS epoch / TOP epoch, train_only", gas.bare / top.bare, at_least=8, note=note)
        yield Promise("GAS epoch / TOP epoch with all refreshes", gas.epoch / top.epoch, note=note)

    def _few(self, graph: Path) -> Trained:
        """Train on the training nodes alone."""
        return self.train("top", graph, eval_every=5, **FEW)

    def estimates(self) -> Iterator[Promise]:
        """Compare what --dry-run says with what a run takes: seconds of an epoch and memory, either way."""
        graph = self.graph("arxiv", scale=self.smaller)
        methods = sorted(ALL) if self.every else METHODS
        for method, more in [*((name, {}) for name in methods), ("top", {"train_only": True})]:
            settings: dict[str, Any] = {**GCN, **more}
            long = method == "top" and not more  # the run of `epoch`
            short: dict[str, Any] = EPOCHS if long else {"epochs": 3, "eval_every": 3}
            run = self.train(method, graph, repeats=1, **short, **settings)
            name = f"{method}, train_only" if more else method
            yield from self._estimated(name, run, graph, method=method, seconds=run.bare, **settings)

    def _estimated(self, name: str, run: Trained, graph: Path, *, seconds: float, **settings: Any) -> Iterator[Promise]:
        """Compare an estimate with a run that took some `seconds` per epoch."""
        from topoff.data.load import load
        from topoff.training.build import make_setup

        setup = make_setup(make_config({"dataset": str(graph), **settings}), load(str(graph)))
        said = estimate(setup.config, setup.data, setup.model)
        peak = max(run.train_peak, run.peak)
        for what, told, found in (("seconds", said.epoch_seconds, seconds), ("memory", said.memory, peak)):
            off = max(told / found, found / told)
            yield Promise(f"--dry-run, {what} of {name}: off by a factor of", off, at_most=1.5)

    # ---- what is measured

    @property
    def smaller(self) -> float:
        """The scale of the smaller graph: all of it, unless products is less than a tenth of its size."""
        return min(1.0, 10 * self.scale)

    def graph(self, name: str, *, scale: float) -> Path:
        """Generate a stand-in, once."""
        path = self.folder / f"{name}-{scale:g}"
        if not path.is_dir():
            self.say(f"generating the stand-in of {name} at scale {scale:g}")
            generate(scaled(PRESETS[name], scale), path, seed=1, label={"preset": name, "scale": scale})
        return path

    def train(
        self, method: str, graph: Path, *, repeats: int | None = None, gradients: bool = False, **settings: Any
    ) -> Trained:
        """Train several times, each in a process of its own; gradients are measured once.

        Raises:
            ValueError: a training failed.
        """
        words = "-".join(f"{key}={value}" for key, value in settings.items())
        found, repeats = [], repeats or self.repeats
        for turn in range(repeats):
            config = make_config({"dataset": str(graph), "method": method, "seed": 0, **settings})
            folder = RunFolder(self.folder / f"{method}-{graph.name}-{words}" / str(turn))
            job = Job(config, folder.path, "topoff bench", gradients=gradients and not turn)
            if not job.finished:
                self.say(f"{method} on {graph.name}, run {turn + 1} of {repeats}")
                shutil.rmtree(folder.path, ignore_errors=True)  # times of a resumed run are no times
                failure = train_apart(job, watcher=self.watcher)
                if failure is not None:
                    raise ValueError(f"Expected {method} to train on {graph} (got: {failure.reason}); see there.")
            found.append(Trained.of(folder))
        return Trained.best(found)

    def plain(self, graph: Path) -> Plain:
        """Time plain PyG on the whole graph, in a process of its own: the least of some epochs."""
        self.say(f"plain PyG on {graph.name}")
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
            return process.submit(plain_epoch, str(graph), hidden=256, layers=3).result()
