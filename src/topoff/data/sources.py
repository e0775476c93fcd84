"""Find what a source stands for: the embedded graph, a published one, an .npz file or a folder; read its arrays.

A name of ours may also be the name of a file or folder of the user's. `./Cora` is always the path and `name:Cora`
always the dataset; plain `Cora` is either, as long as only one of them is there.

>>> find_source("CORA").name, find_source("./Cora.npz").name
('Cora', None)
"""

from __future__ import annotations

import difflib
import os
import warnings
from dataclasses import dataclass
from pathlib import Path

from topoff.data.npz import read_npz, read_wordnet
from topoff.data.published import ALIASES, RAW
from topoff.data.pyg_datasets import PYG, raw_files, read_pyg
from topoff.data.refusal import refuse
from topoff.data.store import is_store
from topoff.machine.cache import Arrays, cache_dir
from topoff.machine.places import expand_home

PREFIX = "name:"  # before a name that is not to be taken for a path


def _plain(name: str) -> str:
    """Spell a name without case, hyphens and underscores."""
    return name.lower().replace("-", "").replace("_", "")


GRAPHS = {_plain(name): name for name in ("wordnet", *PYG, *RAW)}


@dataclass(frozen=True)
class Source:
    """Hold what a source stands for: a name of ours, or else a path."""

    given: str
    name: str | None  # as we spell it
    path: Path  # of the table folder or the .npz file; without a name, it may be missing
    root: Path  # of raw files

    @property
    def tables(self) -> bool:
        """Say whether it is a folder of tables."""
        return self.name is None and is_table_folder(self.path) and not self.store

    @property
    def store(self) -> bool:
        """Say whether it is the folder of a store."""
        return self.name is None and is_store(self.path)


def find_source(source: str | Path, *, root: str | Path | None = None) -> Source:
    """Return what `source` stands for, looked up in this folder and in `root`.

    Raises:
        ValueError: it is a name of ours and a path that exists, and the two are not the same graph; or nothing at all.

    >>> find_source("name:roman_empire").name
    'Roman-empire'
    """
    base = _base(root)
    forced = isinstance(source, str) and source.startswith(PREFIX)
    name = known_name(source)
    if forced or not _is_possible(str(source)):
        return Source(str(source), name or _refuse_name(source), Path(), base)
    here, below = places_of(source, root=root)
    if name is None:
        found = next((path for path in (here, below) if _is_graph(path)), here)
        if (
            not os.path.lexists(found)
            and isinstance(source, str)
            and os.sep not in source
            and not source.endswith(".npz")
        ):
            _refuse_name(source)
        return Source(str(source), None, found, base)
    twins = [path for path in (here, below) if _holds_graph(path)]
    raw = [path.resolve() for path in _raw_files(name, base)] if twins and name != "wordnet" else []
    twin = next((path for path in twins if _is_folder(path) or graph_file(path).resolve() not in raw), None)
    if twin is None:
        return Source(str(source), name, Path(), base)
    if twin.resolve() != below.resolve():
        _refuse_both(source, name, twin)
    if name == "wordnet":
        warnings.warn(
            f"'{source}' is the graph that ships with topoff; there is {twin}, too: give that path to read it instead.",
            stacklevel=3,
        )
        return Source(str(source), name, Path(), base)
    if all(path.exists() for path in _raw_files(name, base)):
        _refuse_both(source, name, twin)
    return Source(str(source), None, twin, base)


def read_graph(source: Source, *, labels: bool = True, trust: bool = False) -> Arrays:
    """Return x (n, d), edge_index (2, E), y and, where given, masks (n,) or (n, splits), edge_weight, edge_attr, names.

    The names are node_ids (n,), strings or integers, and class_names (c,), strings. Folders of tables are read in
    data/tables. Without `labels`, y may be missing in an .npz file. With `trust`, pickled raw files may run code.

    Raises FileNotFoundError for missing files and ValueError for unreadable ones.

    >>> read_graph(find_source("wordnet"))["edge_index"].shape
    (2, 349438)
    """
    if source.name == "wordnet":
        return read_wordnet()
    if source.name is not None:
        return read_pyg(source.name, source.root, trust=trust)
    file = graph_file(source.path)
    if file.is_file():
        return read_npz(file, labels=labels)
    remedy = (
        "give the path of an .npz file, of a store, or of a folder that holds a graph.npz, or the tables nodes.csv "
    )
    remedy += "and edges.csv"
    if others := _other_tables(source.path):
        remedy = f"what is in {others} must be called nodes.csv and edges.csv, with commas, or .parquet"
    if (name := known_name(source.path.name)) and (source.path / "raw").is_dir():
        remedy = f"for the dataset {name} with its raw files there, write {PREFIX}{name} and its folder as root"
    raise FileNotFoundError(f"Expected a graph in {file} (got no such file{_seen_from(file)}); {remedy}.")


