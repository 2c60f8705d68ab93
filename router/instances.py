"""Who can serve: one object per instance uid, with what is true of it now.

In-flight counts and idle connections live here, so they outlive every change of the routing. An instance that left
the routing is kept by the requests it still serves; if it comes back meanwhile, its count comes back with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from xxhash import xxh3_64_intdigest

from router.config import InstanceConfig

if TYPE_CHECKING:
    from router.upstream import Upstream

# Engines close an idle connection after 5 s (uvicorn); one that we use longer than this may be dying already.
MAX_IDLE_S = 4.0
MAX_IDLE_CONNECTIONS = 256


class Instance:
    """One replica. seed, weight and in_flight are what policies see."""

    __slots__ = (
        "__weakref__",
        "authority",
        "avoid_until",
        "host",
        "idle",
        "in_flight",
        "label",
        "name",
        "port",
        "retired",
        "seed",
        "uid",
        "weight",
    )

    def __init__(self, config: InstanceConfig) -> None:
        self.uid = config.uid
        self.seed = xxh3_64_intdigest(config.uid.encode())
        self.weight = 1.0
        self.in_flight = 0
        self.idle: list[Upstream] = []
        self.avoid_until = 0.0  # monotonic; after a failed connection others are asked first
        self.follow(config)

    def __repr__(self) -> str:
        return f"<Instance {self.name} {self.host}:{self.port} in flight {self.in_flight}>"

    def follow(self, config: InstanceConfig) -> None:
        """Take over a name and an address; connections to another address are of no use any more."""
        self.retired = False
        self.name, self.host, self.port = config.name, config.host, config.port
        host = f"[{config.host}]" if ":" in config.host else config.host
        authority = f"{host}:{config.port}".encode()
        if authority != getattr(self, "authority", authority):
            self.close_idle()
        self.authority = authority
        self.label = b"\r\nx-warmpath-instance: %b" % config.name.encode("ascii", "replace")

    def retire(self) -> None:
        """Not in the routing any more: what is in flight ends, nothing is kept for later."""
        self.retired = True
        self.close_idle()

    def take_idle(self, now: float) -> Upstream | None:
        """The connection used last, if one is fit for use."""
        idle = self.idle
        while idle:
            upstream = idle.pop()
            if now - upstream.idle_since < MAX_IDLE_S and not upstream.transport.is_closing():
                return upstream
            upstream.transport.close()
        return None

    def keep_idle(self, upstream: Upstream, now: float) -> None:
        if self.retired or len(self.idle) >= MAX_IDLE_CONNECTIONS:
            upstream.transport.close()
            return
        upstream.idle_since = now
        self.idle.append(upstream)

    def close_idle(self, *, before: float | None = None) -> None:
        """Close what has been idle since `before`, everything when it is None. The oldest stand first."""
        while self.idle and (before is None or self.idle[0].idle_since < before):
            self.idle.pop(0).transport.close()


class Instances:
    """Every instance that is routed to or still serves something, by uid."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[str, Instance] = WeakValueDictionary()
        self._current: dict[str, Instance] = {}

    @property
    def current(self) -> Iterable[Instance]:
        return self._current.values()

    def follow(self, configs: Iterable[InstanceConfig]) -> dict[str, Instance]:
        """Make `configs` the instances in the routing; those that left retire."""
        before, self._current = self._current, {}
        for config in configs:
            instance = self._known.get(config.uid)
            if instance is None:
                instance = self._known[config.uid] = Instance(config)
            else:
                instance.follow(config)
            self._current[config.uid] = instance
        for uid, instance in before.items():
            if uid not in self._current:
                instance.retire()
        return self._current
