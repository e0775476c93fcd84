"""Hand-made folders of runs, for the tests of what reads them.

A test file imports them with `from runs import make_run`; pytest puts this folder on the path.
"""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np

COMMAND = "topoff train wordnet --model gcn --set rank=64"
MACHINE = {"cpu": "Some CPU", "cores": 2, "threads": 2, "memory_gb": 7.8, "system": "Linux"}
HEADINGS = [
    "In numbers",
    "Training",
    "Fidelity",
    "Classes",
    "Batches",
    "Degrees",
    "What was chosen, and why",
    "Configuration",
    "How to repeat it",
]


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def make_metrics(epochs: int, *, seed: int = 0, every: int = 5, scale: float = 1.0) -> list[dict[str, Any]]:
    """Make the curve of a training that goes well, evaluated every so many epochs."""
    noise = np.random.default_rng(seed)
    rows = []
    for epoch in range(1, epochs + 1):
        gone = 1 - math.exp(-3 * epoch / epochs)
        row = {"epoch": epoch, "seconds": 0.42 * epoch, "loss": 3.8 - 3.2 * gone + noise.normal(0, 0.03), "lr": 0.01}
        row["refreshed"] = epoch % 10 == 0
        if epoch % every == 0 or epoch in (1, epochs):
            for split, best in (("train", 0.95), ("val", 0.88), ("test", 0.87)):
                row[split] = float(np.clip(best * gone + noise.normal(0, 0.01), 0, 1)) * scale
            row |= {"fidelity": 0.9 + 0.08 * gone + noise.normal(0, 0.004), "certificate": 0.2 - 0.12 * gone}
        rows.append(row)
    return rows


def make_details(classes: int, *, batches: int = 12, seed: int = 0) -> dict[str, Any]:
    """Make what is known of the classes, batches and degrees of a run."""
    noise = np.random.default_rng(seed)
    names = [f"noun.{index} kind of thing" if index % 3 else f"class-{index}" for index in range(classes)]
    sizes = (2000 / np.arange(1, classes + 1) ** 0.8).astype(int) + 5
    confusion = [
        noise.multinomial(size, noise.dirichlet(0.05 + 8.0 * np.eye(classes)[row])) for row, size in enumerate(sizes)
    ]
    per_class = [
        {
            "class": name,
            "count": int(size),
            "precision": float(noise.beta(8, 2)),
            "recall": float(noise.beta(8, 2)),
            "f1": 0.8,
        }
        for name, size in zip(names, sizes, strict=True)
    ]
    edges = [0, 1, *(int(2**power) for power in range(1, 12))]
    return {
        "classes": names,
        "confusion": [row.tolist() for row in confusion],
        "per_class": per_class,
        "batches": [
            {
                "nodes": 1000 + index,
                "boundary": 400,
                "rank": 64,
                "condition": 3.2e4,
                "certificate": float(noise.beta(3, 30)),
            }
            for index in range(batches)
        ],
        "degrees": {"edges": edges, "counts": [int(30000 / (index + 1) ** 2.2) for index in range(len(edges) - 1)]},
        "layers": [["convs.0", 0.0], ["convs.1", 0.021], ["convs.2", 0.034]],
    }


def make_result(rows: list[dict[str, Any]], *, seed: int = 0, task: str = "classes") -> dict[str, Any]:
    """Make the result of one seed from its last epoch."""
    last = rows[-1]
    return {
        **{split: last.get(split) for split in ("train", "val", "test", "fidelity", "certificate")},
        "metric": "r2" if task == "regression" else "accuracy", "task": task, "best_epoch": max(1, len(rows) - 3),
        "epochs": len(rows), "steps": 10 * len(rows), "seconds": last["seconds"], "preprocess_seconds": 3.25,
        "epoch_seconds": 0.42, "peak_rss_mb": 1536.0, "parameters": 123456, "dataset": "wordnet", "nodes": 117659,
        "edges": 738180, "features": 300, "model": "gcn", "method": "top", "seed": seed, "command": COMMAND,
        "date": "2030-01-02 03:04", "versions": {"topoff": "0.1.0", "torch": "2.6.0"}, "machine": MACHINE,
        "chosen": [{"what": "rank", "value": 64, "why": "keeps 99 % of the energy"}],
    }  # fmt: skip


def make_run(folder: Path, *, epochs: int = 60, classes: int = 12, seed: int = 0, task: str = "classes") -> Path:
    """Make the folder of a finished run of one seed."""
    rows, details = make_metrics(epochs, seed=seed), make_details(classes, seed=seed)
    if task == "regression":
        noise = np.random.default_rng(seed)
        true = noise.normal(20, 6, 400)
        details = {key: details[key] for key in ("batches", "degrees", "layers")}
        details["scatter"] = np.stack([true, true + noise.normal(0, 2, 400)], axis=1).tolist()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text(
        f'# {COMMAND}\ndataset = "wordnet"\nmodel = "gcn"\nlr = 0.01\nregroup = false\n'
    )
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_json(folder / "result.json", make_result(rows, seed=seed, task=task))
    write_json(folder / "details.json", details)
    return folder


def make_seeds(folder: Path, *, seeds: int = 3, epochs: int = 60, classes: int = 12) -> Path:
    """Make the folder of a finished run of several seeds."""
    results = []
    for seed in range(seeds):
        make_run(folder / f"seed-{seed}", epochs=epochs, classes=classes, seed=seed)
        results.append(json.loads((folder / f"seed-{seed}" / "result.json").read_text()))
    total = dict(results[0]) | {"seeds": list(range(seeds)), "runs": results}
    for key in (
        "train",
        "val",
        "test",
        "fidelity",
        "seconds",
        "epoch_seconds",
        "preprocess_seconds",
        "peak_rss_mb",
        "epochs",
    ):
        values = [result[key] for result in results]
        total[key] = {"mean": float(np.mean(values)), "std": float(np.std(values, ddof=1)) if seeds > 1 else 0.0}
    write_json(folder / "result.json", total)
    shutil.copy(folder / "seed-0" / "config.toml", folder / "config.toml")
    return folder
