"""The caller's side of the pair: reads one request at a time, strictly, and hands it to an exchange.

What arrives while a request is answered waits: pipelined requests are answered one after the other, never merged.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Final, cast

from router.chunks import ChunkReader
from router.exchange import Exchange
from router.http import MAX_HEAD_BYTES, Recent, Refused, RequestHead, parse_request_head
from router.paths import NOT_FORWARDED, Api, Target, read_request_line
from router.replies import Reply, own_reply, refusal

if TYPE_CHECKING:
    from router.proxy import Proxy

HIGH_WATER_BYTES = 256 * 1024
MAX_PIPELINED_BYTES = 64 * 1024

TCP_ESTABLISHED = 1  # in the kernel's tcp_info

# Where a connection stands. Plain numbers: they are compared for every read.
HEAD: Final = 0  # between requests, or within a head
BODY: Final = 1  # a body is being collected
UPLOAD: Final = 2  # placed by its beginning; the rest of the body passes through
BUSY: Final = 3  # the request is whole and not answered yet
LINGER: Final = 4  # refused; reading on only so that the answer is not lost in a reset

Answer = Callable[[bytes], Reply | None]


class Client(asyncio.Protocol):
    """One client connection. answer: what the router itself says on a path; forwards: whether engines are asked."""

    transport: asyncio.Transport
    keep_alive = True
    _state: int = HEAD
    _buffer = b""
    _head: RequestHead
    _target: Target
    _body_bytes = 0
    _left = 0  # bytes of a sized body to come
    _chunks: ChunkReader | None = None
    _exchange: Exchange | None = None
    _is_reading_paused = False

    def __init__(self, proxy: Proxy, answer: Answer, *, forwards: bool = True) -> None:
        self.proxy = proxy
        self._answer = answer
        self._forwards = forwards
        self._recent = Recent(parse_request_head)
        self._body: list[bytes] = []
        self._since = monotonic()  # of what is waited for now

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # as every TCP connection has
        self.transport.set_write_buffer_limits(HIGH_WATER_BYTES)
        self.proxy.clients.add(self)

    @property
    def _api(self) -> Api:
        return self._target.route.api if hasattr(self, "_target") else Api.OPENAI

    # Reading

    def data_received(self, data: bytes) -> None:
        try:
            if self._state == HEAD:
                self._read_head(data)
            elif self._state in (BODY, UPLOAD):
                self._read_body(data)
            elif self._state == BUSY:
                self._buffer += data
                if len(self._buffer) > MAX_PIPELINED_BYTES:
                    self._pause_reading()
        except Refused as refused:
            self._refuse(refused)

    def _read_head(self, data: bytes) -> None:
        if self._buffer:
            data = self._buffer + data
        if data[:1] in b"\r\n":
            data = data.lstrip(b"\r\n")  # RFC 9112 2.2: empty lines before a request line are passed over
        end = data.find(b"\r\n\r\n") + 4
        if end < 4 or end > MAX_HEAD_BYTES:
            if len(data) > MAX_HEAD_BYTES:
                raise Refused(431, f"the head of a request may take {MAX_HEAD_BYTES} bytes")
            if not self._buffer:
                self._since = monotonic()
            self._buffer = data
            return
        self._buffer = b""
        head = self._head = self._recent.read(data[:end])
        self.keep_alive = head.keep_alive
        self._body, self._body_bytes = [], 0
        target = self._target = read_request_line(head.line)
        if target.route is NOT_FORWARDED or target.method != b"POST" or not self._forwards:
            self._answer_here(head, target, data[end:])
        elif head.chunked:
            self._begin_body(head, data[end:])
        else:
            self._begin_sized_body(head, data, end)

    def _begin_sized_body(self, head: RequestHead, data: bytes, end: int) -> None:
        length = max(head.content_length, 0)
        if length > self.proxy.limits.max_body_bytes:
            raise Refused(413, f"a body may have {self.proxy.limits.max_body_bytes} bytes, this one has {length}")
        if len(data) - end >= length:
            # The usual case: the whole request in what was read.
            if length:
                self._body.append(data[end : end + length])
                self._body_bytes = length
            self._buffer = data[end + length :]
            self._dispatch(is_whole=True)
            return
        self._left = length
        self._begin_body(head, data[end:])

    def _begin_body(self, head: RequestHead, data: bytes) -> None:
        self._state = BODY
        self._since = monotonic()
        self._chunks = ChunkReader() if head.chunked else None
        if head.expects_continue and not head.is_1_0 and not data:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if data:
            self._read_body(data)

    def _read_body(self, data: bytes) -> None:
        pieces: list[bytes] = []
        if self._chunks is not None:
            end = self._chunks.feed(data, pieces)
            is_whole = end >= 0
            self._buffer = data[end:] if is_whole else b""
        else:
            pieces.append(data[: self._left])
            self._buffer = data[self._left :]
            self._left -= len(pieces[0])
            is_whole = not self._left
        self._body_bytes += sum(map(len, pieces))
        if self._body_bytes > self.proxy.limits.max_body_bytes:
            raise Refused(413, f"a body may have {self.proxy.limits.max_body_bytes} bytes")
        if self._state == UPLOAD:
            self._pass_up(pieces, is_whole=is_whole)
            return
        self._body += pieces
        if is_whole:
            self._dispatch(is_whole=True)
        elif self._body_bytes >= self.proxy.limits.cut_bytes and self._may_cut():
            self._dispatch(is_whole=False)

    def _may_cut(self) -> bool:
        """Whether the body is not needed to find the endpoint: its model may stand at the very end."""
        return bool(self._target.route.endpoint) or self.proxy.live.current.only is not None

    def _pass_up(self, pieces: list[bytes], *, is_whole: bool) -> None:
        exchange = self._exchange
        if is_whole:
            self._state = BUSY
        if exchange is not None:
            for piece in pieces:
                exchange.upload(piece)
            if is_whole:
                exchange.end_upload()

    # Answering

    def _dispatch(self, *, is_whole: bool) -> None:
        self._state = BUSY if is_whole else UPLOAD
        if not is_whole:
            self._pause_reading()  # until there is somewhere to put the rest
        exchange = Exchange(self, self._head, self._target, self._body, self._body_bytes, is_whole=is_whole)
        self._body = []
        self._exchange = exchange
        exchange.start()

    def _answer_here(self, head: RequestHead, target: Target, rest: bytes) -> None:
        """The router's own answer, or an error, to what is not forwarded."""
        self._state = BUSY
        if head.chunked or head.content_length > 0:
            self.keep_alive = False  # its body is not read
        else:
            self._buffer = rest
        is_forwarded = self._forwards and target.route is not NOT_FORWARDED
        reply = own_reply(target, self._answer(target.path), is_forwarded=is_forwarded)
        self.answer(reply, head_only=target.method == b"HEAD")

    def answer(self, reply: Reply, *, head_only: bool = False) -> None:
        """Send an answer of our own, in place of an engine's."""
        self.transport.write(reply.encode(close=not self.stays_open(), head_only=head_only))
        self.exchange_over()

    def exchange_over(self) -> None:
        """The answer is complete: go on with the next request, or close."""
        self._exchange = None
        if not self.stays_open():
            self._linger() if self._state == UPLOAD else self.transport.close()
            return
        self._state = HEAD
        self._since = monotonic()
        if self._buffer:
            # Not now: a buffer full of tiny requests must not become a stack of calls.
            self._state = BUSY
            asyncio.get_running_loop().call_soon(self._next)
        elif self._is_reading_paused:
            self._resume_reading()

    def _next(self) -> None:
        if self.transport.is_closing():
            return
        data, self._buffer = self._buffer, b""
        self._state = HEAD
        self._resume_reading()
        self.data_received(data)

    def stays_open(self) -> bool:
        return self.keep_alive and self._state != UPLOAD and not self.proxy.is_draining

    def cut_off(self) -> None:
        """An answer broke off: a missing end tells the client, where the framing can show it."""
        self._exchange = None
        self.transport.close() if self.keep_alive else self.transport.abort()

    def _refuse(self, refused: Refused) -> None:
        exchange, self._exchange = self._exchange, None
        self.keep_alive = False
        if exchange is not None:
            exchange.abandon()
            if exchange.status:
                self.transport.abort()
                return
        self.proxy.metrics.errors["", f"refused_{refused.status}"] += 1
        self.transport.write(refusal(self._api, refused.status, str(refused)).encode(close=True))
        self._linger()

    def _linger(self) -> None:
        self._state = LINGER
        self._since = monotonic()
        self._resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()

    # The connection

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - a Protocol
        self.proxy.clients.discard(self)
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.abandon()

    def drain(self) -> None:
        if self._state == HEAD and not self._buffer:
            self.transport.close()

    def sweep(self, now: float) -> None:
        """Called every second: has what is awaited taken too long?"""
        limits, waited_s = self.proxy.limits, now - self._since
        if self._is_reading_paused and self._is_gone():
            self.transport.abort()
        elif self._exchange is not None:
            self._exchange.sweep(now)
        elif self._state == HEAD:
            if not self._buffer:
                if waited_s > limits.idle_s:
                    self.transport.close()
            elif waited_s > limits.head_s:
                self._refuse(Refused(408, f"the head of the request did not come within {limits.head_s:g} s"))
        elif self._state == BODY and waited_s > limits.body_s + self._body_bytes / limits.min_body_bytes_per_s:
            self._refuse(Refused(408, "the body of the request comes too slowly"))
        elif self._state == LINGER and waited_s > limits.linger_s:
            self.transport.abort()

    def _is_gone(self) -> bool:
        """Whether the peer closed; while nothing is read, nobody else would notice."""
        state: int = self.transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
        return state != TCP_ESTABLISHED

    def pause_writing(self) -> None:
        if self._exchange is not None:
            self._exchange.pause()

    def resume_writing(self) -> None:
        if self._exchange is not None:
            self._exchange.resume()

    def pause_upload(self) -> None:
        if self._state == UPLOAD:
            self._pause_reading()

    def resume_upload(self) -> None:
        if self._state == UPLOAD:
            self._resume_reading()

    def _pause_reading(self) -> None:
        self._is_reading_paused = True
        self.transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._is_reading_paused:
            self._is_reading_paused = False
            self.transport.resume_reading()
