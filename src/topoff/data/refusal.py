"""Refuse a graph in one sentence: what was expected, what came, what to do.

>>> refuse("'x' to be finite", "NaN in row 3", "replace or impute it")
Traceback (most recent call last):
ValueError: Expected 'x' to be finite (got NaN in row 3); replace or impute it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from torch_geometric.data import HeteroData


def refuse(expected: str, got: str, remedy: str) -> NoReturn:
    """Raise ValueError in one sentence."""
    raise ValueError(f"Expected {expected} (got {got}); {remedy}.")


@contextmanager
def within(source: str | Path) -> Iterator[None]:
    """Say which file or folder a refusal is about, where its sentence does not name it.

    >>> with within("g.npz"):
    ...     refuse("'x' to be finite", "NaN in row 3", "replace or impute it")
    Traceback (most recent call last):
    ValueError: In g.npz: Expected 'x' to be finite (got NaN in row 3); replace or impute it.
    """
    try:
        yield
    except ValueError as error:
        if str(source) in str(error):
            raise
        raise ValueError(f"In {source}: {error}") from error


def refuse_type(source: Any) -> NoReturn:
    """Raise TypeError for what is neither a name, a path nor a homogeneous graph."""
    remedy = "pass a name, a path or a torch_geometric.data.Data, such as dataset[0]"
    if isinstance(source, HeteroData):
        remedy = "node and edge types are not supported yet: convert it with data.to_homogeneous()"
    raise TypeError(f"Expected the graph to be a homogeneous PyG Data (got {type(source).__name__}); {remedy}.")
