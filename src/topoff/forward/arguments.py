"""What a model is called with: its arguments, filled by name from the graph, by one rule.

- An argument without a default gets the attribute of the graph with its name; an optional one (`pe=None`) too, where
  the graph has a tensor of that name. Defaults other than None stay.
- `edge_weight` gets a one-dimensional `edge_attr`, where PyG's transforms (GDC) keep weights, if the graph has no
  `edge_weight` and the model no use for `edge_attr`.
- A model whose one argument without a default is no attribute of the graph gets the batch itself.
- PyG's own models are given only the edge values that they say they use.
- `forward(*args, **kwargs)` has the arguments of the module that it wraps.

Where an optional argument stays open and an attribute that nobody takes could be meant by it, the user is asked.

>>> import torch
>>> from torch_geometric.nn import GAT, GCN
>>> edges = torch.tensor([[0, 1], [1, 0]])
>>> data = Data(x=torch.ones(2, 3), edge_index=edges, edge_attr=torch.tensor([0.5, 2.0]))
>>> print(settle(GCN(3, 4, num_layers=1), data).line)
calling model(x=data.x, edge_index=data.edge_index, edge_weight=data.edge_attr)
>>> print(settle(GAT(3, 4, num_layers=1), data).line)
calling model(x=data.x, edge_index=data.edge_index); data.edge_attr is not used
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from inspect import Parameter
from typing import NoReturn

import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import MessagePassing
from torch_geometric.nn.models.basic_gnn import BasicGNN

BATCH = ""  # instead of an attribute's name: the batch itself
GRAPH = ("x", "edge_index", "edge_weight", "edge_attr")  # a single argument of such a name is not the batch
WRAPPED = ("_orig_mod", "module", "encoder", "model")  # where wrappers keep the module that they call
# Options that are not about the user's attributes (how a batch was sampled, what to return), and attributes that no
# option means unless it has their name: indices.
OWN = re.compile(r"batch|batch_size|ptr|sizes?|num_\w+|return_\w+|(\w+_)?(ids?|idx|index)")
LABELS = re.compile(r"y|(\w+_)?masks?")  # not handed to a model unless it demands them


@dataclass(frozen=True)
class Arguments:
    """Hold what a model is called with."""

    given: Mapping[str, str]  # by argument, the attribute of the batch; `BATCH` for the batch itself
    by_position: bool = False  # the batch itself, and where a wrapper takes no keywords
    unused: tuple[str, ...] = ()  # edge-level attributes of the graph that are given to nobody

    def __str__(self) -> str:
        """Return the call as text, such as "model(x=data.x, edge_index=data.edge_index)"."""
        values = {name: f"data.{key}" if key else "data" for name, key in self.given.items()}
        return f"model({', '.join(value if self.by_position else f'{name}={value}' for name, value in values.items())})"

    @property
    def line(self) -> str:
        """Say how the model is called, and which edge values are left out."""
        return "; ".join([f"calling {self}", *(f"data.{key} is not used" for key in self.unused)])


@dataclass(frozen=True)
class Signature:
    """Hold the arguments that a model takes."""

    module: nn.Module  # the one that they belong to, perhaps inside a wrapper
    parameters: tuple[Parameter, ...]
    by_position: bool = False

    @property
    def required(self) -> list[str]:
        """The arguments without a default."""
        return [parameter.name for parameter in self.parameters if parameter.default is Parameter.empty]

    @property
    def optional(self) -> list[Parameter]:
        """The arguments that wait for a value: those whose default is None."""
        return [parameter for parameter in self.parameters if parameter.default is None]


def settle(model: nn.Module, data: Data) -> Arguments:
    """Return what a model is called with on batches of a graph, once and for all.

    Raises:
        ValueError: where an argument cannot be filled, or an attribute could be meant by an argument that stays open;
            `call=lambda model, batch: ...` says how it is meant.
    """
    signature = signature_of(model)
    found = fill(signature, data)
    taken = set(found.given.values())
    if BATCH in taken:
        return found
    for option in signature.optional:
        if option.name not in found.given:
            _ask(signature.module, option, data, taken=taken)
    edge_level = [key for key in data.to_dict() if _has(data, key) and data.is_edge_attr(key)]
    return replace(found, unused=tuple(key for key in edge_level if key not in taken | {"edge_index"}))


def call_text(model: nn.Module, data: Data, call: object = None) -> str:
    """Return how a model is called, for a sentence: "model(x=data.x, ...)", or the user's own "call(model, data)"."""
    return str(fill(signature_of(model), data)) if call is None else "call(model, data)"


