"""Read .npz files of any known layout, the embedded WordNet among them, into one set of arrays; x may be sparse."""

import importlib.resources
import math
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import torch

from topoff.data.archive import check_memory, read_archive
from topoff.data.layout import CSR, LAYOUT, MASKS, NAMES
from topoff.data.refusal import refuse
from topoff.machine.cache import Arrays, cached, content_hash

BENCHMARK = {  # the layout of the heterophilous benchmark -> ours; its masks are (splits, nodes)
    "edges": "edge_index",
    "node_features": "x",
    "node_labels": "y",
    **{f"{name}s": name for name in MASKS},
}
DIMENSIONS = 128  # of the embedded graph's features
MOST_NODES = 2**31  # so that the number of a pair of nodes is an int64
SPARSE = 0.1  # share of non-zero entries below which features are stored as CSR


def read_npz(path: Path, *, labels: bool = True) -> Arrays:
    """Read the known keys of an .npz file, never unpickling, and bring them into one layout."""
    found = read_archive(path, wanted=(*LAYOUT, *BENCHMARK))
    return unify(found.arrays, others=found.others, origin=str(path), labels=labels)


def unify(arrays: Arrays, *, others: list[str], origin: str, labels: bool = True) -> Arrays:
    """Bring any of the layouts into x, edge_index, y, masks, edge_weight, edge_attr, with dtypes that torch has."""
    _check_one_of_each(arrays, origin=origin)
    benchmark = "edges" in arrays
    if benchmark:
        arrays = {BENCHMARK[name]: _transpose(name, array) for name, array in arrays.items() if name in BENCHMARK}
    features = CSR if any(name in arrays for name in CSR) else ("x",)
    wanted = ("edge_index", *(("y",) if labels else ()), *features)
    missing = [name for name in wanted if name not in arrays]
    if missing:
        got = f"no {', '.join(missing)}, but {', '.join([*arrays, *others]) or 'nothing'}"
        refuse(f"{origin} to have the keys edge_index, y and x or {', '.join(CSR)}", got, "add the missing ones")
    if "x" not in arrays:
        arrays["x"] = densify(*(arrays[name] for name in CSR), origin=origin)
    if "split" in arrays:
        arrays.update(_masks_from_codes(arrays["split"], origin=origin))
    kept = [name for name in LAYOUT if name in arrays and name not in (*CSR, "split")]
    out = {name: _native(name, arrays[name], origin=origin) for name in kept}
    return {**out, "edge_index": _symmetrized(out["edge_index"])} if benchmark else out


def _check_one_of_each(arrays: Arrays, *, origin: str) -> None:
    """Refuse what is given twice, in two forms: which of them counts is not for us to say."""
    forms = {
        "split": (("split",), MASKS),
        "features": (("x",), CSR),
        "layout": (("edge_index", "x", *CSR, "y"), ("edges", "node_features", "node_labels")),
    }
    for what, both in forms.items():
        first, second = ([name for name in names if name in arrays] for names in both)
        if first and second:
            got = f"both {', '.join(first)} and {', '.join(second)}"
            refuse(
                f"{origin} to have one {what}".replace("one features", "its features once"), got, "delete one of them"
            )


