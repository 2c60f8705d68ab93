from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from prefect.settings import PREFECT_API_URL

from tasks.kube import Object
from tests.flows.fleet import ROOT, Fleet

pytestmark = [pytest.mark.prefect, pytest.mark.chaos]

RUN = "from flows.roll_endpoint import *; roll_endpoint(RollEndpoint(endpoint='chat'))"


def running_fills(fleet: Fleet) -> list[Object]:
    jobs = fleet.kube.list("Job", "default", labels="warmpath.dev/job=fill").items
    return [job for job in jobs if not (job.get("status") or {}).get("conditions")]


def test_a_cancelled_rollout_stops_its_fills_lets_go_and_says_so(fleet: Fleet) -> None:
    """Prefect interrupts only the flow's own thread, and kills the process after 30 s: all must be over before."""
    fleet.roll(dry_run=True)  # looks at the disks while nodes have room
    fleet.kube.patch("Node", "node-2", {"status": {"allocatable": {"pods": "0"}}}, subresource="status")
    environment = {**os.environ, "PREFECT_API_URL": PREFECT_API_URL.value() or ""}
    run = subprocess.Popen([sys.executable, "-c", RUN], env=environment, cwd=ROOT, stderr=subprocess.PIPE)
    try:
        fleet.until(lambda: running_fills(fleet))
        run.send_signal(signal.SIGTERM)
        _, errors = run.communicate(timeout=15)
    finally:
        run.kill()
    assert running_fills(fleet) == [], errors.decode()
    status = fleet.status()
    assert (status["state"], status["reason"]) == ("DeploymentFailed", "Cancelled")
    assert "Run again" in status["message"]
    (cache,) = fleet.caches()
    assert (cache["status"]["state"], cache["status"]["reason"]) == ("Failed", "Cancelled")

    fleet.kube.patch("Node", "node-2", {"status": {"allocatable": {"pods": "110"}}}, subresource="status")
    assert fleet.roll().name == "Completed", "the lease was kept"
