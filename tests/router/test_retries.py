"""What is asked again, of whom, and how often: only requests of which no answer was seen."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from router.proxy import Limits, RetryBudget

Rig = Any
Engine = Any


async def die(engine: Engine, request: Any, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def die_on_second_request_of_a_connection(engine: Engine, request: Any, writer: asyncio.StreamWriter) -> None:
    if sum(one.connection == request.connection for one in engine.requests) > 1:
        writer.transport.abort()
    else:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")


async def test_instance_that_refuses_connections_is_passed_over(rig: Rig) -> None:
    gone, alive = await rig.engine("gone"), await rig.engine("alive")
    await gone.stop()
    rig.route(gone, alive, strategy="LEAST_OUTSTANDING_REQUESTS")
    for _ in range(20):
        response = await rig.ask(rig.post(rig.chat()))
        assert (response.status, response.json["engine"]) == (200, "alive")
    assert rig.in_flight() == {"gone": 0, "alive": 0}
    assert rig.proxy.metrics.retries["m", "connect"] <= 2, "an unreachable instance is left alone for a moment"


async def test_instance_that_dies_under_a_request_is_replaced_once_and_the_body_sent_again(rig: Rig) -> None:
    bad, good = await rig.engine("bad", die), await rig.engine("good")
    rig.route(bad, good, strategy="LEAST_OUTSTANDING_REQUESTS")
    rig.proxy.rand = lambda: 0.0  # the first of the tied
    response = await rig.ask(rig.post(rig.chat("the same text")))
    assert (response.status, response.json["engine"]) == (200, "good")
    assert good.requests[0].body == bad.requests[0].body
    assert rig.proxy.metrics.retries["m", "reset"] == 1
    assert rig.in_flight() == {"bad": 0, "good": 0}


async def test_kept_connection_that_went_stale_costs_no_affinity(rig: Rig) -> None:
    engine = await rig.engine("a", die_on_second_request_of_a_connection)
    other = await rig.engine("b")
    rig.route(engine, other, strategy="LEAST_OUTSTANDING_REQUESTS")
    rig.proxy.rand = lambda: 0.0
    client = await rig.client()
    for _ in range(3):
        assert (await rig.exchange(client, rig.post(rig.chat()))).fields["x-warmpath-instance"] == "a"
    assert rig.proxy.metrics.retries["m", "stale"] == 2
    assert other.requests == []


async def test_no_instance_is_asked_twice_and_the_client_hears_when_to_come_back(rig: Rig) -> None:
    engines = [await rig.engine(name, die) for name in "abc"]
    rig.route(*engines)
    response = await rig.ask(rig.post(rig.chat()))
    assert response.status == 503
    assert response.fields["retry-after"] == "1"
    assert [len(engine.requests) for engine in engines] == [1, 1, 1]
    assert set(rig.in_flight().values()) == {0}


async def test_attempts_are_bounded(rig: Rig) -> None:
    engines = [await rig.engine(name, die) for name in "abcdef"]
    rig.route(*engines)
    response = await rig.ask(rig.post(rig.chat()))
    assert response.status == 502
    assert response.json["error"]["code"] == "upstream_reset"
    assert sum(len(engine.requests) for engine in engines) == rig.proxy.limits.max_attempts


async def test_spent_budget_ends_retries(rig: Rig) -> None:
    """Engines in trouble must not get more load from retries than from requests."""
    bad, good = await rig.engine("bad", die), await rig.engine("good")
    rig.route(bad, good, strategy="LEAST_OUTSTANDING_REQUESTS")
    rig.proxy.rand = lambda: 0.0
    rig.proxy.retry_budget.tokens = 0.0
    assert (await rig.ask(rig.post(rig.chat()))).status == 502
    assert good.requests == []


def test_budget_allows_a_fifth_of_the_requests() -> None:
    budget = RetryBudget()
    budget.tokens = 0.0
    for _ in range(100):
        budget.deposit()
    assert sum(budget.withdraw() for _ in range(100)) in (19, 20)


async def test_upload_that_has_passed_through_is_not_repeated(rig: Rig) -> None:
    bad, good = await rig.engine("bad", die), await rig.engine("good")
    rig.route(bad, good, strategy="LEAST_OUTSTANDING_REQUESTS")
    rig.proxy.rand = lambda: 0.0
    response = await rig.ask(rig.post(b"x" * 3_000_000))
    assert response.status == 502
    assert good.requests == []


async def test_upload_whose_instance_cannot_be_reached_goes_to_another(rig: Rig) -> None:
    gone, alive = await rig.engine("gone"), await rig.engine("alive")
    await gone.stop()
    rig.route(gone, alive, strategy="LEAST_OUTSTANDING_REQUESTS")
    rig.proxy.rand = lambda: 0.0
    response = await rig.ask(rig.post(b"x" * 3_000_000))
    assert (response.status, response.json["got"]) == (200, 3_000_000)
    assert rig.proxy.metrics.retries["m", "connect"] == 1


async def test_endpoint_without_instances_says_so(rig: Rig) -> None:
    rig.route()
    response = await rig.ask(rig.post(rig.chat()))
    assert response.status == 503
    assert response.fields["retry-after"] == "1"
    assert response.json["error"]["code"] == "no_instance"


class TestConnecting:
    @pytest.fixture
    def limits(self) -> Limits:
        return Limits(sweep_s=0.02, connect_s=0.05)

    async def test_connection_that_does_not_come_about_times_out(self, rig: Rig) -> None:
        dead, alive = await rig.engine("dead"), await rig.engine("alive")
        connect = rig.proxy.connect

        async def connect_unless_dead(instance: Any) -> Any:
            """Packets to `dead` vanish."""
            if instance.name == "dead":
                await asyncio.Event().wait()
            return await connect(instance)

        rig.proxy.connect = connect_unless_dead
        rig.route(dead, alive, strategy="LEAST_OUTSTANDING_REQUESTS")
        rig.proxy.rand = lambda: 0.0
        response = await rig.ask(rig.post(rig.chat()))
        assert response.json["engine"] == "alive"
        assert rig.in_flight() == {"dead": 0, "alive": 0}

    async def test_client_that_leaves_while_connecting_releases_its_instance(self, rig: Rig) -> None:
        engine = await rig.engine("a")
        reached = asyncio.Event()

        async def never_connect(instance: Any) -> Any:
            reached.set()
            await asyncio.Event().wait()

        rig.proxy.connect = never_connect
        rig.route(engine)
        client = await rig.client()
        client.send(rig.post(rig.chat()))
        await reached.wait()
        assert rig.in_flight() == {"a": 1}
        client.abort()
        await rig.settled()
        assert engine.connections == 0
