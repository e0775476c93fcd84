"""Read the arrays of a graph from where it lies: the embedded one, .npz files, the raw files of PyG's datasets."""

import difflib
import importlib.resources
import os
import socket
import tempfile
import urllib.error
import urllib.request
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import torch

from topoff.machine.cache import Arrays, cache_dir, cached, content_hash

MASKS = ("train_mask", "val_mask", "test_mask")
CSR = ("x_data", "x_indices", "x_indptr", "x_shape")
NAMES = ("node_ids", "class_names")
LAYOUT = ("edge_index", "x", *CSR, "y", "split", *MASKS, "edge_weight", "edge_attr", *NAMES)
BENCHMARK = {  # the layout of the heterophilous benchmark -> ours; its masks are (splits, nodes)
    "edges": "edge_index",
    "node_features": "x",
    "node_labels": "y",
    **{f"{name}s": name for name in MASKS},
}
DIMENSIONS = 128  # of the embedded graph's features
SECONDS = 10.0  # without an answer, after which a server counts as out of reach

# Name -> PyG class and its `name` argument; None: the class takes no name, and its folder is root/<class>.
PYG: dict[str, tuple[str, str | None]] = {
    **{name: ("Planetoid", name) for name in ("Cora", "CiteSeer", "PubMed")},
    **{name: ("Amazon", name) for name in ("Computers", "Photo")},
    **{name: ("Coauthor", name) for name in ("CS", "Physics")},
    **{name: ("WebKB", name) for name in ("Cornell", "Texas", "Wisconsin")},
    **{name: ("WikipediaNetwork", name) for name in ("Chameleon", "Squirrel")},
    **{
        name: ("HeterophilousGraphDataset", name)
        for name in ("Roman-empire", "Amazon-ratings", "Minesweeper", "Tolokers", "Questions")
    },
    **{
        name: (name, None)
        for name in (
            *("Reddit", "Reddit2", "Flickr", "Yelp", "AmazonProducts", "Actor", "WikiCS"),
            *("DeezerEurope", "GitHub", "FacebookPagePage", "LastFMAsia"),
        )
    },
}


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
        return _read_wordnet()
    if name is not None:
        own = places[1] if places[1] in found else None
        return _read_pyg(name, _base(root), otherwise=own)
    if found:
        return _read_npz(found[0], labels=labels)
    if isinstance(source, str) and not (source.endswith(".npz") or os.sep in source or Path(source).exists()):
        raise ValueError(_unknown_name(source))
    raise FileNotFoundError(
        f"Expected a graph in {places[0]} (got no such file); give the path of an .npz file or of a folder that holds "
        "a graph.npz, or the tables nodes.csv and edges.csv (or .parquet)."
    )


def known_name(source: str | Path) -> str | None:
    """Return the name of the graph that `source` is, however it is spelt; None for a path.

    >>> known_name("word_net"), known_name("my/graph")
    ('wordnet', None)
    """
    names = {_plain(name): name for name in ("wordnet", *PYG)}
    return names.get(_plain(source)) if isinstance(source, str) else None


def places_of(source: str | Path, *, root: str | Path | None = None) -> list[Path]:
    """Return the two paths that `source` may stand for, in the order in which they are tried.

    >>> [str(path) for path in places_of("mine", root="data")]
    ['mine', 'data/mine']
    """
    return [Path(source).expanduser(), _base(root) / source]


def _base(root: str | Path | None) -> Path:
    """Return the folder of raw files."""
    return Path(root).expanduser() if root is not None else cache_dir() / "raw"


def _plain(name: str) -> str:
    """Spell a name without case, hyphens and underscores."""
    return name.lower().replace("-", "").replace("_", "")


