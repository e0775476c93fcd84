"""Small tables of nodes and edges, written to a folder and read back."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from topoff.data.tables import Tables, read_tables

EDGES = "source,target,weight\na,b,2\nb,a,-0.5\nc,c,1e2\n"


# id, a number and a string that may be missing, a boolean, free text, a constant, an empty column, a split and labels
NODES = """id,age,city,ok,name,one,none,split,label
a,30,Oslo,True,Ann,1,,train,yes
b,50,Rome,FALSE,Bob,1,,val,no
c,,Oslo,true,Cid,1,,test,yes
d,40,,false,Dan,1,,,
"""


def write(folder: Path, nodes: str | bytes | pa.Table | None = NODES, edges: Any = EDGES) -> Path:
    """Write the tables that are given: text as csv, pyarrow's as parquet."""
    folder.mkdir(exist_ok=True)
    for name, table in (("nodes", nodes), ("edges", edges)):
        if isinstance(table, pa.Table):
            pyarrow.parquet.write_table(table, folder / f"{name}.parquet")
        elif table is not None:
            (folder / f"{name}.csv").write_bytes(table if isinstance(table, bytes) else table.encode())
    return folder


def read(folder: Path, nodes: Any = NODES, edges: Any = EDGES, **options: Any) -> Tables:
    return read_tables(write(folder, nodes, edges), **options)


def one_column(name: str, values: list[Any]) -> str:
    """A table of nodes with one more column, whose values are quoted."""
    return f"id,{name}\n" + "".join(f'{i},"{value}"\n' for i, value in enumerate(values))


def same(first: Tables, second: Tables) -> bool:
    return first.arrays.keys() == second.arrays.keys() and all(
        np.array_equal(first.arrays[key], second.arrays[key], equal_nan=True)
        and first.arrays[key].dtype == second.arrays[key].dtype
        for key in first.arrays
    )


def parquet_nodes() -> pa.Table:
    """The nodes of the small graph, with the types that a parquet file has."""
    return pa.table(
        {
            "id": ["a", "b", "c", "d"],
            "age": pa.array([30.0, 50.0, np.nan, 40.0], pa.float32()),
            "city": pa.array(["Oslo", "Rome", "Oslo", None]).dictionary_encode(),
            "ok": [True, False, True, False],
            "name": pa.array(["Ann", "Bob", "Cid", "Dan"], pa.large_string()),
            "one": pa.array([1, 1, 1, 1], pa.uint64()),
            "none": pa.nulls(4),
            "split": pa.array([0, 1, 2, -1], pa.int8()),
            "label": ["yes", "no", "yes", None],
        }
    )


FEW = "id,f\na,1\nb,2\nc,3\n"


EXAMPLE = Path(__file__).parents[1] / "examples" / "tables"
