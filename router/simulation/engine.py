"""One engine: first-come first-served prefill, a decode batch, and an LRU block cache as vLLM's.

Prefill is quadratic in the context and slows down with the decode batch. Blocks of running requests are pinned;
a request waits while its blocks do not fit. When it ends its blocks are freed tail first, so the tail dies first.
Left out: output blocks are not cached again, decode speed is fixed at the first token, no KV offload.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass

BLOCK_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Hardware:
    """A 70B-class model on eight H100."""

    prefill_tokens_per_s: float = 12_000.0
    attention_tokens: float = 53_000.0
    token_s: float = 0.020
    token_per_request_s: float = 0.00015
    slots: int = 128
    decode_drag: float = 0.25 / 64
    cache_blocks: int = 1500

    def prefill_s(self, tokens: int, cached: int, decoding: int) -> float:
        """Time to the first token once it is this request's turn."""
        fresh = max(1, tokens - cached)
        attention = 1 + (cached + fresh / 2) / self.attention_tokens
        return fresh / self.prefill_tokens_per_s * attention * (1 + self.decode_drag * decoding)

    def decode_s(self, tokens: int, decoding: int) -> float:
        """Time from the first token to the last."""
        return tokens * (self.token_s + self.token_per_request_s * decoding)


@dataclass(slots=True)
class Request:
    """One request of a trace, and what became of it."""

    at: float
    tokens: int
    output_tokens: int
    blocks: tuple[int, ...]
    """Hashes of its blocks of 512 tokens, the last possibly partial; equal hashes mean equal prompts so far."""

    anchor: int
    """Stands for its beginning: the same for every turn of a conversation."""

    session: int
    turn: int = 0

    router: int = 0
    instance: int = -1
    warm_at: int = -1
    """Instance that served the session before and still holds at least half of the prompt; -1 for none."""

    moved_cold: bool = False
    """Whether it was sent from there to an instance that does not."""

    cached_tokens: int = 0
    private_blocks: int = 0
    first_token_at: float = 0.0
    done_at: float = 0.0

    @property
    def full_blocks(self) -> tuple[int, ...]:
        """Only full blocks can be shared."""
        return self.blocks[: self.tokens // BLOCK_TOKENS]

    @property
    def ttft_s(self) -> float:
        return self.first_token_at - self.at


class Engine:
    """State of one engine; the fleet tells it what time it is."""

    def __init__(self, hardware: Hardware) -> None:
        self.hardware = hardware
        self.queue: deque[Request] = deque()
        self.prefilling: Request | None = None
        self.decoding = 0
        self.running = 0
        self.work_s = 0.0
        self._free: OrderedDict[int, None] = OrderedDict()  # cached and unused, next victim first
        self._pinned: dict[int, int] = {}
        self._private_blocks = 0

    def cached_blocks(self, blocks: Sequence[int]) -> int:
        """Length of the cached beginning."""
        for depth, block in enumerate(blocks):
            if block not in self._free and block not in self._pinned:
                return depth
        return len(blocks)

    def cache_usage(self) -> float:
        """Share of the cache that running requests hold."""
        return (len(self._pinned) + self._private_blocks) / self.hardware.cache_blocks

    def start(self) -> tuple[Request, float] | None:
        """Begin the next prefill if one can begin: the request and how long it takes."""
        if self.prefilling or not self.queue or self.running >= self.hardware.slots:
            return None
        request = self.queue[0]
        full = request.full_blocks
        hit = self.cached_blocks(full)
        private = -(-request.output_tokens // BLOCK_TOKENS) + (1 if request.tokens % BLOCK_TOKENS else 0)
        if self.running and len(full) - hit + private > self._available(full[:hit]):
            return None
        self.queue.popleft()
        self.prefilling, self.running = request, self.running + 1
        self._take(full, hit, private)
        request.private_blocks = private
        request.cached_tokens = min(hit * BLOCK_TOKENS, request.tokens - 1)
        duration_s = self.hardware.prefill_s(request.tokens, request.cached_tokens, self.decoding)
        self.work_s += duration_s
        return request, duration_s

    def first_token(self, request: Request) -> float:
        """Prefill is over: how long it will decode."""
        self.prefilling = None
        self.decoding += 1
        return self.hardware.decode_s(request.output_tokens, self.decoding)

    def finish(self, request: Request) -> None:
        """Free its blocks, tail first."""
        self.decoding -= 1
        self.running -= 1
        self._private_blocks -= request.private_blocks
        for block in reversed(request.full_blocks):
            users = self._pinned[block] - 1
            if users:
                self._pinned[block] = users
            else:
                del self._pinned[block]
                self._free[block] = None

    def _available(self, hit: Sequence[int]) -> int:
        unpinned_hits = sum(1 for block in hit if block in self._free)
        return self.hardware.cache_blocks - len(self._pinned) - self._private_blocks - unpinned_hits

    def _take(self, full: Sequence[int], hit: int, private: int) -> None:
        free, pinned = self._free, self._pinned
        for block in full[:hit]:
            free.pop(block, None)
            pinned[block] = pinned.get(block, 0) + 1
        over = len(free) + len(pinned) + self._private_blocks + len(full) - hit + private - self.hardware.cache_blocks
        while over > 0 and free:
            free.popitem(last=False)
            over -= 1
        for block in full[hit:]:
            free.pop(block, None)
            pinned[block] = pinned.get(block, 0) + 1
        self._private_blocks += private