def fill(signature: Signature, batch: Data) -> Arguments:
    """Return what a model is called with on a batch, or on the whole graph; nothing is asked.

    Raises:
        ValueError: where an argument without a default is not there.
    """
    required, name = signature.required, type(signature.module).__name__
    if len(required) == 1 and _is_batch(signature, batch):
        return Arguments({required[0]: BATCH}, by_position=True)
    unsupported, given = _unsupported(signature.module), {}
    takes_attr = any(parameter.name == "edge_attr" for parameter in signature.parameters)
    for parameter in signature.parameters:
        key = parameter.name
        if key == "edge_weight" and key not in batch and _are_weights(batch):
            key = key if takes_attr and "edge_attr" not in unsupported else "edge_attr"
        if parameter.name in required and key not in batch:
            raise ValueError(
                f"Expected the graph to have '{key}', an argument of {name}.forward (got "
                f"{', '.join(sorted(batch.keys()))}): add it to the Data, give it a default there, or give "
                f"call=lambda model, batch: ..."
            )
        waits = parameter.default is None and parameter.name not in unsupported
        mine = key not in GRAPH and (OWN.fullmatch(key) or LABELS.fullmatch(key))
        if parameter.name in required or (waits and not mine and _has(batch, key)):
            given[parameter.name] = key
    if signature.by_position and list(given) != [parameter.name for parameter in signature.parameters][: len(given)]:
        _refuse_wrapper(signature.module, f"a wrapper's forward(*args), which cannot pass {', '.join(given)} by name")
    return Arguments(given, signature.by_position)


def signature_of(model: nn.Module) -> Signature:
    """Return the arguments of a model; of a wrapper with `*args, **kwargs`, those of the module inside.

    Raises:
        ValueError: where that module cannot be told.

    >>> from torch.optim.swa_utils import AveragedModel
    >>> signature_of(AveragedModel(gnn.GCNConv(2, 2))).required
    ['x', 'edge_index']
    """
    if isinstance(model, gnn.Sequential):  # keeps its arguments as text
        names = model.signature.param_dict
        return Signature(model, tuple(Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names))
    parameters = inspect.signature(model.forward).parameters.values()
    rest = {parameter.kind for parameter in parameters} & {Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD}
    own = tuple(parameter for parameter in parameters if parameter.kind not in rest)
    names = [parameter.name for parameter in own]
    if not rest or (names and (names[0] != "x" or "edge_index" in names)):
        return Signature(model, own)
    inside = _inner(model)
    if inside is None and not own:
        _refuse_wrapper(model, f"forward{inspect.signature(model.forward)} and no single module inside that it calls")
    if inside is None:
        return Signature(model, own)
    more = tuple(parameter for parameter in inside.parameters if parameter.name not in names)
    return Signature(inside.module, own + more, inside.by_position or Parameter.VAR_KEYWORD not in rest)


# ---- inside


def _inner(model: nn.Module) -> Signature | None:
    """Return the signature of the module that a wrapper calls; None where it could be one of several."""
    children = {
        name: child
        for name, child in model.named_children()
        if any(isinstance(module, MessagePassing) for module in child.modules())
    }
    named = [children[name] for name in WRAPPED if name in children] or list(children.values())
    return signature_of(named[0]) if len(named) == 1 else None


