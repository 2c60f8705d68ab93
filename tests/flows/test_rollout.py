"""The main job, for real: Jobs, disks, pods and engines of an embedded cluster, behind a throw-away Prefect server."""

from __future__ import annotations

import json
import logging
import os
import shutil
import threading
from typing import Any

import pytest
from prefect import State
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey

from infra.local.cluster.logs import node_directory
from tasks import leases, nodes
from tasks.kube import Object
from tasks.leases import Claim, hold, process_identity
from tests.flows.fleet import MB, SIMULATED, STORE, Fleet

pytestmark = pytest.mark.prefect


def conditions(found: Object) -> dict[str, str]:
    return {condition["type"]: condition["status"] for condition in found["status"]["conditions"]}


def weights_outcome(pod: Object) -> str:
    """Where a pod got its weights from, as its init step told."""
    outcome: str = json.loads(pod["status"]["initContainerStatuses"][0]["state"]["terminated"]["message"])["outcome"]
    return outcome


def artifacts(key: str) -> list[Any]:
    with get_client(sync_client=True) as client:
        by_key = ArtifactFilter(key=ArtifactFilterKey(any_=[key]))
        return sorted(client.read_artifacts(artifact_filter=by_key), key=lambda artifact: artifact.created)


def fills(fleet: Fleet) -> set[str]:
    return {job["metadata"]["uid"] for job in fleet.kube.list("Job", "default", labels="warmpath.dev/job=fill").items}


def test_a_rollout_makes_every_node_warm_and_the_endpoint_serves(fleet: Fleet) -> None:
    fleet.apply(worker={**fleet.endpoint()["spec"]["worker"], **SIMULATED})
    state = fleet.roll()
    assert (state.name, state.is_completed()) == ("Completed", True), state.message

    (cache,) = fleet.caches()
    assert fleet.labelled(cache) == ["node-1", "node-2"]
    assert (cache["status"]["state"], cache["status"]["readyNodes"], cache["status"]["targetNodes"]) == ("Ready", 2, 2)
    model = {file.name: file.read_bytes() for file in fleet.model.iterdir()}
    for node in ("node-1", "node-2"):
        assert list(fleet.trees(node).values()) == [model]

    template = fleet.deployment()["spec"]["template"]
    assert template["metadata"]["annotations"]["warmpath.dev/manifest-digest"] == cache["spec"]["digest"]
    (pod,) = fleet.pods()
    assert fleet.serving() == {pod["metadata"]["uid"]}
    assert weights_outcome(pod) == "hit"

    status = fleet.status()
    assert (status["state"], status["cache"]) == ("DeploymentComplete", cache["metadata"]["name"])
    assert set(conditions(fleet.endpoint()).values()) == {"True"}
    assert status["rollout"]["fetchedBytes"] == 2 * sum(map(len, model.values()))
    assert status["rollout"]["unverifiedFiles"] == 0


def test_the_run_shows_its_plan_its_progress_and_its_end(fleet: Fleet) -> None:
    state = fleet.roll()
    plan, summary = artifacts("plan-chat")[-1], artifacts("summary-chat")[-1]
    assert '"node-1"' in str(plan.data)
    assert "Fill 2 nodes" in plan.description
    assert "2 of 2 nodes are warm" in summary.description
    assert artifacts("rollout-chat")[-1].data == 100.0
    with get_client(sync_client=True) as client:
        run = client.read_flow_run(state.state_details.flow_run_id)
    assert (run.name, run.tags) == ("roll default/chat", ["endpoint:default/chat"])


def test_an_update_fetches_only_the_file_that_changed_and_deletes_the_old_cache(fleet: Fleet) -> None:
    fleet.roll()
    (old,), before = fleet.caches(), fleet.serving()
    fleet.write_model(b_safetensors=os.urandom(1 * MB))
    state = fleet.roll()
    assert state.name == "Completed", state.message
    (new,) = fleet.caches()
    assert new["metadata"]["name"] != old["metadata"]["name"]
    assert fleet.labelled(old) == []
    assert fleet.labelled(new) == ["node-1", "node-2"]
    rollout = fleet.status()["rollout"]
    assert (rollout["fetchedBytes"], rollout["reusedBytes"]) == (2 * MB, 2 * (2 * MB + 2))
    assert rollout["removedCaches"] == [old["metadata"]["name"]]
    for node in ("node-1", "node-2"):
        (tree,) = fleet.trees(node).values()
        assert tree["b.safetensors"] == (fleet.model / "b.safetensors").read_bytes()
    assert fleet.serving().isdisjoint(before)


