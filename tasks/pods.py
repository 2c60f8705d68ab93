"""The pods of an endpoint: moving them to a revision, waiting until they serve, and putting back what was."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from tasks.caches import used_caches
from tasks.failures import RETRY
from tasks.kube import Kube, NotFound, Object, connect
from tasks.plan.conditions import condition
from tasks.plan.deployments import DIGEST_ANNOTATION, deployment_object, service_object
from tasks.plan.objects import ENDPOINT_LABEL, engine_selector
from tasks.plan.resources import Endpoint
from tasks.plan.types import Manifest
from tasks.stop import pause

POLL_S = 0.2
LEAVE_S = 120.0
HASH_LABEL = "pod-template-hash"


@dataclass(frozen=True, slots=True)
class Rolled:
    """How moving the pods ended. pods: uids of those that serve the revision; problem: why it did not come about."""

    ok: bool
    pods: frozenset[str] = frozenset()
    problem: str = ""


@task(task_run_name="roll {endpoint.name} to {manifest.revision}", cache_policy=NO_CACHE, **RETRY)
def roll_pods(endpoint: Endpoint, manifest: Manifest, cache: str, replicas: int) -> None:
    """Point the Deployment at a revision; its pods are replaced one by one, a new one ready before an old one goes."""
    kube = connect()
    found = kube.get("ModelDataCacheConfig", cache, endpoint.namespace) if cache else None
    kube.apply(deployment_object(endpoint, manifest, found, replicas), force=True)
    kube.apply(service_object(endpoint), force=True)


@task(task_run_name="wait for the pods of {name}", cache_policy=NO_CACHE)
def wait_for_pods(name: str, namespace: str, digest: str, patience_s: float, show: Callable[[float], None]) -> Rolled:
    """Wait until every pod serves `digest` and no older one counts; gives up after `patience_s` without progress."""
    kube, log = connect(), get_run_logger()
    last, since = "", time.monotonic()
    while True:
        found = kube.get("Deployment", name, namespace)
        wanted, status = found["spec"].get("replicas", 1), found.get("status") or {}
        counts = [status.get(key, 0) for key in ("updatedReplicas", "availableReplicas", "replicas")]
        current = status.get("observedGeneration", 0) >= found["metadata"].get("generation", 1)
        show(1.0 if not wanted else min(counts[0], counts[1]) / wanted)
        if current and counts == [wanted, wanted, wanted]:
            return Rolled(ok=True, pods=ready_pods(kube, name, namespace, digest))
        told = f"{counts[0]} of {wanted} pods are new, {counts[1]} of {counts[2]} serve"
        if told != last:
            log.info(told)
            last, since = told, time.monotonic()
        if time.monotonic() - since > patience_s:
            return Rolled(ok=False, problem=f"{told}; {diagnose(kube, name, namespace, digest)}")
        pause(POLL_S)


@task(task_run_name="put {name} back", cache_policy=NO_CACHE, **RETRY)
def put_back(name: str, namespace: str) -> str:
    """Undo a rollout that failed; tells what serves now. Old pods served all along: none was taken away."""
    kube = connect()
    found = kube.get("Deployment", name, namespace)
    sets = kube.list("ReplicaSet", namespace, labels=f"{ENDPOINT_LABEL}={name}").items
    older = [s for s in sets if without_hash(s["spec"]["template"]) != found["spec"]["template"]]
    if not older:
        return remove_pods(kube, name, namespace)
    best = max(older, key=lambda s: (ready_replicas(s), s["metadata"]["creationTimestamp"]))
    restored = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": found["metadata"].get("labels") or {},
            "annotations": {DIGEST_ANNOTATION: digest_of(best)},
            "ownerReferences": found["metadata"].get("ownerReferences") or [],
        },
        "spec": {**found["spec"], "template": without_hash(best["spec"]["template"])},
    }
    kube.apply(restored, force=True)
    return (
        "What served before goes on serving." if ready_replicas(best) else "No pod of what ran before is ready either."
    )


@task(task_run_name="delete pods of {name}", cache_policy=NO_CACHE, **RETRY)
def delete_pods(name: str, namespace: str) -> None:
    remove_pods(connect(), name, namespace)


def remove_pods(kube: Kube, name: str, namespace: str) -> str:
    """Take away an endpoint's Deployment and Service."""
    for kind in ("Deployment", "Service"):
        with contextlib.suppress(NotFound):
            kube.delete(kind, name, namespace)
    return "Nothing served before, so the pods were removed."


@task(task_run_name="wait until old pods of {name} are gone", cache_policy=NO_CACHE)
def wait_until_unused(name: str, namespace: str, caches: frozenset[str]) -> frozenset[str]:
    """Wait for pods on their way out that still read these caches; returns the caches that are in use all the same."""
    kube, deadline = connect(), time.monotonic() + LEAVE_S
    while True:
        used = used_caches(kube, name, namespace) & caches
        staying = used_caches(kube, name, namespace, leaving=False)
        if used <= staying or time.monotonic() > deadline:
            return used
        pause(POLL_S)


def ready_replicas(found: Object) -> int:
    return int((found.get("status") or {}).get("readyReplicas", 0))


def digest_of(found: Object) -> str:
    """The revision in a workload's template."""
    return str((found["spec"]["template"]["metadata"].get("annotations") or {}).get(DIGEST_ANNOTATION, ""))


def without_hash(template: Object) -> Object:
    labels = {key: value for key, value in template["metadata"]["labels"].items() if key != HASH_LABEL}
    return {**template, "metadata": {**template["metadata"], "labels": labels}}


def pods_of(kube: Kube, name: str, namespace: str, digest: str) -> list[Object]:
    """Pods of one revision that are not going away."""
    found = kube.list("Pod", namespace, labels=engine_selector(name)).items
    return [
        pod
        for pod in found
        if (pod["metadata"].get("annotations") or {}).get(DIGEST_ANNOTATION) == digest
        and "deletionTimestamp" not in pod["metadata"]
    ]


def ready_pods(kube: Kube, name: str, namespace: str, digest: str) -> frozenset[str]:
    return frozenset(
        pod["metadata"]["uid"] for pod in pods_of(kube, name, namespace, digest) if condition(pod, "Ready")
    )


def diagnose(kube: Kube, name: str, namespace: str, digest: str) -> str:
    """What keeps the first pod that is not ready from serving, in one sentence."""
    for pod in pods_of(kube, name, namespace, digest):
        if not condition(pod, "Ready"):
            return f"pod {pod['metadata']['name']}: {_why_not_ready(pod)}"
    return "no pod of the new revision exists"


def _why_not_ready(pod: Object) -> str:
    status = pod.get("status") or {}
    for told in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        state, last = told.get("state") or {}, told.get("lastState") or {}
        waiting, ended = state.get("waiting") or {}, state.get("terminated") or last.get("terminated") or {}
        if ended and ended.get("exitCode", 0) != 0:
            return f"container {told['name']} ended with status {ended['exitCode']} ({ended.get('reason', 'Error')})"
        if waiting.get("reason") not in (None, "PodInitializing", "ContainerCreating"):
            return f"container {told['name']} waits: {waiting['reason']} {waiting.get('message', '')}".strip()
    for told in status.get("conditions") or []:
        if told["type"] == "PodScheduled" and told["status"] == "False":
            return f"it fits on no node: {told.get('message', '')}"
    return "it runs and its readiness probe fails"
