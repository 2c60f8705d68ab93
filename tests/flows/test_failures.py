"""What fails leaves the old pods serving, says why on the resource and in the run, and what to do; then it goes on."""

from __future__ import annotations

import os
import shutil
import threading
from typing import Any

import pytest
from prefect import State

from tasks import leases, stores
from tasks.jobs import Pace
from tasks.kube import Object
from tests.flows.fleet import MB, Fleet

pytestmark = pytest.mark.prefect


class Before:
    """What served before a rollout that is to fail."""

    def __init__(self, fleet: Fleet) -> None:
        assert fleet.roll().is_completed()
        self.fleet, self.pods, self.caches = fleet, fleet.serving(), fleet.caches()
        self.template = fleet.deployment()["spec"]["template"]
        assert self.pods

    def serves_on(self, state: State[Any], reason: str) -> Object:
        """The rollout failed for `reason` and the old pods never noticed; returns the endpoint's status."""
        status = self.fleet.status()
        assert state.is_failed()
        assert reason in str(state.message) + status["reason"]
        assert (status["state"], status["reason"]) == ("DeploymentFailed", reason)
        self.still_serves()
        return status

    def still_serves(self) -> None:
        assert self.fleet.deployment()["spec"]["template"] == self.template
        assert self.fleet.serving() == self.pods
        names = {cache["metadata"]["name"] for cache in self.fleet.caches()}
        assert {cache["metadata"]["name"] for cache in self.caches} <= names


@pytest.fixture
def before(fleet: Fleet) -> Before:
    return Before(fleet)


def set_room(fleet: Fleet, node: str, pods: int) -> None:
    """How many pods a node takes; with 0 its fill cannot start."""
    fleet.kube.patch("Node", node, {"status": {"allocatable": {"pods": str(pods)}}}, subresource="status")


def gate(**more: Any) -> dict[str, Any]:
    return {"mode": "All", "deadline_s": 1.5, **more}


def test_a_source_that_is_gone(before: Before) -> None:
    shutil.rmtree(before.fleet.model)
    status = before.serves_on(before.fleet.roll(), "NotFound")
    assert str(before.fleet.model) in status["message"]
    assert before.fleet.caches() == before.caches


def test_a_model_that_fits_on_no_node(before: Before) -> None:
    before.fleet.write_model(c_safetensors=bytes(94 * MB))
    status = before.serves_on(before.fleet.roll(), "NoSpace")
    assert "node-1" in status["message"]
    assert before.fleet.caches() == before.caches


def test_a_model_larger_than_every_node(before: Before) -> None:
    before.fleet.write_model(c_safetensors=bytes(101 * MB))
    status = before.serves_on(before.fleet.roll(), "NoSpace")
    assert "larger than every target node" in status["message"]
    assert "Use nodes with larger disks" in status["message"]


def test_no_node_of_the_kind_that_is_asked_for(fleet: Fleet) -> None:
    fleet.apply(instanceType="ml.other")
    state = fleet.roll()
    assert state.is_failed()
    assert fleet.status()["reason"] == "NoTargets"
    assert "ml.other" in fleet.status()["message"]


def test_a_gate_that_fails_stops_its_fills_and_the_next_run_goes_on(before: Before) -> None:
    set_room(before.fleet, "node-2", 0)
    before.fleet.write_model(b_safetensors=os.urandom(MB))
    status = before.serves_on(before.fleet.roll(gate=gate(on_deadline="Fail")), "GateFailed")
    assert "1 of 2" in status["message"]
    new = before.fleet.caches()[-1]
    assert (new["status"]["state"], new["status"]["reason"]) == ("Failed", "GateFailed")
    assert running_fills(before.fleet) == []

    set_room(before.fleet, "node-2", 110)
    state = before.fleet.roll()
    assert state.name == "Completed", state.message
    assert before.fleet.status()["rollout"]["nodesFilled"] == 1, "node-1 was proven by the run that failed"
    assert [cache["metadata"]["name"] for cache in before.fleet.caches()] == [new["metadata"]["name"]]


def test_a_gate_that_holds_lets_its_fills_go_on_without_the_run(before: Before) -> None:
    set_room(before.fleet, "node-2", 0)
    before.fleet.write_model(b_safetensors=os.urandom(MB))
    state = before.fleet.roll(gate=gate(on_deadline="Hold"))
    assert state.is_failed()
    before.still_serves()
    status = before.fleet.status()
    assert (status["state"], status["reason"]) == ("DeploymentPending", "GateHeld")
    (job,) = running_fills(before.fleet)

    set_room(before.fleet, "node-2", 110)
    before.fleet.until(lambda: not running_fills(before.fleet))
    assert before.fleet.roll().name == "Completed"
    found = before.fleet.kube.get("Job", job["metadata"]["name"], "default")
    assert found["metadata"]["uid"] == job["metadata"]["uid"], "what the Job had proven was fetched again"


