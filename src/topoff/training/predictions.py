"""Write predictions: by the user's own node ids, with a probability per class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor
from torch_geometric.data import Data

from topoff.machine.files import replacing
from topoff.training.trained import Trained


def prediction_table(run: Trained, data: Data, out: Tensor) -> dict[str, Any]:
    """Return columns of predictions by the user's own node ids: the label, and a probability per class."""
    ids = getattr(data.get("names"), "node_ids", None) or list(range(int(data.num_nodes or 0)))
    table: dict[str, Any] = {"node": ids}
    if run.task.kind == "regression":
        return table | {"prediction": run.task.predictions(out).numpy()}
    probability = run.task.probabilities(out)
    assert probability is not None
    names = run.classes
    if run.task.kind == "multilabel":
        chosen = (out > 0).tolist()
        labels = [";".join(name for name, yes in zip(names, row, strict=True) if yes) for row in chosen]
    else:
        labels = [names[number] for number in out.argmax(dim=1).tolist()]
    columns = {f"p_{name}": probability[:, number].numpy() for number, name in enumerate(names)}
    return table | {"prediction": labels} | columns


def write_predictions(table: dict[str, Any], path: Path) -> None:
    """Write columns to .parquet, .csv or .npz, in one piece.

    Raises:
        ValueError: another ending.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_predictions({"node": ["a", "b"], "prediction": [0.5, 1.5]}, Path(folder) / "mine.csv")
    ...     print((Path(folder) / "mine.csv").read_text(), end="")
    "node","prediction"
    "a",0.5
    "b",1.5
    """
    import numpy as np
    import pyarrow as pa
    from pyarrow import csv, parquet

    if path.suffix not in (".parquet", ".csv", ".npz"):
        raise ValueError(f"Expected --out to end in .parquet, .csv or .npz (got '{path}').")
    with replacing(path) as draft:
        if path.suffix == ".parquet":
            parquet.write_table(pa.table(table), str(draft))
        elif path.suffix == ".csv":
            csv.write_csv(pa.table(table), str(draft))
        else:
            shares = {name.removeprefix("p_"): column for name, column in table.items() if name.startswith("p_")}
            arrays = {name: np.array(table[name]) for name in ("node", "prediction")}
            if shares:  # as one matrix, since class names need not be names of arrays
                arrays |= {
                    "probability": np.stack([*shares.values()], axis=1),
                    "class_names": np.array([*shares]),
                }
            with draft.open("wb") as file:
                np.savez_compressed(file, allow_pickle=False, **arrays)
