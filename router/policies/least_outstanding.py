"""LEAST_OUTSTANDING_REQUESTS: the instance with the fewest requests in flight, ties at random.

Good for prompts that share nothing; blind to prompt caches. Costs one pass over the instances.
"""

from __future__ import annotations

from collections.abc import Sequence

from router.policies import C, Choice


def choose_least_outstanding(key: bytes, candidates: Sequence[C], rand: float) -> Choice[C]:  # noqa: ARG001
    if len(candidates) == 1:
        return Choice(candidates[0], "only_instance")
    fewest = min([candidate.in_flight for candidate in candidates])
    tied = [candidate for candidate in candidates if candidate.in_flight == fewest]
    return Choice(tied[int(rand * len(tied))], "least_outstanding")
