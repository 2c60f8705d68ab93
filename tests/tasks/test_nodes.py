from __future__ import annotations

import pytest

from tasks import nodes
from tasks.kube import EmbeddedKube, Object
from tasks.node_caches import entry, now, record_audit, record_entry
from tasks.nodes import observe_nodes, observe_readiness, shard, withdraw_labels
from tasks.plan.objects import ready_label
from tasks.plan.retention import Cache
from tasks.stores import withdraw_unproven

HOST_PATH = "/nvme"
REPORT = {"capacity_bytes": 100, "free_bytes": 60}


def make_node(kube: EmbeddedKube, name: str = "node-1", boot_id: str = "boot-1", **labels: str) -> Object:
    status = {"nodeInfo": {"bootID": boot_id}, "conditions": [{"type": "Ready", "status": "True"}]}
    metadata = {"name": name, "labels": {key.replace("__", "/"): value for key, value in labels.items()}}
    return kube.create({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": status})


def make_cache(kube: EmbeddedKube, name: str, digest: str, host_path: str = HOST_PATH) -> Cache:
    spec = {"endpoint": "chat", "digest": digest, "hostPath": host_path}
    metadata = {"name": name, "namespace": "default"}
    body = {"apiVersion": "warmpath.dev/v1alpha1", "kind": "ModelDataCacheConfig", "metadata": metadata, "spec": spec}
    uid = kube.create(body)["metadata"]["uid"]
    return Cache(name, uid, "chat", digest, host_path)


def labels(kube: EmbeddedKube, name: str = "node-1") -> set[str]:
    return set(kube.get("Node", name)["metadata"].get("labels") or {})


def ready(digest: str) -> Object:
    return {**REPORT, "entries": [{"digest": digest, "state": "Ready"}]}


def test_a_node_is_seen_with_its_disk_until_its_word_is_old(
    kube: EmbeddedKube, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_audit(kube, make_node(kube), HOST_PATH, ready("a"))
    fleet = observe_nodes.fn(HOST_PATH)
    (node,) = fleet.nodes
    assert (node.ready, node.capacity_bytes, node.free_bytes) == (True, 100, 60)
    assert [held.digest for held in node.entries] == ["a"]
    assert observe_nodes.fn("/other").nodes[0].entries == ()
    assert not fleet.stale
    monkeypatch.setattr(nodes, "FRESH_S", 0.0)
    assert observe_nodes.fn(HOST_PATH).stale == {"node-1"}


def test_a_node_whose_fill_nobody_saw_end_is_looked_at_again(kube: EmbeddedKube) -> None:
    node = make_node(kube)
    record_audit(kube, node, HOST_PATH, ready("a"))
    record_entry(kube, node, entry("b", HOST_PATH, "Downloading", {}))
    assert observe_nodes.fn(HOST_PATH).stale == {"node-1"}


@pytest.mark.parametrize("change", ["reboot", "replacement"])
def test_what_was_told_before_a_reboot_or_a_replacement_is_not_believed(kube: EmbeddedKube, change: str) -> None:
    record_audit(kube, make_node(kube), HOST_PATH, ready("a"))
    if change == "reboot":
        kube.patch("Node", "node-1", {"status": {"nodeInfo": {"bootID": "boot-2"}}}, subresource="status")
    else:
        kube.patch("NodeCache", "node-1", {"metadata": {"ownerReferences": []}})
        kube.delete("Node", "node-1")
        make_node(kube)
    fleet = observe_nodes.fn(HOST_PATH)
    assert fleet.nodes[0].entries == ()
    assert fleet.nodes[0].free_bytes is None
    assert fleet.stale == {"node-1"}


def test_an_audit_takes_off_labels_that_it_contradicts(kube: EmbeddedKube) -> None:
    held = make_cache(kube, "held", "a")
    lost = make_cache(kube, "lost", "b")
    elsewhere = make_cache(kube, "elsewhere", "c", "/other")
    node = make_node(
        kube, zone="z", **{ready_label(uid): "true" for uid in (held.uid, lost.uid, elsewhere.uid, "gone")}
    )
    withdraw_unproven(kube, node, HOST_PATH, ready("a"))
    assert labels(kube) == {"zone", ready_label(held.uid), ready_label(elsewhere.uid)}


def test_a_namesake_is_not_labelled(kube: EmbeddedKube) -> None:
    node = make_node(kube)
    kube.delete("Node", "node-1")
    make_node(kube)
    nodes.label(kube, node, "uid")
    assert labels(kube) == set()


def test_readiness_tells_the_warm_the_failed_and_how_far_the_others_are(kube: EmbeddedKube) -> None:
    cache = make_cache(kube, "chat-1", "a")
    make_node(kube, "warm", **{ready_label(cache.uid): "true"})
    before, filling, failed = make_node(kube, "before"), make_node(kube, "filling"), make_node(kube, "failed")
    record_entry(kube, before, entry("a", HOST_PATH, "Failed", {"reason": "Network"}))
    since = now()
    record_entry(kube, filling, entry("a", HOST_PATH, "Downloading", {"done_bytes": 4, "total_bytes": 10}))
    record_entry(kube, failed, entry("a", HOST_PATH, "Failed", {"reason": "NoSpace", "message": "the disk is full"}))
    seen = observe_readiness(kube, cache.uid, "a", HOST_PATH, since)
    assert seen.ready == {"warm"}
    assert seen.failed == {"failed": "NoSpace: the disk is full"}
    assert seen.done_bytes == 4


def test_withdrawing_finds_every_node_that_may_hold_a_copy(kube: EmbeddedKube) -> None:
    cache = make_cache(kube, "chat-1", "a")
    label = {ready_label(cache.uid): "true"}
    make_node(kube, "labelled", **label)
    record_entry(kube, make_node(kube, "partial"), entry("a", HOST_PATH, "Failed", {}))
    record_entry(kube, make_node(kube, "elsewhere"), entry("a", "/other", "Ready", {}))
    make_node(kube, "empty")
    make_node(kube, "away", **label)
    away = {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
    kube.patch("Node", "away", away, subresource="status")
    holders = withdraw_labels.fn(cache)
    assert holders.there == ("labelled", "partial")
    assert set(holders.away) == {"away"}
    assert labels(kube, "labelled") == labels(kube, "away") == set()


def test_shards_hold_every_node_once() -> None:
    assert shard(["a", "b", "c"], 2) == [["a", "b"], ["c"]]
    assert shard([], 2) == []
