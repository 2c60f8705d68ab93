"""HTTP/1.1 heads: parsed by llhttp with a fresh parser each, then held to stricter rules.

What two parsers could read differently is refused, never repaired: that is how requests get smuggled.
Hop-by-hop fields stay behind; everything else passes byte for byte.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import httptools

MAX_HEAD_BYTES = 32 * 1024

REASONS = {
    200: b"OK",
    400: b"Bad Request",
    404: b"Not Found",
    405: b"Method Not Allowed",
    408: b"Request Timeout",
    413: b"Content Too Large",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error",
    501: b"Not Implemented",
    502: b"Bad Gateway",
    503: b"Service Unavailable",
    504: b"Gateway Timeout",
    505: b"HTTP Version Not Supported",
}

MAX_LENGTH_DIGITS = 16
LENGTH_FIELD = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)
NO_CALLBACKS = object()  # llhttp only judges; what a head says is read by one split

PREFIX_ID = re.compile(rb"[!-~][ -~]{0,63}")


def _fields(*names: bytes) -> re.Pattern[bytes]:
    """Splits a head, already found valid, at the fields `names`: what lies between them passes untouched."""
    return re.compile(rb"\r\n(" + b"|".join(names) + rb"):[ \t]*([^\r]*)", re.IGNORECASE)


# Fields with a meaning for this hop. Framing and Host are written anew.
HOP = (b"connection", b"content-length", b"keep-alive", b"proxy-connection", b"te", b"transfer-encoding", b"upgrade")
REQUEST_FIELDS = _fields(
    *HOP, b"host", b"expect", b"http2-settings", b"proxy-authorization", b"trailer", b"x-amzn-sagemaker-prefix-aware-id"
)
RESPONSE_FIELDS = _fields(*HOP, b"proxy-authenticate", b"x-warmpath-instance", b"x-warmpath-reason")


class Refused(Exception):
    """The peer broke the protocol or a limit: answer `status` with the message, then close."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Head(Protocol):
    content_length: int


H = TypeVar("H", bound=Head)


class RequestHead:
    """Request line and fields. fields: the lines to pass on, each after its CRLF; content_length: -1 when not given."""

    content_length = -1
    chunked = False
    expects_continue = False
    keep_alive = True
    is_1_0 = False
    prefix_id = b""

    def __init__(self, line: bytes, fields: bytes) -> None:
        self.line = line
        self.fields = fields


def parse_request_head(raw: bytes) -> RequestHead:
    """`raw` ends with the empty line. Raises Refused."""
    try:
        httptools.HttpRequestParser(NO_CALLBACKS).feed_data(raw)
    except httptools.HttpParserUpgrade:
        pass  # An offer of another protocol is ours to decline; CONNECT is refused by its method.
    except httptools.HttpParserError as error:
        raise Refused(400, f"not a valid HTTP request: {error}") from error
    parts = REQUEST_FIELDS.split(raw[:-4])
    line, crlf, rest = parts[0].partition(b"\r\n")
    parts[0] = crlf + rest
    head = RequestHead(line, b"".join(parts[::3]))
    hosts = 0
    for at in range(1, len(parts), 3):
        name = parts[at].lower()
        if name == b"host":
            hosts += 1
        elif name == b"content-length":
            if head.content_length >= 0 or head.chunked:
                raise Refused(400, "a request has one Content-Length, and no Transfer-Encoding beside it")
            head.content_length = int(parts[at + 1])
        else:
            _take_rare(head, name, parts[at + 1].strip())
    if line[-9:] != b" HTTP/1.1":
        _take_1_0(head)
    elif hosts != 1:
        raise Refused(400, f"a request has one Host field, this one has {hosts}")
    return head


def _take_1_0(head: RequestHead) -> None:
    """HTTP/1.0 is answered and closed: its keep-alive was never defined well."""
    if head.line[-9:] != b" HTTP/1.0":
        raise Refused(505, "HTTP/1.1 is spoken here, and HTTP/1.0 understood")
    if head.chunked:
        raise Refused(400, "HTTP/1.0 has no Transfer-Encoding")
    head.is_1_0, head.keep_alive = True, False


