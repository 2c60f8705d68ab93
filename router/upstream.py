"""The engine's side of the pair: one connection to an instance, kept for many requests."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from router.chunks import ChunkReader
from router.http import MAX_HEAD_BYTES, Recent, Refused, ResponseHead, parse_response_head
from router.instances import Instance

if TYPE_CHECKING:
    from router.exchange import Exchange

HIGH_WATER_BYTES = 256 * 1024
MAX_JOINED_BYTES = 32 * 1024
UNTIL_CLOSE = -1


async def connect(instance: Instance) -> Upstream:
    """A new connection to `instance`; raises OSError."""
    loop = asyncio.get_running_loop()
    _, upstream = await loop.create_connection(lambda: Upstream(instance), instance.host, instance.port)
    return upstream


class Upstream(asyncio.Protocol):
    """Reads one answer at a time and hands it on piece by piece, as it comes."""

    __slots__ = (
        "_buffer",
        "_chunks",
        "_head",
        "_is_paused",
        "_left",
        "_recent",
        "_surplus",
        "exchange",
        "idle_since",
        "instance",
        "is_fresh",
        "transport",
    )

    transport: asyncio.Transport

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.exchange: Exchange | None = None
        self.idle_since = 0.0
        self.is_fresh = True  # has served nothing yet
        self._head: ResponseHead | None = None
        self._chunks: ChunkReader | None = None
        self._left = UNTIL_CLOSE  # bytes of the body to come, where a length was given
        self._recent = Recent(parse_response_head)
        self._buffer = b""
        self._surplus = self._is_paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # as every TCP connection has
        self.transport.set_write_buffer_limits(HIGH_WATER_BYTES)

    def send(self, exchange: Exchange, request: Sequence[bytes]) -> None:
        """Begin an exchange; its answer comes to `exchange`."""
        self.exchange = exchange
        self._head = self._chunks = None
        self._left = UNTIL_CLOSE
        self._surplus = False
        # One copy costs less than a vectored write, until the body is large.
        if sum(map(len, request)) < MAX_JOINED_BYTES:
            self.transport.write(b"".join(request))
        else:
            self.transport.writelines(request)

    def data_received(self, data: bytes) -> None:
        exchange = self.exchange
        if exchange is None:
            self.transport.abort()  # bytes that nobody asked for
            return
        try:
            if self._head is None:
                self._read_head(exchange, data)
                return
            if self._chunks is not None and not exchange.wants_no_chunks:
                end = self._chunks.feed(data)
                if end < 0:
                    exchange.pass_on(data)
                    return
                self._surplus = end < len(data)
                piece, is_last = data[:end], True
            else:
                piece, is_last = self._cut(data)
        except Refused:
            self.exchange = None
            self.transport.abort()
            exchange.lost("bad_response")
            return
        if piece:
            exchange.pass_on(piece)
        if is_last:
            self._finish(exchange)

    def _read_head(self, exchange: Exchange, data: bytes) -> None:
        if self._buffer:
            data = self._buffer + data
        end = data.find(b"\r\n\r\n") + 4
        if end < 4 or end > MAX_HEAD_BYTES:
            if len(data) > MAX_HEAD_BYTES:
                raise Refused(502, f"the head of an answer is larger than {MAX_HEAD_BYTES} bytes")
            self._buffer = data
            return
        self._buffer = b""
        head = self._recent.read(data[:end])
        data = data[end:]
        if head.status < 200:
            if head.status == 101:
                raise Refused(502, "the engine switched protocols unasked")
            if data:
                self._read_head(exchange, data)
            return
        self._head = head
        if head.status in (204, 304):
            self._left = 0
        elif head.chunked:
            self._chunks = ChunkReader()
        else:
            self._left = head.content_length
        piece, is_last = self._cut(data)
        exchange.begin(head, piece)
        if is_last:
            self._finish(exchange)

    def _cut(self, data: bytes) -> tuple[bytes, bool]:
        """(what of `data` belongs to the body, whether that ends it)."""
        if self._chunks is not None:
            return self._cut_chunks(self._chunks, data)
        if self._left == UNTIL_CLOSE:
            return data, False
        if len(data) > self._left:
            self._surplus = True
            data = data[: self._left]
        self._left -= len(data)
        return data, not self._left

    def _cut_chunks(self, chunks: ChunkReader, data: bytes) -> tuple[bytes, bool]:
        payload: list[bytes] | None = [] if self.exchange and self.exchange.wants_no_chunks else None
        end = chunks.feed(data, payload)
        if 0 <= end < len(data):
            self._surplus = True
            data = data[:end]
        return data if payload is None else b"".join(payload), end >= 0

    def _finish(self, exchange: Exchange) -> None:
        self.exchange = None
        self.is_fresh = False
        head = self._head
        if head is not None and head.keep_alive and not self._surplus and exchange.is_sent:
            if self._is_paused:
                self._is_paused = False
                self.transport.resume_reading()
            exchange.end(self)
        else:
            self.transport.close()
            exchange.end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        exchange, self.exchange = self.exchange, None
        if exchange is None:
            if self in self.instance.idle:
                self.instance.idle.remove(self)
        elif self._head is None:
            exchange.lost("reset" if self.is_fresh or self._buffer else "stale")
        elif exc is None and self._left == UNTIL_CLOSE and self._chunks is None:
            exchange.end(None)
        else:
            exchange.lost("truncated")

    def abandon(self) -> None:
        """Nobody waits for this answer any more: the engine learns it from the reset."""
        self.exchange = None
        self.transport.abort()

    def pause(self) -> None:
        self._is_paused = True
        self.transport.pause_reading()

    def resume(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        if self.exchange is not None:
            self.exchange.client.pause_upload()

    def resume_writing(self) -> None:
        if self.exchange is not None:
            self.exchange.client.resume_upload()
