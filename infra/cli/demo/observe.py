"""What the demo reads off the fleet: who is warm, how long pods took, which caches are there."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from infra.cli.quantities import parse_time
from tasks.kube import Kube, Object
from tasks.plan.conditions import condition
from tasks.plan.objects import ENDPOINT_LABEL, engine_selector
from tasks.plan.schema import KIND


@dataclass(frozen=True, slots=True)
class PodStart:
    """How one pod began. weights: "hit" from the node's copy, "source" from the source. Seconds until it was Ready."""

    pod: str
    node: str
    weights: str
    ready_s: float


def pod_starts(kube: Kube, endpoint: str) -> dict[str, PodStart]:
    """By pod uid: every pod of the endpoint that is ready and stays."""
    found = {}
    for pod in kube.list("Pod", "default", labels=engine_selector(endpoint)).items:
        ready_at = _ready_at(pod)
        if ready_at and "deletionTimestamp" not in pod["metadata"]:
            seconds = (parse_time(ready_at) - parse_time(pod["metadata"]["creationTimestamp"])).total_seconds()
            start = PodStart(pod["metadata"]["name"], pod["spec"]["nodeName"], _weights(pod), seconds)
            found[pod["metadata"]["uid"]] = start
    return found


def rollout_summary(kube: Kube, endpoint: str) -> dict[str, Any]:
    """What the last rollout wrote on its endpoint."""
    summary: dict[str, Any] = kube.get(KIND, endpoint, "default")["status"]["rollout"]
    return summary


def caches_of(kube: Kube, endpoint: str) -> set[str]:
    listed = kube.list("ModelDataCacheConfig", "default", labels=f"{ENDPOINT_LABEL}={endpoint}")
    return {cache["metadata"]["name"] for cache in listed.items}


def fetched_by_node(kube: Kube, digest: str) -> dict[str, tuple[int, int]]:
    """node → (bytes fetched, bytes reused) of the revision, as its fill reported."""
    found = {}
    for cache in kube.list("NodeCache").items:
        for entry in (cache.get("status") or {}).get("entries") or []:
            if entry["digest"] == digest and entry["state"] == "Ready":
                found[cache["metadata"]["name"]] = (entry.get("fetchedBytes", 0), entry.get("reusedBytes", 0))
    return found


def routed(admin: str, endpoint: str) -> dict[str, Any]:
    """What the router obeys for the endpoint, now."""
    with urllib.request.urlopen(f"{admin}/routing/{endpoint}", timeout=5) as response:  # noqa: S310 - loopback
        told: dict[str, Any] = json.load(response)
    return told


class TookTooLong(Exception):
    """Something that the demo waits for did not happen; the message names it."""


def wait_until(what: str, holds: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            raise TookTooLong(f"{what}: not after {timeout_s:.0f} s")
        time.sleep(0.1)


def _ready_at(pod: Object) -> str:
    ready = condition(pod, "Ready")
    return str(ready["lastTransitionTime"]) if ready else ""


def _weights(pod: Object) -> str:
    statuses = pod["status"].get("initContainerStatuses") or []
    said = next((s["state"].get("terminated", {}).get("message") for s in statuses if s["name"] == "weights"), None)
    try:
        return str(json.loads(said or "{}").get("outcome", "unknown"))
    except ValueError:
        return "unknown"
