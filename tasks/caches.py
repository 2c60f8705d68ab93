"""Caches: ModelDataCacheConfigs and the manifests that belong to them.

state   Pending → Downloading → PartiallyReady → Ready;  Failed, with a reason;  Deleting
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from tasks.failures import RETRY, explain
from tasks.kube import Kube, KubeError, NotFound, Object, connect
from tasks.node_caches import now
from tasks.nodes import observe_readiness
from tasks.plan.conditions import Finding, with_findings
from tasks.plan.gate import GateState, Verdict, evaluate_gate
from tasks.plan.manifest import InvalidManifest, manifest_from_json
from tasks.plan.objects import CACHE_LABEL, ENDPOINT_LABEL, cache_object, manifest_name, manifest_object
from tasks.plan.resources import Endpoint
from tasks.plan.retention import PINNED, Cache
from tasks.plan.types import Manifest
from tasks.stop import Lost, pause

KIND = "ModelDataCacheConfig"
MANIFEST_KEY = "manifest.json"
POLL_S = 0.3
# Between two writes of a cache's status while its nodes fill.
TELL_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Caches:
    """own: caches of one endpoint; others: everybody else's.

    known: manifests of own caches by digest. in_use: names of own caches that a pod or a Deployment refers to.
    """

    own: tuple[Cache, ...]
    others: tuple[Cache, ...] = ()
    known: dict[str, Manifest] = field(default_factory=dict)
    in_use: frozenset[str] = frozenset()


@task(task_run_name="observe caches", cache_policy=NO_CACHE, **RETRY)
def observe_caches(name: str, namespace: str) -> Caches:
    """All caches, as an endpoint sees them."""
    kube = connect()
    own: list[Cache] = []
    others: list[Cache] = []
    for found in kube.list(KIND).items:
        is_own = found["metadata"]["namespace"] == namespace and found["spec"]["endpoint"] == name
        (own if is_own else others).append(as_cache(found))
    manifests = (read_manifest(kube, cache.name, namespace) for cache in own)
    known = {manifest.digest: manifest for manifest in manifests if manifest}
    return Caches(tuple(own), tuple(others), known, used_caches(kube, name, namespace))


def as_cache(found: Object) -> Cache:
    metadata, spec = found["metadata"], found["spec"]
    return Cache(
        name=metadata["name"],
        uid=metadata["uid"],
        endpoint=spec["endpoint"],
        digest=spec["digest"],
        host_path=spec["hostPath"],
        pinned=PINNED in (metadata.get("annotations") or {}),
    )


def read_manifest(kube: Kube, cache: str, namespace: str) -> Manifest | None:
    """The manifest of a cache; None when it is gone or was tampered with."""
    with contextlib.suppress(NotFound, InvalidManifest, KeyError):
        return manifest_from_json(kube.get("ConfigMap", manifest_name(cache), namespace)["data"][MANIFEST_KEY])
    return None


def used_caches(kube: Kube, endpoint: str, namespace: str, *, leaving: bool = True) -> frozenset[str]:
    """Caches that pods read, those on their way out too unless not `leaving`, or that new pods would read."""
    mine = f"{ENDPOINT_LABEL}={endpoint}"
    pods = [
        pod["metadata"]
        for pod in kube.list("Pod", namespace, labels=f"{mine},warmpath.dev/role=engine").items
        if pod["status"].get("phase") not in ("Succeeded", "Failed")
    ]
    used = [pod["labels"] for pod in pods if leaving or "deletionTimestamp" not in pod]
    used += [d["spec"]["template"]["metadata"]["labels"] for d in kube.list("Deployment", namespace, mine).items]
    return frozenset(labels[CACHE_LABEL] for labels in used if CACHE_LABEL in labels)


@task(task_run_name="create cache of {endpoint.name}", cache_policy=NO_CACHE, **RETRY)
def create_cache(endpoint: Endpoint, manifest: Manifest) -> Cache:
    """The cache of this revision with its manifest: made, or adopted when it is there already."""
    kube = connect()
    found = kube.apply(cache_object(endpoint, manifest), force=True)
    kube.apply(manifest_object(endpoint, manifest, found), force=True)
    if not (found.get("status") or {}).get("state"):
        tell_cache(kube, found["metadata"]["name"], endpoint.namespace, "Pending")
    return as_cache(found)


@task(task_run_name="write manifest of {endpoint.name}", cache_policy=NO_CACHE, **RETRY)
def write_manifest(endpoint: Endpoint, manifest: Manifest) -> None:
    """The manifest alone, for an endpoint without a cache: its pods load what it lists; it goes with the endpoint."""
    kube = connect()
    keeper = kube.get("InferenceEndpointConfig", endpoint.name, endpoint.namespace)
    kube.apply(manifest_object(endpoint, manifest, keeper), force=True)


@task(task_run_name="gate of {cache.name}", cache_policy=NO_CACHE)
def wait_for_gate(
    endpoint: Endpoint,
    cache: Cache,
    targets: Collection[str],
    since: str,
    size_bytes: int,
    ended: Callable[[], bool],
    show: Callable[[float], None],
) -> Verdict:
    """Watch the targets get warm until the gate decides; tells the cache's status and `show` how far it is.

    since: failures older than this moment are of other runs. ended: whether no fill of this run goes on any more.
    """
    kube, log, started = connect(), get_run_logger(), time.monotonic()
    opened = was_opened(kube, cache.name, endpoint.namespace)
    told_at, last = float("-inf"), ""
    while True:
        over = ended()  # asked before looking: what ended since is seen in the next round
        seen = observe_readiness(kube, cache.uid, cache.digest, cache.host_path, since)
        failed = dict(seen.failed)
        if over:
            failed |= {name: "its fill ended" for name in targets if name not in seen.ready | failed.keys()}
        nodes = [node for node in seen.nodes if node.name in targets]
        verdict = evaluate_gate(endpoint.gate, nodes, seen.ready, failed, time.monotonic() - started, opened=opened)
        show(seen.done_bytes / max(1, size_bytes * len(targets)))
        warm = f"{len(seen.ready & set(targets))} of {len(targets)} nodes are warm"
        if warm != last:
            log.info(warm)
            last = warm
        if verdict.state is not GateState.WAITING or time.monotonic() - told_at > TELL_EVERY_S:
            tell_warmth(kube, cache.name, endpoint.namespace, targets, seen.ready, seen.done_bytes, verdict)
            told_at = time.monotonic()
        if verdict.state is not GateState.WAITING:
            log.info("gate: %s", verdict.reason)
            return verdict
        pause(POLL_S)


@task(task_run_name="settle {cache.name}", cache_policy=NO_CACHE, **RETRY)
def settle_cache(cache: Cache, namespace: str, targets: Collection[str], verdict: Verdict) -> frozenset[str]:
    """Write the state of a cache whose fills have ended; returns the targets that are warm."""
    kube = connect()
    seen = observe_readiness(kube, cache.uid, cache.digest, cache.host_path, now())
    tell_warmth(kube, cache.name, namespace, targets, seen.ready, seen.done_bytes, verdict)
    return seen.ready & frozenset(targets)


def was_opened(kube: Kube, cache: str, namespace: str) -> bool:
    """Whether the gate of this revision opened before: it opens once."""
    conditions = (kube.get(KIND, cache, namespace).get("status") or {}).get("conditions") or []
    return any(c["type"] == "GateOpen" and c["status"] == "True" for c in conditions)


def tell_warmth(
    kube: Kube,
    cache: str,
    namespace: str,
    targets: Collection[str],
    ready: Collection[str],
    done_bytes: int,
    verdict: Verdict,
) -> None:
    warm = len(set(targets) & set(ready))
    state = "Ready" if warm == len(targets) else "PartiallyReady" if warm else "Downloading"
    opened = {GateState.OPEN: True, GateState.WAITING: None}.get(verdict.state, False)
    findings = [
        Finding("Warmed", warm == len(targets), "AllWarm" if warm == len(targets) else "Filling", verdict.reason),
        Finding("GateOpen", opened, str(verdict.state), verdict.reason),
    ]
    counts = {"readyNodes": warm, "targetNodes": len(targets), "doneBytes": done_bytes}
    tell_cache(kube, cache, namespace, state, findings=findings, counts=counts)


@contextlib.contextmanager
def telling_failures(cache: str, namespace: str) -> Iterator[None]:
    """Whatever ends the block early is written on the cache, which another run adopts or removes."""
    try:
        yield
    except Lost:
        raise
    except BaseException as error:
        reason, message = explain(error)
        with contextlib.suppress(KubeError):
            tell_cache(connect(), cache, namespace, "Failed", reason=reason, message=message)
        raise


@task(task_run_name="{cache} is {state}", cache_policy=NO_CACHE, **RETRY)
def mark_cache(cache: str, namespace: str, state: str, reason: str = "", message: str = "") -> None:
    """Write the state of a cache that the run leaves; one that is gone has none."""
    with contextlib.suppress(NotFound):
        tell_cache(connect(), cache, namespace, state, reason=reason, message=message)


def tell_cache(
    kube: Kube,
    cache: str,
    namespace: str,
    state: str,
    *,
    reason: str = "",
    message: str = "",
    findings: Sequence[Finding] = (),
    counts: Mapping[str, int] | None = None,
) -> None:
    """Write a cache's status. The lock of its endpoint makes this the only writer."""
    found = kube.get(KIND, cache, namespace)
    old, generation = found.get("status") or {}, found["metadata"].get("generation", 1)
    conditions = with_findings(old.get("conditions") or [], findings, at=now(), generation=generation)
    new = {**old, "state": state, "reason": reason, "message": message, **(counts or {}), "conditions": conditions}
    if new != old:
        kube.patch(KIND, cache, {"status": new}, namespace, subresource="status")


@task(task_run_name="delete cache {cache}", cache_policy=NO_CACHE, **RETRY)
def delete_cache(cache: str, namespace: str, uid: str) -> None:
    """Delete the object; its manifest goes with it. Its copies on nodes are cleared before."""
    with contextlib.suppress(NotFound):
        connect().delete(KIND, cache, namespace, uid=uid)
