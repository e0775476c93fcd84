"""Random graphs and settings from files to predictions: right shapes, ids and probabilities, equal to plain PyG's."""

import inspect
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from drawn_graphs import Drawn, drawn_graphs, write_npz, write_tables
from hypothesis import given
from hypothesis import strategies as st
from outcomes import new_folder, outcome_of
from pyarrow import csv, parquet

from topoff.training.trained import graph_for, model_of, open_run

MODELS = ("gcn", "gcnii", "sage", "gat", "pna", "cluster-gcn", "linear", "gcnii-jk")
METHODS = ("top", "top", "top", "full", "cluster", "drop", "gas", "ns", "shadow", "saint-node", "lmc", "ladies", "ibmb")
FORMATS = ("csv", "parquet", "npz")


@st.composite
def settings_of_a_run(draw: st.DrawFn) -> list[str]:
    """Draw flags of `topoff train`, most of which fit together."""
    optional = {
        "--ratio": st.sampled_from(["0.01", "0.2", "0.5", "1"]),
        "--rank": st.sampled_from(["1", "4", "64", "0.9"]),
        "--parts": st.integers(1, 60).map(str),
        "--batches": st.sampled_from(["kaminpar", "metis", "random"]),
        "--refresh": st.sampled_from(["never", "every=1", "auto"]),
        "--norm": st.sampled_from(["none", "layer", "batch"]),
        "--dropout": st.sampled_from(["0", "0.5"]),
        "--optimizer": st.sampled_from(["adam", "sgd", "adamw"]),
        "--seed": st.integers(0, 2**31).map(str),
        "--class-weight": st.just("balanced"),
    }
    flags = ["--model", draw(st.sampled_from(MODELS)), "--method", draw(st.sampled_from(METHODS)), "--epochs", "2"]
    flags += ["--hidden", str(draw(st.integers(1, 9))), "--layers", str(draw(st.integers(1, 3)))]
    for flag in draw(st.lists(st.sampled_from(list(optional)), unique=True, max_size=4)):
        flags += [flag, draw(optional[flag])]
    return flags


@given(drawn_graphs(), st.sampled_from(FORMATS), st.sampled_from(FORMATS), settings_of_a_run())
def test_from_files_to_predictions(graph: Drawn, written: str, asked: str, flags: list[str]) -> None:
    with new_folder() as folder:
        place = (
            write_npz(graph, folder / "g.npz")
            if written == "npz"
            else write_tables(graph, folder / "g", ending=written)
        )
        kind = f"graphs and settings ({written})"
        if not outcome_of("train", place, "--out", "run", "--quiet", *flags, kind=kind, beside=folder).right:
            return
        out = folder / f"predicted.{asked}"
        done = outcome_of("predict", "run", "--out", out, kind=kind, beside=folder)
        assert done.right, done.err
        _check(graph, _read(out), asked=asked, tables=written != "npz")
        _check_exact(folder / "run", _read(out), asked=asked)


def _read(path: Path) -> dict[str, Any]:
    """Return the columns of predictions; of an .npz file the arrays."""
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    quoted = csv.ConvertOptions(column_types={"node": "string", "prediction": "string"})
    table = parquet.read_table(path) if path.suffix == ".parquet" else csv.read_csv(path, convert_options=quoted)
    return {name: table[name].to_pylist() for name in table.column_names}


def _check(graph: Drawn, found: dict[str, Any], *, asked: str, tables: bool) -> None:
    """Demand every node once by its own id, and probabilities."""
    ids = np.arange(len(graph.x)) if graph.ids is None else graph.ids
    assert [str(node) for node in found["node"]] == [str(node) for node in ids]
    if asked == "parquet" and graph.ids is not None and graph.ids.dtype.kind in "iu":
        assert [int(node) for node in found["node"]] == graph.ids.tolist()
    probability = _probability(found, asked=asked)
    if graph.y.dtype == np.float32 and graph.y.ndim == 1:
        assert probability is None
        assert np.isfinite(np.array(found["prediction"], dtype=float)).all()
        return
    assert probability is not None
    assert probability.min() >= 0
    assert probability.max() <= 1 + 1e-6
    if graph.y.ndim == 1:
        assert probability.sum(axis=1) == pytest.approx(1, abs=1e-5)
        known = graph.names or [str(k) for k in range(probability.shape[1])]
        assert set(map(str, found["prediction"])) <= set(known)


def _probability(found: dict[str, Any], *, asked: str) -> np.ndarray[Any, Any] | None:
    """Return (n, classes), whatever the format; nothing for a regression."""
    if asked == "npz":
        return found.get("probability")
    columns = [column for name, column in found.items() if name.startswith("p_")]
    return np.array(columns, dtype=float).T if columns else None


def _check_exact(folder: Path, found: dict[str, Any], *, asked: str) -> None:
    """Demand what the plain PyG model gives on the whole graph at once."""
    run = open_run(folder)
    data = graph_for(run, None, root=None, labels=False)
    model = model_of(run, data).eval()
    takes = inspect.signature(model.forward).parameters
    more = {name: data[name] for name in ("edge_weight", "edge_attr") if name in takes and data.get(name) is not None}
    with torch.no_grad(), warnings.catch_warnings(action="ignore"):  # some say that they do not use edge weights
        plain = model(data.x, data.edge_index, **more)
    wanted = run.task.probabilities(plain)
    near = {"rel": 1e-4, "abs": 1e-5}
    if wanted is None:
        values = [float(value) for value in found["prediction"]]
        assert values == pytest.approx(run.task.predictions(plain).tolist(), **near)
    else:
        assert _probability(found, asked=asked) == pytest.approx(wanted.double().numpy(), **near)
