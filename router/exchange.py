"""One request on its way to an instance, and its answer on the way back.

    start → attempt ─→ connect / idle connection → send → begin → pass_on* → end
               ↑            │                        │              │
               └── retry ── lost ←───────────────────┘              └→ lost: cut off
    abandon (the client left) and fail (no answer to be had) end it from anywhere.

However it ends, the instance's in-flight count is given back exactly once, in `_release`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, get_args

from router.chunks import encode_chunk
from router.http import RequestHead, ResponseHead
from router.instances import Instance
from router.paths import Target
from router.policies import Reason
from router.replies import CLIENT_GONE, FAILURES, Failure, error_reply, not_placed
from router.request import Document, model_of, prefix_key, read_document
from router.routing import EndpointRouting
from router.upstream import Upstream

if TYPE_CHECKING:
    from router.client import Client

MAX_NAME = 100
TAIL_PIECES = 4  # the last events of a stream: usage, [DONE], the last chunk
END_OF_EVENTS = b"data: [DONE]"
REASON_LINES = {reason: f"\r\nx-warmpath-reason: {reason}".encode() for reason in get_args(Reason)}
# Nothing of an answer was seen after these, so another instance may be asked.
REPEATABLE = frozenset({"connect", "stale", "reset"})


class Exchange:
    """`is_whole`: all of the body is in `body`; else the client goes on with `upload` and `end_upload`."""

    status = 0  # of the answer, once it has begun
    attempts = 0
    endpoint: EndpointRouting | None = None
    reason = ""
    is_stream = False
    first_byte_s = 0.0
    only_piece = b""
    tail: deque[bytes] | None = None  # the last pieces of the answer, from its second on
    _key = b""
    _reason_line = b""
    _is_held = True  # every byte of the body that came, so that it can be sent again
    _is_over = False
    _stirred = False  # something moved since the last sweep
    _instance: Instance | None = None
    _upstream: Upstream | None = None
    _connecting: asyncio.Task[None] | None = None
    _tried: tuple[Instance, ...] = ()

    def __init__(
        self, client: Client, head: RequestHead, target: Target, body: list[bytes], body_bytes: int, *, is_whole: bool
    ) -> None:
        self.client = client
        self.proxy = client.proxy
        self.is_sent = is_whole  # nothing of the body is still to come
        self.wants_no_chunks = head.is_1_0
        self._head = head
        self.target = target
        self._body = body
        self.body_bytes = body_bytes
        self.started_s = self._since = monotonic()

    # The way up

    def start(self) -> None:
        """Place the request by the routing in force now, and keep that to the end."""
        proxy, route = self.proxy, self.target.route
        proxy.retry_budget.deposit()
        routing = proxy.live.current
        document: Document | None = None
        if route.endpoint:
            endpoint = routing.endpoints.get(route.endpoint)
        else:
            endpoint = routing.only
            if endpoint is None:
                document = self._document()
                endpoint = routing.by_model.get(model_of(document))
        if endpoint is None:
            self.fail(not_placed((route.endpoint or model_of(document))[:MAX_NAME]))
            return
        self.endpoint = endpoint
        if endpoint.prefix_length:
            self._key = prefix_key(
                document or self._document(),
                self._body[0] if self._body else b"",
                prefix_length=endpoint.prefix_length,
                hint=self._head.prefix_id.decode(),
                seed=routing.config.hash_seed,
            )
        self._attempt(endpoint, self.started_s)

    def _document(self) -> Document | None:
        if len(self._body) > 1:
            self._body = [b"".join(self._body)]
        return read_document(self._body[0], cut=not self.is_sent) if self._body else None

    def _attempt(self, endpoint: EndpointRouting, now: float) -> None:
        candidates = endpoint.eligible
        if self._tried or self.proxy.avoided:
            candidates = self._not_tried(candidates, now)
        if not candidates:
            self.fail(FAILURES["connect" if self._tried else "no_instance"])
            return
        instance, reason = endpoint.choose(self._key, candidates, self.proxy.rand())
        metrics = self.proxy.metrics
        metrics.decision[endpoint.strategy,].observe(monotonic() - now)
        metrics.choices[endpoint.name, endpoint.strategy, reason] += 1
        self.reason, self._reason_line = reason, REASON_LINES[reason]
        self.attempts += 1
        self._instance = instance
        instance.in_flight += 1
        upstream = instance.take_idle(now)
        if upstream is None:
            self._connecting = asyncio.get_running_loop().create_task(self._connect(instance))
        else:
            self._send(upstream)

    def _not_tried(self, eligible: tuple[Instance, ...], now: float) -> tuple[Instance, ...]:
        left = tuple(instance for instance in eligible if instance not in self._tried)
        return tuple(instance for instance in left if instance.avoid_until <= now) or left

    async def _connect(self, instance: Instance) -> None:
        try:
            async with asyncio.timeout(self.proxy.limits.connect_s):
                upstream = await self.proxy.connect(instance)
        except (OSError, ValueError):  # ValueError: not an address at all
            self.proxy.avoid(instance)
            if not self._is_over:
                self.lost("connect")
            return
        self._connecting = None
        if self._is_over:
            upstream.transport.close()
        else:
            self._send(upstream)

    def _send(self, upstream: Upstream) -> None:
        head, target = self._head, self.target
        self._upstream = upstream
        if self.is_sent or not head.chunked:
            length = self.body_bytes if self.is_sent else head.content_length
            framing = b"\r\ncontent-length: %d\r\n\r\n" % length
            body = self._body
        else:
            framing = b"\r\ntransfer-encoding: chunked\r\n\r\n"
            body = [encode_chunk(piece) for piece in self._body]
        parts = (target.route.path, target.query, upstream.instance.authority)
        first = b"POST %b%b HTTP/1.1\r\nhost: %b" % parts
        upstream.send(self, (first, head.fields, framing, *body))
        if not self.is_sent:
            self.client.resume_upload()

    def upload(self, piece: bytes) -> None:
        """More of a body that was placed by its beginning."""
        self._stirred = True
        self.body_bytes += len(piece)
        if self._upstream is None:
            self._body.append(piece)
        else:
            self._is_held = False
            self._upstream.transport.write(encode_chunk(piece) if self._head.chunked else piece)

    def end_upload(self) -> None:
        if self._upstream is not None and self._head.chunked:
            self._upstream.transport.write(b"0\r\n\r\n")
        self.is_sent = True

    # The way back

    def begin(self, head: ResponseHead, piece: bytes) -> None:
        """The answer's head, and what came of its body with it."""
        client, instance = self.client, self._instance
        framing = b""
        if head.status == 204:
            pass
        elif head.chunked and not self.wants_no_chunks:
            framing = b"\r\ntransfer-encoding: chunked"
        elif head.content_length >= 0:
            framing = b"\r\ncontent-length: %d" % head.content_length
        elif head.status != 304:
            client.keep_alive = False  # the end of the connection is the end of the body
        self.status = head.status
        self._body = []
        self.is_stream = head.chunked
        self._stirred = True
        lines = (
            b"HTTP/1.1" + head.line[8:],  # whatever version the engine speaks
            head.fields,
            framing,
            instance.label if instance else b"",
            self._reason_line,
            b"\r\n\r\n" if client.stays_open() else b"\r\nconnection: close\r\n\r\n",
            piece,
        )
        client.transport.write(b"".join(lines))
        if piece:
            self._note(piece)

    def pass_on(self, piece: bytes) -> None:
        """The same bytes, at once."""
        self.client.transport.write(piece)
        self._stirred = True
        self._note(piece)

    def _note(self, piece: bytes) -> None:
        """Keep the end of the answer, for its usage, and the time of its first byte."""
        tail = self.tail
        if tail is not None:
            tail.append(piece)
        elif self.first_byte_s:
            self.tail = deque((self.only_piece, piece), TAIL_PIECES)
        else:
            self.first_byte_s = monotonic()
            self.only_piece = piece

    def end(self, upstream: Upstream | None) -> None:
        """The answer is complete; `upstream` can serve again, unless it is None."""
        now = monotonic()
        if upstream is not None:
            upstream.instance.keep_idle(upstream, now)
        self._finish(self.status, now)
        self.client.exchange_over()

    # Other ends

    def lost(self, reason: str) -> None:
        """The attempt came to nothing, or its answer broke off."""
        self._upstream = None
        if self.status:
            self._finish(self.status, monotonic(), error=reason)
            self.client.cut_off()
            return
        instance = self._release()
        endpoint, proxy = self.endpoint, self.proxy
        can_repeat = reason in REPEATABLE and self._is_held and (self.is_sent or reason == "connect")
        if endpoint and can_repeat and self.attempts < proxy.limits.max_attempts and proxy.retry_budget.withdraw():
            proxy.metrics.retries[endpoint.name, reason] += 1
            # A kept connection that went stale says nothing against its instance.
            if instance and reason != "stale":
                self._tried += (instance,)
            self._attempt(endpoint, monotonic())
        else:
            self.fail(FAILURES[reason])

    def fail(self, failure: Failure) -> None:
        """There is no answer to be had from an engine: say so ourselves."""
        self._finish(failure.status, monotonic(), error=failure.code)
        self.client.answer(error_reply(self.target.route.api, failure))

    def abandon(self) -> None:
        """The client is gone: nobody waits for the engine's work."""
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.abandon()
        if self._connecting is not None:
            self._connecting.cancel()
        if self.tail and END_OF_EVENTS in self.tail[-1]:
            self._finish(self.status, monotonic())  # many leave at the last event, before the last chunk
        else:
            self._finish(CLIENT_GONE, monotonic(), error="client_gone")

    def sweep(self, now: float) -> None:
        limits = self.proxy.limits
        if self._stirred:
            self._stirred = False
            self._since = now
            return
        upstream = self._upstream
        limit_s = limits.stall_s if self.status or not self.is_sent else limits.first_byte_s
        if upstream is not None and now - self._since > limit_s:
            upstream.abandon()
            self.lost("stalled" if self.status else "first_byte_timeout")

    def pause(self) -> None:
        """The client reads slower than the engine writes."""
        if self._upstream is not None:
            self._upstream.pause()

    def resume(self) -> None:
        if self._upstream is not None:
            self._upstream.resume()

    def _release(self) -> Instance | None:
        instance, self._instance = self._instance, None
        if instance is not None:
            instance.in_flight -= 1
        return instance

    def _finish(self, status: int, now: float, *, error: str = "") -> None:
        """Give back the count and tell what happened, once."""
        instance = self._release()
        self._is_over = True
        self._upstream = None
        self.proxy.record(self, instance, status, now, error)
