"""Nodes: what they hold, as their NodeCaches tell, and the labels that say who is warm."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from prefect import task
from prefect.cache_policies import NO_CACHE

from tasks import node_caches
from tasks.failures import RETRY
from tasks.kube import Conflict, Kube, NotFound, Object, connect
from tasks.plan.objects import ready_label
from tasks.plan.retention import Cache
from tasks.plan.types import Node
from tasks.stop import pause

READY_LABEL_PREFIX = ready_label("")
# How long an audit's word is taken: a disk can be wiped at any time.
FRESH_S = 30.0


@dataclass(frozen=True, slots=True)
class Fleet:
    """All nodes as plans see them. stale: names of those whose disk nobody has looked at lately."""

    nodes: tuple[Node, ...]
    stale: frozenset[str] = field(default_factory=frozenset)


def shard(nodes: Sequence[str], size: int) -> list[list[str]]:
    return [list(nodes[i : i + size]) for i in range(0, len(nodes), size)]


@task(task_run_name="observe nodes", cache_policy=NO_CACHE, **RETRY)
def observe_nodes(host_path: str) -> Fleet:
    """All nodes, with what their NodeCache says about `host_path`."""
    kube = connect()
    told = {cache["metadata"]["name"]: cache for cache in kube.list("NodeCache").items}
    nodes, stale = [], set()
    for found in kube.list("Node").items:
        cache = told.get(found["metadata"]["name"], {})
        if not is_about(cache, found):
            cache = {}
        node = as_node(found, cache, host_path)
        unsettled = any(held.state != "Ready" for held in node.entries)  # a fill that ended unseen, or failed
        if unsettled or node_caches.age_s((cache.get("status") or {}).get("heartbeatTime", "")) > FRESH_S:
            stale.add(node.name)
        nodes.append(node)
    return Fleet(tuple(nodes), frozenset(stale))


def is_about(cache: Object, node: Object) -> bool:
    """Whether a NodeCache speaks of this very node since its last boot, not of a namesake or an earlier life."""
    status = cache.get("status") or {}
    return bool(status.get("nodeUID") == node["metadata"]["uid"] and status.get("bootID") == node_caches.boot_id(node))


def as_node(found: Object, cache: Object, host_path: str) -> Node:
    metadata, spec, disk = found["metadata"], found.get("spec") or {}, cache.get("status") or {}
    conditions = {c["type"]: c["status"] for c in (found.get("status") or {}).get("conditions") or []}
    taints = tuple((t["key"], t.get("value", ""), t["effect"]) for t in spec.get("taints") or [])
    return Node(
        name=metadata["name"],
        uid=metadata["uid"],
        labels=metadata.get("labels") or {},
        annotations=metadata.get("annotations") or {},
        taints=taints,
        ready=conditions.get("Ready") == "True",
        schedulable=not spec.get("unschedulable", False),
        deleting="deletionTimestamp" in metadata,
        boot_id=node_caches.boot_id(found),
        capacity_bytes=disk.get("capacityBytes"),
        free_bytes=disk.get("freeBytes"),
        entries=node_caches.entries(cache, host_path),
    )


@task(task_run_name="label {nodes}", cache_policy=NO_CACHE, **RETRY)
def label_nodes(nodes: list[str], cache_uid: str) -> None:
    """Label nodes whose copy is proven already."""
    kube = connect()
    for node in existing(kube, nodes).values():
        label(kube, node, cache_uid)


@dataclass(frozen=True, slots=True)
class Readiness:
    """Who is warm, and who failed since the run began, each with its reason."""

    ready: frozenset[str]
    failed: dict[str, str]
    done_bytes: int
    nodes: tuple[Node, ...]


def observe_readiness(kube: Kube, cache_uid: str, digest: str, host_path: str, since: str) -> Readiness:
    """How far the fills are, told by labels and NodeCaches."""
    told = {cache["metadata"]["name"]: cache for cache in kube.list("NodeCache").items}
    nodes, ready, failed, done_bytes = [], set(), {}, 0
    for found in kube.list("Node").items:
        name = found["metadata"]["name"]
        cache = told.get(name, {})
        nodes.append(as_node(found, cache if is_about(cache, found) else {}, host_path))
        mine = node_caches.find_entry(cache, digest, host_path)
        if ready_label(cache_uid) in (found["metadata"].get("labels") or {}):
            ready.add(name)
            done_bytes += mine.get("sizeBytes", 0)
        elif mine.get("state") == "Failed" and mine.get("time", "") >= since:
            failed[name] = f"{mine.get('reason', '')}: {mine.get('message', '')}"
        else:
            done_bytes += mine.get("doneBytes", 0)
    return Readiness(frozenset(ready), failed, done_bytes, tuple(nodes))


def existing(kube: Kube, names: Sequence[str]) -> dict[str, Object]:
    """The nodes of these names that are there now."""
    found = {}
    for name in names:
        with contextlib.suppress(NotFound):
            found[name] = kube.get("Node", name)
    return found


def label(kube: Kube, node: Object, cache_uid: str) -> None:
    """Say that this very node is warm; a namesake that replaced it meanwhile is left alone."""
    change_labels(kube, node, {ready_label(cache_uid): "true"})


def change_labels(kube: Kube, node: Object, labels: Mapping[str, str | None]) -> None:
    """Set labels, or with None remove them, unless the node is gone or another of its name came."""
    name = node["metadata"]["name"]
    for attempt in range(20):
        try:
            found = kube.get("Node", name)
            if found["metadata"]["uid"] != node["metadata"]["uid"]:
                return
            version = found["metadata"]["resourceVersion"]
            kube.patch("Node", name, {"metadata": {"resourceVersion": version, "labels": dict(labels)}})
        except NotFound:
            return
        except Conflict:
            if attempt == 19:
                raise
            pause(0.02 * (attempt + 1))
        else:
            return


@dataclass(frozen=True, slots=True)
class Holders:
    """Nodes that hold, or may hold, a revision. away: those that cannot be asked now, with the reason."""

    there: tuple[str, ...]
    away: dict[str, str]


@task(task_run_name="withdraw labels of {cache.name}", cache_policy=NO_CACHE, **RETRY)
def withdraw_labels(cache: Cache) -> Holders:
    """Take a cache's label off all nodes, so that no new pod is drawn to copies that go; tells who holds one."""
    kube = connect()
    told = {found["metadata"]["name"]: found for found in kube.list("NodeCache").items}
    there, away = [], {}
    for found in kube.list("Node").items:
        node = as_node(found, told.get(found["metadata"]["name"], {}), cache.host_path)
        is_labelled = ready_label(cache.uid) in node.labels
        if is_labelled:
            change_labels(kube, found, {ready_label(cache.uid): None})
        if not is_labelled and all(entry.digest != cache.digest for entry in node.entries):
            continue
        if node.ready:
            there.append(node.name)
        else:
            away[node.name] = "it is not Ready"
    return Holders(tuple(sorted(there)), away)
