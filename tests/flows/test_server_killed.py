from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.flows.fleet import ROOT, Fleet

pytestmark = [pytest.mark.prefect, pytest.mark.chaos]

RUN = """
from flows.roll_endpoint import *
state = roll_endpoint(RollEndpoint(endpoint="chat"), return_state=True)
raise SystemExit(0 if state.is_completed() else 1)
"""


class Server:
    """A Prefect server of our own, so that it may be killed."""

    def __init__(self, directory: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.log = directory / "server.log"
        self.environment = {
            **os.environ,
            "PREFECT_HOME": str(directory / "prefect"),
            "PREFECT_API_URL": f"http://127.0.0.1:{self.port}/api",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        }

    def start(self) -> None:
        command = [sys.executable, "-m", "uvicorn", "--factory", "prefect.server.api.server:create_app"]
        command += ["--host", "127.0.0.1", "--port", str(self.port)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return
            time.sleep(0.2)
        raise AssertionError(self.log.read_text()[-2000:])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def run(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", RUN], env=self.environment, cwd=ROOT, stderr=subprocess.DEVNULL)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    server.start()
    yield server
    server.kill()


def test_a_rollout_goes_on_after_its_prefect_server_was_killed(fleet: Fleet, server: Server) -> None:
    run = server.run()
    fleet.until(lambda: fleet.kube.list("Job", "default", labels="warmpath.dev/job=fill").items)
    server.kill()
    # Whether that run survives is Prefect's affair; what it did is in the cluster.
    with contextlib.suppress(subprocess.TimeoutExpired):
        run.wait(5)
    run.kill()
    run.wait()
    server.start()
    assert server.run().wait(60) == 0
    assert fleet.status()["state"] == "DeploymentComplete"
    (cache,) = fleet.caches()
    assert fleet.labelled(cache) == ["node-1", "node-2"]
    assert fleet.status()["rollout"]["fetchedBytes"] == 0, "it fetched again what was proven"
