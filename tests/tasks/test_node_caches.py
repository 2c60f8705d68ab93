from __future__ import annotations

import threading

import pytest

from tasks import node_caches
from tasks.kube import EmbeddedKube, Object
from tasks.node_caches import drop_entry, entry, record_audit, record_entry

HOST_PATH = "/nvme"


@pytest.fixture
def node(kube: EmbeddedKube) -> Object:
    return make_node(kube)


def make_node(kube: EmbeddedKube) -> Object:
    info = {"nodeInfo": {"bootID": "boot-1"}}
    return kube.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"}, "status": info})


def told(kube: EmbeddedKube) -> dict[str, str]:
    entries = kube.get("NodeCache", "node-1")["status"]["entries"]
    return {f"{e['hostPath']} {e['digest']}": e["state"] for e in entries}


def audit(*entries: tuple[str, str]) -> Object:
    held = [{"digest": digest, "state": state, "size_bytes": 7} for digest, state in entries]
    return {"capacity_bytes": 100, "free_bytes": 60, "filesystem_id": "fs", "entries": held}


def test_an_audit_replaces_what_was_known_of_its_path_only(kube: EmbeddedKube, node: Object) -> None:
    record_audit(kube, node, HOST_PATH, audit(("a", "Ready"), ("b", "Ready")))
    record_audit(kube, node, "/other", audit(("a", "Ready")))
    record_audit(kube, node, HOST_PATH, audit(("b", "Suspect")))
    assert told(kube) == {"/other a": "Ready", "/nvme b": "Suspect"}
    status = kube.get("NodeCache", "node-1")["status"]
    assert (status["capacityBytes"], status["freeBytes"], status["bootID"]) == (100, 60, "boot-1")
    assert node_caches.age_s(status["heartbeatTime"]) < 60


def test_an_audit_keeps_the_fill_that_began(kube: EmbeddedKube, node: Object) -> None:
    record_entry(kube, node, entry("a", HOST_PATH, "Downloading", {"done_bytes": 3, "total_bytes": 7}))
    record_audit(kube, node, HOST_PATH, audit(("b", "Ready")))
    assert told(kube) == {"/nvme a": "Downloading", "/nvme b": "Ready"}
    record_audit(kube, node, HOST_PATH, audit(("a", "Ready")))
    assert told(kube) == {"/nvme a": "Ready"}


def test_after_an_eviction_the_disk_is_looked_at_anew(kube: EmbeddedKube, node: Object) -> None:
    record_audit(kube, node, HOST_PATH, audit(("a", "Ready"), ("b", "Ready")))
    drop_entry(kube, node, "a", HOST_PATH, {"capacity_bytes": 100, "free_bytes": 80})
    assert told(kube) == {"/nvme b": "Ready"}
    status = kube.get("NodeCache", "node-1")["status"]
    assert status["freeBytes"] == 80, "the room that the copy left is told at once"
    assert node_caches.age_s(status.get("heartbeatTime", "")) == float("inf")


def test_an_audit_keeps_what_a_fill_told_of_a_copy(kube: EmbeddedKube, node: Object) -> None:
    record_entry(kube, node, entry("a", HOST_PATH, "Ready", {"fetched_bytes": 5, "size_bytes": 7}), {"free_bytes": 1})
    record_audit(kube, node, HOST_PATH, audit(("a", "Ready")))
    (held,) = kube.get("NodeCache", "node-1")["status"]["entries"]
    assert (held["fetchedBytes"], held["sizeBytes"]) == (5, 7)
    record_audit(kube, node, HOST_PATH, audit(("a", "Suspect")))
    (held,) = kube.get("NodeCache", "node-1")["status"]["entries"]
    assert "fetchedBytes" not in held


def test_runs_that_write_one_node_at_once_lose_nothing(kube: EmbeddedKube, node: Object) -> None:
    def write(digest: str) -> None:
        for done_bytes in range(5):
            record_entry(kube, node, entry(digest, HOST_PATH, "Downloading", {"done_bytes": done_bytes}))

    threads = [threading.Thread(target=write, args=(f"d{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    entries = kube.get("NodeCache", "node-1")["status"]["entries"]
    assert {e["digest"]: e["doneBytes"] for e in entries} == dict.fromkeys(("d0", "d1", "d2", "d3"), 4)


def test_what_a_namesake_told_is_forgotten(kube: EmbeddedKube, node: Object) -> None:
    """The old NodeCache can outlive its Node for a moment; a wiped node must not inherit its copies."""
    record_audit(kube, node, HOST_PATH, audit(("a", "Ready")))
    replaced = {**node, "metadata": {**node["metadata"], "uid": "another"}}
    record_entry(kube, replaced, entry("b", HOST_PATH, "Ready", {}))
    assert told(kube) == {"/nvme b": "Ready"}


def test_a_node_cache_goes_with_its_node(kube: EmbeddedKube, node: Object) -> None:
    record_audit(kube, node, HOST_PATH, audit())
    kube.delete("Node", "node-1")
    assert kube.list("NodeCache").items == []
