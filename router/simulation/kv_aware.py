"""KV_AWARE behind the simulator's interface: the object that the proxy uses; tokens become bytes."""

from __future__ import annotations

from random import Random

from router.kv.blocks import BLOCK_BYTES, Chain
from router.kv.cost import Prices
from router.policies.kv_aware import Delta, KvAware, Placement
from router.simulation.engine import BLOCK_TOKENS, Request
from router.simulation.fleet import Fleet, PolicyMaker
from router.simulation.stateless import Replica, replicas

BYTES_PER_TOKEN = BLOCK_BYTES // BLOCK_TOKENS
GOSSIP_DELAY_S = 0.1


class KvAwareRouter:
    """One router replica with KV_AWARE."""

    def __init__(self, fleet: Fleet, policy: KvAware, *, metrics: bool, peers: list[KvAwareRouter] | None) -> None:
        self._fleet = fleet
        self._policy = policy
        self._metrics = metrics and fleet.routers > 1
        self._peers = peers
        self._replicas: list[Replica] = []
        self._placements: dict[int, Placement] = {}
        self.resize(len(fleet.engines))

    def resize(self, instances: int) -> None:
        """The fleet has this many instances now."""
        self._replicas += replicas(self._fleet.name, len(self._replicas), instances)
        self._policy.follow([replica.seed for replica in self._replicas])

    def choose(self, request: Request, now: float) -> int:
        if self._metrics:
            for replica, polled in zip(self._replicas, self._fleet.polled(), strict=True):
                self._policy.observe(replica.seed, polled.waiting, polled.running, now)
        chain = Chain(request.full_blocks, request.anchor, request.tokens * BYTES_PER_TOKEN, request.turn > 0)
        quote = self._policy.choose(chain, self._replicas, now)
        quote.instance.in_flight += 1
        placement = self._placements[id(request)] = self._policy.placed(chain, quote, now)
        if self._peers:
            delta = self._policy.share(placement)
            self._fleet.after(GOSSIP_DELAY_S, lambda: self._tell(delta))
        return quote.instance.number

    def first_token(self, request: Request, now: float) -> None:
        self._policy.first_byte(self._placements[id(request)], now)

    def finished(self, request: Request, now: float) -> None:
        self._replicas[request.instance].in_flight -= 1
        self._policy.finished(
            self._placements.pop(id(request)),
            now,
            prompt_tokens=request.tokens,
            cached_tokens=request.cached_tokens,
        )

    def _tell(self, delta: Delta) -> None:
        for peer in self._peers or ():
            if peer is not self:
                peer._policy.absorb(delta, self._fleet.now)


def kv_aware(prices: Prices | None = None, *, gossip: bool = False, metrics: bool = True) -> PolicyMaker:
    """KV_AWARE. Several routers exchange deltas with `gossip`, or see each other in `metrics` only, or not at all."""
    peers: list[KvAwareRouter] = []

    def make(fleet: Fleet, _chance: Random) -> KvAwareRouter:
        policy = KvAware(prices, routers=fleet.routers, gossip=gossip)
        router = KvAwareRouter(fleet, policy, metrics=metrics, peers=peers if gossip else None)
        peers.append(router)
        return router

    return make