def _transpose(name: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Turn the benchmark's rows of edges and of masks into columns."""
    pairs = name == "edges" and array.ndim == 2 and array.shape[1] == 2
    return array.T if pairs or (name.endswith("_masks") and array.ndim == 2) else array


def _symmetrized(edges: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Add the reverse of every edge and drop duplicates, as PyG's to_undirected; leave malformed ones to the check."""
    if edges.ndim != 2 or edges.shape[0] != 2 or edges.dtype.kind != "i" or edges.size == 0 or edges.min() < 0:
        return edges
    n = edges.max() + 1
    if n > MOST_NODES:  # no graph has as many: the check will say so
        return edges
    return np.stack(np.divmod(np.unique(np.concatenate([edges[0] * n + edges[1], edges[1] * n + edges[0]])), n))


def densify(*parts: np.ndarray[Any, Any], origin: str) -> np.ndarray[Any, Any]:
    """Make x (n, d) of its CSR parts data, indices, indptr, shape; float64 stays, all else becomes float32.

    Raises ValueError for parts that are no matrix, and for one that does not fit into memory.
    """
    data, indices, indptr, shape = parts
    expected = f"{', '.join(CSR)} in {origin} to be one CSR matrix"
    remedy = "store the four attributes of a scipy.sparse.csr_matrix"
    if shape.shape != (2,) or shape.dtype.kind not in "iu" or data.dtype.kind not in "biuf":
        got = f"x_shape {shape.tolist()!r:.60} and x_data of {data.dtype}"
        refuse(expected, got, remedy)
    kept = data if data.dtype == np.float64 else _narrowed(data.astype(np.float64), origin=f"x_data in {origin}")
    try:
        matrix = scipy.sparse.csr_array((kept, indices, indptr), shape=tuple(shape.tolist()))
        matrix.check_format(full_check=True)
    except (ValueError, TypeError, IndexError, OverflowError, MemoryError) as error:
        got = f"shapes {[part.shape for part in parts[:3]]} for {shape.tolist()}, or indices out of order"
        raise ValueError(f"Expected {expected} (got {got}); {remedy}.") from error
    check_memory(math.prod(matrix.shape) * kept.itemsize, what=f"the features in {origin}, {matrix.shape},")
    return np.asarray(matrix.toarray())


def _narrowed(values: np.ndarray[Any, Any], *, origin: str) -> np.ndarray[Any, Any]:
    """Return numbers as float32; refuse those that would become infinite."""
    with np.errstate(over="ignore"):
        narrow = values.astype(np.float32)
    if not np.array_equal(np.isfinite(values), np.isfinite(narrow)):
        got = f"{float(np.nanmax(np.abs(values[np.isfinite(values)]))):.3g}"
        refuse(f"{origin} to be within the range of float32", got, "scale it, or store it as float64")
    return narrow


def _masks_from_codes(codes: np.ndarray[Any, Any], *, origin: str) -> Arrays:
    """Turn 0 (train), 1 (validation), 2 (test), -1 (none) into masks."""
    if codes.dtype.kind not in "iu" or not np.isin(codes, (-1, 0, 1, 2)).all():
        ranged = codes.dtype.kind in "iuf" and codes.size
        got = f"{codes.dtype} from {codes.min()} to {codes.max()}" if ranged else str(codes.dtype)
        expected = f"'split' in {origin} to hold the integers 0 (train), 1 (validation), 2 (test), -1 (none)"
        refuse(expected, got, "recode it")
    return {name: codes == code for code, name in enumerate(MASKS)}


def _native(name: str, array: np.ndarray[Any, Any], *, origin: str) -> np.ndarray[Any, Any]:
    """Give an array a dtype that torch has: features and weights keep their precision, integers become int64."""
    kind, said = array.dtype.kind, f"'{name}' in {origin}"
    if name in NAMES:
        if kind not in ("Uiu" if name == "node_ids" else "U"):
            kinds = "plain strings or integers" if name == "node_ids" else "plain strings"
            refuse(f"{said} to hold {kinds}", f"dtype {array.dtype}", "convert it by astype(str)")
        return array
    if name in MASKS and kind != "b":
        refuse(f"{said} to hold True and False", f"dtype {array.dtype}", "convert it by astype(bool)")
    if kind not in "biuf":
        refuse(f"{said} to hold numbers", f"dtype {array.dtype}", "encode it as numbers")
    if kind in "iu" and name == "x":
        return np.asarray(array, dtype=np.float32, order="C")
    if kind in "iu":
        if kind == "u" and array.size and array.max() > np.iinfo(np.int64).max:
            refuse(f"{said} to hold integers below 2^63", str(array.max()), "renumber them from 0")
        return np.asarray(array, dtype=np.int64, order="C")
    if kind == "f" and array.dtype.itemsize > 8:
        with np.errstate(over="ignore"):
            return np.asarray(array, dtype=np.float64, order="C")
    return np.asarray(array, dtype=array.dtype.newbyteorder("="), order="C")


def stored_features(x: np.ndarray[Any, Any]) -> Arrays:
    """Return the arrays that store features (n, d): x itself, or its CSR parts where most entries are zero.

    >>> list(stored_features(np.eye(20)))
    ['x_data', 'x_indices', 'x_indptr', 'x_shape']
    """
    if np.count_nonzero(x) >= SPARSE * x.size:
        return {"x": x}
    matrix = scipy.sparse.csr_array(x)
    return dict(zip(CSR, (matrix.data, matrix.indices, matrix.indptr, np.array(matrix.shape)), strict=True))


# ---- the graph that ships with the package: WordNet's synsets, their relations and the words of their glosses


def read_wordnet() -> Arrays:
    """Read the embedded WordNet graph, its 2,000 gloss words reduced to 128 dimensions (computed once, then cached)."""
    file = importlib.resources.files("topoff.data") / "datasets" / "wordnet.npz"
    with file.open("rb") as handle, np.load(handle, allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files if name in LAYOUT}
    words = [arrays.pop(name) for name in CSR]
    key = content_hash(f"idf, unit rows, SVD to {DIMENSIONS}, unit mean square, 1", *words[1:])
    matrix = scipy.sparse.csr_array((words[0].astype(np.float64), *words[1:3]), shape=tuple(words[3].tolist()))
    arrays["x"] = cached(f"wordnet-x-{key}", lambda: {"x": _reduce_words(matrix)})["x"]
    return unify(arrays, others=[], origin="wordnet")


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
