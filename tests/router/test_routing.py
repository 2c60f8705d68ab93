"""The routing in force: which endpoint and which instances, and what survives a change of it."""

from __future__ import annotations

import asyncio
import gc
import json
from typing import Any

import pytest
from pydantic import ValidationError

from router.config import RouterConfig
from router.routing import LiveRouting

Rig = Any


def config(*uids: str, strategy: str = "RANDOM", port: int = 9000, **more: Any) -> bytes:
    instances = [{"uid": uid, "name": f"pod-{uid}", "host": "127.0.0.1", "port": port} for uid in uids]
    return json.dumps(
        {"endpoints": [{"name": "m", "routing": {"strategy": strategy}, "instances": instances} | more]}
    ).encode()


def test_instance_keeps_its_count_through_every_change_while_its_uid_stays() -> None:
    live = LiveRouting()
    live.replace(config("a", "b"))
    before = live.current.endpoints["m"].instances
    before[0].in_flight = 3
    live.replace(config("a", "c", strategy="LEAST_OUTSTANDING_REQUESTS"))
    after = live.current.endpoints["m"].instances
    assert after[0] is before[0]
    assert [instance.in_flight for instance in after] == [3, 0]


def test_restart_at_the_same_address_is_another_instance() -> None:
    live = LiveRouting()
    live.replace(config("a"))
    live.current.endpoints["m"].instances[0].in_flight = 3
    live.replace(config("a-restarted"))
    assert live.current.endpoints["m"].instances[0].in_flight == 0


def test_instance_that_leaves_and_comes_back_while_it_serves_is_the_same() -> None:
    live = LiveRouting()
    live.replace(config("a"))
    held = live.current.endpoints["m"].instances[0]
    held.in_flight = 1
    live.replace(config("b"))
    gc.collect()
    assert held.retired
    live.replace(config("a"))
    assert live.current.endpoints["m"].instances[0] is held
    assert not held.retired


def test_instances_that_left_are_forgotten() -> None:
    live = LiveRouting()
    live.replace(config("a"))
    live.replace(config())
    gc.collect()
    assert list(live.instances._known) == []


def test_draining_instance_is_not_eligible_but_stays_known() -> None:
    live = LiveRouting()
    raw = json.loads(config("a", "b"))
    raw["endpoints"][0]["instances"][0]["draining"] = True
    live.replace(json.dumps(raw).encode())
    endpoint = live.current.endpoints["m"]
    assert [instance.uid for instance in endpoint.eligible] == ["b"]
    assert [instance.uid for instance in endpoint.instances] == ["a", "b"]


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        (b"{", ()),
        (config("a", strategy="FASTEST"), ("endpoints", 0, "routing", "strategy")),
        (config("a", strategy="PREFIX_AWARE"), ("endpoints", 0, "routing")),
        (config("a", typo=1), ("endpoints", 0, "typo")),
        (config("a", port=0), ("endpoints", 0, "instances", 0, "port")),
        (config("a", "a"), ("endpoints", 0)),
    ],
)
def test_invalid_settings_name_the_field_and_change_nothing(raw: bytes, field: tuple[str | int, ...]) -> None:
    live = LiveRouting()
    live.replace(config("a"))
    before = live.current
    with pytest.raises(ValidationError) as caught:
        live.replace(raw)
    assert [error["loc"] for error in caught.value.errors()] == [field]
    assert live.current is before


@pytest.mark.parametrize(
    ("length", "threshold", "valid"),
    [(1024, 1, True), (65536, 1024, True), (1023, 1, False), (65537, 1, False), (1024, 0, False), (1024, 1025, False)],
)
def test_bounds_are_those_of_sagemaker(length: int, threshold: int, valid: bool) -> None:
    settings = {"strategy": "PREFIX_AWARE", "prefixLength": length, "concurrencyThreshold": threshold}
    raw = json.dumps({"endpoints": [{"name": "m", "routing": settings}]}).encode()
    if valid:
        assert LiveRouting().replace(raw).endpoints[0].routing.prefix_length == length
    else:
        with pytest.raises(ValidationError):
            LiveRouting().replace(raw)


def test_every_setting_is_described() -> None:
    schema = RouterConfig.model_json_schema(by_alias=True)
    models = [schema, *schema["$defs"].values()]
    bare = [
        name for model in models for name, field in model.get("properties", {}).items() if not field.get("description")
    ]
    assert bare == []


async def test_model_in_the_body_names_the_endpoint(rig: Rig) -> None:
    first, second = await rig.engine("first"), await rig.engine("second")
    rig.configure(
        {
            "endpoints": [
                {"name": "one", "models": ["llama", "both"], "instances": [first.config()]},
                {"name": "two", "models": ["qwen", "both", "one"], "instances": [second.config()]},
            ]
        }
    )
    for model, engine in {"one": "first", "llama": "first", "two": "second", "qwen": "second", "both": "first"}.items():
        assert (await rig.ask(rig.post(rig.chat(model=model)))).json["engine"] == engine
    unknown = await rig.ask(rig.post(rig.chat(model="gpt")))
    assert (unknown.status, unknown.json["error"]["code"]) == (404, "model_not_found")
    assert "'gpt'" in unknown.json["error"]["message"]
    for body in ({"messages": []}, {"model": ""}, {"model": None}, ["model"]):
        unnamed = await rig.ask(rig.post(body))
        assert (unnamed.status, unnamed.json["error"]["code"]) == (400, "model_missing"), body
    large = {"messages": [{"role": "user", "content": "x" * 2_000_000}], "model": "two"}
    assert (await rig.ask(rig.post(large))).json["engine"] == "second", "a model at the end of a large body is found"


