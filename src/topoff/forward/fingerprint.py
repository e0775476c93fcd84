"""Describe what a model computes, weights apart, so that a cache can be named by it."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import types
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from topoff.machine.cache import content_hash

LIBRARIES = {"torch", "torch_geometric", *sys.stdlib_module_names}
COMMON = {"training", *vars(nn.Module())}  # what every module has
DEPTH = 6  # of settings inside settings


def fingerprint(model: nn.Module) -> str:
    """Describe what a model computes, weights apart: the class and the settings of every module, and the code of those
    classes that are the user's own.

    A repr would not do: most leave settings out that have no weights, such as a residual connection.

    >>> fingerprint(nn.Linear(2, 3))
    ": torch.nn.modules.linear.Linear {'in_features': 2, 'out_features': 3}"
    """
    modules = list(model.named_modules(remove_duplicate=False))
    lines = [f"{name}: {_name(type(module))} {described(_settings(module))}" for name, module in modules]
    own = {kind for _, module in modules for kind in type(module).__mro__ if _is_own(kind)}
    return "\n".join([*lines, *sorted(_source(kind) for kind in own)])


def _name(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _is_own(kind: type) -> bool:
    """Whether a class is neither torch's nor PyG's nor Python's, whose versions say what they do."""
    return kind.__module__.partition(".")[0] not in LIBRARIES


def _settings(module: nn.Module) -> dict[str, Any]:
    """Return the attributes of a module that are not in its state_dict, nor common to all modules."""
    loose = {name: module._buffers[name] for name in module._non_persistent_buffers_set}
    return loose | {name: value for name, value in vars(module).items() if name not in COMMON}


def described(value: Any, *, depth: int = DEPTH) -> str:
    """Describe a value by its content; an object of a library, or one that lies deep, by its class alone."""
    if value is None or isinstance(value, int | float | str):
        return repr(value)
    if isinstance(value, Tensor) and value.layout == torch.strided and not value.is_complex():
        return content_hash(str(value.dtype), value.detach().cpu().double().numpy())
    if isinstance(value, np.ndarray):
        return described(value.tolist()) if value.dtype.hasobject else content_hash(value)
    if isinstance(value, type | types.BuiltinFunctionType):
        return _name(value)
    kind = _name(type(value))
    if depth == 0:
        return kind
    if isinstance(value, dict):
        items = [f"{key!r}: {described(item, depth=depth - 1)}" for key, item in value.items()]
        return "{" + ", ".join(sorted(items)) + "}"
    if isinstance(value, list | tuple | set | frozenset):
        rows = [described(item, depth=depth - 1) for item in value]
        return f"[{', '.join(rows if isinstance(value, list | tuple) else sorted(rows))}]"
    return f"{kind} {described(_parts(value), depth=depth - 1)}"


def _parts(value: Any) -> dict[str, Any]:
    """Return what an object is made of, as far as that is known."""
    if isinstance(value, nn.Module):  # one that is held without being registered
        return {**_settings(value), "state_dict": value.state_dict()}
    if isinstance(value, types.MethodType):
        return {"function": value.__func__, "self": value.__self__}
    if isinstance(value, functools.partial):
        return {"function": value.func, "arguments": [value.args, value.keywords]}
    if isinstance(value, types.FunctionType):
        defaults = [value.__defaults__, value.__kwdefaults__]
        return {"code": _code(value.__code__), "defaults": defaults, "enclosed": _enclosed(value)}
    return vars(value) if _is_own(type(value)) and hasattr(value, "__dict__") else {}


def _enclosed(function: types.FunctionType) -> list[Any]:
    """Return the values that a function takes from the one around it."""
    found = []
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # it is still empty
            found.append(cell.cell_contents)
    return found


def _source(kind: type) -> str:
    """Return the source of a class's module, which holds the functions that it calls, and the code of its own."""
    try:
        text = inspect.getsource(sys.modules[kind.__module__])
    except (KeyError, OSError, TypeError):  # typed into an interpreter
        text = ""
    functions = {name: getattr(value, "__func__", value) for name, value in vars(kind).items()}
    own = {name: value for name, value in functions.items() if isinstance(value, types.FunctionType)}
    return f"{_name(kind)} {described(own)}\n{text}"


def _code(code: types.CodeType) -> str:
    """Describe compiled code, without the place that it comes from."""
    constants = [_code(item) if isinstance(item, types.CodeType) else described(item) for item in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {constants}"