def _unknown_name(source: str) -> str:
    """Say which name was meant, perhaps."""
    names = {_plain(name): name for name in ("wordnet", *PYG)}
    near = difflib.get_close_matches(_plain(source), names, n=1)
    hint = f"did you mean '{names[near[0]]}'?" if near else f"the names are {', '.join(names.values())}."
    return f"Expected the name of a graph, an .npz file or a folder (got '{source}', which is none of them); {hint}"


# ---- .npz files


def graph_file(path: Path) -> Path:
    """Return the .npz file that a path stands for: itself, or the graph in the folder.

    >>> str(graph_file(Path("no/such/graph.npz")))
    'no/such/graph.npz'
    """
    if not path.is_dir():
        return path
    raw = path / "raw" / f"{path.resolve().name}.npz"
    return raw if raw.is_file() and not (path / "graph.npz").is_file() else path / "graph.npz"


def _read_npz(path: Path, *, labels: bool = True) -> Arrays:
    """Read the known keys of an .npz file, never unpickling, and bring them into one layout."""
    try:
        with path.open("rb") as handle:  # opened here: numpy leaves a broken file open
            file = np.load(handle, allow_pickle=False)
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise ValueError("one bare array")
            arrays = {name: file[name] for name in file.files if name in (*LAYOUT, *BENCHMARK)}
            others = [name for name in file.files if name not in arrays]
    except (zipfile.BadZipFile, zlib.error, ValueError, EOFError, OSError) as error:
        reason = str(error)
        if "allow_pickle" in reason:
            reason = "pickled objects" if "Object arrays" in reason else "something else"
        raise ValueError(
            f"Expected {path} to be a whole .npz file of plain arrays (got {reason}); write it again with "
            "numpy.savez, numbers only."
        ) from error
    return _unify(arrays, others=others, origin=str(path), labels=labels)


def _unify(arrays: Arrays, *, others: list[str], origin: str, labels: bool = True) -> Arrays:
    """Bring any of the layouts into x, edge_index, y, masks, edge_weight, edge_attr, with dtypes that torch has."""
    benchmark = "edges" in arrays
    if benchmark:
        arrays = {BENCHMARK[name]: _transpose(name, array) for name, array in arrays.items() if name in BENCHMARK}
    features = CSR if any(name in arrays for name in CSR) else ("x",)
    wanted = ("edge_index", *(("y",) if labels else ()), *features)
    missing = [name for name in wanted if name not in arrays]
    if missing:
        raise ValueError(
            f"Expected {origin} to have the keys edge_index, y and x or {', '.join(CSR)} (got no {', '.join(missing)}, "
            f"but {', '.join([*arrays, *others]) or 'nothing'}); add the missing ones."
        )
    if "x" not in arrays:
        arrays["x"] = _densify(*(arrays[name] for name in CSR), origin=origin)
    if "split" in arrays:
        arrays.update(_masks_from_codes(arrays["split"], origin=origin))
    out = {name: _native(name, arrays[name]) for name in LAYOUT if name in arrays and name not in (*CSR, "split")}
    return {**out, "edge_index": _symmetrise(out["edge_index"])} if benchmark else out


