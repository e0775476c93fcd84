"""Write predictions: by the user's own node ids, with a probability per class."""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

from torch import Tensor
from torch_geometric.data import Data

from topoff.data.ids import as_array, id_array, node_ids, simple, spreadsheet_safe
from topoff.machine.files import replacing
from topoff.training.trained import Trained


def prediction_table(run: Trained, data: Data, out: Tensor) -> dict[str, Any]:
    """Return columns of predictions by the user's own node ids: the label, and a probability per class."""
    table: dict[str, Any] = {"node": node_ids(data)}
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


def write_predictions(table: dict[str, Any], path: Path, *, safe: bool = False) -> None:
    """Write columns to .parquet, .csv or .npz, in one piece.

    Parquet keeps the type of the ids; in the other formats dates and the like are text. Where `safe`, an apostrophe
    stands before ids and labels that a spreadsheet would take for a formula; else they are what they are.

    Raises:
        ValueError: another ending, or `safe` for one that is not .csv.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_predictions({"node": ["a", "b"], "prediction": [0.5, 1.5]}, Path(folder) / "mine.csv")
    ...     print((Path(folder) / "mine.csv").read_text(), end="")
    "node","prediction"
    "a",0.5
    "b",1.5
    """
    import pyarrow as pa
    from pyarrow import csv, parquet

    if path.suffix not in (".parquet", ".csv", ".npz"):
        raise ValueError(f"Expected --out to end in .parquet, .csv or .npz (got '{path}').")
    if safe and path.suffix != ".csv":
        raise ValueError(f"Expected --out to end in .csv for spreadsheet-safe text (got '{path}'); leave it out.")
    ids = table["node"] if isinstance(table["node"], pa.Array) else id_array(table["node"])
    with replacing(path) as draft, draft.open("wb") as file:
        if path.suffix == ".parquet":
            parquet.write_table(pa.table(table | {"node": ids}), file)
        elif path.suffix == ".csv":
            columns = {name: pa.array(column) for name, column in (table | {"node": simple(ids)}).items()}
            csv.write_csv(pa.table({name: _safe(column) if safe else column for name, column in columns.items()}), file)
        else:
            _write_npz(table, as_array(ids), file)


def _safe(column: Any) -> Any:
    """Return a column with an apostrophe before strings that might be formulas."""
    import pyarrow as pa

    return spreadsheet_safe(column.cast(pa.large_string()) if pa.types.is_string(column.type) else column)


def _write_npz(table: dict[str, Any], ids: Any, file: BinaryIO) -> None:
    """Write predictions as arrays; probabilities as one matrix, since class names need not be names of arrays."""
    import numpy as np

    shares = {name.removeprefix("p_"): column for name, column in table.items() if name.startswith("p_")}
    arrays = {"node": ids, "prediction": np.array(table["prediction"])}
    if shares:
        arrays |= {"probability": np.stack([*shares.values()], axis=1), "class_names": np.array([*shares])}
    np.savez_compressed(file, **arrays)  # numbers and strings: nothing is pickled
