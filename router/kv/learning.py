"""What answers teach: engines' speed, bytes per token, and how often a home nobody told us about was warm."""

from __future__ import annotations

_FLEET_STEP = 0.02
_INSTANCE_STEP = 0.004
# Smaller differences between instances are noise of their queues; following them would specialise equal engines.
_INSTANCE_NOISE = 1.25
# Pulls an instance back to the fleet's speed: noise fades, a truly slower engine stays slower.
_INSTANCE_PULL = 0.002
_ERROR_MAX = 0.25
# Shorter prefills are mostly network and scheduling: they say nothing about speed.
_SPEED_MIN_TOKENS = 256.0
_BYTES_STEP = 0.02
_PRIOR_STEP = 0.03


class Speed:
    """Seconds of prefill per token: the fleet's, and each instance's factor on it."""

    __slots__ = ("_factor", "s_per_token")

    def __init__(self, tokens_per_s: float) -> None:
        self.s_per_token = 1.0 / tokens_per_s
        self._factor: dict[int, float] = {}

    def of(self, instance: int) -> float:
        """Of one instance."""
        factor = self._factor.get(instance, 1.0)
        if factor > 1.0:
            return self.s_per_token * max(1.0, factor / _INSTANCE_NOISE)
        return self.s_per_token * min(1.0, factor * _INSTANCE_NOISE)

    def forget(self, instance: int) -> None:
        """It is gone."""
        self._factor.pop(instance, None)

    def learn(self, instance: int, expected_s: float, seen_s: float, fresh_tokens: float) -> None:
        """Move a little towards what was seen, however far that is: a median, that outliers do not drag along."""
        if fresh_tokens < _SPEED_MIN_TOKENS or expected_s <= 0:
            return
        error = min(_ERROR_MAX, max(-_ERROR_MAX, seen_s / expected_s - 1.0))
        factor = self._factor.get(instance, 1.0)
        factor *= 1.0 + _INSTANCE_STEP * error
        self._factor[instance] = min(4.0, max(0.25, factor + _INSTANCE_PULL * (1.0 - factor)))
        self.s_per_token *= 1.0 + _FLEET_STEP * error


class TokenSize:
    """Bytes of canonical prompt per token, from `usage.prompt_tokens`."""

    __slots__ = ("bytes_per_token",)

    def __init__(self) -> None:
        self.bytes_per_token = 4.0

    def learn(self, size_bytes: int, prompt_tokens: int) -> None:
        """Move a little towards this prompt's ratio."""
        seen = min(16.0, max(0.5, size_bytes / prompt_tokens))
        self.bytes_per_token += _BYTES_STEP * (seen - self.bytes_per_token)


class Prior:
    """How much of an unknown prompt its first homes turn out to hold, when other routers' choices are not seen.

    Routers that exchange nothing meet only at the rendezvous homes. Learned apart for first and later turns.
    """

    __slots__ = ("_share",)

    def __init__(self) -> None:
        self._share = {False: [0.35, 0.18, 0.09], True: [0.7, 0.35, 0.18]}

    def shares(self, *, follow_up: bool) -> list[float]:
        """Expected cached share of the prompt at the first, second… home."""
        return self._share[follow_up]

    def learn(self, rank: int, cached_share: float, *, follow_up: bool) -> None:
        """A request went to its home on faith; this is what it found."""
        shares = self._share[follow_up]
        if rank < len(shares):
            shares[rank] += _PRIOR_STEP * (min(1.0, cached_share) - shares[rank])
