"""Prices, in seconds of an engine's work. All functions are pure and cheap.

    cost = queue + (1 + externality) x thrash x own prefill + kappa x full prefill x relative load

The externality is what a second of extra prefill costs the requests behind it, from the M/G/1 queue. Thrash makes
recomputing dear when evicted prompts keep coming back: another copy would push out something that is wanted. Kappa
spreads what the queue cannot: requests that are cheap because cached would all follow their cache.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prices:
    """The constants of the cost. None of them is per model: the scale is learned."""

    kappa_cold: float = 0.25
    """Weight of imbalance for a prompt that nobody has cached, and for later turns."""

    kappa_warm: float = 1.5
    """The same for a first turn that somebody has cached whole."""

    slack: float = 0.05
    """Share of its own prefill that a request pays to keep to the rendezvous order."""

    slack_blind: float = 2.0
    """The same where other routers' choices are not seen: agreeing is worth more."""

    slack_prior: float = 4.0
    """And more still, times the share of a prompt that homes turned out to hold."""

    thrash: float = 10.0
    """Weight of regretted evictions."""

    externality_min: float = 1.0
    externality_max: float = 10.0

    attention_tokens: float = 53_000.0
    """Context at which attention costs as much as the dense layers."""

    prefill_tokens_per_s: float = 12_000.0
    """First guess of an engine's speed; corrected by times to first token."""

    cache_blocks: float = 1500.0
    """First guess of an engine's block cache, in blocks of the mirror; corrected by cached_tokens.

    Better too high than too low: a mirror shrinks on every wrong promise, but grows only when a prompt comes by chance.
    """


def prefill_s(tokens: float, cached: float, s_per_token: float, attention_tokens: float) -> float:
    """Time to compute what is not cached, attention to what is included."""
    fresh = max(1.0, tokens - cached)
    return fresh * s_per_token * (1.0 + (cached + fresh / 2) / attention_tokens)


def externality(utilisation: float, work_mean_s: float, work_square_s2: float, low: float, high: float) -> float:
    """Seconds that others wait for one second of extra work."""
    variance = max(0.0, work_square_s2 / max(1e-12, work_mean_s * work_mean_s) - 1.0)
    return min(high, max(low, utilisation / (1.0 - utilisation) * (1.0 + variance) / 2.0))


def kappa(prices: Prices, cached_share: float, *, follow_up: bool) -> float:
    """Weight of imbalance: where nothing is cached the queue alone balances; what is cached whole has no queue."""
    if follow_up:
        return prices.kappa_cold
    return prices.kappa_cold + (prices.kappa_warm - prices.kappa_cold) * cached_share * cached_share


def relative_load(in_flight: float, mean: float) -> float:
    """How far above (or below) the mean an instance is; the 1 keeps an idle fleet calm."""
    return (in_flight - mean) / (mean + 1.0)
