"""What the tests of the local servers share: one small model, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.local.model import make_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models") / "acme" / "tiny"
    make_model(directory, 4_000_000)
    return directory
