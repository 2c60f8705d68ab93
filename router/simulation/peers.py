"""How others route, as read in their sources, to compare with: rings and scores. See `peer_trees` for prefix trees.

Simplified to what decides a choice; their default settings. `in_flight` is what this router sent and has not got back.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from random import Random

from router.simulation.engine import BLOCK_TOKENS, Request
from router.simulation.fleet import Fleet, PolicyMaker
from router.simulation.workloads import mix


class Peer:
    """A policy under comparison. A subclass decides in `pick`, and may remember what happened."""

    def __init__(self, fleet: Fleet, chance: Random) -> None:
        self.fleet = fleet
        self.chance = chance

    def pick(self, request: Request, in_flight: Sequence[int]) -> int:
        raise NotImplementedError

    def placed(self, request: Request, at: int) -> None:
        """The request was sent there."""

    def first_token(self, request: Request) -> None:
        """Its prefill is over."""

    def finished(self, request: Request) -> None:
        """It has ended."""

    def resize(self, instances: int) -> None:
        """The fleet has this many instances now."""

    def least(self, in_flight: Sequence[int], among: Sequence[int] | None = None) -> int:
        """Fewest requests in flight, ties at random."""
        among = range(len(in_flight)) if among is None else among
        fewest = min(in_flight[at] for at in among)
        return self.chance.choice([at for at in among if in_flight[at] == fewest])

    def cheapest(self, costs: Sequence[float]) -> int:
        """Lowest cost, ties at random."""
        low = min(costs)
        return self.chance.choice([at for at, cost in enumerate(costs) if cost <= low + 1e-9])


class PeerRouter:
    """Counts in flight, for any peer."""

    def __init__(self, peer: Peer, instances: int) -> None:
        self._peer = peer
        self._in_flight: list[int] = []
        self.resize(instances)

    def resize(self, instances: int) -> None:
        self._in_flight += [0] * (instances - len(self._in_flight))
        self._peer.resize(instances)

    def choose(self, request: Request, now: float) -> int:  # noqa: ARG002 - a Policy
        at = self._peer.pick(request, self._in_flight)
        self._in_flight[at] += 1
        self._peer.placed(request, at)
        return at

    def first_token(self, request: Request, now: float) -> None:  # noqa: ARG002 - a Policy
        self._peer.first_token(request)

    def finished(self, request: Request, now: float) -> None:  # noqa: ARG002 - a Policy
        self._in_flight[request.instance] -= 1
        self._peer.finished(request)


def peer(kind: Callable[[Fleet, Random], Peer]) -> PolicyMaker:
    """A maker of routers with this policy."""

    def make(fleet: Fleet, chance: Random) -> PeerRouter:
        return PeerRouter(kind(fleet, chance), len(fleet.engines))

    return make


class RoundRobin(Peer):
    """One after the other."""

    def __init__(self, fleet: Fleet, chance: Random) -> None:
        super().__init__(fleet, chance)
        self._next = chance.randrange(8)

    def pick(self, request: Request, in_flight: Sequence[int]) -> int:  # noqa: ARG002 - a Peer
        self._next += 1
        return self._next % len(in_flight)


class KubeAi(Peer):
    """KubeAI PrefixHash: consistent hashing with bounded loads (256 points, 1.25) of the session's beginning."""

    _POINTS, _FACTOR = 256, 1.25

    def resize(self, instances: int) -> None:
        seeds = [mix(0xABCDEF + at * 1_315_423_911) for at in range(instances)]
        self._ring = sorted((mix(seed ^ mix(k + 1)), at) for at, seed in enumerate(seeds) for k in range(self._POINTS))

    def pick(self, request: Request, in_flight: Sequence[int]) -> int:
        total = sum(in_flight)
        walk = list(self._walk(mix(request.session)))
        bound = (total + 1) / len(in_flight) * self._FACTOR
        return next((at for at in walk if total == 0 or in_flight[at] <= bound), walk[0])

    def _walk(self, key: int) -> Iterator[int]:
        start = bisect_left(self._ring, (key, -1))
        yield from OrderedDict.fromkeys(at for _, at in self._ring[start:] + self._ring[:start])


