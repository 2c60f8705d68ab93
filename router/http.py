"""HTTP/1.1 heads: parsed by llhttp with a fresh parser each, then held to stricter rules.

What two parsers could read differently is refused, never repaired: that is how requests get smuggled.
Hop-by-hop fields stay behind; everything else passes byte for byte.
"""

from __future__ import annotations

import re

import httptools

MAX_HEAD_BYTES = 32 * 1024
MAX_FIELDS = 100

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

# Fields with a meaning for this hop. "host", "content-length" and "transfer-encoding" are written anew.
REQUEST_FIELDS = frozenset(
    b"connection content-length expect host http2-settings keep-alive proxy-authorization proxy-connection te trailer"
    b" transfer-encoding upgrade x-amzn-sagemaker-prefix-aware-id".split()
)
RESPONSE_FIELDS = frozenset(
    b"connection content-length keep-alive proxy-authenticate proxy-connection te transfer-encoding upgrade"
    b" x-warmpath-instance x-warmpath-reason".split()
)

PREFIX_ID = re.compile(rb"[!-~][ -~]{0,63}")


class Refused(Exception):
    """The peer broke the protocol or a limit: answer `status` with the message, then close."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class RequestHead:
    """Request line and fields. `fields` are the lines to pass on; content_length is -1 when there is none."""

    __slots__ = (
        "chunked",
        "content_length",
        "expects_continue",
        "fields",
        "hosts",
        "keep_alive",
        "method",
        "names",
        "nominated",
        "prefix_id",
        "target",
        "version",
    )

    def __init__(self) -> None:
        self.method = self.target = self.prefix_id = b""
        self.version = "1.1"
        self.fields: list[bytes] = []
        self.content_length = -1
        self.chunked = self.expects_continue = self.keep_alive = False
        self.hosts = self.names = 0
        self.nominated: tuple[bytes, ...] = ()

    def on_url(self, target: bytes) -> None:
        self.target += target

    def on_header(self, name: bytes, value: bytes) -> None:
        self.names += 1
        name = name.lower()
        if name not in REQUEST_FIELDS:
            self.fields += (name, b": ", value, b"\r\n")
        elif name == b"host":
            self.hosts += 1
        elif name == b"content-length":
            if self.content_length >= 0 or self.chunked:
                raise Refused(400, "one Content-Length, and no Transfer-Encoding beside it, is what a request may have")
            self.content_length = int(value)
        else:
            self._rare(name, value.strip())

    def _rare(self, name: bytes, value: bytes) -> None:
        if name == b"transfer-encoding":
            if self.content_length >= 0 or self.chunked or value.lower() != b"chunked":
                raise Refused(400, "Transfer-Encoding may only be chunked, once, and without Content-Length")
            self.chunked = True
        elif name == b"connection":
            self.nominated += tuple(token.strip() for token in value.lower().split(b","))
        elif name == b"expect":
            self.expects_continue = value.lower() == b"100-continue"
        elif name == b"x-amzn-sagemaker-prefix-aware-id":
            if self.prefix_id or not PREFIX_ID.fullmatch(value):
                raise Refused(400, "X-Amzn-SageMaker-Prefix-Aware-Id must be 1 to 64 printable characters, given once")
            self.prefix_id = value
            self.fields += (name, b": ", value, b"\r\n")


def parse_request_head(raw: bytes) -> RequestHead:
    """`raw` ends with the empty line. Raises Refused."""
    head = RequestHead()
    parser = httptools.HttpRequestParser(head)
    try:
        parser.feed_data(raw)
    except httptools.HttpParserUpgrade:
        pass  # An offer of another protocol is ours to decline; CONNECT is refused by its method.
    except httptools.HttpParserError as error:
        raise _refusal(error, "request") from error
    head.method = parser.get_method()
    version = parser.get_http_version()
    if version != "1.1":
        if version != "1.0":
            raise Refused(505, f"HTTP/{version} is not spoken here, HTTP/1.1 is")
        head.version = version
        if head.chunked:
            raise Refused(400, "HTTP/1.0 has no Transfer-Encoding")
    elif head.hosts != 1:
        raise Refused(400, f"a request has one Host field, this one has {head.hosts}")
    if head.names > MAX_FIELDS:
        raise Refused(431, f"a request may have {MAX_FIELDS} header fields, this one has {head.names}")
    if head.nominated:
        head.fields = _without(head.fields, head.nominated)
    # HTTP/1.0 is answered and closed: its keep-alive was never defined well.
    head.keep_alive = version == "1.1" and b"close" not in head.nominated
    return head


class ResponseHead:
    """Status line and fields of an engine's answer. content_length is -1 when there is none."""

    __slots__ = ("chunked", "content_length", "fields", "keep_alive", "nominated", "phrase", "status")

    def __init__(self) -> None:
        self.status = 0
        self.phrase = b""
        self.fields: list[bytes] = []
        self.content_length = -1
        self.chunked = False
        self.keep_alive = True
        self.nominated: tuple[bytes, ...] = ()

    def on_status(self, phrase: bytes) -> None:
        self.phrase += phrase

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name not in RESPONSE_FIELDS:
            self.fields += (name, b": ", value, b"\r\n")
        elif name == b"content-length":
            if self.content_length >= 0 or self.chunked:
                raise Refused(502, "the engine answered with two lengths")
            self.content_length = int(value)
        elif name == b"transfer-encoding":
            if self.content_length >= 0 or self.chunked or value.strip().lower() != b"chunked":
                raise Refused(502, "the engine answered with a Transfer-Encoding other than chunked")
            self.chunked = True
        elif name == b"connection":
            self.nominated += tuple(token.strip() for token in value.lower().split(b","))


def parse_response_head(raw: bytes) -> ResponseHead:
    """`raw` ends with the empty line. Raises Refused (502)."""
    head = ResponseHead()
    parser = httptools.HttpResponseParser(head)
    try:
        parser.feed_data(raw)
    except httptools.HttpParserError as error:
        raise _refusal(error, "response") from error
    head.status = parser.get_status_code()
    if head.nominated:
        head.fields = _without(head.fields, head.nominated)
    # Also False where only the end of the connection ends the body.
    head.keep_alive = bool(parser.should_keep_alive())
    return head


def _without(fields: list[bytes], nominated: tuple[bytes, ...]) -> list[bytes]:
    """Fields that the Connection field names belong to this hop only."""
    kept: list[bytes] = []
    for start in range(0, len(fields), 4):
        if fields[start] not in nominated:
            kept += fields[start : start + 4]
    return kept


def _refusal(error: httptools.HttpParserError, what: str) -> Refused:
    cause = error.__context__
    if isinstance(cause, Refused):
        return cause
    return Refused(400 if what == "request" else 502, f"not a valid HTTP {what}: {error}")
