"""Heads that repeat themselves are read once, and read the same."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.http import Recent, Refused, RequestHead, parse_request_head, parse_response_head

LINES = [
    b"Host: r",
    b"Host: other",
    b"X-Kept: 1",
    b"x-kept: Content-Length: 7",
    b"content-LENGTH:  12",
    b"Content-Length: 345 ",
    b"Content-Length: 99999999999999999",
    b"Transfer-Encoding: chunked",
    b"Connection: close",
    b"Connection: X-Kept",
    b"X-Amzn-SageMaker-Prefix-Aware-Id: me",
    b"Expect: 100-continue",
]

heads = st.tuples(
    st.sampled_from([b"POST /v1/completions HTTP/1.1", b"GET /a HTTP/1.1", b"POST /v1/completions HTTP/1.0"]),
    st.lists(st.sampled_from(LINES), max_size=4, unique=True),
).map(lambda parts: b"\r\n".join([parts[0], *parts[1], b"", b""]))


def told(head: RequestHead) -> tuple[object, ...]:
    return (
        *(head.line, head.fields, head.content_length, head.chunked),
        *(head.keep_alive, head.is_1_0, head.prefix_id, head.expects_continue),
    )


@given(st.lists(heads, max_size=12))
def test_a_connection_reads_every_head_as_if_it_were_the_first(raws: list[bytes]) -> None:
    recent = Recent(parse_request_head)
    for raw in raws:
        try:
            expected = told(parse_request_head(raw))
        except Refused:
            with pytest.raises(Refused):
                recent.read(raw)
        else:
            assert told(recent.read(raw)) == expected


def test_only_digits_may_differ_in_a_head_that_is_not_read_again() -> None:
    recent = Recent(parse_request_head)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: r\r\nContent-Length: %b\r\nX: y\r\n\r\n"
    first = recent.read(head % b"12")
    assert recent.read(head % b"345") is first
    assert first.content_length == 345
    for broken in (b"", b"+1", b"1 2", b"1\r\nHost: x", b"1\r\nContent-Length: 2", "²".encode(), b"9" * 30):
        with pytest.raises(Refused):
            recent.read(head % broken)
        assert recent.read(head % b"7").content_length == 7


@given(
    st.lists(st.sampled_from([b"200 OK", b"200", b"404 Not Found", b"100 Continue"]), min_size=1, max_size=6), st.data()
)
def test_answers_are_read_the_same_too(statuses: list[bytes], data: st.DataObject) -> None:
    recent = Recent(parse_response_head)
    for status in statuses:
        length = data.draw(st.sampled_from([b"", b"Content-Length: 3\r\n", b"Content-Length: 44\r\n"]))
        raw = b"HTTP/1.1 " + status + b"\r\n" + length + b"Server: s\r\n\r\n"
        fresh, again = parse_response_head(raw), recent.read(raw)
        for name in ("status", "line", "fields", "content_length", "chunked", "keep_alive"):
            assert getattr(again, name) == getattr(fresh, name)


@given(st.binary(max_size=120) | st.builds(bytes.__add__, heads, st.binary(max_size=20)))
def test_no_head_breaks_the_parser(raw: bytes) -> None:
    for parse in (parse_request_head, parse_response_head):
        with contextlib.suppress(Refused):
            parse(raw + b"\r\n\r\n")
