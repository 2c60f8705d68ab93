"""For all tests: those that start a Prefect server come last."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Prefect's threads live on in the process and draw from `random`, which Hypothesis takes for its test's doing."""
    items.sort(key=lambda item: "prefect_server" in getattr(item, "fixturenames", ()))
