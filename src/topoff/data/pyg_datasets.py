"""Read PyG's datasets from their raw files, downloaded where there is a network; nothing is written beside them.

PyG's own readers of text, JSON and plain arrays are used; where they would unpickle, ours are (data/planetoid).
"""

import socket
import tempfile
import urllib.error
import urllib.request
import warnings
from pathlib import Path
from typing import Any

from topoff.data.archive import Pickled, check_array_file
from topoff.data.layout import LAYOUT
from topoff.data.npz import stored_features, unify
from topoff.data.planetoid import read_karate, read_planetoid
from topoff.data.published import URLS, check_count, check_labels
from topoff.machine.cache import Arrays, cached, content_hash

SECONDS = 10.0  # without an answer, after which a server counts as out of reach

KARATE = ("DeezerEurope", "GitHub", "FacebookPagePage", "LastFMAsia")  # one .npz file, which PyG lets unpickle
CLASSES = {  # of PyG, and the names that they take
    "Planetoid": ("Cora", "CiteSeer", "PubMed"),
    "Amazon": ("Computers", "Photo"),
    "Coauthor": ("CS", "Physics"),
    "WebKB": ("Cornell", "Texas", "Wisconsin"),
    "WikipediaNetwork": ("Chameleon", "Squirrel"),
    "HeterophilousGraphDataset": ("Roman-empire", "Amazon-ratings", "Minesweeper", "Tolokers", "Questions"),
}
UNNAMED = (  # classes that take no name, and whose folder is root/<class>
    *("Actor", "WikiCS", *KARATE),
)
# Name -> class, and the name that it takes
PYG: dict[str, tuple[str, str | None]] = {name: (kind, name) for kind, names in CLASSES.items() for name in names}
PYG |= {name: (name, None) for name in UNNAMED}


def raw_files(name: str, root: Path) -> list[Path]:
    """Return where the raw files of a dataset are, or would be."""
    raw: list[str] = []
    _construct(name, root, _download=lambda self: raw.extend(self.raw_paths), _process=_skip, load=_skip)
    return [Path(path) for path in raw]


def missing_files(name: str, root: Path) -> list[Path]:
    """Return the raw files of a dataset that are not there."""
    return [path for path in raw_files(name, root) if not path.exists()]


def read_pyg(name: str, root: Path, *, trust: bool = False) -> Arrays:
    """Read a PyG dataset from its raw files, which are downloaded where they are missing.

    Without `trust` nothing in them is run: see `_read_raw`. Files that PyG has processed are never read. What was read
    is compared with the published counts.
    """
    missing = missing_files(name, root)
    if missing:
        _download(name, root, missing=missing)
    raw = raw_files(name, root)
    key = content_hash("2", *(f"{path}:{path.stat().st_size}:{path.stat().st_mtime_ns}" for path in raw))
    arrays = cached(f"{name}-{key}", lambda: _read_raw(name, root, raw=raw, trust=trust))
    arrays = unify(arrays, others=[], origin=name)
    check_labels(name, arrays["y"], arrays)
    check_count(name, "features", arrays["x"].shape[1])
    check_count(name, "edges", arrays["edge_index"].shape[1])
    return arrays


def _read_raw(name: str, root: Path, *, raw: list[Path], trust: bool) -> Arrays:
    """Read raw files by our own readers where PyG's would unpickle; sparse features are stored sparse.

    Raises:
        ValueError: a file is damaged, or only unpickling could read it and `trust` is not given.
    """
    kind = PYG[name][0]
    try:
        if kind == "Planetoid":
            arrays = read_planetoid(raw[0].parent, name.lower())
        elif kind in KARATE:
            arrays = read_karate(raw[0])
        else:
            return _process(name, root, raw=raw)
    except Pickled as error:
        if trust:
            return _process(name, root, raw=raw)
        raise ValueError(
            f"{str(error).partition(';')[0]}; unpickling runs whatever code a file holds: fetch it again from "
            f"where {name} is published, or, if you trust this one, give --trust (load(..., trust=True))."
        ) from error
    return arrays | stored_features(arrays.pop("x"))


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


def _download(name: str, root: Path, *, missing: list[Path]) -> None:
    """Let PyG download; say what is missing where it cannot, and leave no half file."""
    timeout = socket.getdefaulttimeout()
    try:
        _probe(getattr(_pyg_class(name), "url", "https://drive.usercontent.google.com"))
        socket.setdefaulttimeout(SECONDS)
        _construct(name, root, _process=_skip, load=_skip)
    except Exception as error:
        for path in missing:
            path.unlink(missing_ok=True)
        places, published = ", ".join(map(str, missing)), f", from {URLS[name]}" if name in URLS else ""
        raise FileNotFoundError(
            f"Expected the raw files of {name} at {places} (got no files there, and the download failed: "
            f"{type(error).__name__}: {error}); put them there{published}, or name another folder with 'root'."
        ) from error
    finally:
        socket.setdefaulttimeout(timeout)


def _probe(url: str) -> None:
    """Raise OSError when a server does not answer within a few seconds: PyG itself would wait for minutes."""
    try:
        urllib.request.urlopen(url, timeout=SECONDS).close()
    except urllib.error.HTTPError:
        return  # an answer, if only about this address


def _process(name: str, root: Path, *, raw: list[Path]) -> Arrays:
    """Let PyG read its raw files, with a temporary folder for what it writes; sparse features are stored sparse."""
    for path in raw:
        if path.suffix in (".npz", ".npy"):
            check_array_file(path, expected=f"{path} to be the raw files of {name}")
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations inside PyG's readers
        try:
            silent, written = property(lambda self: False, _skip), property(lambda self: folder)
            data = _construct(name, root, _download=_skip, processed_dir=written, log=silent)[0]
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            raise ValueError(
                f"Expected {', '.join(map(str, raw))} to be the raw files of {name} (got {reason}); fetch them again."
            ) from error
    arrays = {key: value.numpy() for key, value in data.to_dict().items() if key in LAYOUT}
    return arrays | stored_features(arrays.pop("x"))
