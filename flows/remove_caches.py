"""Remove caches: labels first, so that no pod is drawn to copies that go; then the copies; then the objects."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from prefect import unmapped

from tasks.caches import Caches, delete_cache, mark_cache
from tasks.nodes import shard, withdraw_labels
from tasks.plan.resources import Endpoint
from tasks.plan.retention import Cache, digests_to_clear, plan_retention
from tasks.stores import clear_nodes


def remove_unused(
    endpoint: Endpoint, found: Caches, wanted: Collection[str], in_use: Collection[str], nodes_per_task: int
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Remove the endpoint's caches that are neither wanted, in use nor pinned: those removed; those left, and why."""
    doomed = plan_retention(found.own, wanted=wanted, in_use=in_use).delete
    left = [*found.others, *(cache for cache in found.own if cache not in doomed)]
    kept = remove_caches(endpoint, doomed, left, nodes_per_task)
    return tuple(cache.name for cache in doomed if cache.name not in kept), kept


def remove_caches(
    endpoint: Endpoint, doomed: Sequence[Cache], left: Sequence[Cache], nodes_per_task: int
) -> dict[str, str]:
    """Remove `doomed`; copies that a cache in `left` shares stay. Returns the caches that could not go, and why.

    A cache goes only when all its copies are gone: another run finds the rest through it.
    """
    unshared = digests_to_clear(doomed, left)
    kept = {}
    for cache in doomed:
        mark_cache(cache.name, endpoint.namespace, "Deleting")
        holders = withdraw_labels(cache)
        held = {}
        if (cache.digest, cache.host_path) in unshared:
            held = dict(holders.away)
            where = replace(endpoint, host_path=cache.host_path)
            shards = shard(holders.there, nodes_per_task)
            if shards:
                for told in clear_nodes.map(shards, unmapped(where), unmapped(cache.digest)).result():
                    held |= told
        if held:
            kept[cache.name] = "; ".join(f"{node}: {why}" for node, why in sorted(held.items())[:3])
            message = f"copies are left on {len(held)} nodes: {kept[cache.name]}. The next rollout tries again."
            mark_cache(cache.name, endpoint.namespace, "Deleting", "CopiesLeft", message)
        else:
            delete_cache(cache.name, endpoint.namespace, cache.uid)
    return kept
