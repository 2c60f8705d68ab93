"""Fleets under load: short runs that show what each strategy is for."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from router.kv.cost import Prices
from router.simulation.fleet import Fleet
from router.simulation.kv_aware import kv_aware
from router.simulation.results import Result, summarise
from router.simulation.run import UnknownStrategy, simulate, strategies
from router.simulation.workloads import AGENT, AWS_LIKE, CHAT, RAG_HOT, WORKLOADS

AWS = replace(AWS_LIKE, requests=2500)


def run(workload=AWS, instances: int = 7, *, routers: int = 1, add: bool = False, **options: bool) -> Result:
    requests = workload.build()
    add_at = requests[len(requests) // 2].at if add else None
    fleet = Fleet(kv_aware(**options), instances, routers=routers)
    fleet.run(requests, add_at)
    assert len(fleet.done) == len(requests)
    return summarise("KV_AWARE", fleet, add_at)


def by_name(*names: str, **options: object) -> dict[str, Result]:
    report = simulate("aws_like", 7, names, limit=2500, **options)
    return {result.strategy: result for result in report.results}


def test_every_strategy_serves_every_request_and_the_same_seed_gives_the_same_figures():
    first = simulate("rag_hot", 4, strategies(), limit=300, speed=0.4)
    again = simulate("rag_hot", 4, strategies(), limit=300, speed=0.4)
    assert [result.requests for result in first.results] == [300] * len(strategies())
    assert first == again
    assert all(len(row) == len(first.header()) for row in first.rows())


def test_kv_aware_keeps_caches_hot_at_even_shares_and_beats_the_other_strategies():
    """Pain 9 and the goal of KV_AWARE at once: hits as the stickiest, shares as the most even."""
    results = by_name("RANDOM", "LEAST_OUTSTANDING_REQUESTS", "PREFIX_AWARE", "KV_AWARE")
    kv = results.pop("KV_AWARE")
    assert kv.hit_rate > 0.95 * results["PREFIX_AWARE"].hit_rate > 3 * results["RANDOM"].hit_rate
    assert kv.share_max_over_mean <= 1.2
    assert all(kv.ttft_p95_s < other.ttft_p95_s for other in results.values())


def test_a_hot_prefix_is_replicated_instead_of_flooding_one_instance():
    """Pains 8 and 13."""
    hot = run(replace(RAG_HOT, requests=2500), 8)
    assert hot.share_max_over_mean <= 1.5
    assert hot.hit_rate > 0.85


def test_sessions_stay_where_they_are_warm():
    chat = run(replace(CHAT, sessions=250), 8)
    assert chat.warm_broken < 0.01
    assert chat.hit_rate > 0.8


def test_blind_routers_lose_little_and_gossip_loses_less():
    """Pain 30: several replicas."""
    one, blind, gossip = run(), run(routers=4), run(routers=4, gossip=True)
    assert blind.hit_rate > 0.9 * one.hit_rate
    assert gossip.hit_rate > 0.95 * one.hit_rate
    assert one.ttft_p95_s <= gossip.ttft_p95_s < blind.ttft_p95_s


def test_routers_that_see_nothing_of_each_other_still_meet_at_the_homes():
    assert run(routers=4, metrics=False).hit_rate > 0.85 * run().hit_rate


def test_a_joiner_gets_work_and_breaks_no_warm_session():
    agents = run(replace(AGENT, sessions=250, per_s=0.5), 4, add=True)
    assert agents.scaling is not None
    assert agents.scaling.moved_cold < 0.02
    assert agents.scaling.newcomer_share > 0.02
    documents = run(add=True)
    assert documents.scaling is not None
    assert 0.05 < documents.scaling.newcomer_share < 0.2


def test_the_first_guess_of_an_engine_hardly_matters():
    """Pain 20: sizes and speeds are learned."""
    right, requests = run(), AWS.build()
    for prices in (Prices(prefill_tokens_per_s=3000.0), Prices(cache_blocks=6000.0)):
        fleet = Fleet(kv_aware(prices), 7)
        fleet.run([replace(request) for request in requests])
        assert summarise("KV_AWARE", fleet).hit_rate > 0.93 * right.hit_rate


def test_the_picture_is_a_document_that_names_every_strategy(tmp_path: Path):
    picture = tmp_path / "p.svg"
    report = simulate("chat", 3, ("RANDOM", "KV_AWARE"), limit=120, add_instance=True, picture=picture)
    text = "".join(ET.parse(picture).getroot().itertext())  # noqa: S314 - our own document
    assert all(result.strategy in text for result in report.results)


def test_wrong_arguments_are_named():
    with pytest.raises(UnknownStrategy, match="fastest"):
        simulate("chat", 2, ("fastest",))
    with pytest.raises(ValueError, match="1 or more"):
        simulate("chat", 0)
    with pytest.raises(FileNotFoundError):
        simulate("no-such-trace.jsonl", 2)


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_made_up_traffic_is_in_order_and_the_same_every_time(name: str):
    requests = WORKLOADS[name].build()
    assert requests == WORKLOADS[name].build()
    assert all(one.at <= two.at for one, two in pairwise(requests))
    assert all(request.blocks and request.tokens >= len(request.full_blocks) * 512 for request in requests)
