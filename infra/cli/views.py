"""Tables of `warmpath get`: from Kubernetes objects to rows of text."""

from __future__ import annotations

from dataclasses import dataclass

from infra.cli.quantities import age, size
from tasks.kube import Kube, Object
from tasks.plan.deployments import INSTANCE_TYPE
from tasks.plan.objects import ENDPOINT_LABEL, ready_label

Rows = list[tuple[str, ...]]

KIND_OF = {"caches": "ModelDataCacheConfig", "nodes": "Node", "endpoints": "InferenceEndpointConfig"}


def namespace_of(what: str, namespace: str) -> str:
    """The namespace to list `what` in: nodes have none."""
    return "" if what == "nodes" else namespace


@dataclass(frozen=True, slots=True)
class View:
    """A table; columns from `wide` on are shown with `-o wide` only."""

    what: str
    columns: tuple[str, ...]
    rows: Rows
    wide: int

    def shown(self, *, wide: bool) -> tuple[tuple[str, ...], Rows]:
        end = len(self.columns) if wide else self.wide
        return self.columns[:end], [row[:end] for row in self.rows]


def read(kube: Kube, what: str, namespace: str) -> View:
    """The table of `what` as the cluster is now."""
    objects = kube.list(KIND_OF[what], namespace_of(what, namespace)).items
    if what == "endpoints":
        return endpoints(objects, kube.list("Deployment", namespace, labels=ENDPOINT_LABEL).items)
    if what == "nodes":
        return nodes(objects, kube.list("NodeCache").items, kube.list("ModelDataCacheConfig").items)
    return caches(objects)


def caches(objects: list[Object]) -> View:
    """One row per ModelDataCacheConfig; READY counts nodes with a proven copy."""
    rows: Rows = [
        (
            name(cache),
            status(cache).get("state", "Pending"),
            str(status(cache).get("readyNodes", 0)),
            str(status(cache).get("targetNodes", 0)),
            size(cache["spec"].get("sizeBytes")),
            str(cache["spec"].get("revision", ""))[:12],
            created(cache),
            reason(cache),
        )
        for cache in objects
    ]
    return View("caches", ("NAME", "STATE", "READY", "TARGET", "SIZE", "REVISION", "AGE", "REASON"), rows, wide=7)


def endpoints(objects: list[Object], deployments: list[Object]) -> View:
    """One row per InferenceEndpointConfig; READY counts replicas that serve."""
    ready = {name(deployment): status(deployment).get("readyReplicas", 0) for deployment in deployments}
    rows: Rows = [
        (
            name(endpoint),
            status(endpoint).get("state", "Pending"),
            f"{ready.get(name(endpoint), 0)}/{endpoint['spec'].get('replicas', 1)}",
            endpoint["spec"].get("routing", {}).get("strategy", "RANDOM"),
            endpoint["spec"]["modelName"],
            str(status(endpoint).get("cache", "")),
            created(endpoint),
            reason(endpoint),
        )
        for endpoint in objects
    ]
    return View("endpoints", ("NAME", "STATE", "READY", "STRATEGY", "MODEL", "CACHE", "AGE", "REASON"), rows, wide=7)


def nodes(objects: list[Object], node_caches: list[Object], weights_caches: list[Object]) -> View:
    """One row per Node; WARM names the caches whose verified copy it holds."""
    told = {name(cache): status(cache) for cache in node_caches}
    rows: Rows = []
    for node in objects:
        labels, disk = node["metadata"].get("labels", {}), told.get(name(node), {})
        warm = [name(cache) for cache in weights_caches if ready_label(cache["metadata"]["uid"]) in labels]
        rows.append(
            (
                name(node),
                node_state(node),
                labels.get(INSTANCE_TYPE, ""),
                size(disk.get("capacityBytes")),
                size(disk.get("freeBytes")),
                ", ".join(warm) or "-",
                created(node),
                age(str(disk.get("heartbeatTime", ""))),
            )
        )
    return View("nodes", ("NAME", "STATE", "TYPE", "NVME", "FREE", "WARM", "AGE", "AUDITED"), rows, wide=7)


def node_state(node: Object) -> str:
    conditions = {c["type"]: c["status"] for c in status(node).get("conditions", [])}
    state = "Ready" if conditions.get("Ready") == "True" else "NotReady"
    return f"{state},Cordoned" if node.get("spec", {}).get("unschedulable") else state


def name(found: Object) -> str:
    return str(found["metadata"]["name"])


def status(found: Object) -> Object:
    told: Object = found.get("status") or {}
    return told


def created(found: Object) -> str:
    return age(found["metadata"].get("creationTimestamp", ""))


def reason(found: Object) -> str:
    told = status(found)
    return ": ".join(str(told[key]) for key in ("reason", "message") if told.get(key))
