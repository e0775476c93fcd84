"""Read PyG's datasets from their raw files, downloaded where there is a network; nothing is written beside them."""

import os
import socket
import tempfile
import urllib.error
import urllib.request
import warnings
from pathlib import Path
from typing import Any

from topoff.data.layout import LAYOUT
from topoff.data.npz import read_npz, stored_features, unify
from topoff.machine.cache import Arrays, cached, content_hash

SECONDS = 10.0  # without an answer, after which a server counts as out of reach

CLASSES = {  # of PyG, and the names that they take
    "Planetoid": ("Cora", "CiteSeer", "PubMed"),
    "Amazon": ("Computers", "Photo"),
    "Coauthor": ("CS", "Physics"),
    "WebKB": ("Cornell", "Texas", "Wisconsin"),
    "WikipediaNetwork": ("Chameleon", "Squirrel"),
    "HeterophilousGraphDataset": ("Roman-empire", "Amazon-ratings", "Minesweeper", "Tolokers", "Questions"),
}
UNNAMED = (  # classes that take no name, and whose folder is root/<class>
    *("Reddit", "Reddit2", "Flickr", "Yelp", "AmazonProducts", "Actor", "WikiCS"),
    *("DeezerEurope", "GitHub", "FacebookPagePage", "LastFMAsia"),
)
# Name -> class, and the name that it takes
PYG: dict[str, tuple[str, str | None]] = {name: (kind, name) for kind, names in CLASSES.items() for name in names}
PYG |= {name: (name, None) for name in UNNAMED}


def read_pyg(name: str, root: Path, *, otherwise: Path | None) -> Arrays:
    """Read a PyG dataset from its raw files, or from the file `otherwise` where those are missing; download last."""
    raw: list[str] = []
    _construct(name, root, _download=lambda self: raw.extend(self.raw_paths), _process=_skip, load=_skip)
    missing = [path for path in raw if not os.path.exists(path)]
    if missing and otherwise is not None:
        return read_npz(otherwise)
    if missing:
        _download(name, root, missing=missing)
    key = content_hash("1", *(f"{path}:{os.stat(path).st_size}:{os.stat(path).st_mtime_ns}" for path in raw))
    return unify(cached(f"{name}-{key}", lambda: _process(name, root, raw=raw)), others=[], origin=name)


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
            silent, written = property(lambda self: False, _skip), property(lambda self: folder)
            data = _construct(name, root, _download=_skip, processed_dir=written, log=silent)[0]
        except Exception as error:
            raise ValueError(
                f"Expected {', '.join(raw)} to be the raw files of {name} (got {type(error).__name__}: {error}); "
                "fetch them again."
            ) from error
    arrays = {key: value.numpy() for key, value in data.to_dict().items() if key in LAYOUT}
    return arrays | stored_features(arrays.pop("x"))
