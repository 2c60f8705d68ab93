"""The stores on nodes: looking at them, filling and clearing them, each by a Job of the node program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.runtime import task_run

from tasks import jobs, node_caches
from tasks.failures import RETRY
from tasks.jobs import JobEnd, Pace
from tasks.kube import Kube, Object, connect
from tasks.node_caches import entry
from tasks.nodes import READY_LABEL_PREFIX, change_labels, existing, label
from tasks.plan.objects import audit_job, evict_job, fill_job
from tasks.plan.resources import Endpoint

PACE = Pace()


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


def shard_run_name(verb: str) -> Callable[[], str]:
    """Task run names such as `fill node-1 +63`."""

    def name() -> str:
        # An exception here would leave the task Pending for ever, without a reason.
        nodes = (task_run.parameters or {}).get("nodes") or ["no node"]
        return f"{verb} {nodes[0]}" + (f" +{len(nodes) - 1}" if len(nodes) > 1 else "")

    return name


@task(task_run_name=shard_run_name("audit"), cache_policy=NO_CACHE, **RETRY)
def audit_nodes(nodes: list[str], endpoint: Endpoint) -> dict[str, str]:
    """Look at these nodes' disks and record what is there; returns the sentence of each that could not be asked."""
    kube, log = connect(), get_run_logger()
    found = existing(kube, nodes)
    bodies = {name: audit_job(endpoint, node) for name, node in found.items()}
    unasked = {}
    for end in jobs.run(kube, bodies, PACE):
        if end.ok:
            node_caches.record_audit(kube, found[end.node], endpoint.host_path, end.report)
            withdraw_unproven(kube, found[end.node], endpoint.host_path, end.report)
        else:
            log.warning("cannot audit %s: %s", end.node, end.message)
            unasked[end.node] = f"{end.reason}: {end.message}"
    return unasked


@task(task_run_name=shard_run_name("fill"), cache_policy=NO_CACHE, **RETRY)
def fill_nodes(nodes: list[str], endpoint: Endpoint, cache: str, digest: str, look_s: float) -> list[Filled]:
    """Put a revision on each of these nodes, a Job per node; label each as soon as its copy is proven."""
    kube, log = connect(), get_run_logger()
    uid = kube.get("ModelDataCacheConfig", cache, endpoint.namespace)["metadata"]["uid"]
    found = existing(kube, nodes)
    bodies = {name: fill_job(endpoint, cache, digest, node) for name, node in found.items()}
    teller = Teller(kube, found, digest, endpoint.host_path)
    for name in found:
        teller.tell(name, "Downloading", {})
    gone = [name for name in nodes if name not in found]
    filled = [Filled(name, ok=False, reason="NodeGone", message=f"{name} left the cluster") for name in gone]
    pace = replace(PACE, poll_s=max(PACE.poll_s, look_s / 8), look_s=look_s)
    for end in map(partial(check_digest, digest), jobs.run(kube, bodies, pace, teller.look)):
        told = {**end.report, "reason": end.reason, "message": end.message}
        teller.tell(end.node, "Ready" if end.ok else "Failed", told)
        if end.ok:
            label(kube, found[end.node], uid)
            log.info("%s is warm", end.node)
        else:
            log.warning("cannot fill %s: %s: %s", end.node, end.reason, end.message)
        filled.append(as_filled(end))
    return filled


def check_digest(digest: str, end: JobEnd) -> JobEnd:
    """A node is warm only when its own report names this revision."""
    found = end.report.get("digest")
    if not end.ok or found == digest:
        return end
    return replace(end, ok=False, reason="IntegrityMismatch", message=f"it reports revision {found}, not {digest}")


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
    """Writes how fills go into NodeCaches."""

    def __init__(self, kube: Kube, nodes: Mapping[str, Object], digest: str, host_path: str) -> None:
        self._kube, self._nodes, self._digest, self._host_path = kube, nodes, digest, host_path

    def look(self, node: str, progress: Object) -> None:
        self.tell(node, "Downloading", progress)

    def tell(self, node: str, state: str, told: Mapping[str, object]) -> None:
        told_entry = entry(self._digest, self._host_path, state, told)
        report = told if state != "Downloading" else None
        node_caches.record_entry(self._kube, self._nodes[node], told_entry, report)


@task(task_run_name=shard_run_name("clear"), cache_policy=NO_CACHE, **RETRY)
def clear_nodes(nodes: list[str], endpoint: Endpoint, digest: str) -> dict[str, str]:
    """Remove a revision from these nodes' disks; returns the sentence of each that still has it."""
    kube, log = connect(), get_run_logger()
    found = existing(kube, nodes)
    kept = {}
    for end in jobs.run(kube, {name: evict_job(endpoint, digest, node) for name, node in found.items()}, PACE):
        if end.ok:
            node_caches.drop_entry(kube, found[end.node], digest, endpoint.host_path, end.report)
        else:
            log.warning("cannot clear %s: %s", end.node, end.message)
            kept[end.node] = f"{end.reason}: {end.message}"
    return kept


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