class GieApproximate(Peer):
    """Gateway API Inference Extension, llm-d default: share of the first 4096 tokens x3, queue x2, cache usage x2."""

    _WEIGHTS = (3.0, 2.0, 2.0)
    _MAX_BLOCKS = 4096 // BLOCK_TOKENS
    _REMEMBERED = 31_250 * 16 // BLOCK_TOKENS

    def resize(self, instances: int) -> None:
        self._known: list[OrderedDict[int, None]] = [
            *getattr(self, "_known", []),
            *(OrderedDict() for _ in range(instances - len(getattr(self, "_known", [])))),
        ]

    def prefix_share(self, request: Request) -> list[float]:
        """Of the prompt, what each instance is thought to hold."""
        blocks = request.blocks[: self._MAX_BLOCKS]
        held = [0] * len(self._known)
        for block in blocks:
            found = [at for at, known in enumerate(self._known) if block in known]
            if not found:
                break
            for at in found:
                held[at] += 1
        return [count / len(blocks) for count in held]

    def pick(self, request: Request, in_flight: Sequence[int]) -> int:  # noqa: ARG002 - a Peer
        prefix, queue, usage = self._WEIGHTS
        polled = self.fleet.polled()
        waiting = [metrics.waiting for metrics in polled]
        low, high = min(waiting), max(waiting)
        return self.cheapest(
            [
                -prefix * share
                - queue * (1.0 if high == low else (high - metrics.waiting) / (high - low))
                - usage * (1.0 - metrics.cache_usage)
                for share, metrics in zip(self.prefix_share(request), polled, strict=True)
            ]
        )

    def placed(self, request: Request, at: int) -> None:
        known = self._known[at]
        for block in request.blocks[: self._MAX_BLOCKS]:  # root first: the root is the next to be forgotten
            known.pop(block, None)
            known[block] = None
        while len(known) > self._REMEMBERED:
            known.popitem(last=False)


class LlmdPrecise(GieApproximate):
    """llm-d precise prefix cache: the true contents of the caches by KV events, 2:1:1."""

    _WEIGHTS = (2.0, 1.0, 1.0)

    def prefix_share(self, request: Request) -> list[float]:
        full = request.full_blocks
        return [engine.cached_blocks(full) / max(1, len(full)) for engine in self.fleet.engines]

    def placed(self, request: Request, at: int) -> None:
        """Nothing to remember."""


class DynamoKv(Peer):
    """NVIDIA Dynamo: prefill blocks still to do plus decode blocks, with the true contents of the caches."""

    def resize(self, instances: int) -> None:
        missing = instances - len(getattr(self, "_prefill", []))
        self._prefill: list[float] = [*getattr(self, "_prefill", []), *([0.0] * missing)]
        self._active: list[Counter[int]] = [*getattr(self, "_active", []), *(Counter() for _ in range(missing))]
        self._predicted: dict[int, float] = getattr(self, "_predicted", {})

    def pick(self, request: Request, in_flight: Sequence[int]) -> int:  # noqa: ARG002 - a Peer
        blocks = request.blocks
        costs = []
        for at, engine in enumerate(self.fleet.engines):
            active = self._active[at]
            fresh = len(blocks) - engine.cached_blocks(request.full_blocks)
            decode = len(active) + sum(1 for block in blocks if block not in active)
            costs.append(max(0.0, self._prefill[at] / BLOCK_TOKENS + fresh) + decode)
        return self.cheapest(costs)

    def placed(self, request: Request, at: int) -> None:
        cached = self.fleet.engines[at].cached_blocks(request.full_blocks) * BLOCK_TOKENS
        predicted = self._predicted[id(request)] = float(request.tokens - cached)
        self._prefill[at] += predicted
        self._active[at].update(request.blocks)

    def first_token(self, request: Request) -> None:
        self._prefill[request.instance] -= self._predicted.pop(id(request))

    def finished(self, request: Request) -> None:
        active = self._active[request.instance]
        for block in request.blocks:
            active[block] -= 1
            if not active[block]:
                del active[block]
