"""Deployments: one ReplicaSet per template, and pods moved from the old ones to the new.

Rolling: never more than replicas + maxSurge pods asked for, never fewer than replicas - maxUnavailable available.
Old pods that do not serve leave first. Recreate: the old are gone before the new start.
"""

from __future__ import annotations

import math

from infra.local.cluster.actions import Action, Create, Delete, Note, Patch, Wake, status_change
from infra.local.cluster.objects import (
    Object,
    condition,
    controller_reference,
    format_time,
    is_deleting,
    name_of,
    namespace_of,
    parse_time,
    with_condition,
)
from infra.local.cluster.workloads.pods import template_hash

HASH = "pod-template-hash"
REVISION = "deployment.kubernetes.io/revision"


def plan_deployment(
    deployment: Object, replicasets: list[Object], old_pods: list[Object], now_s: float
) -> list[Action]:
    """`old_pods`: pods of ReplicaSets that are not the current one; only Recreate waits for them."""
    if is_deleting(deployment):
        return []
    current = current_replicaset(deployment, replicasets)
    old = [replicaset for replicaset in replicasets if replicaset is not current]
    if deployment["spec"].get("paused"):
        return _plan_status(deployment, current, replicasets, now_s)
    if current is None:
        return [*_plan_first(deployment, old), *_plan_status(deployment, None, old, now_s)]
    if deployment["spec"]["strategy"]["type"] == "Recreate":
        scaling = _plan_recreate(deployment, current, old, old_pods)
    else:
        scaling = _plan_rolling(deployment, current, old)
    return [
        *_plan_revision(current, old),
        *scaling,
        *_plan_history(deployment, old),
        *_plan_status(deployment, current, replicasets, now_s),
    ]


def current_replicaset(deployment: Object, replicasets: list[Object]) -> Object | None:
    wanted = template_hash(deployment["spec"]["template"])
    return next((r for r in replicasets if (r["metadata"].get("labels") or {}).get(HASH) == wanted), None)


def resolve(amount: int | str, replicas: int, *, up: bool) -> int:
    """maxSurge (rounded up) or maxUnavailable (rounded down), a count or a percentage of `replicas`."""
    if isinstance(amount, int):
        return amount
    share = int(amount.removesuffix("%")) * replicas / 100
    return math.ceil(share) if up else math.floor(share)


def _bounds(spec: Object) -> tuple[int, int]:
    """(most pods asked for, fewest pods available)."""
    rolling, replicas = spec["strategy"]["rollingUpdate"], spec["replicas"]
    surge = resolve(rolling["maxSurge"], replicas, up=True)
    unavailable = resolve(rolling["maxUnavailable"], replicas, up=False)
    if surge == 0 and unavailable == 0:
        unavailable = 1
    return replicas + surge, max(0, replicas - unavailable)


def _plan_first(deployment: Object, old: list[Object]) -> list[Action]:
    """The ReplicaSet of a new template; it starts with what the bounds allow at once."""
    spec = deployment["spec"]
    replicas = 0
    if spec["strategy"]["type"] == "RollingUpdate":
        replicas = max(0, min(spec["replicas"], _bounds(spec)[0] - sum(map(_replicas, old))))
    template, digest = spec["template"], template_hash(spec["template"])
    metadata = template.get("metadata") or {}
    labels = {**(metadata.get("labels") or {}), HASH: digest}
    name = f"{name_of(deployment)[:52]}-{digest}"
    selector = {**spec["selector"], "matchLabels": {**(spec["selector"].get("matchLabels") or {}), HASH: digest}}
    body = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {
            "name": name,
            "namespace": namespace_of(deployment),
            "labels": labels,
            "annotations": {REVISION: str(_last_revision(old) + 1)},
            "ownerReferences": [controller_reference(deployment)],
        },
        "spec": {
            "replicas": replicas,
            "minReadySeconds": spec.get("minReadySeconds", 0),
            "selector": selector,
            "template": {**template, "metadata": {**metadata, "labels": labels}},
        },
    }
    return [Create(body), Note(deployment, "ScalingReplicaSet", f"Scaled up replica set {name} to {replicas}")]


def _plan_rolling(deployment: Object, current: Object, old: list[Object]) -> list[Action]:
    spec = deployment["spec"]
    most, fewest = _bounds(spec)
    asked = _replicas(current) + sum(map(_replicas, old))
    wanted = _replicas(current)
    if wanted > spec["replicas"]:
        wanted = spec["replicas"]
    elif wanted < spec["replicas"]:
        wanted = min(spec["replicas"], wanted + max(0, most - asked))
    actions = _scale(deployment, current, wanted)
    spare = min(wanted, _available(current)) + sum(map(_replicas, old)) - fewest
    left = {name_of(replicaset): _replicas(replicaset) for replicaset in old}
    for replicaset in old:  # those that do not serve cost nothing
        broken = min(max(0, left[name_of(replicaset)] - _available(replicaset)), max(0, spare))
        left[name_of(replicaset)] -= broken
        spare -= broken
    serving = _available(current) + sum(min(left[name_of(r)], _available(r)) for r in old)
    free = max(0, serving - fewest)
    for replicaset in old:
        leaving = min(left[name_of(replicaset)], free)
        left[name_of(replicaset)] -= leaving
        free -= leaving
    for replicaset in old:
        actions += _scale(deployment, replicaset, left[name_of(replicaset)])
    return actions


