"""What all connections share: the routing in force, limits, counts, the log, and one sweep for all timeouts."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from router.access import AccessLog, Entry
from router.instances import MAX_IDLE_S, Instance
from router.metrics import Metrics
from router.routing import LiveRouting
from router.upstream import Upstream, connect
from router.usage import read_usage

if TYPE_CHECKING:
    from router.client import Client
    from router.exchange import Exchange

AVOID_S = 1.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds in time and size; no wait is without one."""

    head_s: float = 30.0
    """To the end of a request's head, from its first byte."""
    idle_s: float = 75.0
    """Between two requests on one connection."""
    body_s: float = 30.0
    """For a request's body, beside the time that `min_body_bytes_per_s` allows for what has come."""
    min_body_bytes_per_s: int = 16 * 1024
    connect_s: float = 2.0
    """For a connection to an instance."""
    first_byte_s: float = 600.0
    """For an engine's first byte: a long prefill is work, not death."""
    stall_s: float = 300.0
    """Between two bytes of an answer, or of a body on its way up."""
    linger_s: float = 2.0
    """For a refused client to read the answer before its connection is reset."""
    sweep_s: float = 1.0
    """How often all of these are looked at."""
    max_body_bytes: int = 64 * 1024 * 1024
    cut_bytes: int = 1024 * 1024
    """Larger bodies are placed by their beginning and pass while they arrive."""
    max_attempts: int = 4


class RetryBudget:
    """Retries may add a fifth to the load, and a burst of 100: engines in trouble must not be stormed."""

    __slots__ = ("tokens",)

    PER_REQUEST = 0.2
    BURST = 100.0

    def __init__(self) -> None:
        self.tokens = self.BURST

    def deposit(self) -> None:
        if self.tokens < self.BURST:
            self.tokens += self.PER_REQUEST

    def withdraw(self) -> bool:
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


class Proxy:
    """One per event loop."""

    def __init__(
        self,
        live: LiveRouting,
        *,
        limits: Limits | None = None,
        access_log: AccessLog | None = None,
        rand: Callable[[], float] = random.random,
        connect: Callable[[Instance], Awaitable[Upstream]] = connect,
    ) -> None:
        self.live = live
        self.limits = limits or Limits()
        self.metrics = Metrics()
        self.access_log = access_log or AccessLog()
        self.rand = rand
        self.connect = connect
        self.retry_budget = RetryBudget()
        self.clients: set[Client] = set()
        self.avoided: set[Instance] = set()
        self.is_draining = False

    def avoid(self, instance: Instance) -> None:
        """Ask others first for a moment: this one could not be reached."""
        instance.avoid_until = time.monotonic() + AVOID_S
        self.avoided.add(instance)

    def replace_routing(self, raw: bytes) -> None:
        """Put `raw` into force, or raise and leave everything as it is."""
        self.live.replace(raw)
        self.metrics.forget_instances(self.live.instances.current)

    def record(self, ended: Exchange, instance: Instance | None, status: int, now: float, error: str) -> None:
        """Count and log a request that has ended."""
        metrics, endpoint = self.metrics, ended.endpoint.name if ended.endpoint else ""
        labels = endpoint, instance.name if instance else ""
        metrics.requests[*labels, str(status)] += 1
        metrics.duration[endpoint,].observe(now - ended.started_s)
        ttft_s = ended.first_byte_s - ended.started_s if ended.is_stream and ended.first_byte_s else 0.0
        if ttft_s and ended.endpoint:
            metrics.ttft[endpoint, ended.endpoint.strategy].observe(ttft_s)
        if error:
            metrics.errors[endpoint, error] += 1
        usage = read_usage(b"".join(ended.tail) if ended.tail else ended.only_piece)
        if usage:
            metrics.prompt_tokens[labels] += usage.prompt_tokens
            metrics.cached_tokens[labels] += usage.cached_tokens
        if self.access_log.path is not None:
            path, sizes = ended.target.path, (status, ended.body_bytes, ended.attempts)
            times = (now - ended.started_s, ttft_s)
            self.access_log.add(Entry(ended.started_s, *labels, ended.reason, path, *sizes, *times, error))

    def drain(self) -> None:
        """Take no new connections' requests after this; what runs, ends."""
        self.is_draining = True
        for client in list(self.clients):
            client.drain()

    async def sweep_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self.limits.sweep_s)
            self.sweep(time.monotonic())

    def sweep(self, now: float) -> None:
        for client in list(self.clients):
            client.sweep(now)
        for instance in self.live.instances.current:
            instance.close_idle(before=now - MAX_IDLE_S)
        self.avoided = {instance for instance in self.avoided if instance.avoid_until > now}
        self.access_log.flush()
