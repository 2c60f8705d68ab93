"""Nodes: made here, kept alive by the runner, and what follows when one refuses pods or goes away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from infra.local.cluster.actions import Action, Delete, Note, SetStatus, Wake
from infra.local.cluster.logs import node_directory
from infra.local.cluster.objects import Object, condition, format_time, is_deleting, name_of, parse_time, with_condition
from infra.local.cluster.scheduler import untolerated_no_execute
from infra.local.cluster.store import Store, StoreError

HEARTBEAT_S = 20.0
NVME_BYTES = "warmpath.dev/nvme-bytes"
# Set on a node, it makes its kubelet fall silent: a dead node, for rehearsals.
SILENT = "warmpath.dev/kubelet-silent"
# Set on a node, its value is the bootID: a reboot, for rehearsals.
BOOT_ID = "warmpath.dev/boot-id"


def add_node(
    store: Store,
    name: str,
    *,
    labels: Mapping[str, str] | None = None,
    capacity: Mapping[str, str] | None = None,
    nvme_bytes: int = 0,
    taints: Sequence[tuple[str, str, str]] = (),
) -> Object:
    """Add a node, whose file system is `nodes/<name>`; one that exists is returned as it is.

    capacity: resources such as {"nvidia.com/gpu": "1", "pods": "20"}. nvme_bytes: how much the caches on this
    node may hold, 0 for no limit but the disk's. taints: (key, value, effect).
    """
    node_directory(store.directory, name).mkdir(parents=True, exist_ok=True)
    resources = {"pods": "110", **(capacity or {})}
    body = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/os": "linux", **(labels or {}), "kubernetes.io/hostname": name},
            "annotations": {NVME_BYTES: str(nvme_bytes)} if nvme_bytes else {},
        },
        "spec": {"taints": [{"key": key, "value": value, "effect": effect} for key, value, effect in taints]},
        "status": {"capacity": resources, "allocatable": resources, "nodeInfo": {"bootID": machine_boot_id()}},
    }
    try:
        return store.create(body)
    except StoreError as error:
        if error.reason != "AlreadyExists":
            raise
        return store.get("Node", name)


def machine_boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def plan_node(node: Object, boot_id: str, now_s: float) -> list[Action]:
    """The kubelet's word about its node: ready, since when, and after which boot. A silent one says nothing."""
    annotations = node["metadata"].get("annotations") or {}
    boot_id = annotations.get(BOOT_ID, boot_id)
    if SILENT in annotations:
        if condition(node, "Ready").get("status") == "Unknown":
            return []
        return _plan_ready(node, "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.", now_s)
    ready = condition(node, "Ready")
    same_boot = ((node.get("status") or {}).get("nodeInfo") or {}).get("bootID") == boot_id
    if ready.get("status") == "True" and same_boot:
        beat_s = parse_time(ready["lastHeartbeatTime"]) + HEARTBEAT_S
        if now_s < beat_s:
            return [Wake(beat_s)]
    return _plan_ready(node, "True", "KubeletReady", "kubelet is posting ready status", now_s, boot_id)


def plan_departures(pods: list[Object], nodes: list[Object]) -> list[Action]:
    """Pods that must go: their node is gone, or has a NoExecute taint that they do not tolerate (any more)."""
    by_name = {name_of(node): node for node in nodes}
    actions: list[Action] = []
    for pod in pods:
        where = pod["spec"].get("nodeName")
        if not where:
            continue
        if where not in by_name:
            actions += [Note(pod, "NodeGone", f"Node {where} does not exist", is_warning=True), Delete(pod, grace_s=0)]
        elif not is_deleting(pod):
            for taint in untolerated_no_execute(pod, by_name[where]):
                actions += [
                    Note(pod, "TaintManagerEviction", f"Node {where} has taint {taint['key']}", is_warning=True),
                    Delete(pod),
                ]
                break
    return actions


def _plan_ready(node: Object, word: str, reason: str, message: str, now_s: float, boot_id: str = "") -> list[Action]:
    at, status = format_time(now_s), node.get("status") or {}
    before = condition(node, "Ready")
    conditions = with_condition(status.get("conditions") or [], "Ready", word == "True", reason, message, at)
    for entry in conditions:
        if entry["type"] == "Ready":
            changed = before.get("status") != word
            entry |= {"status": word, "lastTransitionTime": at if changed else before["lastTransitionTime"]}
            entry["lastHeartbeatTime"] = before.get("lastHeartbeatTime", at) if word == "Unknown" else at
    info = {**(status.get("nodeInfo") or {})} | ({"bootID": boot_id} if boot_id else {})
    return [SetStatus(node, {**status, "conditions": conditions, "nodeInfo": info})]