def test_running_again_changes_and_fetches_nothing(fleet: Fleet) -> None:
    fleet.roll()
    before, pods, deployment = fills(fleet), fleet.serving(), fleet.deployment()["metadata"]["generation"]
    state = fleet.roll()
    assert state.name == "Completed", state.message
    assert fills(fleet) == before
    assert (fleet.serving(), fleet.deployment()["metadata"]["generation"]) == (pods, deployment)
    assert fleet.status()["rollout"]["fetchedBytes"] == 0
    assert fleet.status()["rollout"]["nodesWarm"] == 2


def test_a_node_that_joins_and_one_that_was_wiped_are_filled_by_the_next_run(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.roll()
    (cache,) = fleet.caches()
    fleet.add_node("node-3")
    shutil.rmtree(node_directory(fleet.directory, "node-2") / STORE)
    monkeypatch.setattr(nodes, "FRESH_S", 0.0)
    assert fleet.roll().name == "Completed"
    assert fleet.labelled(cache) == ["node-1", "node-2", "node-3"]
    assert fleet.trees("node-1") == fleet.trees("node-2") == fleet.trees("node-3") != {}
    assert fleet.status()["rollout"]["nodesFilled"] == 2


def test_the_number_of_replicas_that_runs_now_is_kept_unless_told_otherwise(fleet: Fleet) -> None:
    fleet.roll()
    fleet.kube.patch("Deployment", "chat", {"spec": {"replicas": 2}}, "default", subresource="scale")
    fleet.write_model(b_safetensors=os.urandom(MB))
    fleet.roll()
    assert len(fleet.serving()) == fleet.deployment()["spec"]["replicas"] == 2
    fleet.roll(replicas=1)
    assert fleet.deployment()["spec"]["replicas"] == 1


def test_a_dry_run_tells_the_plan_and_changes_nothing(fleet: Fleet) -> None:
    before = fleet.endpoint()
    state = fleet.roll(dry_run=True)
    assert state.name == "Planned"
    assert "Fill 2 nodes" in state.message
    assert fleet.endpoint() == before
    assert fleet.caches() == []
    assert fleet.kube.list("Deployment", "default").items == []
    assert fleet.trees("node-1") == {}


def test_an_endpoint_without_a_cache_loads_from_the_source_and_gives_up_its_old_copies(fleet: Fleet) -> None:
    fleet.roll()
    fleet.apply(modelCacheConfig={"weightsCache": {"enabled": False}})
    assert fleet.roll().name == "Completed"
    assert fleet.caches() == []
    assert fleet.trees("node-1") == fleet.trees("node-2") == {}
    (pod,) = fleet.pods()
    assert weights_outcome(pod) == "source"


def test_a_fleet_is_split_into_shards(fleet: Fleet) -> None:
    assert fleet.roll(nodes_per_task=1).name == "Completed"
    (cache,) = fleet.caches()
    assert fleet.labelled(cache) == ["node-1", "node-2"]


def test_a_run_waits_for_the_one_that_holds_its_endpoint(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(leases, "POLL_S", 0.1)
    states: list[State[Any]] = []
    thread = threading.Thread(target=lambda: states.append(fleet.roll()))
    other = Claim("warmpath-endpoint-chat", "default", f"{process_identity()}/another-run", fleet.endpoint())
    with hold(fleet.kube, other, wait_s=0, say=print, lost=print):
        thread.start()
        fleet.until(lambda: "another-run; waiting for it to end" in caplog.text)
        assert fleet.caches() == []
    thread.join()
    assert states[0].name == "Completed"
