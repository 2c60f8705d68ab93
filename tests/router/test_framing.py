"""Requests to be read two ways, too large, too slow, or in pieces: right status, closed, nothing desynchronised."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from router.proxy import Limits

Rig = Any

POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: r\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
OLD = b"POST /v1/chat/completions HTTP/1.0\r\n"


def case(request: bytes, status: int, id: str) -> Any:  # noqa: A002 - as pytest calls it
    return pytest.param(request, status, id=id)


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        case(POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "length and chunks"),
        case(POST + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n0\r\n\r\n", 400, "chunks and length"),
        case(POST + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}", 400, "length twice"),
        case(POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{} ", 400, "two lengths"),
        case(POST + b"Content-Length: +2\r\n\r\n{}", 400, "signed length"),
        case(POST + b"Content-Length: 2, 2\r\n\r\n{}", 400, "length list"),
        case(POST + b"Content-Length: 0x2\r\n\r\n{}", 400, "hexadecimal length"),
        case(POST + b"Content-Length: -2\r\n\r\n{}", 400, "negative length"),
        case(POST + b"Content-Length : 2\r\n\r\n{}", 400, "blank before colon"),
        case(POST + b"Transfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n", 400, "identity, chunked"),
        case(POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400, "gzip, chunked"),
        case(POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 400, "xchunked"),
        case(POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "chunked twice"),
        case(POST + b"Host: other\r\nContent-Length: 2\r\n\r\n{}", 400, "host twice"),
        case(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}", 400, "no host"),
        case(POST + b"X: a\r\n b\r\nContent-Length: 2\r\n\r\n{}", 400, "folded line"),
        case(POST + b"X: a\x00b\r\nContent-Length: 2\r\n\r\n{}", 400, "NUL in a value"),
        case(POST + b"X: a\nContent-Length: 2\r\n\r\n{}", 400, "bare LF"),
        case(POST + b"X: a\rContent-Length: 2\r\n\r\n{}", 400, "bare CR"),
        case(POST + b"X\r\nContent-Length: 2\r\n\r\n{}", 400, "line without colon"),
        case(CHUNKED + b"zz\r\n", 400, "size no number"),
        case(CHUNKED + b"0x2\r\n{}\r\n0\r\n\r\n", 400, "size with 0x"),
        case(CHUNKED + b"-2\r\n{}\r\n0\r\n\r\n", 400, "negative size"),
        case(CHUNKED + b"1_0\r\n{}\r\n0\r\n\r\n", 400, "size with underscore"),
        case(CHUNKED + b"2\n{}\r\n0\r\n\r\n", 400, "size ends with bare LF"),
        case(CHUNKED + b"2\r\n{}X0\r\n\r\n", 400, "chunk longer than its size"),
        case(CHUNKED + b"fffffffffffffffff\r\n", 400, "size beyond 64 bits"),
        case(POST + b"X-Amzn-SageMaker-Prefix-Aware-Id: " + b"a" * 65 + b"\r\n\r\n", 400, "long prefix id"),
        case(POST + b"X-Amzn-SageMaker-Prefix-Aware-Id:\r\n\r\n", 400, "empty prefix id"),
        case(POST + b"X: " + b"y" * 40_000 + b"\r\n\r\n", 431, "large head"),
        case(POST + b"X: " + b"y" * 40_000, 431, "endless head"),
        case(POST + b"Content-Length: 99999999999\r\n\r\n", 413, "large body"),
        case(
            OLD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
            id="1.0 with chunks",
        ),
        case(b"GET  /healthz HTTP/1.1\r\nHost: r\r\n\r\n", 400, "two blanks"),
        case(b"GET /healthz\r\n\r\n", 505, "HTTP/0.9"),
        case(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "HTTP/2"),
        case(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n", 400, "TLS"),
    ],
)
async def test_what_two_parsers_could_read_differently_is_refused(rig: Rig, request_bytes: bytes, status: int) -> None:
    engine = await rig.engine("a")
    rig.route(engine)
    client = await rig.client()
    client.send(request_bytes + POST + b"Content-Length: 2\r\n\r\n{}")
    response = await client.response()
    assert response.status == status
    assert response.fields["connection"] == "close"
    assert response.json["error"]["message"]
    assert await client.is_closed(), "nothing behind a refused request is read"
    assert [one.body for one in engine.requests if one.body] == []
    assert rig.in_flight() == {"a": 0}


async def test_pipelined_requests_of_one_read_are_answered_in_order_and_never_merged(rig: Rig) -> None:
    engine = await rig.engine("a")
    rig.route(engine)
    client = await rig.client()
    client.send(
        rig.post(b"1" * 10, fields="X-One: 1\r\n") + rig.post(b"2" * 20, fields="X-Two: 2\r\n") + rig.post(b"3")
    )
    assert [(await client.response()).json["got"] for _ in range(3)] == [10, 20, 1]
    first, second, _ = engine.requests
    assert "x-two" not in first.fields
    assert "x-one" not in second.fields


async def test_any_cut_of_the_bytes_gives_the_same_requests(rig: Rig) -> None:
    engine = await rig.engine("a")
    rig.route(engine)
    chunked = CHUNKED + b"3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nT: 1\r\n\r\n"
    stream = b"\r\n" + rig.post(b"12345") + chunked + rig.post(b"")
    client = await rig.client()
    for at in range(len(stream)):
        client.send(stream[at : at + 1])
        await asyncio.sleep(0)
    assert [(await client.response()).json["got"] for _ in range(3)] == [5, 5, 0]
    assert [one.body for one in engine.requests] == [b"12345", b"abcde", b""]


async def test_request_hidden_in_a_body_stays_a_body(rig: Rig) -> None:
    engine = await rig.engine("a")
    rig.route(engine)
    hidden = rig.post(b"evil", path="/v1/completions")
    client = await rig.client()
    assert (await rig.exchange(client, rig.post(hidden))).json["got"] == len(hidden)
    assert len(engine.requests) == 1
    client.writer.write_eof()
    assert await client.rest() == b""


async def test_many_tiny_requests_in_one_read_are_no_stack_of_calls(rig: Rig) -> None:
    client = await rig.client()
    client.send(b"GET /healthz HTTP/1.1\r\nHost: r\r\n\r\n" * 3000)
    for _ in range(3000):
        assert (await client.response()).status == 200


async def test_continue_is_sent_only_to_those_who_wait_for_it(rig: Rig) -> None:
    engine = await rig.engine("a")
    rig.route(engine)
    client = await rig.client()
    client.send(POST + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n")
    assert (await client.head()).status == 100
    client.send(b"{}")
    assert (await client.response()).status == 200
    assert "expect" not in engine.requests[0].fields


async def test_offer_of_another_protocol_is_passed_over(rig: Rig) -> None:
    """Java's HTTP client offers h2c with every first request."""
    engine = await rig.engine("a")
    rig.route(engine)
    fields = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    assert (await rig.ask(rig.post(b"{}", fields=fields))).status == 200
    assert set(engine.requests[0].fields) == {"host", "content-length"}