def _transpose(name: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Turn the benchmark's rows of edges and of masks into columns."""
    pairs = name == "edges" and array.ndim == 2 and array.shape[1] == 2
    return array.T if pairs or (name.endswith("_masks") and array.ndim == 2) else array


def _symmetrise(edges: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Add the reverse of every edge and drop duplicates, as PyG's to_undirected; leave malformed ones to the check."""
    if edges.ndim != 2 or edges.shape[0] != 2 or edges.dtype.kind != "i" or edges.size == 0 or edges.min() < 0:
        return edges
    n = edges.max() + 1
    return np.stack(np.divmod(np.unique(np.concatenate([edges[0] * n + edges[1], edges[1] * n + edges[0]])), n))


def _densify(*parts: np.ndarray[Any, Any], origin: str) -> np.ndarray[Any, Any]:
    """Make x (n, d) of its CSR parts data, indices, indptr, shape; float64 stays, all else becomes float32."""
    data, indices, indptr, shape = parts
    try:
        kept = data if data.dtype == np.float64 else data.astype(np.float32)
        matrix = scipy.sparse.csr_array((kept, indices, indptr), shape=tuple(shape.tolist()))
        matrix.check_format(full_check=True)
        dense: np.ndarray[Any, Any] = matrix.toarray()
    except (ValueError, TypeError, IndexError) as error:
        raise ValueError(
            f"Expected {', '.join(CSR)} in {origin} to be one CSR matrix (got {error}); store the four attributes of "
            "a scipy.sparse.csr_matrix."
        ) from error
    return dense


def _masks_from_codes(codes: np.ndarray[Any, Any], *, origin: str) -> Arrays:
    """Turn 0 (train), 1 (validation), 2 (test), -1 (none) into masks."""
    if codes.dtype.kind not in "iu" or not np.isin(codes, (-1, 0, 1, 2)).all():
        got = f"{codes.dtype} from {codes.min()} to {codes.max()}" if codes.dtype.kind in "iuf" else str(codes.dtype)
        raise ValueError(
            f"Expected 'split' in {origin} to hold the integers 0 (train), 1 (validation), 2 (test), -1 (none) "
            f"(got {got}); recode it."
        )
    return {name: codes == code for code, name in enumerate(MASKS)}


def _native(name: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Give an array a dtype that torch has: features and weights keep their precision, integers become int64."""
    if name in NAMES:
        if array.dtype.kind not in ("Uiu" if name == "node_ids" else "U"):
            kinds = "plain strings or integers" if name == "node_ids" else "plain strings"
            raise ValueError(f"Expected '{name}' to hold {kinds} (got dtype {array.dtype}); convert it by astype(str).")
        return array
    if array.dtype.kind not in "biuf":
        raise ValueError(f"Expected '{name}' to hold numbers (got dtype {array.dtype}); encode it as numbers.")
    if array.dtype.kind in "iu":
        return np.ascontiguousarray(array, dtype=np.float32 if name == "x" else np.int64)
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        return array.astype(np.float64)
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))


# ---- the embedded graph


def _read_wordnet() -> Arrays:
    """Read the embedded WordNet graph, its 2,000 gloss words reduced to 128 dimensions (computed once, then cached)."""
    file = importlib.resources.files("topoff.data") / "datasets" / "wordnet.npz"
    with file.open("rb") as handle, np.load(handle, allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files if name in LAYOUT}
    words = [arrays.pop(name) for name in CSR]
    key = content_hash(f"idf, unit rows, SVD to {DIMENSIONS}, unit mean square, 1", *words[1:])
    matrix = scipy.sparse.csr_array((words[0].astype(np.float64), *words[1:3]), shape=tuple(words[3].tolist()))
    arrays["x"] = cached(f"wordnet-x-{key}", lambda: {"x": _reduce_words(matrix)})["x"]
    return _unify(arrays, others=[], origin="wordnet")


def _reduce_words(words: Any) -> np.ndarray[Any, Any]:
    """Reduce binary words (n, w) to float32 (n, 128): inverse document frequency, unit rows, truncated SVD.

    X V_k = U_k S_k, with V_k from the w x w Gram matrix on one thread: faster than Lanczos here, and the same bits
    whatever the number of threads. The largest entry of each direction is positive; entries have unit mean square.
    """
    n = words.shape[0]
    weighted = words.multiply(np.log(n / np.maximum(words.sum(axis=0), 1.0))).tocsr()
    norms = np.sqrt(weighted.multiply(weighted).sum(axis=1))
    rows = weighted.multiply(1.0 / np.where(norms > 0, norms, 1.0)[:, None]).tocsr()
    gram = torch.from_numpy((rows.T @ rows).toarray())
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        directions = torch.linalg.eigh(gram).eigenvectors.flip(1)[:, :DIMENSIONS].numpy()
    finally:
        torch.set_num_threads(threads)
    largest = directions[np.abs(directions).argmax(axis=0), np.arange(directions.shape[1])]
    reduced: np.ndarray[Any, Any] = rows @ (directions * np.sign(largest))
    reduced /= np.sqrt(np.mean(reduced**2))
    return reduced.astype(np.float32)


# ---- PyG's datasets


def _read_pyg(name: str, root: Path, *, otherwise: Path | None) -> Arrays:
    """Read a PyG dataset from its raw files, or from the file `otherwise` where those are missing; download last."""
    raw: list[str] = []
    _construct(name, root, _download=lambda self: raw.extend(self.raw_paths), _process=_skip, load=_skip)
    missing = [path for path in raw if not os.path.exists(path)]
    if missing and otherwise is not None:
        return _read_npz(otherwise)
    if missing:
        _download(name, root, missing=missing)
    stamps = [f"{path}:{os.stat(path).st_size}:{os.stat(path).st_mtime_ns}" for path in raw]
    key = content_hash("1", *stamps)
    return _unify(cached(f"{name}-{key}", lambda: _process(name, root, raw=raw)), others=[], origin=name)


def _pyg_class(name: str) -> Any:
    """Import PyG's datasets, late: only their names need it."""
    import torch_geometric.datasets

    return getattr(torch_geometric.datasets, PYG[name][0])


def _construct(name: str, root: Path, **overrides: Any) -> Any:
    """Make an instance of the PyG class of `name` with some of its attributes replaced."""
    class_name, argument = PYG[name]
    options = {"is_undirected": True} if class_name == "WikiCS" else {}
    made = type(class_name, (_pyg_class(name),), overrides)
    return made(str(root / class_name), **options) if argument is None else made(str(root), argument)


def _skip(self: Any, *_: Any) -> None:
    """Do nothing, in place of a step of a PyG dataset."""


def _download(name: str, root: Path, *, missing: list[str]) -> None:
    """Let PyG download; say what is missing where it cannot, and leave no half file."""
    timeout = socket.getdefaulttimeout()
    try:
        _probe(getattr(_pyg_class(name), "url", "https://drive.usercontent.google.com"))
        socket.setdefaulttimeout(SECONDS)
        _construct(name, root, _process=_skip, load=_skip)
    except Exception as error:
        for path in missing:
            Path(path).unlink(missing_ok=True)
        raise FileNotFoundError(
            f"Expected the raw files of {name} at {', '.join(missing)} (got no files there, and the download failed: "
            f"{type(error).__name__}: {error}); put them there, or name another folder with 'root'."
        ) from error
    finally:
        socket.setdefaulttimeout(timeout)


def _probe(url: str) -> None:
    """Raise OSError when a server does not answer within a few seconds: PyG itself would wait for minutes."""
    try:
        urllib.request.urlopen(url, timeout=SECONDS).close()
    except urllib.error.HTTPError:
        return  # an answer, if only about this address


def _process(name: str, root: Path, *, raw: list[str]) -> Arrays:
    """Let PyG read its raw files, with a temporary folder for what it writes; sparse features are stored sparse."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations inside PyG's readers
        try:
            data = _construct(
                name,
                root,
                _download=_skip,
                processed_dir=property(lambda self: folder),
                log=property(lambda self: False, _skip),
            )[0]
        except Exception as error:
            raise ValueError(
                f"Expected {', '.join(raw)} to be the raw files of {name} (got {type(error).__name__}: {error}); "
                "fetch them again."
            ) from error
    arrays = {key: value.numpy() for key, value in data.to_dict().items() if key in LAYOUT}
    if np.count_nonzero(arrays["x"]) < 0.1 * arrays["x"].size:
        matrix = scipy.sparse.csr_array(arrays.pop("x"))
        arrays |= dict(zip(CSR, (matrix.data, matrix.indices, matrix.indptr, np.array(matrix.shape)), strict=True))
    return arrays
