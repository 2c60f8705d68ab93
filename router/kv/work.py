"""Prefill work in seconds: what is queued at each instance, and how busy that makes the fleet."""

from __future__ import annotations

from collections import OrderedDict

from router.kv.cost import Prices, externality

_UTILISATION_EVERY_S = 5.0
_UTILISATION_MAX = 0.98
_MEMORY = 0.98


class Backlog:
    """Prefill work sent to one instance and not yet at its first token, in order of arrival.

    Engines prefill first come first served, so a first token proves that everything before it is done, other routers'
    work too. What others sent is also taken as done when its time has passed: a lost message cannot stay.
    """

    __slots__ = ("_since", "_total_s", "_waiting", "own")

    def __init__(self) -> None:
        self._waiting: OrderedDict[int, float] = OrderedDict()  # ticket -> seconds; other routers' tickets are negative
        self._total_s = 0.0
        self._since = 0.0
        self.own = 0

    @property
    def total_s(self) -> float:
        """All of it, as if nothing had begun."""
        return self._total_s

    def add(self, ticket: int, work_s: float, now: float) -> None:
        """One more request; a negative ticket is another router's."""
        self._expire(now)
        if not self._waiting:
            self._since = now
        self._waiting[ticket] = work_s
        self._total_s += work_s
        self.own += ticket > 0

    def remove(self, ticket: int, now: float) -> None:
        """It has its first token, or will never have one. Twice is harmless."""
        if ticket not in self._waiting:
            return
        while next(iter(self._waiting)) < 0:
            self._drop_first()
        self._total_s -= self._waiting.pop(ticket)
        self.own -= 1
        self._since = now
        if not self._waiting:
            self._total_s = 0.0

    def left_s(self, now: float) -> float:
        """Work still to do: what is in front has been computed for a while already."""
        begun_s = 0.0
        for ticket, work_s in self._waiting.items():
            begun_s += work_s
            if ticket > 0:
                break
        return max(0.0, self._total_s - min(begun_s, max(0.0, now - self._since)))

    def _expire(self, now: float) -> None:
        while self._waiting and next(iter(self._waiting)) < 0:
            work_s = next(iter(self._waiting.values()))
            if now - self._since < work_s:
                return
            self._since += work_s
            self._drop_first()

    def _drop_first(self) -> None:
        self._total_s -= self._waiting.popitem(last=False)[1]


class Load:
    """How busy the fleet is with prefill, and so what a second of it costs the others."""

    __slots__ = ("_mean_s", "_since", "_square_s2", "_utilisation", "_work_s")

    def __init__(self) -> None:
        self._utilisation = 0.5
        self._since = 0.0
        self._work_s = 0.0
        self._mean_s = 0.5
        self._square_s2 = 0.5

    def add(self, work_s: float, instances: int, routers: int, now: float) -> None:
        """Count one dispatched prefill; `routers` share the fleet evenly."""
        span_s = now - self._since
        if span_s > _UTILISATION_EVERY_S:
            seen = min(_UTILISATION_MAX, self._work_s * routers / span_s / max(1, instances))
            self._utilisation = 0.7 * self._utilisation + 0.3 * seen
            self._work_s, self._since = 0.0, now
        self._work_s += work_s
        self._mean_s = _MEMORY * self._mean_s + (1 - _MEMORY) * work_s
        self._square_s2 = _MEMORY * self._square_s2 + (1 - _MEMORY) * work_s * work_s

    @property
    def mean_s(self) -> float:
        """Prefill of an average request."""
        return self._mean_s

    @property
    def residual_s(self) -> float:
        """What is left, on average, of a prefill in progress: long ones are met more often."""
        return self._square_s2 / (2.0 * self._mean_s)

    def externality(self, prices: Prices) -> float:
        """What a second of extra work costs the others now."""
        low, high = prices.externality_min, prices.externality_max
        return externality(self._utilisation, self._mean_s, self._square_s2, low, high)