async def test_head_of_a_resource_has_no_body_and_wrong_methods_are_told_the_right_one(rig: Rig) -> None:
    client = await rig.client()
    client.send(b"HEAD /healthz HTTP/1.1\r\nHost: r\r\n\r\n")
    response = await client.head()
    assert (response.status, response.fields["content-length"]) == (200, "3")
    for line, status, allowed in (
        (b"GET /v1/chat/completions", 405, "POST"),
        (b"DELETE /healthz", 405, "GET, HEAD"),
        (b"GET /nothing", 404, None),
    ):
        response = await rig.exchange(client, line + b" HTTP/1.1\r\nHost: r\r\n\r\n")
        assert (response.status, response.fields.get("allow")) == (status, allowed)


async def test_body_for_a_path_that_takes_none_is_not_taken_for_a_request(rig: Rig) -> None:
    client = await rig.client()
    client.send(rig.post(b"GET /healthz HTTP/1.1\r\nHost: r\r\n\r\n", path="/nothing"))
    response = await client.response()
    assert (response.status, response.fields["connection"]) == (404, "close")
    assert await client.is_closed()


class TestLimits:
    @pytest.fixture
    def limits(self) -> Limits:
        return Limits(sweep_s=0.02, head_s=0.1, idle_s=0.1, body_s=0.1, linger_s=0.1, max_body_bytes=1000)

    async def test_slow_head_times_out_however_steadily_it_drips(self, rig: Rig) -> None:
        client = await rig.client()

        async def drip() -> None:
            with contextlib.suppress(OSError):
                for byte in POST * 10:
                    client.send(bytes([byte]))
                    await client.writer.drain()
                    await asyncio.sleep(0.01)

        dripping = asyncio.create_task(drip())
        response = await client.response()
        assert not dripping.done()
        assert (response.status, response.fields["connection"]) == (408, "close")
        await dripping

    async def test_slow_body_times_out(self, rig: Rig) -> None:
        client = await rig.client()
        client.send(POST + b"Content-Length: 100\r\n\r\nx")
        assert (await client.response()).status == 408

    async def test_idle_connection_is_closed_silently(self, rig: Rig) -> None:
        client = await rig.client()
        assert await client.rest() == b""

    async def test_chunks_count_against_the_body_limit(self, rig: Rig) -> None:
        client = await rig.client()
        client.send(CHUNKED + b"" + (b"64\r\n" + b"x" * 100 + b"\r\n") * 11)
        assert (await client.response()).status == 413

    async def test_refused_client_that_goes_on_sending_is_reset(self, rig: Rig) -> None:
        client = await rig.client()
        client.send(POST + b"Content-Length: 5000\r\n\r\n" + b"x" * 5000)
        assert (await client.response()).status == 413
        await rig.until(lambda: not rig.proxy.clients)
