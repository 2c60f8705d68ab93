"""How others route, continued: policies that keep a tree of what they sent where; here a map of block hashes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from math import sqrt
from random import Random

from router.simulation.engine import BLOCK_TOKENS, Request
from router.simulation.fleet import Fleet
from router.simulation.peers import Peer

_CHARS_PER_BLOCK = BLOCK_TOKENS * 4


class _Tree:
    """Block -> the instances it was sent to, last one last; bounded per instance, root blocks forgotten first."""

    def __init__(self, blocks_per_instance: int | None) -> None:
        self.tenants: dict[int, OrderedDict[int, None]] = {}
        self.sizes: dict[int, OrderedDict[int, None]] = {}
        self._limit = blocks_per_instance

    def insert(self, blocks: Sequence[int], at: int) -> None:
        size = self.sizes.setdefault(at, OrderedDict())
        for block in blocks:
            for ordered, key in ((self.tenants.setdefault(block, OrderedDict()), at), (size, block)):
                ordered.pop(key, None)
                ordered[key] = None
        while self._limit is not None and len(size) > self._limit:
            block, _ = size.popitem(last=False)
            self.tenants[block].pop(at, None)

    def deepest(self, blocks: Sequence[int]) -> tuple[int, OrderedDict[int, None]]:
        """Length of the longest known beginning, and whose it is."""
        found: OrderedDict[int, None] = OrderedDict()
        for depth, block in enumerate(blocks):
            tenants = self.tenants.get(block)
            if not tenants:
                return depth, found
            found = tenants
        return len(blocks), found

    def depths(self, blocks: Sequence[int], instances: int) -> list[int]:
        """Length of the beginning that each instance has seen whole."""
        depths, live = [0] * instances, set(range(instances))
        for block in blocks:
            live &= self.tenants.get(block, {}).keys()
            for at in live:
                depths[at] += 1
        return depths


def _known_blocks(request: Request) -> Sequence[int]:
    return request.blocks[: max(1, request.tokens // BLOCK_TOKENS)]


class SmgCacheAware(Peer):
    """sglang's model gateway, cache_aware: longest match above 0.3, unless the fleet is imbalanced (64, 1.5)."""

    _THRESHOLD, _ABSOLUTE, _RELATIVE = 0.3, 64, 1.5
    _TREE_BLOCKS: int | None = 2**26 // _CHARS_PER_BLOCK

    def __init__(self, fleet: Fleet, chance: Random) -> None:
        super().__init__(fleet, chance)
        self._tree = _Tree(self._TREE_BLOCKS)

    def pick(self, request: Request, in_flight: Sequence[int]) -> int:
        low, high = min(in_flight), max(in_flight)
        if high - low > self._ABSOLUTE and high > self._RELATIVE * low:
            return self.least(in_flight)
        depth, tenants = self._tree.deepest(_known_blocks(request))
        if tenants and depth * BLOCK_TOKENS / max(1, request.tokens) > self._THRESHOLD:
            return next(reversed(tenants))
        return self.least(in_flight)

    def placed(self, request: Request, at: int) -> None:
        self._tree.insert(_known_blocks(request), at)


class RayPrefix(SmgCacheAware):
    """Ray Serve PrefixCacheAffinityRouter: match of a tenth or more, else the smallest tenant; no load term."""

    _THRESHOLD, _TREE_BLOCKS = 0.1, None

    def pick(self, request: Request, in_flight: Sequence[int]) -> int:
        depth, tenants = self._tree.deepest(_known_blocks(request))
        if tenants and depth * BLOCK_TOKENS / max(1, request.tokens) >= self._THRESHOLD:
            return self.least(in_flight, list(tenants))
        sizes = self._tree.sizes
        return self.cheapest([float(len(sizes.get(at, ()))) for at in range(len(in_flight))])


class AibrixPrefix(Peer):
    """AIBrix prefix-cache: longest match whose load is within the mean plus a deviation; imbalance above 8 first."""

    def __init__(self, fleet: Fleet, chance: Random) -> None:
        super().__init__(fleet, chance)
        self._tree = _Tree(None)

    def pick(self, request: Request, in_flight: Sequence[int]) -> int:
        count, low = len(in_flight), min(in_flight)
        mean = sum(in_flight) / count
        bound = mean + sqrt(sum((load - mean) ** 2 for load in in_flight) / count)
        imbalanced = max(in_flight) - low > 8
        depths = self._tree.depths(_known_blocks(request), count)
        matched = [at for at, depth in enumerate(depths) if depth and not (imbalanced and in_flight[at] > low)]
        for at in sorted(matched, key=lambda at: (-depths[at], in_flight[at])):
            if in_flight[at] <= bound:
                return at
        return self.least(in_flight)

    def placed(self, request: Request, at: int) -> None:
        self._tree.insert(_known_blocks(request), at)


class VllmSmetric(Peer):
    """vllm-project/router smetric: affinity for later turns within a TTFT goal, else least prefill work x load."""

    _GOAL_S, _GOAL_S_PER_TOKEN, _HIT_SHARE = 1.0, 1 / 6000, 0.5

    def __init__(self, fleet: Fleet, chance: Random) -> None:
        super().__init__(fleet, chance)
        self._tree = _Tree(None)
        self._work_s: dict[int, float] = {}
        self._own_s: dict[int, float] = {}

    def pick(self, request: Request, in_flight: Sequence[int]) -> int:
        depths = self._tree.depths(_known_blocks(request), len(in_flight))
        hardware = self.fleet.hardware
        own = [hardware.prefill_s(request.tokens, depth * BLOCK_TOKENS, 0) for depth in depths]
        queued = [self._work_s.get(at, 0.0) + own_s for at, own_s in enumerate(own)]
        meets = [wait <= self._GOAL_S + self._GOAL_S_PER_TOKEN * request.tokens for wait in queued]
        warmest = max(range(len(own)), key=lambda at: (depths[at], -queued[at] * in_flight[at]))
        enough = depths[warmest] > self._HIT_SHARE * max(0, len(request.full_blocks) - 1)
        if request.turn and enough and (meets[warmest] or not any(meets)):
            at = warmest
        else:
            at = min(range(len(own)), key=lambda at: (queued[at] * in_flight[at], queued[at], self.chance.random()))
        self._own_s[id(request)] = own[at]
        return at

    def placed(self, request: Request, at: int) -> None:
        self._tree.insert(_known_blocks(request), at)
        self._work_s[at] = self._work_s.get(at, 0.0) + self._own_s[id(request)]

    def first_token(self, request: Request) -> None:
        self._work_s[request.instance] -= self._own_s.pop(id(request))
