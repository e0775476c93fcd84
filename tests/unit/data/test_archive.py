"""Archives that claim more than they hold, and damaged ones of every kind: one sentence, and nothing is allocated."""

import io
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graph_files import N, arrays
from topoff.data import archive
from topoff.data.archive import check_array_file, check_memory, read_archive
from topoff.data.load import load
from topoff.data.npz import densify


def npy(array: Any, *, shape: tuple[int, ...] | None = None, descr: str | None = None) -> bytes:
    """Write an array with a header that may claim something else."""
    array, buffer = np.asarray(array), io.BytesIO()
    claim = {
        "descr": descr or array.dtype.str,
        "fortran_order": False,
        "shape": array.shape if shape is None else shape,
    }
    np.lib.format.write_array_header_1_0(buffer, claim)
    return buffer.getvalue() + array.tobytes()


def write(path: Path, *, kind: int = zipfile.ZIP_STORED, **members: bytes) -> Path:
    content = {name: npy(array) for name, array in arrays(vocab=None).items()} | members
    with zipfile.ZipFile(path, "w", kind) as file:
        for name, member in content.items():
            file.writestr(f"{name}.npy", member)
    return path


MEMBERS: dict[str, tuple[dict[str, bytes], str]] = {
    "terabytes": ({"x": npy(np.ones(3), shape=(10**9, 10**6))}, r"'x' with 24 bytes, and a header that claims 8"),
    "few": ({"x": npy(np.ones((N, 2)), shape=(N, 1))}, r"'x' with 96 bytes, and a header that claims 48 for"),
    "negative": ({"x": npy(np.ones(3), shape=(-1, 3))}, "'x' with 24 bytes"),
    "cut": ({"y": npy(np.arange(N))[:-3]}, r"'y' with 45 bytes, and a header that claims 48"),
    "header cut": ({"y": npy(np.arange(N))[:20]}, "damaged content in 'y'"),
    "no header": ({"y": b""}, "damaged content in 'y'"),
    "text": ({"y": b"1,2,3"}, "damaged content in 'y'"),
    "version": ({"y": b"\x93NUMPY\x09\x00" + bytes(90)}, r"'y' in version 9.0 of numpy's format"),
    "bad dtype": ({"y": npy(np.arange(N), descr="<q9")}, "damaged content in 'y'"),
    "code": ({"y": npy(np.arange(N)).replace(b"False", b"a()  ")}, "damaged content in 'y'"),
}


@pytest.mark.parametrize(("members", "sentence"), MEMBERS.values(), ids=MEMBERS.keys())
@pytest.mark.parametrize("kind", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_damaged_members(tmp_path: Path, members: dict[str, bytes], sentence: str, kind: int) -> None:
    path = write(tmp_path / "g.npz", kind=kind, **members)
    with pytest.raises(
        ValueError, match=rf"Expected {path} to be a whole .npz file of plain arrays \(got .*{sentence}"
    ):
        load(path)


def patched(content: bytes, *, offset: int, value: int) -> bytes:
    """Change a field of all local and central headers; `offset` is that of the central one."""
    out = bytearray(content)
    for signature, at in ((b"PK\x01\x02", offset), (b"PK\x03\x04", offset - 2)):
        place = out.find(signature)
        while place >= 0:
            out[place + at : place + at + 2] = struct.pack("<H", value)
            place = out.find(signature, place + 4)
    return bytes(out)


def test_encrypted_foreign_and_double_members(tmp_path: Path) -> None:
    path = write(tmp_path / "g.npz")
    content = path.read_bytes()
    path.write_bytes(patched(content, offset=8, value=1))
    with pytest.raises(ValueError, match=r"got '.*' encrypted\); write it again without a password"):
        load(path)
    path.write_bytes(patched(content, offset=10, value=9))  # deflate64
    with pytest.raises(ValueError, match=r"compressed by method 9, which Python lacks\); write"):
        load(path)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x.npy", npy(np.ones(2)))
        with pytest.warns(UserWarning, match="Duplicate"):
            file.writestr("x.npy", npy(np.ones(2)))
    with pytest.raises(ValueError, match=r"got two arrays called 'x'\); keep one of them"):
        load(path)


@pytest.mark.parametrize(
    "content", [b"", b"PK", b"PK\x05\x06", b"PK\x03\x04" + b"\xff" * 99, b"id,label\n", b"\x00" * 50]
)
def test_no_archive(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "g.npz"
    path.write_bytes(content)
    with pytest.raises(
        ValueError, match=r"g\.npz to be a whole .npz file of plain arrays \(got (an empty|no zip|some)"
    ):
        load(path)


def test_more_than_memory_can_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "bomb.npz", kind=zipfile.ZIP_DEFLATED, x=npy(np.zeros((1000, 1000))))
    monkeypatch.setattr(archive, "free_memory", lambda: 10**6)
    with pytest.raises(ValueError, match=r"the arrays in .*bomb\.npz to fit into memory, 977 KiB free \(got 8 MiB\)"):
        load(path)
    parts = np.ones(2), np.array([0, 1]), np.array([0, 1, 2]), np.array([2, 10**12])
    with pytest.raises(ValueError, match=r"the features in g, \(2, 1000000000000\), to fit into memory"):
        densify(*parts, origin="g")
    monkeypatch.setattr(archive, "free_memory", lambda: None)
    check_memory(10**18, what="nothing that is known")


def test_no_memory_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(np.lib.format, "read_array", fail)
    with pytest.raises(ValueError, match=r"got more than memory can take in '.*'\); give a smaller one"):
        read_archive(write(tmp_path / "g.npz"), wanted=["x"])


@pytest.mark.parametrize("name", ["f.npz", "f.npy"])
def test_files_that_others_read_are_looked_at(tmp_path: Path, name: str) -> None:
    path, good, bad = tmp_path / name, npy(np.ones(3)), npy(np.ones(3), shape=(10**15,))
    for content in (good, bad):
        path.write_bytes(content)
        if name == "f.npz":
            write(path, x=content)
        if content is good:
            check_array_file(path, expected="f to be whole")
    with pytest.raises(ValueError, match=r"Expected f to be whole \(got '.*' with 24 bytes, and a header that claims"):
        check_array_file(path, expected="f to be whole")
