"""A request's way to an engine and back: what is forwarded, how it streams, and counts that are given back once."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import pytest

from router.proxy import Limits

Rig = Any
Engine = Any

CHUNKED = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def stream_behind_gate(engine: Engine, request: Any, writer: asyncio.StreamWriter) -> None:
    """One event at once, the second when the test opens the gate."""
    writer.write(CHUNKED + chunk(b"data: one\n\n"))
    await engine.gate.wait()
    writer.write(chunk(b"data: two\n\n") + b"0\r\n\r\n")


async def hang(engine: Engine, request: Any, writer: asyncio.StreamWriter) -> None:
    await engine.gate.wait()


def answer(raw: bytes, *, close: bool = False) -> Any:
    async def behave(engine: Engine, request: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(raw)
        if close:
            await writer.drain()
            writer.close()

    return behave


async def test_body_and_fields_pass_byte_for_byte_and_hop_by_hop_fields_stay(rig: Rig) -> None:
    engine = await rig.engine("a")
    rig.route(engine)
    body = b'{"model": "m",  "messages": [], "x": "\xc3\xa9\\u00e9"}'
    hop = "Connection: keep-alive, X-Secret\r\nX-Secret: 1\r\nTE: trailers\r\n"
    fields = f"Authorization: Bearer k\r\n{hop}X-Request-Id: 7\r\n"
    response = await rig.ask(rig.post(body, fields=fields, path="/v1/chat/completions?a=b"))
    assert response.status == 200
    (request,) = engine.requests
    assert request.body == body
    assert request.head.startswith(b"POST /v1/chat/completions?a=b HTTP/1.1\r\n")
    assert set(request.fields) == {"host", "authorization", "x-request-id", "content-length"}
    assert request.fields["host"] == f"127.0.0.1:{engine.port}"


async def test_answer_names_the_instance_and_the_reason_and_keeps_hop_by_hop_fields_back(rig: Rig) -> None:
    fields = (
        b"X-Warmpath-Instance: forged\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\nX-Kept: 2\r\ncontent-length: 2"
    )
    engine = await rig.engine("a", answer(b"HTTP/1.1 200 OK\r\n" + fields + b"\r\n\r\nok"))
    rig.route(engine)
    response = await rig.ask(rig.post(rig.chat()))
    assert response.body == b"ok"
    assert response.fields == {
        "content-length": "2",
        "x-kept": "2",
        "x-warmpath-instance": "a",
        "x-warmpath-reason": "only_instance",
    }


async def test_client_that_asks_for_it_is_closed_after_the_answer(rig: Rig) -> None:
    rig.route(await rig.engine("a"))
    client = await rig.client()
    client.send(rig.post(rig.chat(), fields="Connection: Close\r\n"))
    assert (await client.response()).fields["connection"] == "close"
    assert await client.is_closed()


async def test_first_event_passes_before_the_second_exists(rig: Rig) -> None:
    engine = await rig.engine("a", stream_behind_gate)
    rig.route(engine)
    client = await rig.client()
    client.send(rig.post(rig.chat(stream=True)))
    assert (await client.head()).fields["transfer-encoding"] == "chunked"
    assert await client.read(16) == chunk(b"data: one\n\n")
    assert rig.in_flight() == {"a": 1}
    engine.gate.set()
    assert await client.read(21) == chunk(b"data: two\n\n") + b"0\r\n\r\n"
    assert rig.in_flight() == {"a": 0}


async def test_nothing_waits_to_be_sent_with_something_else(rig: Rig) -> None:
    """Without TCP_NODELAY on both sides an event may arrive 40 ms late."""
    rig.route(await rig.engine("a"))
    client = await rig.client()
    await rig.exchange(client, rig.post(rig.chat()))
    (instance,) = rig.proxy.live.instances.current
    for side in (*rig.proxy.clients, *instance.idle):
        assert side.transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_connections_to_an_engine_are_kept_and_used_again(rig: Rig) -> None:
    engine = await rig.engine("a")
    rig.route(engine)
    client = await rig.client()
    for _ in range(3):
        assert (await rig.exchange(client, rig.post(rig.chat()))).status == 200
    assert engine.connections == 1
    assert len(engine.requests) == 3


async def test_connection_idle_for_too_long_is_closed_not_used(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines close idle connections after 5 s; a request sent into that moment would be lost."""
    monkeypatch.setattr("router.instances.MAX_IDLE_S", 0.0)
    engine = await rig.engine("a")
    rig.route(engine)
    for _ in range(2):
        assert (await rig.ask(rig.post(rig.chat()))).status == 200
    assert engine.connections == 2
    assert rig.proxy.metrics.retries == {}


