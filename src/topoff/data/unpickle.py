"""Read pickles of numpy arrays, scipy's CSR matrices and plain containers without running anything that they name.

A pickle names functions and classes to be called. Here each name that an array needs stands for a record of ours, which
only keeps what it is called with; any other name is refused. Arrays are made of these records afterwards, by shape,
dtype and bytes, so that not even numpy's own constructors see unchecked values.

>>> import pickle
>>> plain_of(pickle.dumps({0: np.eye(2, dtype=np.int8)}, protocol=2), origin="f")[0].tolist()
[[1, 0], [0, 1]]
>>> plain_of(b"cos\\nsystem\\n(S'true'\\ntR.", origin="f")
Traceback (most recent call last):
topoff.data.archive.Pickled: Expected f to hold arrays and lists only (got a call of os.system); fetch it again.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from typing import Any

import numpy as np

from topoff.data.archive import Pickled
from topoff.data.refusal import refuse
from topoff.machine.cache import Arrays

PUTS = ("PUT", "BINPUT", "LONG_BINPUT")  # opcodes that reserve a place in the unpickler's memory
NESTED = ("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "FROZENSET")  # opcodes of what can be a key, and be nested
MOST_NESTED = 1000  # so that no hash goes deeper than the stack


class _Record:
    """Keep what a name in a pickle was called with, and the state that was set afterwards."""

    __slots__ = ("given", "state")
    given: tuple[Any, ...]
    state: Any

    def __new__(cls, *given: Any) -> Any:
        """Keep the arguments."""
        made = super().__new__(cls)
        made.given, made.state = given, None
        return made

    def __setstate__(self, state: Any) -> None:
        """Keep the state."""
        self.state = state


class _Array(_Record):
    """Stand for numpy.ndarray, its constructor, and scipy's matrices on their way."""

    __slots__ = ()


class _Dtype(_Record):
    """Stand for numpy.dtype."""

    __slots__ = ()


class _Matrix(_Record):
    """Stand for scipy's csr_matrix."""

    __slots__ = ()


class _Encoded(_Record):
    """Stand for _codecs.encode, by which Python 3 writes bytes for Python 2."""

    __slots__ = ()


class _Name(_Record):
    """Stand for a class that is only an argument: object, list."""

    __slots__ = ()


class _Dict(dict[Any, Any]):
    """Stand for defaultdict and OrderedDict."""

    __slots__ = ()

    def __new__(cls, *_: Any) -> _Dict:
        """Begin empty, whatever it is called with."""
        return super().__new__(cls)

    def __init__(self, *_: Any) -> None:
        super().__init__()

    def __setstate__(self, state: Any) -> None:
        """Have no state besides the entries."""


class _Buffer(_Record):
    """Stand for numpy's _frombuffer, as protocol 5 writes arrays."""

    __slots__ = ()


class _Rebuilt(_Record):
    """Stand for copyreg._reconstructor, by which protocols 0 and 1 make objects."""

    __slots__ = ()

    def __new__(cls, *given: Any) -> Any:
        """Make the record of the class that is named first."""
        return given[0]() if given and given[0] in (_Matrix, _Array) else super().__new__(cls, *given)


NAMES: dict[tuple[str, str], type] = {
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _Array for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _Buffer for core in ("core", "_core")},
    ("numpy", "ndarray"): _Name,
    ("numpy", "dtype"): _Dtype,
    **{(f"scipy.sparse.{module}", "csr_matrix"): _Matrix for module in ("csr", "_csr")},
    **{(module, "_reconstructor"): _Rebuilt for module in ("copy_reg", "copyreg")},
    **{(module, name): _Name for module in ("__builtin__", "builtins") for name in ("object", "list", "int")},
    **{("collections", name): _Dict for name in ("defaultdict", "OrderedDict")},
    ("_codecs", "encode"): _Encoded,
}


class _Unpickler(pickle.Unpickler):
    """Resolve only the names that arrays and lists need, to records."""

    def __init__(self, content: bytes, *, origin: str) -> None:
        super().__init__(io.BytesIO(content), encoding="latin1", fix_imports=False)
        self._origin = origin

    def find_class(self, module: str, name: str) -> Any:
        """Return the record that stands for a name."""
        if (module, name) not in NAMES:
            named = f"{module}.{name}".encode("unicode_escape").decode()[:80]
            raise Pickled(
                f"Expected {self._origin} to hold arrays and lists only (got a call of {named}); fetch it again."
            )
        return NAMES[module, name]


