"""What the tests of this folder share: a cache of their own, so that none reads what another stored."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("TOPOFF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
