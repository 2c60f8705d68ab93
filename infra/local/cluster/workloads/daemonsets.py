"""DaemonSets: one pod on each node that its template allows. A new template replaces one pod after the other."""

from __future__ import annotations

from infra.local.cluster.actions import Action, Create, Delete, status_change
from infra.local.cluster.objects import Object, is_deleting, labels_of, name_of
from infra.local.cluster.scheduler import may_run_on
from infra.local.cluster.workloads.pods import is_active, is_ready, phase_of, pod_from, template_hash

HASH = "controller-revision-hash"
_ALWAYS_TOLERATED = (
    {"key": "node.kubernetes.io/not-ready", "operator": "Exists"},
    {"key": "node.kubernetes.io/unschedulable", "operator": "Exists"},
)


def plan_daemonset(daemonset: Object, pods: list[Object], nodes: list[Object]) -> list[Action]:
    if is_deleting(daemonset):
        return []
    digest = template_hash(daemonset["spec"]["template"])
    bodies = {name_of(node): _pod_for(daemonset, node, digest) for node in nodes}
    wanted = [name_of(node) for node in nodes if not may_run_on(bodies[name_of(node)], node)]
    held = {node_of(pod) for pod in pods if phase_of(pod) != "Failed"}
    active = [pod for pod in pods if is_active(pod)]
    misplaced = [pod for pod in active if node_of(pod) not in wanted]
    finished = [pod for pod in pods if not is_active(pod) and not is_deleting(pod)]
    placed = [pod for pod in active if pod not in misplaced]
    actions: list[Action] = [Create(bodies[node]) for node in wanted if node not in held]
    actions += [Delete(pod) for pod in (*misplaced, *finished)]
    actions += _plan_update(daemonset, placed, digest, len(wanted))
    ready = sum(map(is_ready, placed))
    status = {
        "desiredNumberScheduled": len(wanted),
        "currentNumberScheduled": len(placed),
        "numberMisscheduled": len(misplaced),
        "updatedNumberScheduled": sum(labels_of(pod).get(HASH) == digest for pod in placed),
        "numberReady": ready,
        "numberAvailable": ready,
        "numberUnavailable": max(0, len(wanted) - ready),
        "observedGeneration": daemonset["metadata"]["generation"],
    }
    return actions + status_change(daemonset, status)


def node_of(pod: Object) -> str:
    """The node that a DaemonSet made `pod` for, before it is bound too."""
    if pod["spec"].get("nodeName"):
        return str(pod["spec"]["nodeName"])
    affinity = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return str(affinity["nodeSelectorTerms"][0]["matchFields"][0]["values"][0])


def _plan_update(daemonset: Object, placed: list[Object], digest: str, wanted: int) -> list[Action]:
    """Old pods leave while no more than maxUnavailable pods are missing; those that do not serve leave first."""
    strategy = daemonset["spec"]["updateStrategy"]
    if strategy["type"] != "RollingUpdate":
        return []
    limit = int((strategy.get("rollingUpdate") or {}).get("maxUnavailable", 1))
    outdated = [pod for pod in placed if labels_of(pod).get(HASH) != digest]
    broken = [pod for pod in outdated if not is_ready(pod)]
    room = max(0, limit - (wanted - sum(map(is_ready, placed))))
    return [Delete(pod) for pod in (*broken, *[pod for pod in outdated if is_ready(pod)][:room])]


def _pod_for(daemonset: Object, node: Object, digest: str) -> Object:
    """As the real controller does it: affinity to the one node, so that the scheduler still checks for room."""
    template = daemonset["spec"]["template"]
    labels = {**((template.get("metadata") or {}).get("labels") or {}), HASH: digest}
    pod = pod_from(template, daemonset, labels=labels)
    spec = {**pod["spec"], "tolerations": [*(pod["spec"].get("tolerations") or ()), *_ALWAYS_TOLERATED]}
    affinity = dict(spec.get("affinity") or {})
    here = {"key": "metadata.name", "operator": "In", "values": [name_of(node)]}
    node_affinity = dict(affinity.get("nodeAffinity") or {})
    required = node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    terms = required["nodeSelectorTerms"] if required else [{}]
    node_affinity["requiredDuringSchedulingIgnoredDuringExecution"] = {
        "nodeSelectorTerms": [{**term, "matchFields": [here]} for term in terms]
    }
    return {**pod, "spec": {**spec, "affinity": {**affinity, "nodeAffinity": node_affinity}}}
