"""Sealed tensors: every bit counts, the same content is the same file, and other programs can read it."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from topoff.training.sealed import sealed, unsealed

TENSORS = {"a": torch.arange(4), "b": torch.ones(2, 3)}


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    path, content = tmp_path / "x.safetensors", sealed(TENSORS, {"epochs": 3})
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"."):
            unsealed(path)


def test_the_same_content_is_the_same_file_and_any_reader_takes_it(tmp_path: Path) -> None:
    path, metadata = tmp_path / "x.safetensors", {"epochs": 3, "text": '"crc32": "00000000"', "best": [0.5, None]}
    path.write_bytes(sealed(TENSORS, metadata))
    assert {sealed(TENSORS, metadata) for _ in range(8)} == {path.read_bytes()}
    assert unsealed(path)[0] == metadata
    assert all(torch.equal(load_file(path)[name], tensor) for name, tensor in TENSORS.items())


def test_a_file_without_a_checksum_is_read_as_it_is(tmp_path: Path) -> None:
    for metadata in (None, {"format": "pt"}):
        save_file(TENSORS, tmp_path / "x.safetensors", metadata=metadata)
        assert unsealed(tmp_path / "x.safetensors")[0] == (metadata or {})


@pytest.mark.parametrize(
    ("metadata", "match"),
    [
        ({"topof": '{"crc32": "00000000"}'}, "under another name than 'topoff'"),
        ({"topoff": "{}"}, "no checksum of 8 digits"),
        ({"topoff": "[]"}, "no checksum of 8 digits"),
        ({"topoff": '{"a": 1, "crc32": "00000000"}'}, "no checksum in its place"),
        ({"topoff": '{"crc32": "00000000"}'}, "the checksum 00000000 in it, but content"),
        ({"topoff": "[" * 100_000}, "recursion"),
    ],
)
def test_a_seal_that_is_none_is_refused(tmp_path: Path, metadata: dict[str, str], match: str) -> None:
    save_file(TENSORS, tmp_path / "x.safetensors", metadata=metadata)
    with pytest.raises(ValueError, match=match):
        unsealed(tmp_path / "x.safetensors")
