"""Pods as controllers see them."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from infra.local.cluster.objects import (
    Object,
    condition,
    controller_reference,
    is_deleting,
    is_true,
    namespace_of,
    parse_time,
)

FINISHED = ("Succeeded", "Failed")


def phase_of(pod: Object) -> str:
    return str((pod.get("status") or {}).get("phase", "Pending"))


def is_active(pod: Object) -> bool:
    """Neither finished nor leaving."""
    return phase_of(pod) not in FINISHED and not is_deleting(pod)


def is_ready(pod: Object) -> bool:
    return is_true(pod, "Ready")


def available_at(pod: Object, min_ready_s: float) -> float | None:
    """When the pod counts as available: ready without a break for `min_ready_s`. None while it is not ready."""
    if not is_ready(pod):
        return None
    return parse_time(condition(pod, "Ready")["lastTransitionTime"]) + min_ready_s


def template_hash(template: Object) -> str:
    """Ten characters that stand for a pod template."""
    return hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:10]


def pod_from(template: Object, owner: Object, **metadata: Any) -> Object:
    """The pod that `owner` makes from its template."""
    given = template.get("metadata") or {}
    name = owner["metadata"]["name"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": f"{name[:57]}-",
            "namespace": namespace_of(owner),
            "labels": given.get("labels") or {},
            "annotations": given.get("annotations") or {},
            "ownerReferences": [controller_reference(owner)],
            **metadata,
        },
        "spec": template["spec"],
    }
