from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect.settings import (
    PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
    PREFECT_SERVER_ANALYTICS_ENABLED,
    temporary_settings,
)
from prefect.testing.utilities import prefect_test_harness

from tasks.plan import deployments
from tests.flows.fleet import MB, Fleet


@pytest.fixture(scope="session")
def prefect_server() -> Iterator[None]:
    """One throw-away server for all flow tests: it needs seconds to start."""
    quiet = {PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None, PREFECT_SERVER_ANALYTICS_ENABLED: False}
    with temporary_settings(quiet), prefect_test_harness(server_startup_timeout=180):
        yield


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefect_server: None) -> Iterator[Fleet]:
    """Two nodes, a model of a few MB, and the endpoint."""
    monkeypatch.setenv("WARMPATH_KUBE", f"embedded:{tmp_path / 'cluster'}")
    monkeypatch.delenv("WARMPATH_ROUTER_URL", raising=False)
    # No client is connected, so old pods need not linger for theirs.
    monkeypatch.setattr(deployments, "DRAIN_S", 0)
    fleet = Fleet(tmp_path)
    fleet.write_model(config_json=b"{}", a_safetensors=os.urandom(2 * MB), b_safetensors=os.urandom(1 * MB))
    fleet.add_node("node-1")
    fleet.add_node("node-2")
    fleet.apply()
    yield fleet
    fleet.close()
