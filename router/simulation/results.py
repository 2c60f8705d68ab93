"""What a run was like, in the figures that decide between policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from router.simulation.engine import Request
from router.simulation.fleet import Fleet

WARM_UP_SHARE = 0.1
_WINDOW_SHARE = 0.15
_WINDOW_MIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Scaling:
    """What happened when one instance joined."""

    moved_cold: float
    """Share of the warm requests in the window after it that went to an instance without their cache."""

    hit_before: float
    hit_after: float
    newcomer_share: float
    """Of all requests after the window."""

    ttft_p95_s: float
    """Within the window."""


@dataclass(frozen=True, slots=True)
class Result:
    """One strategy on one trace."""

    strategy: str
    requests: int
    hit_rate: float
    """Cached share of all prompt tokens."""

    ttft_p50_s: float
    ttft_p95_s: float
    ttft_p99_s: float
    ttft_mean_s: float
    share_min: float
    share_max: float
    share_max_over_mean: float
    warm_broken: float
    """Share of the requests whose last instance was still warm that were sent to a cold one."""

    scaling: Scaling | None = None


def summarise(strategy: str, fleet: Fleet, added_at: float | None = None) -> Result:
    """The figures of a finished run, without its first tenth, when all caches are empty."""
    done = sorted(fleet.done, key=lambda request: request.at)
    kept = done[int(len(done) * WARM_UP_SHARE) :]
    ttft = sorted(request.ttft_s for request in kept)
    served = [0] * len(fleet.engines)
    for request in kept:
        served[request.instance] += 1
    return Result(
        strategy=strategy,
        requests=len(done),
        hit_rate=_hit_rate(kept),
        ttft_p50_s=_percentile(ttft, 0.5),
        ttft_p95_s=_percentile(ttft, 0.95),
        ttft_p99_s=_percentile(ttft, 0.99),
        ttft_mean_s=sum(ttft) / len(ttft),
        share_min=min(served) / len(kept),
        share_max=max(served) / len(kept),
        share_max_over_mean=max(served) * len(served) / len(kept),
        warm_broken=_broken([request for request in kept if request.warm_at >= 0]),
        scaling=None if added_at is None else _scaling(done, added_at, len(fleet.engines) - 1),
    )


def _scaling(done: Sequence[Request], at: float, newcomer: int) -> Scaling:
    window_s = max(_WINDOW_MIN_S, (done[-1].at - at) * _WINDOW_SHARE)
    before = [r for r in done if at - window_s <= r.at < at]
    within = [r for r in done if at <= r.at < at + window_s]
    after = [r for r in done if r.at >= at + window_s]
    return Scaling(
        moved_cold=_broken([r for r in within if r.warm_at >= 0]),
        hit_before=_hit_rate(before),
        hit_after=_hit_rate(within),
        newcomer_share=sum(r.instance == newcomer for r in after) / max(1, len(after)),
        ttft_p95_s=_percentile(sorted(r.ttft_s for r in within), 0.95),
    )


def _hit_rate(requests: Sequence[Request]) -> float:
    return sum(r.cached_tokens for r in requests) / max(1, sum(r.tokens for r in requests))


def _broken(warm: Sequence[Request]) -> float:
    return sum(request.moved_cold for request in warm) / max(1, len(warm))


def _percentile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
