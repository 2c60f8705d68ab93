"""What the demo must have shown, as numbers; the last line of its output and its exit status come from here."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Summary:
    """Seconds are from a pod's start to its readiness; ratios are shares of bytes or tokens."""

    rollouts: int
    nodes_warm: str
    cold_ready_s: float
    warm_ready_s: float
    requests: int
    failed_requests: int
    hit_rate_random: float
    hit_rate_prefix: float
    ttft_p50_ms_random: float
    ttft_p50_ms_prefix: float
    update_fetched_ratio: float
    old_cache_deleted: bool
    unverified_files: int

    def to_json(self) -> str:
        return json.dumps({name: round(v, 3) if isinstance(v, float) else v for name, v in asdict(self).items()})

    def shortfalls(self) -> list[str]:
        """What is not as it should be, a sentence each; empty when the demo showed what it promises."""
        warm, _, targets = self.nodes_warm.partition("/")
        checks = (
            (self.rollouts == 2, f"{self.rollouts} rollouts ended well, 2 were expected"),
            (warm == targets != "0", f"only {self.nodes_warm} nodes are warm"),
            (self.requests > 0, "no request was sent"),
            (self.failed_requests == 0, f"{self.failed_requests} of {self.requests} requests failed"),
            (self.warm_ready_s > 0, "no pod was seen to start on a warm node"),
            (
                self.warm_ready_s < self.cold_ready_s,
                f"a pod on a warm node took {self.warm_ready_s:.1f} s, on a cold one {self.cold_ready_s:.1f} s",
            ),
            (
                self.hit_rate_prefix > self.hit_rate_random,
                f"the hit rate went from {self.hit_rate_random:.0%} to {self.hit_rate_prefix:.0%} under PREFIX_AWARE",
            ),
            (
                0 < self.update_fetched_ratio < 0.5,
                f"the update fetched {self.update_fetched_ratio:.0%} of the model, one shard of several was expected",
            ),
            (self.old_cache_deleted, "the old cache was not deleted"),
            (self.unverified_files == 0, f"{self.unverified_files} files were not verified"),
        )
        return [sentence for good, sentence in checks if not good]
