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
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from topoff.machine.user_code import place_of, told, user_code
from topoff.models.decoupled import SGC, SIGN
from topoff.models.networks import GAT, GCN, GCNII, PNA, ClusterGCN, GraphSAGE, LinearGNN
from topoff.models.stack import Network, Sized

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
_DECIDED: dict[str, dict[str, Any]] = {"gcnii-jk": {"jk": True}}  # options that a name decides
_FROM_GRAPH = {"in_channels", "out_channels", "deg"}  # arguments that are no settings
_SETTING_OF = {"hidden_channels": "hidden", "num_layers": "layers", "deg": "degrees"}  # arguments of another name
_LISTS = ("aggregators", "scalers")  # comma-separated in the settings


def make_model(
    name: str, *, in_channels: int, out_channels: int, degrees: Tensor | None = None, **settings: Any
) -> nn.Module:
    """Make a model by its name, one of `MODELS`, or the user's own class, "module:Class".

    Its constructor says what it takes: every argument is filled from the setting of its name (`hidden_channels`,
    `num_layers` and `deg` from hidden, layers and degrees) and keeps its own default where that is None or absent. A
    class of the user's is also looked for in the current directory, and takes `norm` and `jk` only where its own
    defaults are of the same type: PyG's models mean something else by them.

    Raises:
        TypeError: for a setting that no model has.
        ValueError: for an unknown name, a class that cannot be imported or is no module, or one that needs more
            arguments than there are.

    >>> make_model("torch_geometric.nn:GCN", in_channels=8, hidden=16, out_channels=3, layers=2)
    GCN(8, 3, num_layers=2)
    """
    for key in settings.keys() - OPTIONS:
        raise TypeError(f"Expected settings of models: {', '.join(sorted(OPTIONS))} (got '{key}').")
    kind = _KINDS[name] if name in _KINDS else _import_class(name)
    settings |= {"in_channels": in_channels, "out_channels": out_channels, "degrees": degrees, **_DECIDED.get(name, {})}
    given: dict[str, Any] = {}
    with user_code(f"the constructor of {name} to say what it takes", remedy="define __init__ with named arguments"):
        arguments = _arguments_of(kind)
    for key, parameter in arguments.items():
        value = settings.get(_SETTING_OF.get(key, key))
        if value is not None and (issubclass(kind, Network) or not _means_something_else(parameter, value)):
            listed = key in _LISTS and isinstance(value, str)
            given[key] = [item.strip() for item in value.split(",")] if listed else value
        elif key == "deg" and kind is PNA:
            raise ValueError(
                "Expected degrees to be the histogram of the graph's in-degrees for model 'pna' (got None); pass "
                "degree_histogram(edge_index, num_nodes)."
            )
        elif parameter.default is parameter.empty:
            raise ValueError(
                f"Expected the constructor of {name} to need only arguments such as in_channels, hidden_channels, "
                f"out_channels and num_layers (got '{key}'); give that one a default."
            )
    with user_code(f"the constructor of {name} to build a model from the settings", remedy="correct it, or them"):
        model = kind(**given)
    if not isinstance(model, nn.Module):
        raise ValueError(f"Expected {name} to make a torch.nn.Module (got {_named(model)}); correct its __new__.")
    return model


def options_of(name: str) -> frozenset[str]:
    """Return the settings that one of `MODELS` reads.

    >>> sorted(options_of("sgc")), "heads" in options_of("gat")
    (['layers'], True)
    """
    keys = _arguments_of(_KINDS[name]).keys() - _FROM_GRAPH - _DECIDED.get(name, {}).keys()
    return frozenset(_SETTING_OF.get(key, key) for key in keys)


def _arguments_of(kind: type[nn.Module]) -> dict[str, inspect.Parameter]:
    """Return the named arguments of a class's constructor, and of our own those that it hands on to its base."""
    found: dict[str, inspect.Parameter] = {}
    for base in [base for base in kind.__mro__ if issubclass(base, Sized) or base is kind]:
        own = inspect.signature(base).parameters
        named = {key: one for key, one in own.items() if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)}
        found = {**named, **found}
        if len(named) == len(own):
            break
    decided = kind.fixed if issubclass(kind, Sized) else {}
    return {key: value for key, value in found.items() if key not in decided}


def _means_something_else(parameter: inspect.Parameter, value: Any) -> bool:
    """Whether an argument of a foreign class has only the name in common with our setting."""
    known = parameter.name in ("norm", "jk") and parameter.default is not parameter.empty
    return known and type(parameter.default) is not type(value)


def _import_class(name: str) -> type[nn.Module]:
    """Import the class that "module:Class" names, also from the current directory."""
    module_name, _, class_name = name.partition(":")
    if not class_name or not all(part.isidentifier() for part in module_name.split(".")):
        near = difflib.get_close_matches(name, MODELS, n=1, cutoff=0.4)
        hint = f"did you mean '{near[0]}'?" if near else "models of your own are 'module:Class'."
        raise ValueError(f"Expected model to be one of {', '.join(MODELS)} or 'module:Class' (got '{name}'); {hint}")
    module = _import_module(module_name, name=name)
    with user_code(f"'{class_name}' in {module_name} to be a class", remedy="correct the name after the colon"):
        kind = getattr(module, class_name, None)
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        got = "no such name" if kind is None else _named(kind)
        raise ValueError(
            f"Expected '{class_name}' in {module_name} to be a subclass of torch.nn.Module (got {got}); correct the "
            f"name after the colon."
        )
    return kind


def _import_module(module_name: str, *, name: str) -> ModuleType:
    """Import a module of the user's; whatever it raises is one sentence, with its file and line."""
    folder = os.getcwd()
    sys.path.insert(0, folder)
    importlib.invalidate_caches()  # the file may be newer than the last look into the folder
    expected = f"model '{name}' to name a module that can be imported"
    try:
        with user_code(expected, remedy="correct it there"):
            return importlib.import_module(module_name)
    except ValueError as error:
        missing = error.__cause__
        if isinstance(missing, ModuleNotFoundError):
            place = place_of(missing)
            got = f"{missing}, in {place}" if place else f"{missing}"
            raise ValueError(f"Expected {expected} (got: {got}); run in its folder or install it.") from error
        if isinstance(missing, SyntaxError) and place_of(missing) is None:  # NUL bytes, an unknown encoding
            file = module_name.replace(".", os.sep) + ".py"
            raise ValueError(f"Expected {expected} (got {file}: {told(missing)}); correct it there.") from error
        raise
    finally:
        if folder in sys.path:  # the module may have changed it
            sys.path.remove(folder)


def _named(value: object) -> str:
    """Name what came instead of a class."""
    try:
        return f"{value!r:.80}"
    except Exception:  # of an object that is not whole
        return f"an object of type {type(value).__name__}"


OPTIONS = frozenset[str]().union(*map(options_of, MODELS))  # the settings that some model reads
