"""Fill the target nodes in threads, and watch the gate from the flow's own thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from prefect import unmapped
from prefect.futures import PrefectFuture, wait

from flows.preparing import Prepared
from tasks import caches
from tasks.caches import create_cache, settle_cache, wait_for_gate
from tasks.failures import RolloutFailed, RolloutHeld
from tasks.node_caches import now
from tasks.nodes import label_nodes, shard
from tasks.plan.gate import GateState, Verdict
from tasks.plan.resources import Endpoint
from tasks.plan.retention import Cache
from tasks.stop import Left, Stop
from tasks.stores import Filled, fill_nodes

# How often a whole fleet may read a log and write a NodeCache: all runs share one API.
LOOKS_PER_S = 100.0


@dataclass(frozen=True, slots=True)
class Warming:
    """Fills that may still go on behind an open gate."""

    endpoint: Endpoint
    cache: Cache
    targets: tuple[str, ...]
    verdict: Verdict
    fills: tuple[PrefectFuture[list[Filled]], ...]

    def finish(self) -> tuple[list[Filled], frozenset[str]]:
        """Wait for the last fills, which give up by themselves without progress: how each ended, and who is warm."""
        wait(list(self.fills))
        results = [future.result(raise_on_failure=False) for future in self.fills]
        filled = [one for result in results if isinstance(result, list) for one in result]
        return filled, settle_cache(self.cache, self.endpoint.namespace, self.targets, self.verdict)


def warm(prepared: Prepared, nodes_per_task: int, stop: Stop, show: Callable[[float], None]) -> Warming:
    """Create or adopt the cache, fill its nodes, and return as soon as the gate opens. Raises when it does not."""
    endpoint, plan = prepared.endpoint, prepared.plan
    cache = create_cache(endpoint, prepared.manifest)
    with caches.telling_failures(cache.name, endpoint.namespace):
        if plan.warm:
            label_nodes([admission.node for admission in plan.warm], cache.uid)
        since = now()
        fills = start_fills(prepared, cache, nodes_per_task)
        verdict = wait_for_gate(endpoint, cache, plan.targets, since, plan.size_bytes, watcher(fills), show)
        if verdict.state is GateState.FAILED:
            stop.request("the gate failed")
            wait(list(fills))
            raise RolloutFailed(
                "GateFailed",
                f"The gate did not open: {verdict.reason}. See why nodes are cold (warmpath get nodes), "
                "ask for less in cachePolicy.gate, or give it more time; then roll again: what is proven is kept.",
            )
    if verdict.state is GateState.HELD:
        stop.request("the gate holds the rollout", Left)
        wait(list(fills))
        raise RolloutHeld(
            "GateHeld",
            f"The rollout is held: {verdict.reason}. Nodes go on filling; roll again when they are warm.",
        )
    return Warming(endpoint, cache, plan.targets, verdict, fills)


def start_fills(prepared: Prepared, cache: Cache, nodes_per_task: int) -> tuple[PrefectFuture[list[Filled]], ...]:
    nodes = sorted(admission.node for admission in prepared.plan.fill)
    look_s = max(1.0, len(nodes) / LOOKS_PER_S)
    shards = shard(nodes, nodes_per_task)
    if not shards:
        return ()
    fixed = (prepared.endpoint, cache.name, cache.digest, look_s)
    return tuple(fill_nodes.map(shards, *map(unmapped, fixed)))


def watcher(fills: tuple[PrefectFuture[list[Filled]], ...]) -> Callable[[], bool]:
    """Tells whether all fills have ended, without asking Prefect's API, which lags."""
    ended: list[PrefectFuture[list[Filled]]] = []
    for fill in fills:
        fill.add_done_callback(ended.append)
    return lambda: len(ended) == len(fills)
