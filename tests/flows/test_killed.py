"""Truth is the disk and the API objects: a run killed after any write and run again ends as an undisturbed one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_URL

from tests.flows.fleet import MB, ROOT, Fleet

pytestmark = [pytest.mark.prefect, pytest.mark.chaos]

KILLED, DONE = -9, 0
# Sorts of writes that an update makes, one or more for each of its steps.
EXPECTED = {
    "patch Lease",
    "patch InferenceEndpointConfig status Resolving",
    "patch InferenceEndpointConfig status Warming",
    "apply ModelDataCacheConfig",
    "apply ConfigMap",
    "create Job fill",
    "patch NodeCache status",
    "patch Node",
    "patch ModelDataCacheConfig status Ready",
    "patch InferenceEndpointConfig status Rolling",
    "apply Deployment",
    "apply Service",
    "patch InferenceEndpointConfig status Routing",
    "patch InferenceEndpointConfig status Finishing",
    "patch ModelDataCacheConfig status Deleting",
    "create Job evict",
    "delete ModelDataCacheConfig",
    "patch InferenceEndpointConfig status RolledOut",
}


class Killer:
    """The driver process of killing.py."""

    def __init__(self, directory: Path) -> None:
        self.kills = directory / "kills"
        environment = {**os.environ, "PREFECT_API_URL": PREFECT_API_URL.value() or ""}
        command = [sys.executable, "-m", "tests.flows.killing", str(self.kills)]
        with (directory / "killer.log").open("wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment, cwd=ROOT
            )

    def run(self, how: str = "run") -> int:
        """Exit status of a run; of one to "kill", when it found a sort of write that nobody died after yet."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(f"{how}\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def close(self) -> None:
        self.process.communicate(timeout=20)


@pytest.fixture
def killer(fleet: Fleet, tmp_path: Path) -> Iterator[Killer]:
    killer = Killer(tmp_path)
    yield killer
    killer.close()


def fetched_bytes(fleet: Fleet, digest: str) -> int:
    """What all fills of a revision, those of killed runs too, took from the source."""
    total = 0
    for log in fleet.directory.glob("pods/*/fill.log"):
        told = [json.loads(line) for line in log.read_text().splitlines()]
        total += sum(t["fetched_bytes"] for t in told if t["event"] == "report" and t.get("digest") == digest)
    return total


def test_an_update_killed_after_each_of_its_writes_ends_as_if_nothing_had_happened(
    fleet: Fleet, killer: Killer
) -> None:
    """Every run gets a write further than the one before, and finds done what those before it did."""
    assert killer.run() == DONE
    (old,) = fleet.caches()
    fleet.write_model(b_safetensors=os.urandom(MB))
    while (ended := killer.run("kill")) == KILLED:
        assert fleet.serving(), f"nobody serves after a kill at {killer.kills.read_text().splitlines()[-1]}"
    assert ended == DONE
    killed_after = set(killer.kills.read_text().splitlines())
    assert killed_after >= EXPECTED, EXPECTED - killed_after

    (new,) = fleet.caches()
    assert new["metadata"]["uid"] != old["metadata"]["uid"]
    assert fleet.labelled(new) == ["node-1", "node-2"]
    assert (new["status"]["state"], fleet.status()["state"]) == ("Ready", "DeploymentComplete")
    for node in ("node-1", "node-2"):
        (tree,) = fleet.trees(node).values()
        assert tree["b.safetensors"] == (fleet.model / "b.safetensors").read_bytes()
    assert len(fleet.serving()) == 1
    assert fetched_bytes(fleet, new["spec"]["digest"]) == 2 * MB
