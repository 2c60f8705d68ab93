"""KV_AWARE: where requests go, why, and that nothing it counts ever drifts."""

from dataclasses import dataclass, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from router.kv.blocks import BLOCK_BYTES, Chain, rendezvous_order
from router.kv.cost import Prices, externality, kappa, prefill_s
from router.kv.learning import Speed
from router.kv.work import Backlog
from router.policies.kv_aware import KvAware, Placement


@dataclass
class Candidate:
    seed: int
    in_flight: int = 0
    weight: float = 1.0


def prompt(number: int, blocks: int = 8, *, follow_up: bool = False) -> Chain:
    hashes = tuple(number * 1000 + at for at in range(blocks))
    return Chain(hashes, anchor=number, size_bytes=blocks * BLOCK_BYTES + 100, follow_up=follow_up)


def fleet(count: int, **options: object) -> tuple[KvAware, list[Candidate]]:
    policy = KvAware(**options)
    candidates = [Candidate(seed) for seed in range(11, 11 + count)]
    policy.follow([candidate.seed for candidate in candidates])
    return policy, candidates


def serve(policy: KvAware, chain: Chain, candidates: list[Candidate], now: float = 0.0) -> Candidate:
    """Place a request and let it end at once."""
    quote = policy.choose(chain, candidates, now)
    placement = policy.placed(chain, quote, now)
    policy.first_byte(placement, now)
    policy.finished(placement, now)
    return quote.instance


def home(chain: Chain, candidates: list[Candidate]) -> Candidate:
    seeds = [candidate.seed for candidate in candidates]
    return candidates[rendezvous_order(chain.anchor, seeds, [candidate.weight for candidate in candidates])[0]]


def test_an_idle_fleet_sends_every_prompt_to_its_home():
    """Pain 11: paced sessions never find load, and must spread all the same."""
    policy, candidates = fleet(4)
    served = [serve(policy, prompt(number), candidates).seed for number in range(1, 401)]
    assert served == [home(prompt(number), candidates).seed for number in range(1, 401)]
    assert all(60 < served.count(candidate.seed) < 140 for candidate in candidates)


def test_the_next_turn_goes_where_the_first_went_even_if_busier():
    policy, candidates = fleet(4)
    first = prompt(1)
    instance = serve(policy, first, candidates)
    instance.in_flight += 1
    quote = policy.choose(replace(first, follow_up=True), candidates, 1.0)
    assert (quote.instance, quote.reason, quote.matched_blocks) == (instance, "kv_affinity", 8)


def test_a_queue_that_costs_more_than_computing_is_avoided():
    """Pains 12, 13, 16: affinity has a price."""
    policy, candidates = fleet(4)
    instance = serve(policy, prompt(1), candidates)
    for number in range(100, 150):
        chain = prompt(number, 20)
        policy.placed(chain, policy.choose(chain, [instance], 0.0), 0.0)
    quote = policy.choose(prompt(1, follow_up=True), candidates, 0.0)
    assert quote.instance is not instance
    assert quote.reason == "kv_overflow"


def test_work_counts_in_seconds_not_in_requests():
    policy, candidates = fleet(2)
    long, short = candidates
    for _ in range(3):
        policy.placed(prompt(8, 1), policy.choose(prompt(8, 1), [short], 0.0), 0.0)
    policy.placed(prompt(9, 500), policy.choose(prompt(9, 500), [long], 0.0), 0.0)
    assert {policy.choose(prompt(number), candidates, 0.0).instance.seed for number in range(20)} == {short.seed}


def test_a_busy_home_spills_to_the_next_in_the_prompts_own_order():
    policy, candidates = fleet(6)
    chain = prompt(3)
    ranked = [candidates[at] for at in rendezvous_order(3, [c.seed for c in candidates], [1.0] * 6)]
    filler = prompt(77, 300)
    policy.placed(filler, policy.choose(filler, [ranked[0]], 0.0), 0.0)
    quote = policy.choose(chain, candidates, 0.0)
    assert (quote.instance, quote.reason, quote.rank) == (ranked[1], "kv_spill", 1)


def test_short_prompts_go_by_load():
    """Pain 19: a match ratio without length makes short prompts hot spots."""
    policy, candidates = fleet(2)
    busy = home(prompt(5, 0), candidates)
    filler = prompt(6, 200)
    policy.placed(filler, policy.choose(filler, [busy], 0.0), 0.0)
    assert policy.choose(prompt(5, 0), candidates, 0.0).instance is not busy


def test_only_a_weight_above_nothing_is_chosen_while_there_is_one():
    """Pain 36: who drains gets nothing new."""
    policy, candidates = fleet(3)
    warm = serve(policy, prompt(1), candidates)
    warm.weight = 0.0
    assert policy.choose(prompt(1), candidates, 0.0).instance is not warm
    for candidate in candidates:
        candidate.weight = 0.0
    assert policy.choose(prompt(1), candidates, 0.0).instance in candidates


