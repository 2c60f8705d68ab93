"""Roll an endpoint onto the present content of its source: nodes first, then pods, then what is no longer used.

    observe ─ resolve ─ audit ─ PLAN ─ create cache ─ fill ─ gate ─ roll ─ wait ─ route ─ remove old caches

The cluster and the disks are the truth; a run holds nothing that another run would need. Killed anywhere and run again,
it ends in the same state and fetches no proven byte twice. A run that fails leaves serving what served before.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from prefect import State, flow, get_run_logger
from prefect.states import Completed
from prefect.task_runners import ThreadPoolTaskRunner

from flows.parameters import RollEndpoint
from flows.preparing import Pinned, Prepared, pin, prepare
from flows.progress import Progress, show_table, tag_run
from flows.remove_caches import remove_unused
from flows.warming import Warming, warm
from tasks.caches import Caches, observe_caches, write_manifest
from tasks.endpoints import hold_endpoint, mark_endpoint, telling_failures
from tasks.failures import RolloutFailed
from tasks.plan.conditions import Finding
from tasks.plan.figures import bytes_text
from tasks.plan.objects import cache_name
from tasks.plan.resources import Endpoint
from tasks.plan.rollout import RolloutPlan
from tasks.plan.types import Manifest
from tasks.pods import put_back, roll_pods, wait_for_pods, wait_until_unused
from tasks.routers import wait_until_routed
from tasks.stop import stop_tasks_on_exit
from tasks.stores import Filled

# Conditions of an endpoint, in the order in which a rollout makes them true.
STAGES = ("Resolved", "Planned", "GateOpen", "Deployed", "Routed", "RolledOut")
# Share of the progress bar that warming takes; moving the pods takes the rest.
WARMING = 0.8


@dataclass(slots=True)
class Outcome:
    """What a rollout came to. degraded: a sentence for each thing that is not as it should be."""

    warm: frozenset[str] = frozenset()
    targets: tuple[str, ...] = ()
    filled: list[Filled] = field(default_factory=list)
    removed: tuple[str, ...] = ()
    degraded: list[str] = field(default_factory=list)


@flow(
    name="roll-endpoint",
    flow_run_name="roll {rollout.namespace}/{rollout.endpoint}",
    task_runner=ThreadPoolTaskRunner(max_workers=16),  # type: ignore[arg-type]  # futures are invariant there
)
def roll_endpoint(rollout: RollEndpoint) -> State[Any]:
    """Warm the target nodes, move the endpoint to them, and remove caches that nothing uses any more."""
    tag_run(f"endpoint:{rollout.namespace}/{rollout.endpoint}")
    if rollout.dry_run:
        return planned(prepare(rollout, pin(rollout)).plan)
    name, namespace = rollout.endpoint, rollout.namespace
    with stop_tasks_on_exit() as stop, hold_endpoint(name, namespace, stop), telling_failures(name, namespace):
        begin(name, namespace)
        pinned = pin(rollout)
        drop_leftovers(pinned, rollout.nodes_per_task)
        prepared = prepare(rollout, pinned)
        endpoint, manifest, plan = prepared.endpoint, prepared.manifest, prepared.plan
        tell_plan(endpoint, manifest, plan)
        progress = Progress(f"rollout-{name}", f"{name} to revision {manifest.revision}")
        warming = None
        if plan.cache:
            warming = warm(prepared, rollout.nodes_per_task, stop, lambda share: progress.show(WARMING * share))
        else:
            write_manifest(endpoint, manifest)
        pods = move_pods(endpoint, manifest, plan, rollout.ready_timeout_s, warming, progress)
        outcome = Outcome()
        route(endpoint, pods, outcome)
        if warming:
            finish_warming(warming, outcome)
        clean_up(prepared, rollout.nodes_per_task, outcome)
        return report(prepared, outcome)


def planned(plan: RolloutPlan) -> State[Any]:
    """The end of a dry run."""
    log = get_run_logger()
    for step in plan.steps():
        log.info(step)
    return Completed(name="Planned", message=" · ".join(plan.steps()), data=plan.rows())


def begin(name: str, namespace: str) -> None:
    unknown = [Finding(stage, ok=None, reason="NotYet") for stage in STAGES]
    mark_endpoint(name, namespace, "DeploymentInProgress", "Resolving", findings=unknown)


def tell_plan(endpoint: Endpoint, manifest: Manifest, plan: RolloutPlan) -> None:
    """Write the plan on the endpoint and into the log; refuse a rollout that cannot be done."""
    log = get_run_logger()
    for step in plan.steps():
        log.info(step)
    for node, why in sorted(plan.excluded.items()):
        log.warning("%s is left out: %s", node, why)
    for note in plan.notes:
        log.warning(note)
    if plan.refused:
        no_space = any(why.startswith("NoSpace") for why in plan.excluded.values())
        raise RolloutFailed("NoSpace" if no_space else "NoTargets", plan.refused)
    pinned = f"revision {manifest.revision}, {len(manifest.files)} files, {bytes_text(manifest.size_bytes)}"
    count = f"{len(plan.fill)} nodes to fill, {len(plan.warm)} warm, {len(plan.excluded)} left out"
    mark_endpoint(
        endpoint.name,
        endpoint.namespace,
        "DeploymentInProgress",
        "Warming" if plan.fill else "Rolling",
        findings=[
            Finding("Resolved", ok=True, reason="Pinned", message=pinned),
            Finding("Planned", True, "Admitted", count),
        ],
    )


def move_pods(
    endpoint: Endpoint,
    manifest: Manifest,
    plan: RolloutPlan,
    patience_s: float,
    warming: Warming | None,
    progress: Progress,
) -> frozenset[str]:
    """Replace the pods and wait until the new ones serve; otherwise put back what was. Returns their uids."""
    name, namespace = endpoint.name, endpoint.namespace
    gate = warming.verdict.reason if warming else "the endpoint keeps no weights cache"
    opened = Finding("GateOpen", ok=True, reason="Open", message=gate)
    mark_endpoint(name, namespace, "DeploymentInProgress", "Rolling", findings=[opened])
    roll_pods(endpoint, manifest, plan.cache, plan.replicas)
    rolled = wait_for_pods(
        name, namespace, manifest.digest, patience_s, lambda share: progress.show(WARMING + (1 - WARMING) * share)
    )
    if not rolled.ok:
        was = put_back(name, namespace)
        raise RolloutFailed(
            "PodsNotReady",
            f"Revision {manifest.revision} did not get ready: {rolled.problem}. {was} "
            "Correct the worker (image, command, args, resources, probes), then roll again: the nodes stay warm.",
        )
    serving_pods = "1 pod serves revision" if len(rolled.pods) == 1 else f"{len(rolled.pods)} pods serve revision"
    serving = f"{serving_pods} {manifest.revision}"
    mark_endpoint(
        name,
        namespace,
        "DeploymentInProgress",
        "Routing",
        findings=[Finding("Deployed", ok=True, reason="PodsReady", message=serving)],
        fields={
            "cache": plan.cache,
            "digest": manifest.digest,
            "revision": manifest.revision,
            "source": {"uri": endpoint.source.uri, "endpointURL": endpoint.source.endpoint_url},
        },
    )
    return rolled.pods


def route(endpoint: Endpoint, pods: frozenset[str], outcome: Outcome) -> None:
    """Wait until the router sends requests to the new pods; a router that is away never undoes a rollout."""
    routed = wait_until_routed(endpoint.name, pods)
    finding = Finding("Routed", ok=routed.ok, reason="Routed" if routed.ok else "NotRouted", message=routed.reason)
    mark_endpoint(endpoint.name, endpoint.namespace, "DeploymentInProgress", "Finishing", findings=[finding])
    if not routed.ok:
        outcome.degraded.append(routed.reason)


def finish_warming(warming: Warming, outcome: Outcome) -> None:
    """Let the fills behind the open gate end."""
    outcome.filled, outcome.warm = warming.finish()
    outcome.targets = warming.targets
    why = {one.node: f"{one.reason}: {one.message}" for one in outcome.filled if not one.ok}
    cold = sorted(set(warming.targets) - outcome.warm)
    outcome.degraded += [f"{node} is cold ({why.get(node, 'it left the cluster')})" for node in cold]


def drop_leftovers(pinned: Pinned, nodes_per_task: int) -> None:
    """Remove caches that rollouts which failed have left, unless this one goes on with them: their room is needed."""
    endpoint = pinned.endpoint
    found = observe_caches(endpoint.name, endpoint.namespace)
    wanted = {cache_name(endpoint.name, pinned.manifest.digest)}
    in_use = still_used(endpoint, found, wanted)
    remove_unused(endpoint, found, wanted, in_use, nodes_per_task)


def clean_up(prepared: Prepared, nodes_per_task: int, outcome: Outcome) -> None:
    """Remove this endpoint's caches that nothing refers to any more, found by reference and not from memory."""
    endpoint, wanted = prepared.endpoint, {prepared.plan.cache}
    found = observe_caches(endpoint.name, endpoint.namespace)
    in_use = still_used(endpoint, found, wanted)
    outcome.degraded += [f"cache {name} is still read by a pod; the next rollout removes it" for name in in_use]
    outcome.removed, kept = remove_unused(endpoint, found, wanted, in_use, nodes_per_task)
    outcome.degraded += [f"cache {name} could not be removed ({why})" for name, why in kept.items()]


