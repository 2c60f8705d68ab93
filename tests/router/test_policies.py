"""The rules by which an instance is chosen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from router.policies import Policy
from router.policies.least_outstanding import choose_least_outstanding
from router.policies.prefix_aware import prefix_aware
from router.policies.random import choose_random


@dataclass(frozen=True)
class Candidate:
    name: str
    in_flight: int = 0
    weight: float = 1.0

    @property
    def seed(self) -> int:
        return xxh3_64_intdigest(self.name.encode())


def fleet(*loads: int) -> list[Candidate]:
    return [Candidate(f"i{number}", load) for number, load in enumerate(loads)]


def keys(count: int) -> list[bytes]:
    return [number.to_bytes(8, "big") for number in range(count)]


def homes(policy: Policy, candidates: Sequence[Candidate], count: int) -> list[str]:
    return [policy(key, candidates, 0.5).instance.name for key in keys(count)]


PREFIX = prefix_aware(concurrency_threshold=4)


@pytest.mark.parametrize("policy", [choose_random, choose_least_outstanding, PREFIX])
def test_a_single_instance_is_chosen_whatever_its_load(policy: Policy) -> None:
    (only,) = fleet(99)
    assert policy(b"k", [only], 0.99) == (only, "only_instance")


@given(st.floats(0, 1, exclude_max=True), st.integers(2, 9))
def test_random_covers_all_instances_evenly(rand: float, count: int) -> None:
    candidates = fleet(*range(count))
    choice = choose_random(b"k", candidates, rand)
    assert choice == (candidates[int(rand * count)], "random")


def test_least_outstanding_breaks_ties_at_random() -> None:
    candidates = fleet(3, 1, 2, 1, 1)
    chosen = {choose_least_outstanding(b"k", candidates, rand).instance.name for rand in (0.0, 0.34, 0.67, 0.99)}
    assert chosen == {"i1", "i3", "i4"}


@given(
    loads=st.lists(st.integers(0, 6), min_size=2, max_size=8), key=st.binary(min_size=8, max_size=8), order=st.randoms()
)
def test_prefix_follows_rank_order_under_the_threshold(loads: list[int], key: bytes, order) -> None:
    candidates = fleet(*loads)
    idle = fleet(*[0] * len(loads))
    ranked = []
    while idle:
        home = PREFIX(key, idle, 0.5).instance if len(idle) > 1 else idle[0]
        ranked.append(home.name)
        idle.remove(home)
    by_name = {candidate.name: candidate for candidate in candidates}
    order.shuffle(candidates)
    chosen, reason = PREFIX(key, candidates, 0.5)
    under = [name for name in ranked if by_name[name].in_flight < 4]
    if not under:
        fewest = min(loads)
        assert (chosen.name, reason) == (next(n for n in ranked if by_name[n].in_flight == fewest), "prefix_saturated")
    else:
        assert (chosen.name, reason) == (under[0], "prefix_home" if under[0] == ranked[0] else "prefix_overflow")


def test_prefixes_spread_evenly() -> None:
    shares = Counter(homes(PREFIX, fleet(*[0] * 8), 16_000))
    assert max(shares.values()) < 1.1 * 2000
    assert min(shares.values()) > 0.9 * 2000


@pytest.mark.parametrize("count", [2, 7])
def test_one_more_instance_takes_its_share_and_moves_nothing_between_the_others(count: int) -> None:
    before = homes(PREFIX, fleet(*[0] * count), 8000)
    after = homes(PREFIX, fleet(*[0] * (count + 1)), 8000)
    moved = [new for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == {f"i{count}"}
    assert abs(len(moved) / 8000 - 1 / (count + 1)) < 0.02


def test_one_instance_less_moves_only_its_prefixes() -> None:
    candidates = fleet(*[0] * 7)
    before, after = homes(PREFIX, candidates, 4000), homes(PREFIX, candidates[:3] + candidates[4:], 4000)
    assert all(old == new for old, new in zip(before, after, strict=True) if old != "i3")


def test_weight_takes_a_share_of_prefixes_and_only_its_own_prefixes_move() -> None:
    candidates = fleet(0, 0, 0)
    light = [*candidates[:2], Candidate("i2", weight=0.25)]
    before, after = homes(PREFIX, candidates, 12_000), homes(PREFIX, light, 12_000)
    share = Counter(after)["i2"] / 12_000
    assert abs(share - 0.25 / 2.25) < 0.02
    assert all(old == "i2" for old, new in zip(before, after, strict=True) if old != new)


def test_hot_prefix_overflows_to_the_same_next_instance() -> None:
    names = [candidate.name for candidate in fleet(*[0] * 7)]
    home = homes(PREFIX, fleet(*[0] * 7), 1)[0]
    loads = [4 if name == home else 0 for name in names]
    assert len({PREFIX(keys(1)[0], fleet(*loads), rand).instance.name for rand in (0.0, 0.5, 0.9)}) == 1


def test_what_is_remembered_of_one_fleet_is_not_believed_of_another() -> None:
    policy = prefix_aware(concurrency_threshold=4)
    fleets = [tuple(fleet(*[0] * count)) for count in (40, 3, 20, 40, 17)]
    for candidates in (*fleets, *reversed(fleets)):
        assert homes(policy, candidates, 50) == homes(PREFIX, list(candidates), 50)
    load = tuple(fleet(*[4] * 40))
    assert {policy(key, load, 0.5).reason for key in keys(50)} == {"prefix_saturated"}
