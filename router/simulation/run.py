"""Replay one trace against several strategies: the function behind `warmpath simulate`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path

from router.simulation.engine import Hardware, Request
from router.simulation.fleet import Fleet, PolicyMaker
from router.simulation.kv_aware import kv_aware
from router.simulation.peer_trees import AibrixPrefix, RayPrefix, SmgCacheAware, VllmSmetric
from router.simulation.peers import DynamoKv, GieApproximate, KubeAi, LlmdPrecise, RoundRobin, peer
from router.simulation.picture import draw
from router.simulation.results import Result, summarise
from router.simulation.stateless import least_outstanding, prefix_aware_choice, random_choice
from router.simulation.traces import read_trace
from router.simulation.workloads import WORKLOADS

OWN = ("RANDOM", "LEAST_OUTSTANDING_REQUESTS", "PREFIX_AWARE", "KV_AWARE")
COLUMNS = ("strategy", "hit rate", "TTFT p50", "p95", "p99", "mean", "share min-max", "max/mean", "moved cold")
SCALING_COLUMNS = ("keys moved", "hit before", "hit after", "newcomer's share", "p95 after")


class UnknownStrategy(ValueError):
    """A strategy that is neither the router's own nor a peer's."""


@dataclass(frozen=True, slots=True)
class Report:
    """Results in the order asked for."""

    trace: str
    instances: int
    routers: int
    requests: int
    results: tuple[Result, ...]

    def header(self) -> tuple[str, ...]:
        """Column names of `rows`."""
        return COLUMNS + SCALING_COLUMNS if any(result.scaling for result in self.results) else COLUMNS

    def rows(self) -> list[tuple[str, ...]]:
        """One per strategy, as text for a table."""
        return [_row(result) for result in self.results]


def simulate(
    trace: Path | str,
    instances: int = 8,
    strategies: Sequence[str] = OWN,
    *,
    routers: int = 1,
    gossip: bool = False,
    add_instance: bool = False,
    speed: float = 1.0,
    limit: int | None = None,
    seed: int = 1,
    hardware: Hardware | None = None,
    picture: Path | None = None,
) -> Report:
    """Replay `trace` (a file, or the name of a made-up workload) against each strategy on a fleet of its own.

    `routers` replicas share the traffic; they tell each other what they place with `gossip`. With `add_instance`, one
    more instance joins at half of the trace. The same arguments give the same figures.
    """
    if instances < 1 or routers < 1:
        raise ValueError(f"instances is {instances} and routers is {routers}; both must be 1 or more")
    makers = {name: _maker(name, gossip=gossip) for name in strategies}
    requests = load(trace, speed=speed, limit=limit)
    add_at = requests[len(requests) // 2].at if add_instance else None
    results = []
    for name, maker in makers.items():
        fleet = Fleet(maker, instances, hardware=hardware, routers=routers, seed=seed)
        fleet.run(_fresh(requests), add_at)
        results.append(summarise(name, fleet, add_at))
    report = Report(Path(trace).name, instances, routers, len(requests), tuple(results))
    if picture is not None:
        picture.write_text(draw(report.results, f"{report.trace}, {instances} instances, {routers} routers"))
    return report


def load(trace: Path | str, *, speed: float = 1.0, limit: int | None = None) -> list[Request]:
    """A trace file, or the requests of a made-up workload."""
    workload = WORKLOADS.get(str(trace))
    if workload is None:
        return read_trace(Path(trace), speed=speed, limit=limit)
    requests = workload.build()[:limit]
    for request in requests:
        request.at /= speed
    return requests


def strategies() -> tuple[str, ...]:
    """All names that `simulate` knows: the router's own, then the peers'."""
    return OWN + tuple(_PEERS)


_PEERS: dict[str, PolicyMaker] = {
    "round_robin": peer(RoundRobin),
    "kubeai_chwbl": peer(KubeAi),
    "smg_cache_aware": peer(SmgCacheAware),
    "ray_prefix": peer(RayPrefix),
    "aibrix_prefix": peer(AibrixPrefix),
    "gie_approximate": peer(GieApproximate),
    "llmd_precise": peer(LlmdPrecise),
    "dynamo_kv": peer(DynamoKv),
    "vllm_smetric": peer(VllmSmetric),
}


def _maker(name: str, *, gossip: bool) -> PolicyMaker:
    match name:
        case "RANDOM":
            return random_choice()
        case "LEAST_OUTSTANDING_REQUESTS":
            return least_outstanding()
        case "PREFIX_AWARE":
            return prefix_aware_choice()
        case "KV_AWARE":
            return kv_aware(gossip=gossip)
        case _ if name in _PEERS:
            return _PEERS[name]
        case _:
            raise UnknownStrategy(f"no strategy is called {name!r}; known are {', '.join(strategies())}")


def _fresh(requests: Iterable[Request]) -> list[Request]:
    return [copy(request) for request in requests]


def _row(result: Result) -> tuple[str, ...]:
    row = (
        result.strategy,
        f"{result.hit_rate:.1%}",
        f"{result.ttft_p50_s:.3f} s",
        f"{result.ttft_p95_s:.2f} s",
        f"{result.ttft_p99_s:.2f} s",
        f"{result.ttft_mean_s:.2f} s",
        f"{result.share_min:.1%}-{result.share_max:.1%}",
        f"{result.share_max_over_mean:.2f}",
        f"{result.warm_broken:.1%}",
    )
    scaling = result.scaling
    if scaling is None:
        return row
    return (
        *row,
        f"{scaling.moved_cold:.1%}",
        f"{scaling.hit_before:.1%}",
        f"{scaling.hit_after:.1%}",
        f"{scaling.newcomer_share:.1%}",
        f"{scaling.ttft_p95_s:.2f} s",
    )
