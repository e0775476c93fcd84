"""Build a model by its name, or the user's own class from "module:Class".

>>> make_model("gcnii", in_channels=8, hidden=16, out_channels=3, layers=4, alpha=0.2)
GCNII(8, 16, 3, num_layers=4)
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor, nn

from topoff.models.decoupled import SGC, SIGN
from topoff.models.networks import GAT, GCN, GCNII, PNA, ClusterGCN, GraphSAGE, LinearGNN, Network

_KINDS: dict[str, type[nn.Module]] = {
    "gcn": GCN,
    "gcnii": GCNII,
    "gcnii-jk": GCNII,
    "sage": GraphSAGE,
    "gat": GAT,
    "pna": PNA,
    "linear": LinearGNN,
    "cluster-gcn": ClusterGCN,
    "sgc": SGC,
    "sign": SIGN,
}
MODELS = tuple(_KINDS)


def make_model(
    name: str,
    *,
    in_channels: int,
    hidden: int,
    out_channels: int,
    layers: int | None = None,
    dropout: float | None = None,
    input_dropout: float | None = None,
    norm: str | bool | None = None,
    residual: bool | None = None,
    jk: bool | None = None,
    linear: bool | None = None,
    heads: int | None = None,
    out_heads: int | None = None,
    alpha: float | None = None,
    theta: float | None = None,
    shared_weights: bool | None = None,
    aggregators: Sequence[str] | None = None,
    scalers: Sequence[str] | None = None,
    degrees: Tensor | None = None,
    diag_lambda: float | None = None,
) -> nn.Module:
    """Make a model by its name, one of `MODELS`, or the user's own class, "module:Class".

    A model takes the options that it has, under the names of its constructor (`hidden_channels`, `num_layers` and `deg`
    for hidden, layers and degrees), and its own default for those that are None. A class of the user's is looked for in
    the current directory, too, and takes `norm` and `jk` only where its own defaults are of the same type: PyG's models
    mean something else by them.

    Raises:
        ValueError: for an unknown name, a class that cannot be imported or is no module, or one that needs more
            arguments than there are.

    >>> make_model("torch_geometric.nn:GCN", in_channels=8, hidden=16, out_channels=3, layers=2)
    GCN(8, 3, num_layers=2)
    """
    offered = {"hidden_channels": hidden, "num_layers": layers, "deg": degrees, **locals(), "name": None}
    given = {key: value for key, value in offered.items() if value is not None}
    if name == "gcnii-jk":
        given["jk"] = True
    kind = _KINDS[name] if name in _KINDS else _import_class(name)
    accepted = _parameters_of(kind)
    if not issubclass(kind, Network):
        for key in {"norm", "jk"} & given.keys() & accepted.keys():
            default = accepted[key].default
            if default is not inspect.Parameter.empty and type(default) is not type(given[key]):
                del given[key]
    if kind is PNA and degrees is None:
        raise ValueError(
            "Expected degrees to be the histogram of the graph's in-degrees for model 'pna' (got None); pass "
            "degree_histogram(edge_index, num_nodes)."
        )
    missing = [key for key, parameter in accepted.items() if parameter.default is parameter.empty and key not in given]
    if missing:
        raise ValueError(
            f"Expected the constructor of {name} to need only arguments such as in_channels, hidden_channels, "
            f"out_channels and num_layers (got '{missing[0]}'); give that one a default."
        )
    return kind(**{key: given[key] for key in accepted if key in given})


def _parameters_of(kind: type[nn.Module]) -> dict[str, inspect.Parameter]:
    """Return the named parameters of a class's constructor, and those that our own models hand on to `Network`."""
    own = dict(inspect.signature(kind).parameters)
    named = {key: value for key, value in own.items() if value.kind not in (value.VAR_POSITIONAL, value.VAR_KEYWORD)}
    if issubclass(kind, Network) and len(named) < len(own):
        named = {**inspect.signature(Network).parameters, **named}
    if issubclass(kind, GCNII):
        named.pop("linear", None)  # always True
    return named


def _import_class(name: str) -> type[nn.Module]:
    """Import the class that "module:Class" names, also from the current directory."""
    module_name, _, class_name = name.partition(":")
    if not class_name or not all(part.isidentifier() for part in module_name.split(".")):
        near = difflib.get_close_matches(name, MODELS, n=1, cutoff=0.4)
        hint = f"did you mean '{near[0]}'?" if near else "models of your own are 'module:Class'."
        raise ValueError(f"Expected model to be one of {', '.join(MODELS)} or 'module:Class' (got '{name}'); {hint}")
    try:
        with _current_directory_importable():
            module = importlib.import_module(module_name)
    except ImportError as error:
        raise ValueError(
            f"Expected model '{name}' to name a module that can be imported (got: {error}); run in its folder or "
            f"install it."
        ) from error
    kind = getattr(module, class_name, None)
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        got = "no such name" if kind is None else f"{kind!r:.80}"
        raise ValueError(
            f"Expected '{class_name}' in {module_name} to be a subclass of torch.nn.Module (got {got}); correct the "
            f"name after the colon."
        )
    return kind


@contextmanager
def _current_directory_importable() -> Iterator[None]:
    """Let modules of the current directory be found, as for a script that is run there."""
    folder = os.getcwd()
    sys.path.insert(0, folder)
    importlib.invalidate_caches()  # the file may be newer than the last look into the folder
    try:
        yield
    finally:
        sys.path.remove(folder)
