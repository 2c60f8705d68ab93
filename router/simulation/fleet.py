"""The event loop: requests arrive at one of several routers, engines compute, routers hear what happened."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Protocol

from router.simulation.engine import Engine, Hardware, Request


@dataclass(frozen=True, slots=True)
class Metrics:
    """What an engine's /metrics said at the last poll."""

    waiting: int
    running: int
    cache_usage: float


class Policy(Protocol):
    """One router replica's policy. It knows its own requests; of the rest only `Fleet.polled`."""

    def choose(self, request: Request, now: float) -> int: ...
    def first_token(self, request: Request, now: float) -> None: ...
    def finished(self, request: Request, now: float) -> None: ...
    def resize(self, instances: int) -> None: ...


PolicyMaker = Callable[["Fleet", Random], Policy]


def seeded(seed: int) -> Random:
    """The only source of chance in a simulation."""
    return Random(seed)  # noqa: S311 - repeatable, not secret


class Fleet:
    """Engines behind `routers` replicas that each see a random part of the traffic."""

    def __init__(
        self,
        make_policy: PolicyMaker,
        instances: int,
        *,
        hardware: Hardware | None = None,
        routers: int = 1,
        seed: int = 1,
        poll_every_s: float = 0.05,
    ) -> None:
        self.hardware = hardware or Hardware()
        self.engines = [Engine(self.hardware) for _ in range(instances)]
        self.routers = routers
        self.now = 0.0
        self.name = f"fleet-{seed}"
        self.done: list[Request] = []
        self._chance = seeded(seed)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0
        self._poll_every_s = poll_every_s
        self._polled: list[Metrics] = []
        self._polled_at = -1.0
        self._session_at: dict[int, int] = {}
        self._policies = [make_policy(self, seeded(seed * 77 + replica)) for replica in range(routers)]

    def run(self, requests: Sequence[Request], add_at: float | None = None) -> None:
        """Play all requests to their end; with `add_at`, one more instance joins then."""
        for request in requests:
            self._at(request.at, partial(self._arrive, request))
        if add_at is not None:
            self._at(add_at, self._add)
        while self._events:
            self.now, _, act = heapq.heappop(self._events)
            act()

    def polled(self) -> list[Metrics]:
        """Metrics as old as the polling interval."""
        if len(self._polled) != len(self.engines) or self.now - self._polled_at >= self._poll_every_s:
            self._polled = [Metrics(len(e.queue), e.running, e.cache_usage()) for e in self.engines]
            self._polled_at = self.now
        return self._polled

    def after(self, delay_s: float, act: Callable[[], None]) -> None:
        """Do something a little later."""
        self._at(self.now + delay_s, act)

    def _at(self, when: float, act: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (when, self._sequence, act))

    def _add(self) -> None:
        self.engines.append(Engine(self.hardware))
        for policy in self._policies:
            policy.resize(len(self.engines))

    def _arrive(self, request: Request) -> None:
        request.router = self._chance.randrange(self.routers)
        full = request.full_blocks
        before = self._session_at.get(request.session, -1)
        if before >= 0 and len(full) >= 2 and 2 * self.engines[before].cached_blocks(full) >= len(full):
            request.warm_at = before
        at = self._policies[request.router].choose(request, self.now)
        request.instance = self._session_at[request.session] = at
        if request.warm_at not in (-1, at):
            request.moved_cold = 2 * self.engines[at].cached_blocks(full) < len(full)
        engine = self.engines[at]
        engine.queue.append(request)
        self._start(engine)

    def _start(self, engine: Engine) -> None:
        started = engine.start()
        if started is not None:
            request, duration_s = started
            self._at(self.now + duration_s, partial(self._first_token, engine, request))

    def _first_token(self, engine: Engine, request: Request) -> None:
        request.first_token_at = self.now
        decode_s = engine.first_token(request)
        self._policies[request.router].first_token(request, self.now)
        self._at(self.now + decode_s, partial(self._finish, engine, request))
        self._start(engine)

    def _finish(self, engine: Engine, request: Request) -> None:
        engine.finish(request)
        request.done_at = self.now
        self.done.append(request)
        self._policies[request.router].finished(request, self.now)
        self._start(engine)
