"""Which node a pod runs on.

A node is left out when its labels, taints, state or room forbid the pod. Of the others the one wins that
preferred affinity weighs most, then the one with fewer avoided taints, then fewer pods of the same owner, then
fewer pods at all, then the first name. Resources that a node does not name are unlimited, but for extended ones
(`vendor.com/thing`), of which it has none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal

from infra.local.cluster.objects import Object, controller_uid, is_deleting, is_true, name_of
from infra.local.cluster.selectors import match_node_term

_SUFFIXES = {
    "m": Decimal("0.001"),
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate(("", "k", "M", "G", "T", "P", "E"))},
    **{f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTPE", 1)},
}

FINISHED = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a pod goes; node "" when no node can take it, and `message` says why."""

    node: str
    message: str = ""


@dataclass(slots=True)
class _Room:
    """What is left on one node while pods are placed one after another."""

    node: Object
    pods: list[Object]
    used: Counter[str]


def place_all(pending: Sequence[Object], nodes: Sequence[Object], running: Sequence[Object]) -> list[Placement]:
    """A placement for each pending pod, each counted before the next is placed."""
    rooms = _rooms(nodes, running)
    return [_place(pod, rooms) for pod in pending]


def place(pod: Object, nodes: Sequence[Object], running: Sequence[Object]) -> Placement:
    return place_all([pod], nodes, running)[0]


def may_run_on(pod: Object, node: Object) -> str:
    """Why labels, taints or the state of `node` forbid `pod`; "" when they do not. Room is not looked at."""
    spec = pod.get("spec") or {}
    if spec.get("nodeName") and spec["nodeName"] != name_of(node):
        return "node(s) didn't match the requested node name"
    if is_deleting(node):
        return "node(s) were being deleted"
    tolerations = spec.get("tolerations") or ()
    if (node.get("spec") or {}).get("unschedulable") and not _tolerates(_UNSCHEDULABLE, tolerations):
        return "node(s) were unschedulable"
    if not is_true(node, "Ready") and not _tolerates(_NOT_READY, tolerations):
        return "node(s) were not ready"
    for taint in (node.get("spec") or {}).get("taints") or ():
        if taint["effect"] in ("NoSchedule", "NoExecute") and not _tolerates(taint, tolerations):
            return f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"
    if not _matches_required(spec, node):
        return "node(s) didn't match Pod's node affinity/selector"
    return ""


def untolerated_no_execute(pod: Object, node: Object) -> list[Object]:
    """The taints of `node` for which `pod` must leave it."""
    tolerations = pod["spec"].get("tolerations") or ()
    taints = (node.get("spec") or {}).get("taints") or ()
    return [taint for taint in taints if taint["effect"] == "NoExecute" and not _tolerates(taint, tolerations)]


def requests_of(pod: Object) -> dict[str, Decimal]:
    """What a pod needs: the sum over its containers, or the largest init container where that is more."""
    needs: dict[str, Decimal] = {}
    for container in pod["spec"].get("containers") or ():
        for resource, amount in _requests(container).items():
            needs[resource] = needs.get(resource, Decimal(0)) + amount
    for container in pod["spec"].get("initContainers") or ():
        for resource, amount in _requests(container).items():
            needs[resource] = max(needs.get(resource, Decimal(0)), amount)
    return needs


def quantity(text: str | float) -> Decimal:
    """A Kubernetes quantity: 500m, 2, 1.5Gi, 1e3."""
    text = str(text)
    for suffix in sorted(_SUFFIXES, key=len, reverse=True):
        if suffix and text.endswith(suffix):
            return Decimal(text.removesuffix(suffix)) * _SUFFIXES[suffix]
    return Decimal(text)


_UNSCHEDULABLE: Object = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
_NOT_READY: Object = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}


def _place(pod: Object, rooms: list[_Room]) -> Placement:
    refusals: Counter[str] = Counter()
    fitting: list[_Room] = []
    for room in rooms:
        refusal = may_run_on(pod, room.node) or _lacks(pod, room)
        if refusal:
            refusals[refusal] += 1
        else:
            fitting.append(room)
    if not fitting:
        told = ", ".join(f"{count} {reason}" for reason, count in sorted(refusals.items()))
        return Placement("", f"0/{len(rooms)} nodes are available" + (f": {told}." if told else "."))
    best = min(fitting, key=lambda room: _rank(pod, room))
    _take(best, pod)
    return Placement(name_of(best.node))


def _rank(pod: Object, room: _Room) -> tuple[int, int, int, int, str]:
    """Smaller is better."""
    preferred = ((pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}).get(
        "preferredDuringSchedulingIgnoredDuringExecution"
    )
    weight = sum(term["weight"] for term in preferred or () if match_node_term(term["preference"], room.node))
    taints = (room.node.get("spec") or {}).get("taints") or ()
    tolerations = pod["spec"].get("tolerations") or ()
    avoided = sum(taint["effect"] == "PreferNoSchedule" and not _tolerates(taint, tolerations) for taint in taints)
    owner = controller_uid(pod)
    siblings = sum(controller_uid(other) == owner for other in room.pods) if owner else 0
    return -weight, avoided, siblings, len(room.pods), name_of(room.node)


def _rooms(nodes: Iterable[Object], running: Iterable[Object]) -> list[_Room]:
    rooms = {name_of(node): _Room(node, [], Counter()) for node in nodes}
    for pod in running:
        room = rooms.get(pod["spec"].get("nodeName", ""))
        if room is not None and (pod.get("status") or {}).get("phase") not in FINISHED:
            _take(room, pod)
    return list(rooms.values())


def _take(room: _Room, pod: Object) -> None:
    room.pods.append(pod)
    for resource, amount in requests_of(pod).items():
        room.used[resource] += amount  # type: ignore[assignment]  # a Counter of Decimals


def _lacks(pod: Object, room: _Room) -> str:
    status = room.node.get("status") or {}
    allocatable = status.get("allocatable") or status.get("capacity") or {}
    if "pods" in allocatable and len(room.pods) >= quantity(allocatable["pods"]):
        return "Too many pods"
    for resource, amount in requests_of(pod).items():
        if resource not in allocatable and "/" not in resource:
            continue
        if room.used[resource] + amount > quantity(allocatable.get(resource, 0)):
            return f"Insufficient {resource}"
    return ""


def _matches_required(spec: Object, node: Object) -> bool:
    labels = node["metadata"].get("labels") or {}
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return True
    return any(match_node_term(term, node) for term in required["nodeSelectorTerms"])


def _tolerates(taint: Object, tolerations: Iterable[Object]) -> bool:
    return any(_covers(toleration, taint) for toleration in tolerations)


def _covers(toleration: Object, taint: Object) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if toleration.get("key") and toleration["key"] != taint["key"]:
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return True
    return bool(toleration.get("key")) and toleration.get("value", "") == taint.get("value", "")


def _requests(container: Object) -> dict[str, Decimal]:
    resources = container.get("resources") or {}
    amounts = (resources.get("limits") or {}) | (resources.get("requests") or {})
    return {resource: quantity(amount) for resource, amount in amounts.items()}
