"""Nodes: what they hold, filling and clearing their stores, and the labels that say who is warm."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.runtime import task_run

from tasks import jobs, node_caches
from tasks.failures import RETRY
from tasks.jobs import JobEnd, Pace
from tasks.kube import Conflict, Kube, NotFound, Object, connect
from tasks.node_caches import entry
from tasks.plan.objects import audit_job, evict_job, fill_job, ready_label
from tasks.plan.resources import Endpoint
from tasks.plan.types import Node
from tasks.stop import pause

READY_LABEL_PREFIX = ready_label("")
# How long an audit's word is taken: a disk can be wiped at any time.
FRESH_S = 30.0


@dataclass(frozen=True, slots=True)
class Filled:
    """How filling one node ended. Bytes are of the model's files: fetched now, or already on the disk."""

    node: str
    ok: bool
    fetched_bytes: int = 0
    reused_bytes: int = 0
    unverified_files: int = 0
    seconds: float = 0.0
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Fleet:
    """All nodes as plans see them. stale: names of those whose disk nobody has looked at lately."""

    nodes: tuple[Node, ...]
    stale: frozenset[str] = field(default_factory=frozenset)


def shard(nodes: Sequence[str], size: int) -> list[list[str]]:
    return [list(nodes[i : i + size]) for i in range(0, len(nodes), size)]


def shard_run_name(verb: str) -> Callable[[], str]:
    """Task run names such as `fill node-1 +63`."""

    def name() -> str:
        # An exception here would leave the task Pending for ever, without a reason.
        nodes = (task_run.parameters or {}).get("nodes") or ["no node"]
        return f"{verb} {nodes[0]}" + (f" +{len(nodes) - 1}" if len(nodes) > 1 else "")

    return name


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
        if node_caches.age_s((cache.get("status") or {}).get("heartbeatTime", "")) > FRESH_S:
            stale.add(found["metadata"]["name"])
        nodes.append(as_node(found, cache, host_path))
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


@task(task_run_name=shard_run_name("audit"), cache_policy=NO_CACHE, **RETRY)
def audit_nodes(nodes: list[str], endpoint: Endpoint) -> dict[str, str]:
    """Look at these nodes' disks and record what is there; returns the sentence of each that could not be asked."""
    kube, log = connect(), get_run_logger()
    found = existing(kube, nodes)
    bodies = {name: audit_job(endpoint, node) for name, node in found.items()}
    unasked = {}
    for end in run(kube, bodies):
        if end.ok:
            node_caches.record_audit(kube, found[end.node], endpoint.host_path, end.report)
            withdraw_unproven(kube, found[end.node], endpoint.host_path, end.report)
        else:
            log.warning("cannot audit %s: %s", end.node, end.message)
            unasked[end.node] = f"{end.reason}: {end.message}"
    return unasked


@task(task_run_name=shard_run_name("fill"), cache_policy=NO_CACHE, **RETRY)
def fill_nodes(nodes: list[str], endpoint: Endpoint, cache: str, digest: str, look_every_s: float) -> list[Filled]:
    """Put a revision on each of these nodes, a Job per node; label each as soon as its copy is proven."""
    kube, log = connect(), get_run_logger()
    uid = kube.get("ModelDataCacheConfig", cache, endpoint.namespace)["metadata"]["uid"]
    found = existing(kube, nodes)
    bodies = {name: fill_job(endpoint, cache, digest, node) for name, node in found.items()}
    teller = Teller(kube, found, digest, endpoint.host_path, look_every_s)
    for name in found:
        teller.tell(name, "Downloading", {})
    gone = [name for name in nodes if name not in found]
    filled = [Filled(name, ok=False, reason="NodeGone", message=f"{name} left the cluster") for name in gone]
    for end in run(kube, bodies, teller.look):
        told = {**end.report, "reason": end.reason, "message": end.message}
        teller.tell(end.node, "Ready" if end.ok else "Failed", told)
        if end.ok:
            label(kube, found[end.node], uid)
            log.info("%s is warm", end.node)
        else:
            log.warning("cannot fill %s: %s: %s", end.node, end.reason, end.message)
        filled.append(as_filled(end))
    return filled


def as_filled(end: JobEnd) -> Filled:
    return Filled(
        node=end.node,
        ok=end.ok,
        fetched_bytes=int(end.report.get("fetched_bytes", 0)),
        reused_bytes=int(end.report.get("reused_bytes", 0)),
        unverified_files=int(end.report.get("unverified_files", 0)),
        seconds=float(end.report.get("seconds", 0.0)),
        reason=end.reason,
        message=end.message,
    )


class Teller:
    """Writes the progress of fills into NodeCaches, at most every `every_s` per node: a fleet shares one API."""

    def __init__(self, kube: Kube, nodes: Mapping[str, Object], digest: str, host_path: str, every_s: float) -> None:
        self._kube, self._nodes, self._digest, self._host_path = kube, nodes, digest, host_path
        self._every_s, self._told_at = every_s, dict.fromkeys(nodes, 0.0)

    def look(self, node: str, progress: Object) -> None:
        if time.monotonic() - self._told_at[node] >= self._every_s:
            self.tell(node, "Downloading", progress)

    def tell(self, node: str, state: str, told: Mapping[str, object]) -> None:
        told_entry = entry(self._digest, self._host_path, state, told)
        report = told if state != "Downloading" else None
        node_caches.record_entry(self._kube, self._nodes[node], told_entry, report)
        self._told_at[node] = time.monotonic()


@task(task_run_name=shard_run_name("clear"), cache_policy=NO_CACHE, **RETRY)
def clear_nodes(nodes: list[str], endpoint: Endpoint, digest: str) -> dict[str, str]:
    """Remove a revision from these nodes' disks; returns the sentence of each that still has it."""
    kube, log = connect(), get_run_logger()
    found = existing(kube, nodes)
    kept = {}
    for end in run(kube, {name: evict_job(endpoint, digest, node) for name, node in found.items()}):
        if end.ok:
            node_caches.drop_entry(kube, found[end.node], digest, endpoint.host_path, end.report)
        else:
            log.warning("cannot clear %s: %s", end.node, end.message)
            kept[end.node] = f"{end.reason}: {end.message}"
    return kept


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


def run(kube: Kube, bodies: Mapping[str, Object], look: jobs.Look | None = None) -> Iterator[JobEnd]:
    return jobs.run(kube, bodies, Pace(), look)


def label(kube: Kube, node: Object, cache_uid: str) -> None:
    """Say that this very node is warm; a namesake that replaced it meanwhile is left alone."""
    change_labels(kube, node, {ready_label(cache_uid): "true"})


def withdraw_unproven(kube: Kube, node: Object, host_path: str, report: Mapping[str, object]) -> None:
    """Take off the readiness labels that an audit contradicts, and those of caches that are gone."""
    entries = report.get("entries")
    held = {e["digest"] for e in entries if e["state"] == "Ready"} if isinstance(entries, list) else set()
    caches = {cache["metadata"]["uid"]: cache["spec"] for cache in kube.list("ModelDataCacheConfig").items}

    def is_wrong(label: str) -> bool:
        cache = caches.get(label.removeprefix(READY_LABEL_PREFIX))
        return cache is None or (cache["hostPath"] == host_path and cache["digest"] not in held)

    labels = node["metadata"].get("labels") or {}
    wrong = [label for label in labels if label.startswith(READY_LABEL_PREFIX) and is_wrong(label)]
    if wrong:
        change_labels(kube, node, dict.fromkeys(wrong))


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