def _take_rare(head: RequestHead, name: bytes, value: bytes) -> None:
    if name == b"transfer-encoding":
        if head.content_length >= 0 or head.chunked or value.lower() != b"chunked":
            raise Refused(400, "Transfer-Encoding may only be chunked, once, and without Content-Length")
        head.chunked = True
    elif name == b"connection":
        nominated = value.lower()
        head.keep_alive = head.keep_alive and b"close" not in nominated
        head.fields = _without(head.fields, nominated)
    elif name == b"expect":
        head.expects_continue = value.lower() == b"100-continue"
    elif name == b"x-amzn-sagemaker-prefix-aware-id":
        if head.prefix_id or not PREFIX_ID.fullmatch(value):
            raise Refused(400, "X-Amzn-SageMaker-Prefix-Aware-Id must be 1 to 64 printable characters, given once")
        head.prefix_id = value
        head.fields += b"\r\nx-amzn-sagemaker-prefix-aware-id: " + value


class ResponseHead:
    """Status line and fields of an engine's answer, fields as above. keep_alive: another request may follow it."""

    content_length = -1
    chunked = False

    def __init__(self, status: int, line: bytes, fields: bytes, *, keep_alive: bool) -> None:
        self.status = status
        self.line = line
        self.fields = fields
        self.keep_alive = keep_alive


def parse_response_head(raw: bytes) -> ResponseHead:
    """`raw` ends with the empty line. Raises Refused (502)."""
    parser = httptools.HttpResponseParser(NO_CALLBACKS)
    try:
        parser.feed_data(raw)
    except httptools.HttpParserError as error:
        raise Refused(502, f"not a valid HTTP response: {error}") from error
    parts = RESPONSE_FIELDS.split(raw[:-4])
    line, crlf, rest = parts[0].partition(b"\r\n")
    parts[0] = crlf + rest
    # Also False where only the end of the connection ends the body.
    keep_alive = parser.should_keep_alive()
    head = ResponseHead(parser.get_status_code(), line, b"".join(parts[::3]), keep_alive=keep_alive)
    for at in range(1, len(parts), 3):
        name, value = parts[at].lower(), parts[at + 1]
        if name == b"content-length":
            if head.content_length >= 0 or head.chunked:
                raise Refused(502, "the engine answered with two lengths")
            head.content_length = int(value)
        elif name == b"transfer-encoding":
            if head.content_length >= 0 or head.chunked or value.strip().lower() != b"chunked":
                raise Refused(502, "the engine answered with a Transfer-Encoding other than chunked")
            head.chunked = True
        elif name == b"connection":
            head.fields = _without(head.fields, value.lower())
    return head


def _without(fields: bytes, nominated: bytes) -> bytes:
    """Fields that a Connection field names belong to this hop only."""
    names = {name.strip() for name in nominated.split(b",")} - {b"close", b"keep-alive"}
    if not names:
        return fields
    lines = fields.split(b"\r\n")
    return b"\r\n".join(line for line in lines if line.partition(b":")[0].lower() not in names)


class Recent(Generic[H]):
    """The last head of a connection. Peers repeat themselves: where only the Content-Length is new, the rest holds.

    Returns the same object again, with the new length: a connection has one message at a time.
    """

    __slots__ = ("_after", "_before", "_head", "_parse")

    def __init__(self, parse: Callable[[bytes], H]) -> None:
        self._parse = parse
        self._before = self._after = b""  # the bytes around the digits of the length; all of a head without one
        self._head: H | None = None

    def read(self, raw: bytes) -> H:
        head = self._head
        if head is not None and raw.startswith(self._before):
            if head.content_length < 0:
                if raw == self._before:
                    return head
            elif raw.endswith(self._after):
                digits = raw[len(self._before) : -len(self._after)]
                if digits.isdigit() and len(digits) < MAX_LENGTH_DIGITS:
                    head.content_length = int(digits)
                    return head
        head = self._head = self._parse(raw)
        self._before = raw
        if head.content_length >= 0:
            found = LENGTH_FIELD.search(raw)
            if found is None:
                raise Refused(400, "a Content-Length cannot be read")
            self._before, self._after = raw[: found.start(1)], raw[found.end(1) :]
        return head