def _other_tables(folder: Path) -> str:
    """Name the files of a folder that may be meant as its tables, and are of another kind."""
    found = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    right = [f"{table}.{ending}" for table in ("nodes", "edges") for ending in ("csv", "parquet")]
    return ", ".join(
        name for name in found if name.lower().partition(".")[0] in ("nodes", "edges") and name not in right
    )


def known_name(source: str | Path) -> str | None:
    """Return the name of the graph that `source` is, however it is spelt; None for a path."""
    if not isinstance(source, str):
        return None
    plain = _plain(source.removeprefix(PREFIX))
    return GRAPHS.get(plain) or next((name for alias, name in ALIASES.items() if _plain(alias) == plain), None)


def places_of(source: str | Path, *, root: str | Path | None = None) -> list[Path]:
    """Return the two paths that `source` may stand for, in the order in which they are tried."""
    spelt = str(source).removeprefix(PREFIX)
    return [expand_home(spelt), _base(root) / spelt]


def graph_file(path: Path) -> Path:
    """Return the .npz file that a path stands for: itself, or the graph in the folder."""
    if not path.is_dir():
        return path
    raw = path / "raw" / f"{path.resolve().name}.npz"
    return raw if raw.is_file() and not (path / "graph.npz").is_file() else path / "graph.npz"


def is_table_folder(path: Path) -> bool:
    """Say whether a path is a folder with a table of nodes."""
    return any((path / f"nodes.{ending}").is_file() for ending in ("csv", "parquet"))


# ---- paths


def _raw_files(name: str, root: Path) -> list[Path]:
    """Return where the raw files of a graph are, or would be."""
    return RAW[name].paths(root) if name in RAW else raw_files(name, root)


def _is_folder(path: Path) -> bool:
    """Say whether a path is a folder whose graph is no single file."""
    return is_table_folder(path) or is_store(path)


def _base(root: str | Path | None) -> Path:
    """Return the folder of raw files."""
    return expand_home(root) if root is not None else cache_dir() / "raw"


def _is_possible(path: str) -> bool:
    """Say whether a file system can have such a path."""
    parts = path.encode(errors="replace").split(os.sep.encode())
    return bool(path.strip()) and "\0" not in path and max(map(len, parts)) < 256


def _is_graph(path: Path) -> bool:
    """Say whether a path can be read."""
    return is_store(path) or is_table_folder(path) or graph_file(path).is_file()


def _holds_graph(path: Path) -> bool:
    """Say whether a path seems to be meant as a graph: a file, or a folder with tables or arrays, finished or not."""
    if not path.is_dir():
        return path.is_file()
    return _is_graph(path) or any(next(path.glob(form), None) for form in ("nodes.*", "edges.*", "*.npz"))


def _seen_from(path: Path) -> str:
    """Say in which folder a relative path was looked up."""
    return "" if path.is_absolute() else f" in {Path.cwd()}"


# ---- refusals


def _refuse_name(source: str | Path) -> str:
    """Refuse what is neither a name nor a path, with the nearest name."""
    spelt = str(source).removeprefix(PREFIX)
    near = difflib.get_close_matches(_plain(spelt), GRAPHS, n=1)
    hint = f"did you mean '{GRAPHS[near[0]]}'?" if near else f"the names are {', '.join(GRAPHS.values())}."
    got = f"{str(source)!r:.80}"
    raise ValueError(
        f"Expected the name of a graph, an .npz file or a folder (got {got}, which is none of them); {hint}"
    )


def _refuse_both(source: str | Path, name: str, path: Path) -> None:
    """Refuse a name that is a path as well."""
    kind = "folder" if path.is_dir() else "file"
    spelt = str(path) if path.is_absolute() or os.sep in str(path) else os.path.join(".", path)
    what = "the graph that ships with topoff" if name == "wordnet" else f"the published graph {name}"
    what = f"the PyG dataset {name}" if name in PYG else what
    got = f"{what} and the {kind} {path}"
    refuse(f"'{source}' to mean one graph", got, f"write {spelt} for the {kind}, or {PREFIX}{name} for the other")