def test_slow_start_gets_its_part():
    policy, candidates = fleet(4)
    candidates[0].weight = 0.1
    served = [serve(policy, prompt(number), candidates).seed for number in range(1, 601)]
    assert 2 < served.count(candidates[0].seed) < 45


def test_the_load_of_an_instance_counts_by_its_weight():
    policy, candidates = fleet(2)
    half, whole = candidates
    chain = next(prompt(number) for number in range(99) if home(prompt(number), candidates) is half)
    half.in_flight = whole.in_flight = 4
    assert policy.choose(chain, candidates, 0.0).instance is half
    half.weight = 0.99
    half.in_flight = whole.in_flight = 400
    assert policy.choose(chain, candidates, 0.0).instance is half
    half.weight = 0.5
    assert home(chain, candidates) is not half or policy.choose(chain, candidates, 0.0).instance is whole


def test_a_reload_keeps_mirrors_and_a_new_uid_starts_cold():
    policy, candidates = fleet(3)
    warm = serve(policy, prompt(1), candidates)
    policy.follow([candidate.seed for candidate in candidates] + [99])
    assert policy.choose(prompt(1), candidates, 0.0).matched_blocks == 8
    reborn = Candidate(1000)
    others = [candidate for candidate in candidates if candidate is not warm]
    policy.follow([candidate.seed for candidate in others] + [reborn.seed])
    assert policy.choose(prompt(1), [*others, reborn], 0.0).matched_blocks == 0
    assert len(policy.mirrors) == 0


def test_an_instance_that_nobody_announced_can_still_be_chosen():
    policy, _ = fleet(2)
    stranger = Candidate(555)
    assert serve(policy, prompt(1), [stranger]) is stranger


def test_one_more_instance_moves_no_warm_prompt():
    policy, candidates = fleet(7)
    before = {number: serve(policy, prompt(number), candidates).seed for number in range(1, 301)}
    joiner = Candidate(18)
    policy.follow([*(candidate.seed for candidate in candidates), joiner.seed])
    after = {number: serve(policy, prompt(number, follow_up=True), [*candidates, joiner]).seed for number in before}
    assert after == before


def test_new_prompts_move_to_a_joiner_only_in_its_share():
    old, candidates = fleet(7)
    new, _ = fleet(7)
    joiner = Candidate(18)
    new.follow([*(candidate.seed for candidate in candidates), joiner.seed])
    moved = 0
    for number in range(1, 801):
        chosen = serve(new, prompt(number), [*candidates, joiner])
        moved += chosen is joiner
        assert chosen is joiner or chosen.seed == serve(old, prompt(number), candidates).seed
    assert 60 < moved < 140


def test_cached_tokens_correct_the_believed_cache_size():
    """Pain 20: the engine says what it had; the mirror's size follows."""
    policy, candidates = fleet(1)
    instance = candidates[0].seed
    start = policy.mirrors.capacity_blocks(instance)
    for now in range(60):
        chain = prompt(1)
        placement = policy.placed(chain, policy.choose(chain, candidates, now), now)
        policy.finished(placement, now, prompt_tokens=4121, cached_tokens=0)
    assert policy.mirrors.capacity_blocks(instance) < start * 0.5
    shrunk = policy.mirrors.capacity_blocks(instance)
    for now in range(60, 70):
        placement = policy.placed(prompt(2), policy.choose(prompt(3 + now), candidates, now), now)
        policy.finished(placement, now, prompt_tokens=4121, cached_tokens=4000)
    assert policy.mirrors.capacity_blocks(instance) > 2 * shrunk


def test_the_speed_of_an_engine_is_learned_from_first_tokens():
    speed = Speed(12_000.0)
    for _ in range(3000):
        for instance, true_s in ((1, 1.0), (2, 1.0), (3, 2.0)):
            speed.learn(instance, speed.of(instance) * 6000, true_s, 6000.0)
    assert speed.of(1) == pytest.approx(1.0 / 6000, rel=0.3)
    assert speed.of(3) > 1.3 * speed.of(1)


def test_a_first_token_proves_that_what_came_before_is_done():
    backlog = Backlog()
    backlog.add(-1, 5.0, 0.0)
    backlog.add(1, 2.0, 0.0)
    backlog.add(2, 3.0, 0.0)
    assert backlog.left_s(1.0) == pytest.approx(9.0)
    backlog.remove(1, 4.0)
    assert backlog.left_s(4.0) == pytest.approx(3.0)
    backlog.remove(1, 4.5)
    backlog.remove(2, 5.0)
    assert (backlog.left_s(5.0), backlog.own) == (0.0, 0)


def test_work_of_others_ends_by_itself():
    backlog = Backlog()
    for ticket in range(-1, -1001, -1):
        backlog.add(ticket, 0.5, -ticket * 1.0)
    assert backlog.left_s(1001.0) == 0.0
    assert backlog.total_s <= 0.5


