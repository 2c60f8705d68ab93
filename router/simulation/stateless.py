"""The router's policies without state behind the simulator's interface: the very functions that the proxy calls."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from xxhash import xxh3_64_intdigest

from router.policies import Policy
from router.policies.least_outstanding import choose_least_outstanding
from router.policies.prefix_aware import prefix_aware
from router.policies.random import choose_random
from router.simulation.engine import BLOCK_TOKENS, Request
from router.simulation.fleet import Fleet, PolicyMaker

_CHARS_PER_BLOCK = BLOCK_TOKENS * 4


@dataclass(slots=True)
class Replica:
    """An instance as one router sees it."""

    number: int
    seed: int
    in_flight: int = 0
    weight: float = 1.0


def replicas(name: str, known: int, instances: int) -> list[Replica]:
    """The instances after the first `known`."""
    return [Replica(number, xxh3_64_intdigest(f"{name}-{number}".encode())) for number in range(known, instances)]


class StatelessRouter:
    """One router replica whose policy needs a key, the loads and a random number."""

    def __init__(self, fleet: Fleet, chance: Random, policy: Policy, prefix_blocks: int) -> None:
        self._fleet = fleet
        self._chance = chance
        self._policy = policy
        self._prefix_blocks = prefix_blocks
        self._replicas: list[Replica] = []
        self.resize(len(fleet.engines))

    def resize(self, instances: int) -> None:
        """The fleet has this many instances now."""
        self._replicas += replicas(self._fleet.name, len(self._replicas), instances)

    def choose(self, request: Request, now: float) -> int:  # noqa: ARG002 - a Policy
        # A block's hash stands for all before it, so the last block within the prefix is the prefix.
        key = request.blocks[: self._prefix_blocks][-1].to_bytes(8)
        replica = self._policy(key, self._replicas, self._chance.random()).instance
        replica.in_flight += 1
        return replica.number

    def first_token(self, request: Request, now: float) -> None:
        """Nothing to learn."""

    def finished(self, request: Request, now: float) -> None:  # noqa: ARG002 - a Policy
        self._replicas[request.instance].in_flight -= 1


def random_choice() -> PolicyMaker:
    """RANDOM."""
    return _maker(choose_random, 1)


def least_outstanding() -> PolicyMaker:
    """LEAST_OUTSTANDING_REQUESTS."""
    return _maker(choose_least_outstanding, 1)


def prefix_aware_choice(*, prefix_length: int = 16_384, concurrency_threshold: int = 24) -> PolicyMaker:
    """PREFIX_AWARE with SageMaker's two settings."""
    policy = prefix_aware(concurrency_threshold=concurrency_threshold)
    return _maker(policy, max(1, prefix_length // _CHARS_PER_BLOCK))


def _maker(policy: Policy, prefix_blocks: int) -> PolicyMaker:
    def make(fleet: Fleet, chance: Random) -> StatelessRouter:
        return StatelessRouter(fleet, chance, policy, prefix_blocks)

    return make