async def test_path_names_the_endpoint_whatever_the_model(rig: Rig) -> None:
    first, second = await rig.engine("first"), await rig.engine("second")
    rig.configure(
        {"endpoints": [{"name": "one", "instances": [first.config()]}, {"name": "two", "instances": [second.config()]}]}
    )
    for path, asked in (
        ("/endpoints/two/invocations", "/invocations"),
        ("/endpoints/two/openai/v1/chat/completions", "/v1/chat/completions"),
    ):
        answer = (await rig.ask(rig.post(rig.chat(model="one"), path=path))).json
        assert (answer["engine"], answer["path"]) == ("second", asked)
    missing = await rig.ask(rig.post(b"{}", path="/endpoints/three/invocations"))
    assert missing.status == 404
    assert missing.fields["x-amzn-errortype"] == "ValidationError"
    assert "'three'" in missing.json["Message"]


async def test_only_endpoint_takes_every_model(rig: Rig) -> None:
    rig.route(await rig.engine("a"))
    assert (await rig.ask(rig.post(rig.chat(model="anything")))).status == 200


async def test_equal_prefixes_meet_on_one_instance_of_every_router(rig: Rig) -> None:
    engines = [await rig.engine(name) for name in "abc"]
    rig.route(*engines, strategy="PREFIX_AWARE", prefixLength=1024, concurrencyThreshold=8)
    homes = {}
    for number in range(12):
        answers = [
            (await rig.ask(rig.post({"messages": [{"content": f"{number}" * 2000 + tail}], "temperature": len(tail)})))
            for tail in ("", "a", "bc")
        ]
        assert {answer.fields["x-warmpath-reason"] for answer in answers} == {"prefix_home"}
        (homes[number],) = {answer.fields["x-warmpath-instance"] for answer in answers}
    assert len(set(homes.values())) == 3


async def test_caller_hint_parts_equal_prefixes(rig: Rig) -> None:
    engines = [await rig.engine(name) for name in "abc"]
    rig.route(*engines, strategy="PREFIX_AWARE", prefixLength=1024, concurrencyThreshold=8)
    seen = set()
    for number in range(20):
        hint = f"X-Amzn-SageMaker-Prefix-Aware-Id: customer {number}\r\n"
        seen.add((await rig.ask(rig.post(rig.chat(), fields=hint))).fields["x-warmpath-instance"])
    assert seen == {"a", "b", "c"}
    assert engines[0].requests[0].fields["x-amzn-sagemaker-prefix-aware-id"].startswith("customer")


async def test_full_home_overflows(rig: Rig) -> None:
    engines = [await rig.engine(name) for name in "ab"]

    async def hold(engine: Any, request: Any, writer: Any) -> None:
        await engine.gate.wait()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

    for engine in engines:
        engine.behaviour = hold
    rig.route(*engines, strategy="PREFIX_AWARE", prefixLength=1024, concurrencyThreshold=1)
    clients = []
    for number in range(3):
        client = await rig.client()
        client.send(rig.post(rig.chat()))
        await rig.until(lambda: sum(rig.in_flight().values()) == number + 1)  # noqa: B023
        clients.append(client)
    assert sorted(rig.in_flight().values()) == [1, 2]
    for engine in engines:
        engine.gate.set()
    reasons = [(await client.response()).fields["x-warmpath-reason"] for client in clients]
    assert reasons == ["prefix_home", "prefix_overflow", "prefix_saturated"]


async def test_request_under_way_ends_where_it_began_while_the_routing_changes(rig: Rig) -> None:
    old, new = await rig.engine("old"), await rig.engine("new")

    async def hold(engine: Any, request: Any, writer: Any) -> None:
        await engine.gate.wait()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nold")

    old.behaviour = hold
    rig.route(old)
    client = await rig.client()
    client.send(rig.post(rig.chat()))
    await old.arrived.wait()
    instance = rig.proxy.live.current.endpoints["m"].instances[0]
    rig.route(new)
    assert (await rig.ask(rig.post(rig.chat()))).json["engine"] == "new"
    assert instance.in_flight == 1
    old.gate.set()
    assert (await client.response()).body == b"old"
    assert instance.in_flight == 0
    await rig.until(lambda: old.open_connections == 0)  # nothing is kept for an instance that left


async def test_no_request_is_lost_while_strategies_change_under_load(rig: Rig) -> None:
    engines = [await rig.engine(name) for name in "abc"]
    rig.route(*engines)
    stopping = False

    async def ask_on() -> int:
        client, count = await rig.client(), 0
        while not stopping:
            assert (await rig.exchange(client, rig.post(rig.chat(f"{count}")))).status == 200
            count += 1
        return count

    asking = [asyncio.create_task(ask_on()) for _ in range(8)]
    for _ in range(10):
        for strategy in ("RANDOM", "LEAST_OUTSTANDING_REQUESTS"):
            rig.route(*engines[:2], strategy=strategy)
            await asyncio.sleep(0.005)
        rig.route(*engines, strategy="PREFIX_AWARE", prefixLength=1024, concurrencyThreshold=2)
        await asyncio.sleep(0.005)
    stopping = True
    counts = await asyncio.gather(*asking)
    assert min(counts) > 0
    assert set(rig.in_flight().values()) == {0}
    assert rig.proxy.metrics.errors == {}
