"""Write tables anew with other edges: the columns of the user's own tables stay what they were."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from topoff.data.columns import Bools, Table, as_numbers, as_strings, is_strings, known_strings, parsed
from topoff.data.labels import is_reserved
from topoff.data.refusal import refuse
from topoff.data.table_file import STRING
from topoff.data.tables import id_column, open_one

if TYPE_CHECKING:
    from torch_geometric.data import Data

ENDS = ("source", "target")


def copy_tables(data: Data, folder: Path, *, ending: str, rows: Bools | None, split: Any = None) -> None:
    """Write the tables that a graph was loaded from to a new folder, as "csv" or "parquet".

    The nodes keep all their columns; a `split` (n,) that was drawn is added where they have none. Of
    the edges stay those in `rows` (E,), with all their columns; where it is None, edges were merged: the graph's own
    are written, with their weight.

    >>> import tempfile
    >>> import numpy as np
    >>> from topoff.data.load import load
    >>> with tempfile.TemporaryDirectory() as place:
    ...     _ = (Path(place) / "nodes.csv").write_text("id,city,label\\n007,Oslo,a\\n008,Rome,b\\n")
    ...     _ = (Path(place) / "edges.csv").write_text("source,target,since\\n007,008,1999\\n")
    ...     copy_tables(load(place), Path(place) / "new", ending="csv", rows=np.array([True]))
    ...     print((Path(place) / "new" / "nodes.csv").read_text(), end="")
    "id","city","label"
    "007","Oslo","a"
    "008","Rome","b"
    """
    nodes = open_one(data.names.folder, "nodes")
    name = id_column(nodes)[0]
    columns = {each: _kept(nodes, each, ending=ending, ids=(name,)) for each in nodes.columns}
    if split is not None and ("split" not in columns or as_strings(nodes.columns["split"]).null_count == nodes.rows):
        columns["split"] = split
    if rows is None:
        edges = {end: columns[name].take(pa.array(data.edge_index[row].numpy())) for row, end in enumerate(ENDS)}
        if data.get("edge_weight") is not None:
            edges["weight"] = pa.array(data.edge_weight.numpy())
    else:
        table = open_one(data.names.folder, "edges")
        kept = pa.array(rows)
        edges = {each: _kept(table, each, ending=ending, ids=ENDS).filter(kept) for each in table.columns}
    folder.mkdir()
    write_table(columns, folder / f"nodes.{ending}")
    write_table(edges, folder / f"edges.{ending}")


def write_table(columns: dict[str, Any], path: Path) -> None:
    """Write columns to a .csv or .parquet file that `read_table` reads back.

    Raises ValueError for strings with a NUL in a csv file.
    """
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pa.table(columns), path)
        return
    for name, column in columns.items():
        if is_strings(column) and pc.any(pc.match_substring(column, "\0")).as_py():
            got = f"a NUL character in the column '{name}'"
            refuse(f"{path.name} to hold text", got, "write parquet instead, or remove it")
    pyarrow.csv.write_csv(pa.table(columns), path)


def _kept(table: Table, name: str, *, ending: str, ids: tuple[str, ...]) -> Any:
    """Return a column for a file of another format, or of the same, that is read as before."""
    plain, written = table.columns[name], table.written(name)
    if ending == "csv":  # what is compared as strings is written as them
        as_text = pa.types.is_decimal(plain.type)
        return written if is_strings(written) else plain.cast(STRING) if as_text else plain
    if table.path.suffix == ".parquet":
        return written
    whole = parsed(plain, pa.int64())
    if whole is not None and whole.cast(STRING).equals(plain):
        return whole
    numbers = as_numbers(plain) if name == "target" or not (name in ids or is_reserved(name)) else None
    if numbers is not None and known_strings(plain).null_count < len(plain):
        return pa.array(numbers, from_pandas=True)
    return written
