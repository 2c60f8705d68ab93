"""NodeCache: what one node holds, as its last audit and fills told. Owned by its Node, so it goes with it.

    status: nodeUID bootID filesystemID capacityBytes freeBytes heartbeatTime
            entries[]: digest hostPath state sizeBytes doneBytes fetchedBytes reusedBytes bytesPerSecond etaSeconds
                       unverifiedFiles reason message time

Several runs may write one node's entries at once, so every write is a read, a change and a checked patch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from tasks.kube import WARMPATH, AlreadyExists, Conflict, Kube, NotFound, Object
from tasks.plan.types import CacheEntry
from tasks.stop import pause

TRIES = 20

# The node program's words → ours.
ENTRY_FIELDS = {
    "size_bytes": "sizeBytes",
    "total_bytes": "sizeBytes",
    "done_bytes": "doneBytes",
    "fetched_bytes": "fetchedBytes",
    "reused_bytes": "reusedBytes",
    "bytes_per_s": "bytesPerSecond",
    "eta_s": "etaSeconds",
    "unverified_files": "unverifiedFiles",
    "reason": "reason",
    "message": "message",
}
DISK_FIELDS = {"capacity_bytes": "capacityBytes", "free_bytes": "freeBytes", "filesystem_id": "filesystemID"}


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def age_s(timestamp: str) -> float:
    """Seconds since an RFC 3339 `timestamp`; infinite for none."""
    if not timestamp:
        return float("inf")
    return (datetime.now(UTC) - datetime.fromisoformat(timestamp.replace("Z", "+00:00"))).total_seconds()


def entries(node_cache: Object, host_path: str) -> tuple[CacheEntry, ...]:
    """What the node holds under `host_path`."""
    told = (node_cache.get("status") or {}).get("entries") or []
    return tuple(
        CacheEntry(e["digest"], e["state"], int(e.get("sizeBytes", 0)), e.get("reason", ""))
        for e in told
        if e.get("hostPath") == host_path
    )


def find_entry(node_cache: Object, digest: str, host_path: str) -> Object:
    """The entry of one revision as it is told; {} when there is none."""
    wanted = {"digest": digest, "hostPath": host_path}
    told = (node_cache.get("status") or {}).get("entries") or []
    found: Object = next((e for e in told if _same(e, wanted)), {})
    return found


def record_audit(kube: Kube, node: Object, host_path: str, report: Mapping[str, object]) -> None:
    """Replace what was known about `host_path` of this node by an audit's report."""
    found = report.get("entries")
    audited = [entry(e["digest"], host_path, e["state"], e) for e in found] if isinstance(found, list) else []
    held = {e["digest"] for e in audited}

    def change(status: Object) -> Object:
        old = status.get("entries") or []
        here = {e["digest"]: e for e in old if e.get("hostPath") == host_path}
        elsewhere = [e for e in old if e.get("hostPath") != host_path]
        # A fill that began is not among the published copies yet; an audit must not forget that it has its room.
        begun = [e for e in here.values() if e["state"] in ("Downloading", "Failed") and e["digest"] not in held]
        # An audit knows nothing of how a copy came about: that stays told.
        seen = [{**(here.get(e["digest"], {}) if e["state"] == "Ready" else {}), **e} for e in audited]
        return {**disk(report), **identity(node), "heartbeatTime": now(), "entries": [*elsewhere, *begun, *seen]}

    update(kube, node, change)


def record_entry(kube: Kube, node: Object, told: Object, report: Mapping[str, object] | None = None) -> None:
    """Replace one entry; with a report, also what it says of the disk."""

    def change(status: Object) -> Object:
        others = [e for e in status.get("entries") or [] if not _same(e, told)]
        heartbeat = {**disk(report), "heartbeatTime": now()} if report else {}
        return {**heartbeat, **identity(node), "entries": [*others, told]}

    update(kube, node, change)


def drop_entry(kube: Kube, node: Object, digest: str, host_path: str, report: Mapping[str, object]) -> None:
    """Forget one entry that was evicted, with the room that it left. Without a heartbeat the disk is audited anew."""
    gone = entry(digest, host_path, "Absent", {})

    def change(status: Object) -> Object:
        kept = [e for e in status.get("entries") or [] if not _same(e, gone)]
        return {**disk(report), **identity(node), "heartbeatTime": None, "entries": kept}

    update(kube, node, change)


def entry(digest: str, host_path: str, state: str, told: Mapping[str, object]) -> Object:
    fields = {ours: told[theirs] for theirs, ours in ENTRY_FIELDS.items() if told.get(theirs) not in (None, "")}
    return {"digest": digest, "hostPath": host_path, "state": state, **fields, "time": now()}


def disk(report: Mapping[str, object]) -> Object:
    return {ours: report[theirs] for theirs, ours in DISK_FIELDS.items() if report.get(theirs) is not None}


def identity(node: Object) -> Object:
    return {"nodeUID": node["metadata"]["uid"], "bootID": boot_id(node)}


def boot_id(node: Object) -> str:
    return str(((node.get("status") or {}).get("nodeInfo") or {}).get("bootID", ""))


def update(kube: Kube, node: Object, change: Callable[[Object], Object]) -> None:
    """Patch the status with what `change` makes of it, again when somebody else was faster."""
    name = node["metadata"]["name"]
    for attempt in range(TRIES):
        found = _get_or_create(kube, node)
        status = found.get("status") or {}
        if status.get("nodeUID") not in (None, node["metadata"]["uid"]):
            status = {}  # told by another node of this name
        version = found["metadata"]["resourceVersion"]
        body = {"metadata": {"resourceVersion": version}, "status": change(status)}
        try:
            kube.patch("NodeCache", name, body, subresource="status")
        except (Conflict, NotFound):
            if attempt == TRIES - 1:
                raise
            pause(0.02 * (attempt + 1))
        else:
            return


def _same(one: Object, other: Object) -> bool:
    return bool(one["digest"] == other["digest"] and one.get("hostPath") == other.get("hostPath"))


def _get_or_create(kube: Kube, node: Object) -> Object:
    metadata = node["metadata"]
    try:
        return kube.get("NodeCache", metadata["name"])
    except NotFound:
        pass
    owner = {"apiVersion": "v1", "kind": "Node", "name": metadata["name"], "uid": metadata["uid"]}
    body: Object = {
        "apiVersion": WARMPATH,
        "kind": "NodeCache",
        "metadata": {
            "name": metadata["name"],
            "labels": {"app.kubernetes.io/managed-by": "warmpath"},
            "ownerReferences": [owner],
        },
        "spec": {"nodeName": metadata["name"]},
    }
    try:
        return kube.create(body)
    except AlreadyExists:
        return kube.get("NodeCache", metadata["name"])
