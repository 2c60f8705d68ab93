"""RANDOM: any instance, with equal chances. Cheapest, and blind to both load and prompt caches."""

from __future__ import annotations

from collections.abc import Sequence

from router.policies import C, Choice


def choose_random(key: bytes, candidates: Sequence[C], rand: float) -> Choice[C]:  # noqa: ARG001 - a Policy
    if len(candidates) == 1:
        return Choice(candidates[0], "only_instance")
    return Choice(candidates[int(rand * len(candidates))], "random")
