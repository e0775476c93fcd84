"""What the tests of this folder share: a cache of their own, and no published counts, since their graphs are small."""

from pathlib import Path

import pytest

from topoff.data import published


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("TOPOFF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def uncounted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files be smaller than the published ones; tests of counts publish their own."""
    monkeypatch.setattr(published, "COUNTS", {})