def _refuse_wrapper(model: nn.Module, got: str) -> NoReturn:
    """Raise for a wrapper whose arguments cannot be told."""
    raise ValueError(
        f"Expected {type(model).__name__}.forward to name its arguments (got {got}): "
        f"name them there, as in forward(self, x, edge_index), or give call=lambda model, batch: model(batch.x, "
        f"batch.edge_index)."
    )


def _is_batch(signature: Signature, batch: Data) -> bool:
    """Say whether the one argument that a model demands is the batch itself."""
    name = signature.required[0]
    annotation = next(parameter.annotation for parameter in signature.parameters if parameter.name == name)
    kind = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    if kind.split(".")[-1] in ("Data", "Batch"):
        return True
    return name not in GRAPH and (name in ("batch", "data") or not _has(batch, name))


def _unsupported(module: nn.Module) -> set[str]:
    """Return the edge values that a model takes but says it does not use, as PyG's `BasicGNN` does."""
    found = {name for name in GRAPH[2:] if not getattr(module, f"supports_{name}", True)}
    convs = [conv for conv in module.modules() if isinstance(conv, MessagePassing)]
    if isinstance(module, BasicGNN) and all(getattr(conv, "edge_dim", 0) is None for conv in convs):
        found.add("edge_attr")  # GAT and PNA, made without edge_dim
    return found


def _has(data: Data, key: str) -> bool:
    return key in data and isinstance(data[key], Tensor)


def _are_weights(data: Data) -> bool:
    """Say whether `edge_attr` is one number per edge."""
    return _has(data, "edge_attr") and data.edge_attr.dim() == 1 and torch.is_floating_point(data.edge_attr)


def _ask(module: nn.Module, option: Parameter, data: Data, *, taken: set[str]) -> None:
    """Raise where an attribute of the graph could be meant by an argument that stays open."""
    name, kind = option.name, type(module).__name__
    if LABELS.fullmatch(name) and _has(data, name):
        raise ValueError(
            f"Expected to be told whether {kind} is given its optional '{name}' (got data.{name}; labels and masks are "
            f"handed to no model unasked): give call=lambda model, batch: model(batch.x, batch.edge_index), or with it."
        )
    annotated = option.annotation is not Parameter.empty
    if name in _unsupported(module) or OWN.fullmatch(name) or LABELS.fullmatch(name):
        return
    if annotated and not re.search(r"Tensor|Adj|Any", str(option.annotation)):  # a number or a switch
        return
    for key in data.to_dict():  # keys() are in no order
        if key not in taken and _has(data, key) and _could_mean(module, name, data, key):
            raise ValueError(
                f"Expected to know what the optional '{name}' of {kind} is (got a graph without it, but with "
                f"data.{key}, which may be meant): set data.{name}, delete data.{key}, or give "
                f"call=lambda model, batch: model(batch.x, batch.edge_index, ...)."
            )


def _could_mean(module: nn.Module, option: str, data: Data, key: str) -> bool:
    """Say whether an attribute that nobody takes could be meant by an option: of its level, or with a word of it."""
    value: Tensor = data[key]
    at_edges, at_nodes = bool(data.is_edge_attr(key)), bool(data.is_node_attr(key))
    if not (at_edges or at_nodes) or value.dtype == torch.bool or OWN.fullmatch(key) or LABELS.fullmatch(key):
        return False
    if option == "edge_weight":
        column = value.dim() == 1 or value.size(1) == 1  # several are no weights, where the model says what it takes
        told = getattr(module, "supports_edge_attr", None) is False
        return at_edges and torch.is_floating_point(value) and (column or not told)
    if option.startswith("edge"):
        return at_edges
    words = (set(option.split("_")) & set(key.split("_"))) - {"edge", "node"}
    return bool(words) or (at_nodes and torch.is_floating_point(value) and key != "x")