def still_used(endpoint: Endpoint, found: Caches, wanted: Collection[str]) -> frozenset[str]:
    """Old caches that pods read even after those on their way out have gone."""
    old = frozenset(cache.name for cache in found.own).difference(wanted)
    return wait_until_unused(endpoint.name, endpoint.namespace, old) if old else old


def report(prepared: Prepared, outcome: Outcome) -> State[Any]:
    """Write how it went: on the endpoint, as a table, and as the run's state."""
    endpoint, manifest = prepared.endpoint, prepared.manifest
    summary = {
        "revision": manifest.revision,
        "sizeBytes": manifest.size_bytes,
        "nodesWarm": len(outcome.warm),
        "nodesTarget": len(outcome.targets),
        "nodesFilled": sum(one.ok for one in outcome.filled),
        "fetchedBytes": sum(one.fetched_bytes for one in outcome.filled),
        "reusedBytes": sum(one.reused_bytes for one in outcome.filled),
        "unverifiedFiles": sum(one.unverified_files for one in outcome.filled),
        "removedCaches": list(outcome.removed),
    }
    warm_nodes = f"{len(outcome.warm)} of {len(outcome.targets)} nodes are warm"
    serves = f"{endpoint.name} serves revision {manifest.revision}; {warm_nodes}"
    reason = "Degraded" if outcome.degraded else "RolledOut"
    message = "; ".join([serves, *outcome.degraded[:5]])
    mark_endpoint(
        endpoint.name,
        endpoint.namespace,
        "DeploymentComplete",
        reason,
        message,
        findings=[Finding("RolledOut", ok=True, reason=reason, message=message)],
        fields={"rollout": summary},
    )
    show_table(f"summary-{endpoint.name}", [{k: str(v) for k, v in summary.items()}], message)
    return Completed(name="Degraded" if outcome.degraded else None, message=message, data=summary)
