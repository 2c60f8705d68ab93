"""Observe and plan: what a rollout is to do. Changes nothing but what is known of the nodes' disks."""

from __future__ import annotations

from dataclasses import dataclass, replace

from prefect import unmapped

from flows.parameters import RollEndpoint
from flows.progress import show_table
from tasks.caches import observe_caches
from tasks.endpoints import Running, observe_endpoint, observe_running
from tasks.nodes import Fleet, observe_nodes, shard
from tasks.plan.resources import Endpoint, check_same_source
from tasks.plan.rollout import RolloutPlan, plan_rollout
from tasks.plan.targets import choose_targets
from tasks.plan.types import Manifest
from tasks.sources import resolve_source
from tasks.stores import audit_nodes

NODES_PER_TASK = 64


@dataclass(frozen=True, slots=True)
class Pinned:
    """What is wanted, as immutable content, and what serves now."""

    endpoint: Endpoint
    manifest: Manifest
    running: Running


@dataclass(frozen=True, slots=True)
class Prepared:
    endpoint: Endpoint
    manifest: Manifest
    plan: RolloutPlan


def pin(rollout: RollEndpoint) -> Pinned:
    """What the endpoint asks for, checked, its source resolved."""
    name, namespace = rollout.endpoint, rollout.namespace
    gate = rollout.gate.policy() if rollout.gate else None
    endpoint = observe_endpoint(name, namespace, rollout.revision, gate)
    running = observe_running(name, namespace)
    if not rollout.allow_source_change:
        check_source(endpoint, running)
    return Pinned(endpoint, resolve(endpoint), running)


def prepare(rollout: RollEndpoint, pinned: Pinned) -> Prepared:
    """The plan from what is there to what is wanted."""
    replicas = pinned.running.replicas if rollout.replicas is None else rollout.replicas
    prepared = plan_pinned(pinned.endpoint, pinned.manifest, replicas, rollout.nodes_per_task)
    show_table(f"plan-{pinned.endpoint.name}", prepared.plan.rows(), " · ".join(prepared.plan.steps()))
    return prepared


def plan_for(endpoint: Endpoint) -> Prepared:
    """The plan for an endpoint as it is given, which may not be in the cluster yet."""
    return plan_pinned(endpoint, resolve(endpoint), None, NODES_PER_TASK)


def plan_pinned(endpoint: Endpoint, manifest: Manifest, replicas: int | None, nodes_per_task: int) -> Prepared:
    """replicas: None takes the endpoint's own."""
    caches = observe_caches(endpoint.name, endpoint.namespace)
    fleet = observe_fleet(endpoint, nodes_per_task)
    plan = plan_rollout(endpoint, manifest, fleet.nodes, caches.own, known=caches.known, replicas=replicas)
    return Prepared(endpoint, manifest, plan)


def resolve(endpoint: Endpoint) -> Manifest:
    return resolve_source(
        endpoint.source,
        endpoint.credentials_secret,
        endpoint.namespace,
        token_secret=endpoint.token_secret,
        token_key=endpoint.token_key,
        token_optional=endpoint.token_optional,
    )


def check_source(endpoint: Endpoint, running: Running) -> None:
    """Refuse a source that is not the one which serves under this name."""
    if running.source_uri:
        served = replace(endpoint.source, uri=running.source_uri, endpoint_url=running.source_endpoint)
        check_same_source(replace(endpoint, source=served), endpoint)


def observe_fleet(endpoint: Endpoint, nodes_per_task: int) -> Fleet:
    """The nodes, after a look at the disks of those targets that nobody has looked at lately."""
    fleet = observe_nodes(endpoint.host_path)
    if not endpoint.weights_cache:
        return fleet
    targets = choose_targets(endpoint, fleet.nodes).nodes
    stale = [node.name for node in targets if node.name in fleet.stale]
    if not stale:
        return fleet
    audit_nodes.map(shard(stale, nodes_per_task), unmapped(endpoint)).result()
    return observe_nodes(endpoint.host_path)