def plain_of(content: bytes, *, origin: str) -> Any:
    """Return what a pickle holds: arrays, the parts of a CSR matrix by name, dicts, lists and numbers.

    Raises:
        Pickled: it names something that only running it could give.
        ValueError: it is damaged, or holds arrays of anything but numbers.
    """
    try:
        _check_opcodes(content)
        return _plain(_Unpickler(content, origin=origin).load(), origin=origin)
    except Pickled:
        raise
    except Exception as error:  # a damaged pickle may raise anything
        if isinstance(error, ValueError) and str(error).startswith("Expected "):
            raise
        refuse(f"{origin} to be a whole pickle of arrays", "a damaged one", "fetch it again")


def _check_opcodes(content: bytes) -> None:
    """Refuse what would take memory, or the stack, out of all proportion to the pickle's size."""
    nested = 0
    for opcode, argument, _ in pickletools.genops(content):
        nested += opcode.name in NESTED
        if nested > MOST_NESTED or (opcode.name in PUTS and int(argument or 0) > len(content)):
            raise ValueError(f"{opcode.name}: no pickle of arrays needs it")


def _plain(value: Any, *, origin: str) -> Any:
    """Make arrays of records; dicts and lists are left as they are, but for arrays right inside of a dict."""
    if isinstance(value, _Array | _Buffer):
        return _array(value, origin=origin)
    if isinstance(value, _Matrix):
        return _matrix_parts(value, origin=origin)
    if isinstance(value, dict):
        records = (_Array, _Buffer)
        return {key: _array(one, origin=origin) if isinstance(one, records) else one for key, one in value.items()}
    return value


def _matrix_parts(matrix: _Record, *, origin: str) -> Arrays:
    """Return data, indices, indptr and shape of a CSR matrix."""
    state = matrix.state if isinstance(matrix.state, dict) else {}
    shape = np.array(state.get("_shape", state.get("shape", ())), dtype=np.int64)
    parts = {name: _array(state.get(name), origin=origin) for name in ("data", "indices", "indptr")}
    return {**parts, "shape": shape}


def _array(record: Any, *, origin: str) -> np.ndarray[Any, Any]:
    """Make an array of numbers from its shape, its dtype and its bytes."""
    if isinstance(record, np.ndarray):
        return record
    if isinstance(record, _Buffer):
        content, dtype, shape, order = record.given
        fortran = order == "F"
    else:
        state = record.state if isinstance(record, _Array) else None
        if not isinstance(state, tuple) or len(state) != 5:
            refuse(f"{origin} to hold whole arrays", "something else in place of one", "fetch it again")
        _, shape, dtype, fortran, content = state
    kind, raw = _dtype(dtype, origin=origin), _bytes(content)
    if not isinstance(shape, tuple) or math.prod(shape) * kind.itemsize != len(raw):
        refuse(f"{origin} to hold whole arrays", f"{len(raw)} bytes for shape {shape}", "fetch it again")
    values = np.frombuffer(raw, dtype=kind)
    return values.reshape(shape, order="F" if fortran else "C")


def _dtype(record: Any, *, origin: str) -> np.dtype[Any]:
    """Return the dtype of numbers that a record names, with its byte order."""
    spec = record.given[0] if isinstance(record, _Dtype) and record.given else None
    state = record.state if isinstance(record, _Dtype) else None
    order: Any = state[1] if isinstance(state, tuple) and len(state) > 1 else "="
    if not isinstance(spec, str) or spec[:1] not in tuple("biuf") or order not in ("<", ">", "|", "="):
        refuse(f"{origin} to hold arrays of numbers", f"dtype {spec!r:.40}", "fetch it again")
    return np.dtype(spec).newbyteorder(order)


def _bytes(content: Any) -> bytes:
    """Return the bytes of an array, which Python 2 wrote as a string."""
    if isinstance(content, _Encoded):
        content = content.given[0]
    if isinstance(content, str):
        return content.encode("latin1")
    return bytes(content) if isinstance(content, bytes | bytearray) else b""
