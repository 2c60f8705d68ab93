"""Routing policies: pure choices over a snapshot of the instances. One rule a file.

A policy returns the instance and the reason; the proxy turns the reason into a metric, a header, a log field.
Randomness comes in as an argument, so that a choice can be told again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Literal, NamedTuple, Protocol, TypeVar


class Candidate(Protocol):
    """What a policy may know of an instance.

    seed: 64-bit hash of its uid; in_flight: requests now.
    weight: share of keys relative to others, above 0; it stays the same within one sequence of candidates.
    """

    @property
    def seed(self) -> int: ...
    @property
    def weight(self) -> float: ...
    @property
    def in_flight(self) -> int: ...


Reason = Literal[
    "only_instance",
    "random",
    "least_outstanding",
    "prefix_home",
    "prefix_overflow",
    "prefix_saturated",
]
"""Why an instance was chosen. Plain strings: they are dictionary keys on the hot path."""


C = TypeVar("C", bound=Candidate)


class Choice(NamedTuple, Generic[C]):
    instance: C
    reason: Reason


class Policy(Protocol):
    def __call__(self, key: bytes, candidates: Sequence[C], rand: float) -> Choice[C]:
        """Choose among one or more `candidates`. key: hash of the prefix; rand: in [0, 1)."""
        ...
