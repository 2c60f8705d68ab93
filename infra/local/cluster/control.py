"""One round of all controllers and the scheduler over one state. Pure but for the order in which it asks."""

from __future__ import annotations

from collections.abc import Callable

from infra.local.cluster.actions import Action, Note, Patch, SetStatus
from infra.local.cluster.nodes import plan_departures, plan_node
from infra.local.cluster.objects import (
    MALFORMED,
    Object,
    condition,
    format_time,
    is_deleting,
    namespace_of,
    owner_uids,
    uid_of,
    with_condition,
)
from infra.local.cluster.scheduler import place_all
from infra.local.cluster.state import State
from infra.local.cluster.workloads.daemonsets import plan_daemonset
from infra.local.cluster.workloads.deployments import current_replicaset, plan_deployment
from infra.local.cluster.workloads.jobs import plan_job
from infra.local.cluster.workloads.pods import FINISHED, phase_of
from infra.local.cluster.workloads.replicasets import plan_replicaset
from infra.local.cluster.workloads.services import SERVICE_NAME, plan_service

# A change of any other kind never asks for a new round.
WATCHED = frozenset({"Node", "Pod", "Job", "Deployment", "ReplicaSet", "DaemonSet", "Service", "EndpointSlice"})


def plan_round(state: State, boot_id: str, now_s: float) -> list[Action]:
    """Everything there is to do now. What one controller makes, the next sees in the next round."""
    nodes, pods = state.all("Node"), state.all("Pod")
    actions = [action for node in nodes for action in plan_node(node, boot_id, now_s)]
    actions += plan_departures(pods, nodes)
    actions += _plan_deployments(state, now_s)
    actions += _each(state, "ReplicaSet", lambda obj: plan_replicaset(obj, state.controlled(obj, "Pod"), now_s))
    actions += _each(state, "DaemonSet", lambda obj: plan_daemonset(obj, state.controlled(obj, "Pod"), nodes))
    actions += _each(state, "Job", lambda obj: plan_job(obj, state.controlled(obj, "Pod"), now_s))
    actions += plan_bindings(pods, nodes, now_s)
    slices = state.all("EndpointSlice")
    actions += _each(state, "Service", lambda obj: plan_service(obj, pods, [s for s in slices if _belongs(s, obj)]))
    return actions


def plan_bindings(pods: list[Object], nodes: list[Object], now_s: float) -> list[Action]:
    """Bind each waiting pod, oldest first, or say why it cannot be."""
    waiting = [pod for pod in pods if not pod["spec"].get("nodeName") and not is_deleting(pod)]
    waiting = [pod for pod in waiting if phase_of(pod) not in FINISHED]
    if not waiting:
        return []
    waiting.sort(key=lambda pod: (pod["metadata"]["creationTimestamp"], pod["metadata"]["name"]))
    actions: list[Action] = []
    for pod, placement in zip(waiting, place_all(waiting, nodes, pods), strict=True):
        if placement.node:
            actions.append(Patch(pod, {"spec": {"nodeName": placement.node}}))
            told = f"Successfully assigned {namespace_of(pod)}/{pod['metadata']['name']} to {placement.node}"
            actions.append(Note(pod, "Scheduled", told))
        elif condition(pod, "PodScheduled").get("message") != placement.message:
            actions.append(SetStatus(pod, _unschedulable(pod, placement.message, now_s)))
            actions.append(Note(pod, "FailedScheduling", placement.message, is_warning=True))
    return actions


def orphans(objects: list[Object]) -> list[Object]:
    """Objects all of whose owners are gone: made, say, while their owner was being deleted."""
    alive = {uid_of(obj) for obj in objects}
    return [
        obj for obj in objects if owner_uids(obj) and not alive.intersection(owner_uids(obj)) and not is_deleting(obj)
    ]


def _plan_deployments(state: State, now_s: float) -> list[Action]:
    def plan(deployment: Object) -> list[Action]:
        replicasets = state.controlled(deployment, "ReplicaSet")
        current = current_replicaset(deployment, replicasets)
        old = [replicaset for replicaset in replicasets if replicaset is not current]
        old_pods = [pod for replicaset in old for pod in state.controlled(replicaset, "Pod")]
        return plan_deployment(deployment, replicasets, old_pods, now_s)

    return _each(state, "Deployment", plan)


def _each(state: State, kind: str, plan: Callable[[Object], list[Action]]) -> list[Action]:
    """One malformed object must not stop the cluster: it is told of, and the others go on."""
    actions: list[Action] = []
    for obj in state.all(kind):
        try:
            actions += plan(obj)
        except MALFORMED as error:
            actions.append(Note(obj, "Malformed", f"{type(error).__name__}: {error}", is_warning=True))
    return actions


def _unschedulable(pod: Object, message: str, now_s: float) -> Object:
    status = pod.get("status") or {}
    conditions = with_condition(
        status.get("conditions") or [], "PodScheduled", False, "Unschedulable", message, format_time(now_s)
    )
    return {**status, "phase": "Pending", "conditions": conditions}


def _belongs(endpoints: Object, service: Object) -> bool:
    labels = endpoints["metadata"].get("labels") or {}
    return namespace_of(endpoints) == namespace_of(service) and labels.get(SERVICE_NAME) == service["metadata"]["name"]
