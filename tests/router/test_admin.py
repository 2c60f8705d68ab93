"""What the router says about itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from router.access import AccessLog, Entry

Rig = Any

LEAST = "LEAST_OUTSTANDING_REQUESTS"

GET = "GET {} HTTP/1.1\r\nHost: r\r\n\r\n"


async def get(rig: Rig, path: str, *, admin: bool = False) -> Any:
    return await rig.exchange(await rig.client(admin=admin), GET.format(path).encode())


async def test_admin_shows_the_routing_in_force_with_counts_of_the_moment(rig: Rig) -> None:
    engine = await rig.engine("a")
    settings = {"strategy": "PREFIX_AWARE", "prefixLength": 4096, "concurrencyThreshold": 10}
    drained = {"uid": "u-b", "name": "b", "host": "127.0.0.1", "port": 1, "node": "n2", "warm": False, "draining": True}
    instances = [engine.config(node="n1"), drained]
    rig.configure({"endpoints": [{"name": "m", "models": ["llama"], "routing": settings, "instances": instances}]})
    rig.proxy.live.current.endpoints["m"].instances[0].in_flight = 2
    shown = (await get(rig, "/routing/m", admin=True)).json
    assert shown == {
        "name": "m",
        "models": ["llama"],
        "routing": settings,
        "instances": [
            engine.config(node="n1", warm=True, draining=False, in_flight=2),
            drained | {"in_flight": 0},
        ],
    }
    assert (await get(rig, "/routing", admin=True)).json["endpoints"] == {"m": shown}


async def test_unknown_endpoint_is_answered_with_those_that_exist(rig: Rig) -> None:
    rig.configure({"endpoints": [{"name": "one"}, {"name": "two"}]})
    response = await get(rig, "/routing/three", admin=True)
    assert response.status == 404
    assert "'three'" in response.json["error"]["message"]
    assert "one, two" in response.json["error"]["message"]


async def test_the_routing_is_not_shown_on_the_main_port_and_engines_not_reached_by_the_admin(rig: Rig) -> None:
    engine = await rig.engine("a")
    rig.route(engine)
    assert (await get(rig, "/routing")).status == 404
    client = await rig.client(admin=True)
    client.send(rig.post(rig.chat()))
    assert (await client.response()).status == 404
    assert engine.requests == []


async def test_models_are_the_endpoints_and_what_they_serve(rig: Rig) -> None:
    rig.configure({"endpoints": [{"name": "one", "models": ["org/llama"]}, {"name": "two"}]})
    listed = (await get(rig, "/v1/models")).json
    assert [model["id"] for model in listed["data"]] == ["org/llama", "one", "two"]
    assert (await get(rig, "/v1/models/org%2Fllama")).json["id"] == "org/llama"
    assert (await get(rig, "/v1/models/org/llama")).json["id"] == "org/llama"
    assert (await get(rig, "/v1/models/three")).json["error"]["code"] == "model_not_found"


async def test_ready_means_loaded_and_not_draining(rig: Rig) -> None:
    client = await rig.client(admin=True)
    ready = GET.format("/readyz").encode()
    assert (await rig.exchange(client, ready)).status == 200
    rig.proxy.live.is_loaded = False
    assert (await rig.exchange(client, ready)).status == 503
    assert (await get(rig, "/healthz")).body == b"ok\n"
    client.send(b"GET /readyz HTTP/1.1\r\n")
    await rig.until(lambda: any(one._buffer for one in rig.proxy.clients))
    rig.proxy.drain()
    client.send(b"Host: r\r\n\r\n")
    response = await client.response()
    assert (response.status, response.body) == (503, b"draining\n")


async def test_metrics_tell_requests_choices_and_times(rig: Rig) -> None:
    async def stream(engine: Any, request: Any, writer: Any) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n")

    engine = await rig.engine('a"b\\', stream)
    rig.route(engine, await rig.engine("idle"), strategy=LEAST)
    rig.proxy.rand = lambda: 0.0
    await rig.ask(rig.post(rig.chat()))
    lines = (await get(rig, "/metrics")).body.decode().splitlines()
    for line in (
        r'warmpath_router_requests_total{endpoint="m",instance="a\"b\\",code="200"} 1',
        f'warmpath_router_choices_total{{endpoint="m",strategy="{LEAST}",reason="least_outstanding"}} 1',
        'warmpath_router_in_flight{endpoint="m",instance="idle"} 0',
        f'warmpath_router_decision_seconds_count{{strategy="{LEAST}"}} 1',
        f'warmpath_router_ttft_seconds_bucket{{endpoint="m",strategy="{LEAST}",le="+Inf"}} 1',
        'warmpath_router_reloads_total{result="loaded"} 1',
    ):
        assert line in lines
    assert len(lines) == len(set(lines))


async def test_series_of_instances_that_left_are_dropped(rig: Rig) -> None:
    first, second = await rig.engine("first"), await rig.engine("second")
    rig.route(first)
    await rig.ask(rig.post(rig.chat()))
    rig.route(second)
    assert '"first"' not in (await get(rig, "/metrics")).body.decode()


def test_access_log_holds_one_object_a_request(tmp_path: Path) -> None:
    log = AccessLog(tmp_path / "access.jsonl")
    entry = Entry(1.0, "m", "a", "random", b"/v1/completions", 200, 12, 1, 0.5, 0.1, "")
    log.add(entry)
    log.add(entry._replace(status=503))
    log.flush()
    log.flush()
    records = [json.loads(line) for line in (tmp_path / "access.jsonl").read_text().splitlines()]
    assert [record["status"] for record in records] == [200, 503]
    assert records[0]["duration_s"] == 0.5
    assert records[0]["time_s"] > 1_600_000_000


def test_access_log_that_cannot_be_written_does_not_stop_the_router(tmp_path: Path) -> None:
    log = AccessLog(tmp_path / "missing" / "access.jsonl")
    log.add(Entry(1.0, "m", "a", "random", b"/", 200, 12, 1, 0.5, 0.1, ""))
    log.flush()
    assert log._waiting == []
