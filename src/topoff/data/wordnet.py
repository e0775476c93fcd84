"""Read the graph that ships with the package: WordNet's synsets, their relations and the words of their glosses."""

import importlib.resources
from typing import Any

import numpy as np
import scipy.sparse
import torch

from topoff.data.layout import CSR, LAYOUT
from topoff.data.npz import unify
from topoff.machine.cache import Arrays, cached, content_hash

DIMENSIONS = 128  # of the features


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
