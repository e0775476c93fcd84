"""Find what a source stands for: the embedded graph, a PyG dataset, an .npz file or a folder; read its arrays."""

import difflib
import os
from pathlib import Path

from topoff.data.npz import read_npz, read_wordnet
from topoff.data.pyg_datasets import PYG, read_pyg
from topoff.machine.cache import Arrays, cache_dir
from topoff.machine.places import expand_home


def _plain(name: str) -> str:
    """Spell a name without case, hyphens and underscores."""
    return name.lower().replace("-", "").replace("_", "")


GRAPHS = {_plain(name): name for name in ("wordnet", *PYG)}


def read_graph(source: str | Path, *, root: str | Path | None = None, labels: bool = True) -> Arrays:
    """Return x (n, d), edge_index (2, E), y and, where given, masks (n,) or (n, splits), edge_weight, edge_attr, names.

    The names are node_ids (n,), strings or integers, and class_names (c,), strings. `source` is "wordnet", a name in
    `PYG` (any case; raw files in `root`, by default in the cache folder), an .npz file, or a folder with
    graph.npz or raw/<folder>.npz; both also relative to `root`. Folders of tables are read in data/tables. Without
    `labels`, y may be missing in an .npz file.

    Raises FileNotFoundError for missing files and ValueError for unknown names and unreadable files.

    >>> read_graph("wordnet")["edge_index"].shape
    (2, 349438)
    """
    places = [graph_file(path) for path in places_of(source, root=root)]
    found = [path for path in places if path.is_file()]
    name = known_name(source)
    if name == "wordnet":
        return read_wordnet()
    if name is not None:
        return read_pyg(name, _base(root), otherwise=places[1] if places[1] in found else None)
    if found:
        return read_npz(found[0], labels=labels)
    if isinstance(source, str) and not (source.endswith(".npz") or os.sep in source or Path(source).exists()):
        near = difflib.get_close_matches(_plain(source), GRAPHS, n=1)
        hint = f"did you mean '{GRAPHS[near[0]]}'?" if near else f"the names are {', '.join(GRAPHS.values())}."
        raise ValueError(
            f"Expected the name of a graph, an .npz file or a folder (got '{source}', which is none of them); {hint}"
        )
    raise FileNotFoundError(
        f"Expected a graph in {places[0]} (got no such file); give the path of an .npz file or of a folder that holds "
        "a graph.npz, or the tables nodes.csv and edges.csv (or .parquet)."
    )


def known_name(source: str | Path) -> str | None:
    """Return the name of the graph that `source` is, however it is spelt; None for a path."""
    return GRAPHS.get(_plain(source)) if isinstance(source, str) else None


def places_of(source: str | Path, *, root: str | Path | None = None) -> list[Path]:
    """Return the two paths that `source` may stand for, in the order in which they are tried."""
    return [expand_home(source), _base(root) / source]


def _base(root: str | Path | None) -> Path:
    """Return the folder of raw files."""
    return expand_home(root) if root is not None else cache_dir() / "raw"


def graph_file(path: Path) -> Path:
    """Return the .npz file that a path stands for: itself, or the graph in the folder."""
    if not path.is_dir():
        return path
    raw = path / "raw" / f"{path.resolve().name}.npz"
    return raw if raw.is_file() and not (path / "graph.npz").is_file() else path / "graph.npz"


def is_table_folder(path: Path) -> bool:
    """Say whether a path is a folder with a table of nodes."""
    return any((path / f"nodes.{ending}").is_file() for ending in ("csv", "parquet"))