def _plan_recreate(deployment: Object, current: Object, old: list[Object], old_pods: list[Object]) -> list[Action]:
    actions = [action for replicaset in old for action in _scale(deployment, replicaset, 0)]
    if actions or old_pods:
        return actions
    return _scale(deployment, current, deployment["spec"]["replicas"])


def _plan_revision(current: Object, old: list[Object]) -> list[Action]:
    """A template that comes back gets the highest number again, as a rollback does."""
    newest = _last_revision(old)
    if _revision(current) > newest:
        return []
    return [Patch(current, {"metadata": {"annotations": {REVISION: str(newest + 1)}}})]


def _plan_history(deployment: Object, old: list[Object]) -> list[Action]:
    empty = [r for r in old if _replicas(r) == 0 and not (r.get("status") or {}).get("replicas") and not is_deleting(r)]
    keep = deployment["spec"]["revisionHistoryLimit"]
    return [Delete(replicaset) for replicaset in sorted(empty, key=_revision)[: max(0, len(empty) - keep)]]


def _plan_status(deployment: Object, current: Object | None, all_sets: list[Object], now_s: float) -> list[Action]:
    spec, before = deployment["spec"], deployment.get("status") or {}
    replicas = sum(_count(r, "replicas") for r in all_sets)
    counts = {
        "replicas": replicas,
        "updatedReplicas": _count(current, "replicas"),
        "readyReplicas": sum(_count(r, "readyReplicas") for r in all_sets),
        "availableReplicas": sum(_count(r, "availableReplicas") for r in all_sets),
    }
    counts["unavailableReplicas"] = max(0, max(replicas, spec["replicas"]) - counts["availableReplicas"])
    at = format_time(now_s)
    fewest = _bounds(spec)[1] if spec["strategy"]["type"] == "RollingUpdate" else spec["replicas"]
    enough = counts["availableReplicas"] >= fewest
    conditions = with_condition(
        before.get("conditions") or [],
        "Available",
        enough,
        "MinimumReplicasAvailable" if enough else "MinimumReplicasUnavailable",
        f"{counts['availableReplicas']} of {spec['replicas']} replicas are available",
        at,
    )
    progress, wakes = _progress(deployment, current, counts, now_s)
    conditions = [entry for entry in conditions if entry["type"] != "Progressing"] + [progress]
    generation = deployment["metadata"]["generation"]
    status = {**counts, "observedGeneration": generation, "conditions": conditions}
    return [*wakes, *status_change(deployment, status)]


def _progress(
    deployment: Object, current: Object | None, counts: dict[str, int], now_s: float
) -> tuple[Object, list[Action]]:
    """The Progressing condition. lastUpdateTime moves when the rollout gets further; the deadline counts from it."""
    spec, before = deployment["spec"], deployment.get("status") or {}
    previous = condition(deployment, "Progressing")
    updated, total, available = counts["updatedReplicas"], counts["replicas"], counts["availableReplicas"]
    is_done = current is not None and updated == total == available == spec["replicas"]
    was_done = previous.get("reason") == "NewReplicaSetAvailable"
    is_new = not previous or current is None or (was_done and total != updated)
    moved = any(counts[key] > before.get(key, 0) for key in ("updatedReplicas", "readyReplicas", "availableReplicas"))
    moved = moved or total - updated < before.get("replicas", 0) - before.get("updatedReplicas", 0)
    since_s = now_s if is_new or moved else parse_time(previous["lastUpdateTime"])
    deadline_s = since_s + spec["progressDeadlineSeconds"]
    if is_done or (was_done and not is_new):  # a rollout that is over stays over, whatever becomes of its pods
        status, reason, message = True, "NewReplicaSetAvailable", "All replicas run the current template"
        since_s = parse_time(previous["lastUpdateTime"]) if was_done else now_s
    elif now_s >= deadline_s:
        status, reason = False, "ProgressDeadlineExceeded"
        message = f"No progress for {spec['progressDeadlineSeconds']} s: {updated} updated, {available} available"
    else:
        status, reason = True, "ReplicaSetUpdated"
        message = f"{updated} of {spec['replicas']} replicas are updated, {available} available"
    wakes: list[Action] = [Wake(deadline_s)] if reason == "ReplicaSetUpdated" else []
    old = [previous] if previous else []
    entry = with_condition(old, "Progressing", status, reason, message, format_time(now_s))[0]
    return {**entry, "lastUpdateTime": format_time(since_s)}, wakes


def _scale(deployment: Object, replicaset: Object, replicas: int) -> list[Action]:
    if _replicas(replicaset) == replicas:
        return []
    direction = "up" if replicas > _replicas(replicaset) else "down"
    message = f"Scaled {direction} replica set {name_of(replicaset)} to {replicas}"
    return [Patch(replicaset, {"spec": {"replicas": replicas}}), Note(deployment, "ScalingReplicaSet", message)]


def _replicas(replicaset: Object) -> int:
    return int(replicaset["spec"]["replicas"])


def _available(replicaset: Object) -> int:
    return _count(replicaset, "availableReplicas")


def _count(replicaset: Object | None, field: str) -> int:
    return int((replicaset.get("status") or {}).get(field, 0)) if replicaset else 0


def _revision(replicaset: Object) -> int:
    return int((replicaset["metadata"].get("annotations") or {}).get(REVISION, "0"))


def _last_revision(replicasets: list[Object]) -> int:
    return max(map(_revision, replicasets), default=0)