def test_a_gate_that_opens_with_fallback_rolls_and_tells_who_is_cold(
    before: Before, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "PACE", Pace(poll_s=0.1, stall_s=4.0))
    set_room(before.fleet, "node-2", 0)
    before.fleet.write_model(b_safetensors=os.urandom(MB))
    state = before.fleet.roll(gate=gate(on_deadline="OpenWithFallback"))
    assert (state.name, state.is_completed()) == ("Degraded", True)
    assert "node-2 is cold (Stalled" in state.message
    assert before.fleet.serving().isdisjoint(before.pods)
    old, new = before.fleet.caches()
    assert (new["status"]["state"], before.fleet.labelled(new)) == ("PartiallyReady", ["node-1"])
    assert (old["status"]["state"], old["status"]["reason"]) == ("Deleting", "CopiesLeft"), (
        "node-2 could not be cleared"
    )
    assert before.fleet.labelled(old) == []

    set_room(before.fleet, "node-2", 110)
    assert before.fleet.roll().name == "Completed"
    (cache,) = before.fleet.caches()
    assert before.fleet.labelled(cache) == ["node-1", "node-2"]
    assert len(before.fleet.trees("node-2")) == 1


def test_a_source_that_changes_while_nodes_fetch(before: Before, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet, start = before.fleet, stores.fill_job
    fleet.write_model(b_safetensors=os.urandom(MB))

    def change_first(*arguments: Any) -> Object:
        fleet.write_model(b_safetensors=os.urandom(MB + 1))
        return start(*arguments)

    monkeypatch.setattr(stores, "fill_job", change_first)
    status = before.serves_on(fleet.roll(gate=gate(deadline_s=30, on_deadline="Fail")), "GateFailed")
    assert "SourceChanged" in status["message"]
    monkeypatch.undo()


@pytest.mark.parametrize("changes_source", [True, False])
def test_an_engine_that_never_gets_ready(before: Before, changes_source: bool) -> None:
    if changes_source:
        before.fleet.write_model(b_safetensors=os.urandom(MB))
    worker = {**before.fleet.endpoint()["spec"]["worker"], "args": ["-c", "raise SystemExit(7)"], "command": ["python"]}
    before.fleet.apply(worker=worker)
    status = before.serves_on(before.fleet.roll(ready_timeout_s=2), "PodsNotReady")
    assert "ended with status 7" in status["message"]
    assert "What served before goes on serving" in status["message"]
    before.fleet.until(lambda: len(before.fleet.pods()) == 1)

    before.fleet.apply()
    assert before.fleet.roll().name == "Completed"
    assert len(before.fleet.caches()) == 1


def test_what_a_failed_rollout_left_makes_room_for_the_next(before: Before) -> None:
    worker = before.fleet.endpoint()["spec"]["worker"]
    before.fleet.apply(worker={**worker, "command": ["python", "-c", "raise SystemExit(7)"]})
    before.fleet.write_model(c_safetensors=b"b" * 50 * MB)
    assert before.fleet.roll(ready_timeout_s=1).is_failed()
    before.still_serves()
    _, left = before.fleet.caches()

    before.fleet.apply(worker=worker)
    before.fleet.write_model(c_safetensors=b"c" * 50 * MB)
    state = before.fleet.roll()
    assert state.name == "Completed", state.message
    (cache,) = before.fleet.caches()
    assert cache["metadata"]["name"] != left["metadata"]["name"]


def test_a_run_that_lost_its_endpoint_to_another_writes_nothing_more(
    before: Before, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet, lease = before.fleet, "warmpath-endpoint-chat"
    monkeypatch.setattr(leases, "DURATION_S", 0.6)
    set_room(fleet, "node-2", 0)
    fleet.write_model(b_safetensors=os.urandom(MB))

    def take_over() -> None:
        fleet.until(lambda: running_fills(fleet))
        fleet.kube.patch("Lease", lease, {"spec": {"holderIdentity": "elsewhere/2"}}, "default")

    thread = threading.Thread(target=take_over)
    thread.start()
    state = fleet.roll()
    thread.join()
    assert state.is_failed()
    assert "was taken over by elsewhere/2" in str(state.message)
    assert fleet.status()["state"] == "DeploymentInProgress"
    assert fleet.caches()[-1]["status"]["state"] in ("Downloading", "PartiallyReady")
    assert running_fills(fleet), "the other run may wait for this Job"
    assert fleet.kube.get("Lease", lease, "default")["spec"]["holderIdentity"] == "elsewhere/2"


def test_a_first_rollout_whose_engine_never_gets_ready_leaves_no_pods(fleet: Fleet) -> None:
    worker = {**fleet.endpoint()["spec"]["worker"], "args": ["-c", "raise SystemExit(7)"], "command": ["python"]}
    fleet.apply(worker=worker)
    assert fleet.roll(ready_timeout_s=2).is_failed()
    assert fleet.status()["reason"] == "PodsNotReady"
    assert fleet.kube.list("Deployment", "default").items == []
    fleet.apply()
    assert fleet.roll().name == "Completed"
    assert fleet.status()["rollout"]["nodesFilled"] == 0, "its nodes stayed warm"


def test_a_cluster_runner_that_is_killed_and_comes_back(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    start = stores.fill_job

    def kill_first(*arguments: Any) -> Object:
        if fleet.runner.poll() is None:
            fleet.runner.kill()
            fleet.runner.wait()
            fleet.start()
        monkeypatch.setattr(stores, "fill_job", start)
        return start(*arguments)

    monkeypatch.setattr(stores, "fill_job", kill_first)
    assert fleet.roll().name == "Completed"
    (cache,) = fleet.caches()
    assert fleet.labelled(cache) == ["node-1", "node-2"]


def running_fills(fleet: Fleet) -> list[Object]:
    jobs = fleet.kube.list("Job", "default", labels="warmpath.dev/job=fill").items
    return [job for job in jobs if not (job.get("status") or {}).get("conditions")]
