from __future__ import annotations

from pathlib import Path

import pytest

from infra.local.cluster.store import Store
from tasks.kube import EmbeddedKube


@pytest.fixture
def kube(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EmbeddedKube:
    """An embedded cluster that nobody runs: objects only. `connect()` finds it too."""
    monkeypatch.setenv("WARMPATH_KUBE", f"embedded:{tmp_path}")
    return EmbeddedKube(Store(tmp_path))
