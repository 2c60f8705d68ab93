"""KV_AWARE: priced affinity. Every instance gets a price in seconds, and the request goes where it is cheapest.

price = queue + (1 + externality) x thrash x uncached prefill + kappa x full prefill x relative load. Among prices that
differ by less than a slack, the prompt's rendezvous order decides, so that ties, overflow and hot prefixes use the same
few instances on every router. Affinity, spill and replication need no modes.

`choose` only reads. The caller then tells what happened: `placed` once the engine has the request, `first_byte`, and
`finished` on every way it can end; repeating either is harmless. Clocks come in as arguments.
Several routers exchange what they place (`share`, `absorb`), or are blind: then they meet at the rendezvous homes,
whose warmth is learned, and see each other's load in the engines' metrics (`observe`).
Cost: O(blocks + instances). Memory: `router.kv.mirror`. Not for prompts shorter than a block: they go by load.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Literal, NamedTuple

from router.kv.blocks import BLOCK_BYTES, Chain, rendezvous_order
from router.kv.cost import Prices, kappa, prefill_s, relative_load
from router.kv.learning import Prior, Speed, TokenSize
from router.kv.mirror import Mirrors
from router.kv.work import Backlog, Load
from router.policies import C

BUDGET_BLOCKS = 131_072
# Metrics older than this say nothing about now.
_STALE_S = 5.0


KvReason = Literal["only_instance", "kv_affinity", "kv_overflow", "kv_home", "kv_spill"]
"""Why: alone; it holds as much of the prompt as any; waiting for the one that holds more costs more than computing;
nobody holds any and it is first in the prompt's order; the same, but the first is too busy."""


class Quote(NamedTuple, Generic[C]):
    """A choice, and what it was based on: `placed` needs it."""

    instance: C
    reason: KvReason
    work_s: float
    matched_blocks: int
    rank: int
    on_faith: bool
    """Believed warm only because other routers would have chosen it."""


class Delta(NamedTuple):
    """What one router tells the others about a request it placed."""

    instance: int
    hashes: tuple[int, ...]
    work_s: float


@dataclass(frozen=True, slots=True)
class Placement:
    """A request that an engine has; kept by the caller until it ends."""

    ticket: int
    instance: int
    chain: Chain
    work_s: float
    matched_blocks: int
    rank: int
    on_faith: bool
    at: float
    expected_s: float
    """Queue and own prefill, as believed when it was placed."""

    teaches_speed: bool
    """Whether its time to first token will be mostly its own prefill."""


@dataclass(slots=True)
class _Engine:
    """What is known of one instance; dies with its uid."""

    backlog: Backlog
    waiting: int = 0
    running: int = 0
    observed_at: float = float("-inf")


