"""Delete an endpoint: its pods first, then its copies on the nodes unless they are retained, last itself."""

from __future__ import annotations

from typing import Any

from prefect import State, flow, get_run_logger
from prefect.states import Completed
from prefect.task_runners import ThreadPoolTaskRunner

from flows.parameters import DeleteEndpoint
from flows.progress import show_table, tag_run
from flows.remove_caches import remove_unused
from tasks.caches import observe_caches
from tasks.endpoints import delete_endpoint_object, hold_endpoint, mark_endpoint, observe_endpoint, telling_failures
from tasks.failures import RolloutFailed
from tasks.plan.policy import Retention
from tasks.plan.resources import Endpoint
from tasks.pods import delete_pods, wait_until_unused
from tasks.stop import stop_tasks_on_exit


@flow(
    name="delete-endpoint",
    flow_run_name="delete {deletion.namespace}/{deletion.endpoint}",
    task_runner=ThreadPoolTaskRunner(max_workers=16),  # type: ignore[arg-type]  # futures are invariant there
)
def delete_endpoint(deletion: DeleteEndpoint) -> State[Any]:
    """Delete an endpoint and what only it uses; a dry run tells what that would be."""
    name, namespace = deletion.endpoint, deletion.namespace
    tag_run(f"endpoint:{deletion.namespace}/{deletion.endpoint}")
    if deletion.dry_run:
        return planned(deletion)
    with (
        stop_tasks_on_exit() as stop,
        hold_endpoint(name, namespace, stop),
        telling_failures(name, namespace, "DeletionFailed"),
    ):
        endpoint = observe_endpoint(name, namespace)
        mark_endpoint(name, namespace, "DeletionInProgress", "Deleting")
        delete_pods(name, namespace)
        caches = observe_caches(name, namespace)
        in_use = wait_until_unused(name, namespace, frozenset(cache.name for cache in caches.own))
        kept: dict[str, str] = {}
        if not is_retained(deletion, endpoint):
            _, kept = remove_unused(endpoint, caches, (), in_use, deletion.nodes_per_task)
            kept |= dict.fromkeys(in_use, "a pod still uses it")
        if kept:
            told = "; ".join(f"{cache}: {why}" for cache, why in kept.items())
            raise RolloutFailed("CopiesLeft", f"{name} has no pods any more, but caches are left: {told}. Run again.")
        delete_endpoint_object(name, namespace)
    return Completed(message=f"{namespace}/{name} is deleted")


def is_retained(deletion: DeleteEndpoint, endpoint: Endpoint) -> bool:
    """Whether the copies stay: then a later endpoint of this name finds them again."""
    return endpoint.retention is Retention.RETAIN if deletion.retain_cache is None else deletion.retain_cache


def planned(deletion: DeleteEndpoint) -> State[Any]:
    """What would go, as a table and as the run's message."""
    endpoint = observe_endpoint(deletion.endpoint, deletion.namespace)
    caches = observe_caches(deletion.endpoint, deletion.namespace)
    retained = is_retained(deletion, endpoint)
    rows = [{"object": f"pods, Deployment and Service of {endpoint.name}", "action": "delete"}]
    rows += [
        {"object": f"cache {cache.name} and its copies", "action": "retain" if retained or cache.pinned else "delete"}
        for cache in caches.own
    ]
    rows += [{"object": f"InferenceEndpointConfig {endpoint.namespace}/{endpoint.name}", "action": "delete"}]
    show_table(f"deletion-{endpoint.name}", rows, f"What deleting {endpoint.name} does")
    sentences = [f"{row['action']} {row['object']}" for row in rows]
    for sentence in sentences:
        get_run_logger().info(sentence)
    return Completed(name="Planned", message=" · ".join(sentences), data=rows)