async def test_idle_connections_are_closed_by_the_sweep(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = await rig.engine("a")
    rig.route(engine)
    await rig.ask(rig.post(rig.chat()))
    assert engine.open_connections == 1
    monkeypatch.setattr("router.proxy.MAX_IDLE_S", 0.0)
    await rig.until(lambda: engine.open_connections == 0)


async def test_client_that_leaves_stops_the_engine_at_once(rig: Rig) -> None:
    engine = await rig.engine("a", stream_behind_gate)
    rig.route(engine)
    client = await rig.client()
    client.send(rig.post(rig.chat()))
    await client.head()
    client.abort()
    await asyncio.wait_for(rig_left(engine), 5)
    await rig.settled()
    assert rig.proxy.metrics.errors["m", "client_gone"] == 1
    assert rig.proxy.metrics.requests["m", "a", "499"] == 1


async def rig_left(engine: Engine) -> None:
    """Until the engine has seen its connection go; a streaming engine sees it when it writes."""
    engine.gate.set()
    await engine.left.wait()


async def test_client_that_leaves_after_the_last_event_has_had_its_answer(rig: Rig) -> None:
    async def stream(engine: Engine, request: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED + chunk(b"data: one\n\n"))
        await engine.gate.wait()
        writer.write(chunk(b"data: [DONE]\n\n"))
        await writer.wait_closed()

    engine = await rig.engine("a", stream)
    rig.route(engine)
    client = await rig.client()
    client.send(rig.post(rig.chat(stream=True)))
    await client.head()
    await client.read(16)
    engine.gate.set()
    await client.read(19)
    client.abort()
    await rig.settled()
    assert rig.proxy.metrics.errors == {}
    assert rig.proxy.metrics.requests["m", "a", "200"] == 1


async def test_client_that_leaves_before_any_byte_stops_the_engine_too(rig: Rig) -> None:
    engine = await rig.engine("a", hang)
    rig.route(engine)
    client = await rig.client()
    client.send(rig.post(rig.chat()))
    await engine.arrived.wait()
    assert rig.in_flight() == {"a": 1}
    client.abort()
    await rig.settled()
    await asyncio.wait_for(rig_left(engine), 5)


async def test_slow_reader_holds_the_engine_back(rig: Rig) -> None:
    size, sent = 64 * 1024 * 1024, 0

    async def pour(engine: Engine, request: Any, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
        while sent < size:
            writer.write(b"x" * 65536)
            sent += 65536
            await writer.drain()

    engine = await rig.engine("a", pour)
    rig.route(engine)
    client = await rig.client()
    client.send(rig.post(rig.chat()))
    await client.head()
    before = -1
    while before != sent:
        before = sent
        await asyncio.sleep(0.1)
    assert sent < size / 2, "everything was taken from the engine while nobody read"
    rest = size
    while rest:
        rest -= len(await client.reader.read(1 << 20))
    await rig.settled()
    engine.behaviour = answer(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
    assert (await rig.exchange(client, rig.post(rig.chat()))).body == b"ok", "a connection stayed paused"
    assert engine.connections == 1


@pytest.mark.parametrize("chunked", [False, True])
async def test_large_body_passes_while_it_arrives(rig: Rig, chunked: bool) -> None:
    cut, total = rig.proxy.limits.cut_bytes, 3 * 1024 * 1024
    engine = await rig.engine("a")
    rig.route(engine)
    client = await rig.client()
    framing = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {total}"
    client.send(f"POST /v1/chat/completions HTTP/1.1\r\nHost: r\r\n{framing}\r\n\r\n".encode())
    first, rest = b"a" * cut, b"b" * (total - cut)
    client.send(chunk(first) if chunked else first)
    await engine_has_head(rig, engine)  # its head is there before the body is complete
    client.send(chunk(rest) + b"0\r\n\r\n" if chunked else rest)
    response = await client.response()
    assert response.json["got"] == total
    assert engine.requests[0].body == first + rest
    assert (await rig.exchange(client, rig.post(rig.chat()))).status == 200


async def test_slow_engine_holds_a_large_upload_back(rig: Rig) -> None:
    engine = await rig.engine("a")
    engine.at_head = hang
    rig.route(engine)
    client = await rig.client()
    size = 60 * 1024 * 1024
    client.send(
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: r\r\nContent-Length: {size}\r\n\r\n".encode() + b"x" * size
    )
    await engine_has_head(rig, engine)
    await asyncio.sleep(0.3)
    assert client.writer.transport.get_write_buffer_size() > size / 3, "the router took in what the engine did not"
    client.reset()
    await rig.settled()
    engine.gate.set()


async def engine_has_head(rig: Rig, engine: Engine) -> None:
    await rig.until(lambda: bool(engine.requests))


async def test_engine_that_answers_before_the_upload_ends_is_heard(rig: Rig) -> None:
    async def refuse_early(engine: Engine, request: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 413 Content Too Large\r\ncontent-length: 3\r\n\r\nbig")
        await writer.drain()
        await engine.gate.wait()

    engine = await rig.engine("a")
    engine.at_head = refuse_early
    rig.route(engine)
    client = await rig.client()
    client.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: r\r\nContent-Length: 9000000\r\n\r\n" + b"x" * 2_000_000)
    response = await client.response()
    assert (response.status, response.body) == (413, b"big")
    assert response.fields["connection"] == "close"
    assert await client.is_closed()
    assert rig.in_flight() == {"a": 0}
    assert rig.proxy.live.current.endpoints["m"].instances[0].idle == [], "half a request still stands on it"
    engine.gate.set()


@pytest.mark.parametrize(
    ("raw", "close", "body"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", False, b""),
        (b"HTTP/1.1 204 No Content\r\ncontent-length: 2\r\n\r\n", False, b""),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", False, b""),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", False, b"ok"),
        (b"HTTP/1.1 200 OK\r\n\r\nuntil the end", True, b"until the end"),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok", True, b"ok"),
    ],
)
async def test_every_way_to_end_a_body_is_understood(rig: Rig, raw: bytes, close: bool, body: bytes) -> None:
    engine = await rig.engine("a", answer(raw, close=close))
    rig.route(engine)
    client = await rig.client()
    client.send(rig.post(rig.chat()))
    response = await client.head()
    if "content-length" in response.fields:
        assert await client.read(int(response.fields["content-length"])) == body
    elif response.status != 204:
        assert response.fields["connection"] == "close"
        assert await client.rest() == body
    await rig.settled()
    assert rig.proxy.metrics.errors == {}


async def test_old_clients_get_a_body_without_chunks(rig: Rig) -> None:
    engine = await rig.engine("a", answer(CHUNKED + chunk(b"one ") + chunk(b"two") + b"0\r\n\r\n"))
    rig.route(engine)
    client = await rig.client()
    client.send(b"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}")
    response = await client.response()
    assert "transfer-encoding" not in response.fields
    assert response.fields["connection"] == "close"
    assert response.body == b"one two"


@pytest.mark.parametrize(
    "raw",
    [
        b"SMTP ready\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nok",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 40_000,
    ],
)
async def test_an_engine_that_does_not_speak_http_is_a_bad_gateway(rig: Rig, raw: bytes) -> None:
    engine = await rig.engine("a", answer(raw))
    rig.route(engine)
    response = await rig.ask(rig.post(rig.chat()))
    assert response.status == 502
    assert response.json["error"]["code"] == "bad_response"
    assert str(engine.port) not in response.body.decode()
    assert rig.in_flight() == {"a": 0}


async def test_what_an_engine_sends_beyond_its_answer_never_reaches_a_client(rig: Rig) -> None:
    """Bytes after the end would be read as the answer to the next request on that connection."""
    ok = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
    engine = await rig.engine("a", answer(ok + b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil"))
    rig.route(engine)
    client = await rig.client()
    for _ in range(2):
        assert (await rig.exchange(client, rig.post(rig.chat()))).body == b"ok"
    assert engine.connections == 2
    client.writer.write_eof()
    assert await client.rest() == b""


async def test_broken_chunks_of_an_engine_cut_the_answer_off(rig: Rig) -> None:
    async def break_chunks(engine: Engine, request: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED + chunk(b"data: one\n\n"))
        await engine.gate.wait()
        writer.write(b"zz\r\n0\r\n\r\n")

    engine = await rig.engine("a", break_chunks)
    rig.route(engine)
    client = await rig.client()
    client.send(rig.post(rig.chat()))
    await client.head()
    engine.gate.set()
    assert not (await client.rest()).endswith(b"0\r\n\r\n")
    await rig.settled()


async def test_answer_that_breaks_off_is_not_passed_for_a_whole_one(rig: Rig) -> None:
    engine = await rig.engine("a", answer(CHUNKED + chunk(b"data: one\n\n"), close=True))
    other = await rig.engine("b", answer(CHUNKED + chunk(b"data: one\n\n"), close=True))
    rig.route(engine, other)
    client = await rig.client()
    client.send(rig.post(rig.chat()))
    await client.head()
    assert await client.rest() == chunk(b"data: one\n\n")
    await rig.settled()
    assert len(engine.requests) + len(other.requests) == 1, "an answer that has begun is never asked for again"
    assert rig.proxy.metrics.errors["m", "truncated"] == 1


async def test_cached_tokens_are_read_off_the_end_of_answers(rig: Rig) -> None:
    usage = {"usage": {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 80}, "completion_tokens": 3}}
    body = json.dumps(usage).encode()
    stream = CHUNKED + b"".join(chunk(b"data: " + event + b"\n\n") for event in (b'{"choices":[]}', body, b"[DONE]"))
    engine = await rig.engine("a", answer(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)))
    rig.route(engine)
    await rig.ask(rig.post(rig.chat()))
    engine.behaviour = answer(stream + b"0\r\n\r\n")
    await rig.ask(rig.post(rig.chat(stream=True)))
    assert rig.proxy.metrics.prompt_tokens["m", "a"] == 200
    assert rig.proxy.metrics.cached_tokens["m", "a"] == 160


class TestLimits:
    @pytest.fixture
    def limits(self) -> Limits:
        return Limits(sweep_s=0.02, first_byte_s=0.1, stall_s=0.1)

    async def test_engine_that_never_answers_times_out(self, rig: Rig) -> None:
        engine = await rig.engine("a", hang)
        rig.route(engine)
        response = await rig.ask(rig.post(rig.chat()))
        assert response.status == 504
        assert rig.in_flight() == {"a": 0}
        assert len(engine.requests) == 1, "work that may still be going on is not given to another"

    async def test_stream_that_stalls_is_cut_off(self, rig: Rig) -> None:
        engine = await rig.engine("a", stream_behind_gate)
        rig.route(engine)
        client = await rig.client()
        client.send(rig.post(rig.chat()))
        await client.head()
        assert await client.rest() == chunk(b"data: one\n\n")
        assert rig.proxy.metrics.errors["m", "stalled"] == 1
        assert rig.in_flight() == {"a": 0}