def test_routers_that_gossip_share_mirrors_and_queues():
    """Pain 30: several routers, one state."""
    one, candidates = fleet(4, routers=2, gossip=True)
    two, _ = fleet(4, routers=2, gossip=True)
    chain = prompt(1)
    placement = one.placed(chain, one.choose(chain, candidates, 0.0), 0.0)
    two.absorb(one.share(placement), 0.0)
    quote = two.choose(replace(chain, follow_up=True), candidates, 60.0)
    assert (quote.instance.seed, quote.matched_blocks) == (placement.instance, 8)


def test_blind_routers_meet_at_the_home_although_it_is_a_little_busier():
    one, candidates = fleet(8, routers=4)
    for number in range(1, 50):
        chain = prompt(number)
        target = home(chain, candidates)
        target.in_flight += 1
        assert one.choose(chain, candidates, 0.0).instance is target
        target.in_flight -= 1


def test_blind_routers_see_the_load_of_others_in_the_engines_metrics():
    """Pain 10: several routers must not pick the same best instance for ever."""
    policy, candidates = fleet(4, routers=4)
    chain = prompt(1)
    target = home(chain, candidates)
    policy.observe(target.seed, 40, 20, 0.0)
    assert policy.choose(chain, candidates, 0.1).instance is not target
    assert policy.choose(chain, candidates, 60.0).instance is target


def test_prices_follow_load_and_warmth():
    assert externality(0.9, 1.0, 4.0, 1.0, 10.0) > externality(0.5, 1.0, 4.0, 1.0, 10.0) >= 1.0
    assert externality(0.98, 1.0, 50.0, 1.0, 10.0) == 10.0
    prices = Prices()
    assert kappa(prices, 1.0, follow_up=False) == prices.kappa_warm
    assert kappa(prices, 0.0, follow_up=False) == kappa(prices, 1.0, follow_up=True) == prices.kappa_cold
    assert prefill_s(4000, 4000, 1e-4, 53_000.0) < prefill_s(4000, 2000, 1e-4, 53_000.0) < prefill_s(4000, 0, 1e-4, 5e4)


class PolicyMachine(RuleBasedStateMachine):
    """Joins, leaves, drains, requests that end in any order, twice, or after their instance is gone."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = KvAware(Prices(cache_blocks=64.0), budget_blocks=256)
        self.candidates = [Candidate(1), Candidate(2)]
        self.follow()
        self.live: list[tuple[Placement, Candidate, float]] = []
        self.now = 0.0
        self.next_uid = 3

    def follow(self) -> None:
        self.policy.follow([candidate.seed for candidate in self.candidates])

    @rule()
    def joins(self) -> None:
        self.candidates.append(Candidate(self.next_uid))
        self.next_uid += 1
        self.follow()

    @precondition(lambda self: len(self.candidates) > 1)
    @rule(at=st.integers(0, 9))
    def leaves(self, at: int) -> None:
        self.candidates.pop(at % len(self.candidates))
        self.follow()

    @rule(at=st.integers(0, 9), weight=st.sampled_from([0.0, 0.2, 1.0]))
    def drains_or_ramps(self, at: int, weight: float) -> None:
        self.candidates[at % len(self.candidates)].weight = weight

    @rule(number=st.integers(0, 20), blocks=st.integers(0, 12), follow_up=st.booleans(), passed=st.floats(0, 3))
    def request(self, number: int, blocks: int, follow_up: bool, passed: float) -> None:
        self.now += passed
        chain = prompt(number, blocks, follow_up=follow_up)
        before = self.policy.choose(chain, self.candidates, self.now)
        quote = self.policy.choose(chain, self.candidates, self.now)
        assert before == quote, "choose must only read"
        assert quote.instance.weight > 0 or all(candidate.weight == 0 for candidate in self.candidates)
        self.live.append((self.policy.placed(chain, quote, self.now), quote.instance, quote.work_s))
        quote.instance.in_flight += 1

    @precondition(lambda self: self.live)
    @rule(at=st.integers(0, 9), cached=st.none() | st.integers(0, 5000), twice=st.booleans(), first=st.booleans())
    def ends(self, at: int, cached: int | None, twice: bool, first: bool) -> None:
        placement, candidate, _ = self.live.pop(at % len(self.live))
        candidate.in_flight -= 1
        if first:
            self.policy.first_byte(placement, self.now)
        for _ in range(1 + twice):
            self.policy.finished(placement, self.now, prompt_tokens=6000, cached_tokens=cached)

    @invariant()
    def queued_work_is_that_of_the_requests_in_flight(self) -> None:
        for candidate in self.candidates:
            mine = [work_s for placement, _, work_s in self.live if placement.instance == candidate.seed]
            backlog = self.policy._engines[candidate.seed].backlog
            assert backlog.own == len(mine)
            assert backlog.total_s == pytest.approx(sum(mine), abs=1e-9)
            assert 0.0 <= backlog.left_s(self.now) <= backlog.total_s

    @invariant()
    def memory_is_bounded(self) -> None:
        assert len(self.policy.mirrors) <= 256
        assert self.policy.mirrors.ghosts <= 256


TestPolicy = PolicyMachine.TestCase
TestPolicy.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
