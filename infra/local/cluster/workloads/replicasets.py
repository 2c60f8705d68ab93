"""ReplicaSets: as many pods as asked for.

When there are too many, those leave first that serve least: not placed, not running, not ready, then those with
the most siblings on their node, then the youngest.
"""

from __future__ import annotations

from collections import Counter

from infra.local.cluster.actions import Action, Create, Delete, Wake, status_change
from infra.local.cluster.objects import Object, is_deleting, parse_time
from infra.local.cluster.workloads.pods import available_at, is_active, is_ready, phase_of, pod_from


def plan_replicaset(replicaset: Object, pods: list[Object], now_s: float) -> list[Action]:
    if is_deleting(replicaset):
        return []
    spec = replicaset["spec"]
    active = [pod for pod in pods if is_active(pod)]
    missing = spec["replicas"] - len(active)
    actions: list[Action] = []
    if missing > 0:
        actions += [Create(pod_from(spec["template"], replicaset)) for _ in range(missing)]
    if missing < 0:
        actions += [Delete(pod) for pod in _least_useful(active)[:-missing]]
    available = [at for pod in active if (at := available_at(pod, spec.get("minReadySeconds", 0))) is not None]
    actions += [Wake(at) for at in available if at > now_s]
    status = {
        "replicas": len(active),
        "fullyLabeledReplicas": len(active),
        "readyReplicas": sum(is_ready(pod) for pod in active),
        "availableReplicas": sum(at <= now_s for at in available),
        "observedGeneration": replicaset["metadata"]["generation"],
    }
    return actions + status_change(replicaset, status)


def _least_useful(pods: list[Object]) -> list[Object]:
    on_node = Counter(pod["spec"].get("nodeName", "") for pod in pods)

    def usefulness(pod: Object) -> tuple[bool, bool, bool, int, float]:
        return (
            bool(pod["spec"].get("nodeName")),
            phase_of(pod) == "Running",
            is_ready(pod),
            -on_node[pod["spec"].get("nodeName", "")],
            -parse_time(pod["metadata"]["creationTimestamp"]),
        )

    return sorted(pods, key=usefulness)
