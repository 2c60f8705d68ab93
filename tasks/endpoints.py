"""Endpoints: what a user wants of one, the pods that serve it, and what its status says.

state   DeploymentPending → DeploymentInProgress → DeploymentComplete | DeploymentFailed, with a reason;
        DeletionInProgress. A failed rollout leaves what served before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.runtime import flow_run

from tasks import leases
from tasks.failures import RETRY, RolloutFailed, RolloutHeld, explain
from tasks.kube import Kube, KubeError, NotFound, Object, connect
from tasks.leases import Claim
from tasks.node_caches import now
from tasks.plan.conditions import Finding, with_findings
from tasks.plan.deployments import DIGEST_ANNOTATION
from tasks.plan.objects import CACHE_LABEL
from tasks.plan.resources import Endpoint, parse_endpoint
from tasks.plan.types import GatePolicy
from tasks.stop import Lost, Stop

KIND = "InferenceEndpointConfig"
LOCK_WAIT_S = 3600.0


@dataclass(frozen=True, slots=True)
class Running:
    """What serves now: its Deployment's replicas (None: there is none), digest and cache.

    source_uri, source_endpoint: where the last completed rollout came from; "" before the first.
    """

    replicas: int | None = None
    digest: str = ""
    cache: str = ""
    source_uri: str = ""
    source_endpoint: str = ""


def get_endpoint(name: str, namespace: str) -> Object:
    try:
        return connect().get(KIND, name, namespace)
    except NotFound as error:
        raise RolloutFailed(
            "EndpointNotFound",
            f"There is no {KIND} {namespace}/{name}. Create it (warmpath apply -f FILE), then run again.",
        ) from error


@contextlib.contextmanager
def hold_endpoint(name: str, namespace: str, stop: Stop) -> Iterator[None]:
    """Be the only run that touches this endpoint; when that cannot be kept up, the run is stopped."""
    log = get_run_logger()
    holder = f"{leases.process_identity()}/{flow_run.id}"
    claim = Claim(f"warmpath-endpoint-{name}", namespace, holder, get_endpoint(name, namespace))
    with leases.hold(connect(), claim, wait_s=LOCK_WAIT_S, say=log.info, lost=lambda why: stop.request(why, Lost)):
        yield


@task(task_run_name="observe {namespace}/{name}", cache_policy=NO_CACHE, **RETRY)
def observe_endpoint(name: str, namespace: str, revision: str = "", gate: GatePolicy | None = None) -> Endpoint:
    """What the user wants, with what this run was asked to do otherwise. Refuses a resource that is not valid."""
    endpoint = parse_endpoint(get_endpoint(name, namespace))
    source = replace(endpoint.source, revision=revision) if revision else endpoint.source
    return replace(endpoint, source=source, gate=gate or endpoint.gate)


@task(task_run_name="observe what serves {name}", cache_policy=NO_CACHE, **RETRY)
def observe_running(name: str, namespace: str) -> Running:
    source = (get_endpoint(name, namespace).get("status") or {}).get("source") or {}
    told = {"source_uri": source.get("uri", ""), "source_endpoint": source.get("endpointURL", "")}
    try:
        found = connect().get("Deployment", name, namespace)
    except NotFound:
        return Running(**told)
    template = found["spec"]["template"]["metadata"]
    return Running(
        replicas=found["spec"].get("replicas", 1),
        digest=(template.get("annotations") or {}).get(DIGEST_ANNOTATION, ""),
        cache=template["labels"].get(CACHE_LABEL, ""),
        **told,
    )


@contextlib.contextmanager
def telling_failures(name: str, namespace: str, state: str = "DeploymentFailed") -> Iterator[None]:
    """Whatever ends the block early is written on the endpoint: state, reason, and what to do."""
    try:
        yield
    except Lost:
        raise
    except BaseException as error:
        reason, message = explain(error)
        failed = [Finding("RolledOut", ok=False, reason=reason, message=message)]
        # The run's own error matters more than a cluster that does not take the news.
        with contextlib.suppress(KubeError):
            held = "DeploymentPending" if isinstance(error, RolloutHeld) else state
            tell_endpoint(connect(), name, namespace, held, reason=reason, message=message, findings=failed)
        raise


@task(task_run_name="{name}: {reason}", cache_policy=NO_CACHE, **RETRY)
def mark_endpoint(
    name: str,
    namespace: str,
    state: str,
    reason: str = "",
    message: str = "",
    findings: Sequence[Finding] = (),
    fields: Mapping[str, Any] | None = None,
) -> None:
    """Write where the rollout is."""
    tell_endpoint(connect(), name, namespace, state, reason=reason, message=message, findings=findings, fields=fields)


def tell_endpoint(
    kube: Kube,
    name: str,
    namespace: str,
    state: str,
    *,
    reason: str = "",
    message: str = "",
    findings: Sequence[Finding] = (),
    fields: Mapping[str, Any] | None = None,
) -> None:
    """Write an endpoint's status. Its lock makes this the only writer."""
    found = kube.get(KIND, name, namespace)
    old, generation = found.get("status") or {}, found["metadata"].get("generation", 1)
    conditions = with_findings(old.get("conditions") or [], findings, at=now(), generation=generation)
    new = {
        **old,
        **(fields or {}),
        "state": state,
        "reason": reason,
        "message": message,
        "observedGeneration": generation,
        "conditions": conditions,
    }
    kube.patch(KIND, name, {"status": new}, namespace, subresource="status")


@task(task_run_name="delete {name}", cache_policy=NO_CACHE, **RETRY)
def delete_endpoint_object(name: str, namespace: str) -> None:
    with contextlib.suppress(NotFound):
        connect().delete(KIND, name, namespace)
