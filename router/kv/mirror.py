"""What each engine's block cache is believed to hold, and which evictions were regretted.

Every mirror is an LRU of block hashes that is touched from the tail of a prompt to its root, as engines free blocks.
A block is therefore always older than its parent and dies before it: mirrors stay prefix-closed, and a match ends
where the chain first leaves the mirror.

Instances are known by the 64-bit hash of their uid: a restart is another instance and starts empty. Memory is bounded:
all mirrors together hold at most `budget_blocks`, and the ghost list as many again; see `BYTES_PER_BLOCK`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

# Measured with CPython 3.11: a block in one mirror, and its ghost.
BYTES_PER_BLOCK = 512
MIN_CAPACITY_BLOCKS = 64.0
# Regret is counted over about this many insertions, and needs this many evictions to mean anything.
_REGRET_MEMORY = 0.998
_REGRET_FLOOR = 50.0
_REGRET_MAX = 0.85


class Mirrors:
    """The mirrors of one endpoint's instances."""

    __slots__ = ("_bits", "_budget_blocks", "_capacity", "_evictions", "_ghosts", "_held", "_holders", "_regrets")

    def __init__(self, budget_blocks: int) -> None:
        self._budget_blocks = budget_blocks
        self._holders: dict[int, int] = {}  # block -> bit mask of the instances that hold it
        self._held: dict[int, OrderedDict[int, None]] = {}  # instance -> its blocks, next victim first
        self._bits: dict[int, int] = {}
        self._capacity: dict[int, float] = {}
        self._ghosts: OrderedDict[int, None] = OrderedDict()
        self._evictions = 0.0
        self._regrets = 0.0

    def __len__(self) -> int:
        return sum(len(held) for held in self._held.values())

    @property
    def ghosts(self) -> int:
        """How many evicted blocks are remembered."""
        return len(self._ghosts)

    @property
    def regret(self) -> float:
        """Share of evicted blocks that were wanted again: 0 while there is room, towards 1 when caches thrash."""
        return min(_REGRET_MAX, self._regrets / max(self._evictions, _REGRET_FLOOR))

    def blocks(self, instance: int) -> tuple[int, ...]:
        """What the instance is believed to hold, next victim first."""
        return tuple(self._held.get(instance, ()))

    def capacity_blocks(self, instance: int) -> int:
        """How much the engine is believed to hold, within the budget."""
        return int(min(self._capacity[instance], self._budget_blocks / len(self._held)))

    def fills(self, instances: Sequence[int]) -> list[float]:
        """How far each is from being a newcomer: 0 when it holds nothing, 1 from half of what the others hold."""
        held = [len(self._held.get(instance, ())) for instance in instances]
        half = sum(held) / len(held) / 2.0
        return [min(1.0, count / half) if half else 1.0 for count in held]

    def follow(self, instance: int, capacity_blocks: float) -> None:
        """Start an empty mirror for an instance, unless it has one."""
        if instance in self._held:
            return
        taken = set(self._bits.values())
        self._bits[instance] = next(1 << n for n in range(len(taken) + 1) if 1 << n not in taken)
        self._held[instance] = OrderedDict()
        self._capacity[instance] = capacity_blocks
        for other in self._held:
            self._shrink(other)

    def forget(self, instance: int) -> None:
        """Drop the mirror of an instance that is gone."""
        bit = self._bits.pop(instance, 0)
        self._capacity.pop(instance, None)
        for block in self._held.pop(instance, ()):
            self._release(block, bit)

    def match(self, hashes: Sequence[int], instances: Sequence[int]) -> list[int]:
        """How many blocks from the root each instance is believed to hold."""
        holders = self._holders
        bits = [self._bits.get(instance, 0) for instance in instances]
        depths = [len(hashes) if bit else 0 for bit in bits]
        live = -1
        for depth, block in enumerate(hashes):
            still = live & holders.get(block, 0)
            if still == live:
                continue
            for at, bit in enumerate(bits):
                if live & bit and not still & bit:
                    depths[at] = depth
            if not still:
                break
            live = still
        return depths

    def insert(self, instance: int, hashes: Sequence[int]) -> None:
        """The instance computes this prompt: it will hold all of it, at the expense of the oldest."""
        held, bit = self._held[instance], self._bits[instance]
        holders, ghosts, regrets = self._holders, self._ghosts, 0
        for block in reversed(hashes):
            if block in held:
                held.move_to_end(block)
                continue
            held[block] = None
            holders[block] = holders.get(block, 0) | bit
            if block in ghosts:
                del ghosts[block]
                regrets += 1
        evictions = self._shrink(instance)
        self._evictions = _REGRET_MEMORY * self._evictions + evictions
        self._regrets = _REGRET_MEMORY * self._regrets + regrets

    def scale_capacity(self, instance: int, factor: float) -> None:
        """Correct the believed size by what the engine said it had cached."""
        capacity = self._capacity.get(instance)
        if capacity is not None:
            self._capacity[instance] = min(self._budget_blocks, max(MIN_CAPACITY_BLOCKS, capacity * factor))

    def _shrink(self, instance: int) -> int:
        """Evict down to the capacity; how many blocks are now held by none."""
        held, bit, lost = self._held[instance], self._bits[instance], 0
        over = len(held) - self.capacity_blocks(instance)
        for _ in range(over):
            block, _ = held.popitem(last=False)
            if self._release(block, bit):
                self._ghosts[block] = None
                lost += 1
        if lost:
            limit = min(self._budget_blocks, sum(self._capacity.values()))
            while len(self._ghosts) > limit:
                self._ghosts.popitem(last=False)
        return lost

    def _release(self, block: int, bit: int) -> bool:
        """Take one holder away; true when it was the last."""
        left = self._holders[block] & ~bit
        if left:
            self._holders[block] = left
        else:
            del self._holders[block]
        return not left