class KvAware:
    """Knowledge of one endpoint. It outlives reloads: `follow` keeps whatever is still there."""

    def __init__(
        self,
        prices: Prices | None = None,
        *,
        budget_blocks: int = BUDGET_BLOCKS,
        routers: int = 1,
        gossip: bool = False,
    ) -> None:
        self.prices = prices or Prices()
        self.mirrors = Mirrors(budget_blocks)
        self._engines: dict[int, _Engine] = {}
        self._load = Load()
        self._speed = Speed(self.prices.prefill_tokens_per_s)
        self._prior = Prior()
        self._token_size = TokenSize()
        self._routers = routers
        self._blind = routers > 1 and not gossip
        # A blind router sees only its part of what fills an engine's cache.
        self._first_capacity = self.prices.cache_blocks / (routers if self._blind else 1)
        self._tickets = 0
        self._remote_tickets = 0

    def follow(self, instances: Sequence[int]) -> None:
        """The hashed uids that exist now: forget the gone, start the new empty, touch nothing else."""
        for gone in self._engines.keys() - set(instances):
            del self._engines[gone]
            self.mirrors.forget(gone)
            self._speed.forget(gone)
        for instance in instances:
            if instance not in self._engines:
                self._engines[instance] = _Engine(Backlog())
                self.mirrors.follow(instance, self._first_capacity)

    def observe(self, instance: int, waiting: int, running: int, now: float) -> None:
        """What the engine's metrics say: a blind router's only sight of the others' requests."""
        engine = self._engines.get(instance)
        if engine is not None:
            engine.waiting, engine.running, engine.observed_at = waiting, running, now

    def choose(self, chain: Chain, candidates: Sequence[C], now: float) -> Quote[C]:
        """The cheapest of one or more candidates; those without weight only when there is no other."""
        open_ = [candidate for candidate in candidates if candidate.weight > 0] or list(candidates)
        seeds = [candidate.seed for candidate in open_]
        matched = self.mirrors.match(chain.hashes, seeds)
        order = rendezvous_order(chain.anchor, seeds, [max(candidate.weight, 1e-9) for candidate in open_])
        believed = self._believe(chain, matched, order)
        works = self._works(chain, seeds, believed)
        costs = self._costs(chain, open_, works, max(believed) / max(1, len(chain.hashes)), now)
        cheapest, slack = min(costs), self._slack(chain)
        rank = next(rank for rank, at in enumerate(order) if costs[at] <= cheapest + slack * works[at])
        at = order[rank]
        reason = _reason(len(open_), rank, matched[at], max(matched))
        return Quote(open_[at], reason, works[at], matched[at], rank, believed[at] > matched[at])

    def placed(self, chain: Chain, quote: Quote[C], now: float) -> Placement:
        """The engine has the request: count its work, expect its blocks."""
        self._tickets += 1
        instance, work_s, queue_s = quote.instance.seed, quote.work_s, 0.0
        engine = self._engines.get(instance)
        quiet = engine is not None
        if engine is not None:
            queue_s = engine.backlog.left_s(now)
            if self._routers > 1:
                quiet = now - engine.observed_at < _STALE_S and engine.running <= quote.instance.in_flight
            engine.backlog.add(self._tickets, work_s, now)
            self.mirrors.insert(instance, chain.hashes)
        self._load.add(work_s, len(self._engines), self._routers, now)
        return Placement(
            self._tickets, instance, chain, work_s, quote.matched_blocks, quote.rank, quote.on_faith,
            at=now, expected_s=queue_s + work_s, teaches_speed=quiet and queue_s <= work_s,
        )  # fmt: skip

    def first_byte(self, placement: Placement, now: float) -> None:
        """Its prefill is over."""
        engine = self._engines.get(placement.instance)
        if engine is None:
            return
        engine.backlog.remove(placement.ticket, now)
        if placement.teaches_speed:
            fresh_bytes = placement.chain.size_bytes - placement.matched_blocks * BLOCK_BYTES
            fresh_tokens = fresh_bytes / self._token_size.bytes_per_token
            self._speed.learn(placement.instance, placement.expected_s, now - placement.at, fresh_tokens)

    def finished(
        self, placement: Placement, now: float, *, prompt_tokens: int = 0, cached_tokens: int | None = None
    ) -> None:
        """It ended, well or not. `cached_tokens` is None where the engine does not say."""
        engine = self._engines.get(placement.instance)
        if engine is not None:
            engine.backlog.remove(placement.ticket, now)
        if prompt_tokens > 0:
            self._token_size.learn(placement.chain.size_bytes, prompt_tokens)
            if cached_tokens is not None:
                self._learn_cached(placement, prompt_tokens, cached_tokens)

    def share(self, placement: Placement) -> Delta:
        """What the other routers should know of it."""
        return Delta(placement.instance, placement.chain.hashes, placement.work_s)

    def absorb(self, delta: Delta, now: float) -> None:
        """Another router placed a request."""
        engine = self._engines.get(delta.instance)
        if engine is not None:
            self._remote_tickets -= 1
            engine.backlog.add(self._remote_tickets, delta.work_s, now)
            self.mirrors.insert(delta.instance, delta.hashes)

    def _slack(self, chain: Chain) -> float:
        if not self._blind:
            return self.prices.slack
        return self.prices.slack_blind + self.prices.slack_prior * self._prior.shares(follow_up=chain.follow_up)[0]

    def _believe(self, chain: Chain, matched: list[int], order: list[int]) -> list[float]:
        """Blocks each is believed to hold: the mirror's, or at the first homes what they usually turn out to."""
        believed: list[float] = list(matched)
        blocks = len(chain.hashes)
        if self._blind and max(matched) < 0.8 * (blocks - 1):
            for at, share in zip(order, self._prior.shares(follow_up=chain.follow_up), strict=False):
                believed[at] = max(believed[at], share * blocks)
        return believed

    def _works(self, chain: Chain, seeds: list[int], believed: list[float]) -> list[float]:
        per_token, attention = self._token_size.bytes_per_token, self.prices.attention_tokens
        tokens, block = chain.size_bytes / per_token, BLOCK_BYTES / per_token
        speed = self._speed
        return [
            prefill_s(tokens, blocks * block, speed.of(seed), attention)
            for seed, blocks in zip(seeds, believed, strict=True)
        ]

    def _costs(
        self, chain: Chain, candidates: Sequence[C], works: list[float], cached_share: float, now: float
    ) -> list[float]:
        prices = self.prices
        price = (1.0 + self._load.externality(prices)) * (1.0 + prices.thrash * self.mirrors.regret)
        full_s = prefill_s(
            chain.size_bytes / self._token_size.bytes_per_token, 0.0, self._speed.s_per_token, prices.attention_tokens
        )
        spread = full_s * kappa(prices, cached_share, follow_up=chain.follow_up)
        # A newcomer has nobody to delay and nothing to evict: there a first turn pays for a further copy once.
        least_s = min(works)
        fills = [1.0] * len(works) if chain.follow_up else self.mirrors.fills([one.seed for one in candidates])
        seen = [self._seen(candidate, now) for candidate in candidates]
        mean = sum(load for _, load in seen) / len(seen)
        return [
            queue_s
            + price * least_s
            + (1.0 + (price - 1.0) * fill) * (work - least_s)
            + spread * relative_load(load, mean)
            for (queue_s, load), work, fill in zip(seen, works, fills, strict=True)
        ]

    def _seen(self, candidate: C, now: float) -> tuple[float, float]:
        """Seconds of queue and requests in flight at an instance, other routers' included where they can be seen."""
        engine, load = self._engines.get(candidate.seed), float(candidate.in_flight)
        weight = max(candidate.weight, 1e-9)
        if engine is None:
            return 0.0, load / weight
        queue_s = engine.backlog.left_s(now)
        if self._routers > 1 and now - engine.observed_at < _STALE_S:
            load = max(load, float(engine.waiting + engine.running))
            # When requests wait, one more is being prefilled.
            others = engine.waiting + (engine.waiting > 0) - engine.backlog.own
            if self._blind and others > 0:
                queue_s = engine.backlog.total_s + (others - 1) * self._load.mean_s + self._load.residual_s
        return queue_s / weight, load / weight

    def _learn_cached(self, placement: Placement, prompt_tokens: int, cached_tokens: int) -> None:
        if len(placement.chain.hashes) < 2:
            return
        if placement.on_faith:
            share = cached_tokens / prompt_tokens
            self._prior.learn(placement.rank, share, follow_up=placement.chain.follow_up)
            return
        seen = cached_tokens * self._token_size.bytes_per_token / BLOCK_BYTES
        if seen < placement.matched_blocks - 1:
            self.mirrors.scale_capacity(placement.instance, 0.98)
        elif seen > placement.matched_blocks + 1:
            # Quick to grow: a mirror that is too small sends prompts away before they could show it.
            self.mirrors.scale_capacity(placement.instance, 1.1)


def _reason(candidates: int, rank: int, matched: int, longest: int) -> KvReason:
    if candidates == 1:
        return "only_instance"
    if longest > 0:
        return "kv_affinity" if matched == longest else "kv_overflow"
    return "kv_home" if rank == 0 else "kv_spill"
