"""Ranged GETs on pooled keep-alive sockets, received straight into the caller's buffers.

An HTTP library copies each byte several times more than this, and CPU time is what bounds a fast download.
"""

from __future__ import annotations

import os
import random
import socket
import ssl
import struct
import time
from dataclasses import dataclass, field
from functools import cache
from urllib.parse import SplitResult, unquote, urlsplit

from tasks.prefetch.errors import Hiccup

CONNECT_TIMEOUT_S = 10.0
# A connection that brings less than this in this time is given up for another.
SILENCE_S = 15.0
LEAST_BYTES = 16 << 10
HEAD_BYTES = 64 << 10
ERROR_BODY_BYTES = 4 << 10

Headers = dict[str, str]


@dataclass(slots=True)
class Response:
    """Status and headers (lower-case names); the body is read from it. The connection goes back when all is read."""

    status: int
    headers: Headers
    _connection: Connection
    _early: memoryview  # body bytes that came with the head
    _left: int  # bytes of the body not yet given out

    @property
    def length(self) -> int:
        return self._left

    def read_into(self, view: memoryview) -> None:
        """Fill `view`, which must not be longer than what is left of the body."""
        early = min(len(view), len(self._early))
        view[:early] = self._early[:early]
        self._early = self._early[early:]
        self._connection.receive_into(view[early:])
        self._left -= len(view)
        if self._left == 0:
            self._connection.idle = True

    def text(self) -> str:
        """The beginning of a short body, such as that of an error."""
        body = bytearray(min(self._left, ERROR_BODY_BYTES))
        self.read_into(memoryview(body))
        return body.decode(errors="replace")

    def close(self) -> None:
        if self._left:
            self._connection.close()


@dataclass(slots=True)
class Connection:
    """One keep-alive connection. idle: a request may be sent."""

    where: str
    via_proxy: bool
    sock: socket.socket
    idle: bool = True
    used: bool = False
    closed: bool = False

    def send(self, target: str, headers: Headers) -> Response:
        self.idle = False
        lines = [f"GET {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        self.sock.sendall(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
        early = memoryview(b"")
        while True:
            head, early = self._head(early)
            status, found = _parse(head, self.where)
            if status >= 200:
                break
        if "chunked" in found.get("transfer-encoding", "").lower():
            early = memoryview(self._dechunk(bytearray(early)))
            found["content-length"] = str(len(early))
        elif "content-length" not in found:
            found["connection"] = "close"
        length = int(found.get("content-length", "0"))
        if "close" in found.get("connection", "").lower():
            self.closed = True
        self.used = True
        self.idle = length == 0
        return Response(status, found, self, early[:length], length)

    def receive_into(self, view: memoryview) -> None:
        """Fill `view`; Hiccup when the connection ends or falls silent before."""
        done, since, mark = 0, time.monotonic(), 0
        while done < len(view):
            got = self._receive(view[done:])
            done += got
            now = time.monotonic()
            if now - since > SILENCE_S:
                if done - mark < LEAST_BYTES:
                    raise Hiccup("Stalled", f"{self.where} sent {done - mark} bytes in {now - since:.0f} s")
                since, mark = now, done

    def close(self) -> None:
        self.closed = True
        self.sock.close()

    def _receive(self, view: memoryview) -> int:
        try:
            # A plain socket blocks, with SO_RCVTIMEO as its bound, so that one call fills the buffer.
            flags = 0 if isinstance(self.sock, ssl.SSLSocket) else socket.MSG_WAITALL
            got = self.sock.recv_into(view, len(view), flags)
        except (BlockingIOError, TimeoutError) as error:
            raise Hiccup("Stalled", f"{self.where} sent nothing for {SILENCE_S:.0f} s") from error
        except OSError as error:
            raise Hiccup("Network", f"{self.where}: {error.strerror or type(error).__name__}") from error
        if got == 0:
            raise Hiccup("Network", f"{self.where} closed the connection in the middle of an answer")
        return got

    def _head(self, early: memoryview) -> tuple[bytes, memoryview]:
        """(head of an answer, what came behind it). early: what came already."""
        head = bytearray(early)
        while (end := head.find(b"\r\n\r\n")) < 0:
            if len(head) > HEAD_BYTES:
                raise Hiccup("Network", f"{self.where} answered with a head of more than {HEAD_BYTES} bytes")
            head += self._some()
        return bytes(head[:end]), memoryview(head)[end + 4 :]

    def _some(self) -> bytes:
        try:
            got = self.sock.recv(16 << 10)
        except (BlockingIOError, TimeoutError) as error:
            raise Hiccup("Stalled", f"{self.where} did not answer within {SILENCE_S:.0f} s") from error
        except OSError as error:
            raise Hiccup("Network", f"{self.where}: {error.strerror or type(error).__name__}") from error
        if not got:
            raise Hiccup("Network", f"{self.where} closed the connection instead of answering")
        return got

    def _dechunk(self, raw: bytearray) -> bytearray:
        """A chunked body, read whole: only small answers come like this."""
        body = bytearray()
        while True:
            while (end := raw.find(b"\r\n")) < 0:
                raw += self._some()
            size = int(raw[:end].split(b";")[0], 16)
            while len(raw) < end + 2 + size + 2:
                raw += self._some()
            body += raw[end + 2 : end + 2 + size]
            del raw[: end + 2 + size + 2]
            if size == 0:
                return body
            if len(body) > 64 << 20:
                raise Hiccup("Network", f"{self.where} sends a large body without saying its length")


@dataclass(slots=True)
class Connections:
    """The connections of one worker, one per server; not shared between threads."""

    _open: dict[tuple[str, str], Connection] = field(default_factory=dict)

    def get(self, url: str, headers: Headers) -> Response:
        """Ask for `url`. A server may close an idle connection at any time: then it is asked once more on a new one."""
        parts = urlsplit(url)
        target = f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
        headers = {"Host": parts.netloc.rpartition("@")[2], "Accept-Encoding": "identity", **headers}
        while True:
            connection = self._connection(parts)
            reused = connection.used
            try:
                return connection.send(url if connection.via_proxy else target, headers)
            except (Hiccup, OSError) as error:
                connection.close()
                if reused and not (isinstance(error, Hiccup) and error.reason == "Stalled"):
                    continue
                if isinstance(error, Hiccup):
                    raise
                raise Hiccup("Network", f"{connection.where}: {error.strerror or error}") from error

    def close(self) -> None:
        for connection in self._open.values():
            connection.close()

    def _connection(self, parts: SplitResult) -> Connection:
        key = (parts.scheme, parts.netloc)
        found = self._open.get(key)
        if found and found.idle and not found.closed:
            return found
        if found:
            found.close()
        self._open[key] = _connect(parts)
        return self._open[key]


def _connect(parts: SplitResult) -> Connection:
    host, secure = parts.hostname or "", parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    proxy = _proxy(parts.scheme, host)
    try:
        sock = _dial(proxy.hostname or "", proxy.port or 3128) if proxy else _dial(host, port)
        if secure:
            if proxy:
                _tunnel(sock, proxy, host, port)
            sock = _tls().wrap_socket(sock, server_hostname=host)
        else:
            # struct timeval; a blocking socket with a bound, which settimeout() does not give.
            sock.setblocking(True)
            bound = struct.pack("ll", int(SILENCE_S), int(SILENCE_S % 1 * 1e6))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, bound)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, bound)
    except ssl.SSLCertVerificationError as error:
        raise Hiccup("Network", f"{host}: its certificate is refused: {error.verify_message}") from error
    except OSError as error:
        raise Hiccup("Network", f"{host}: no connection to port {port}: {error.strerror or error}") from error
    return Connection(host, via_proxy=bool(proxy) and not secure, sock=sock)


def _dial(host: str, port: int) -> socket.socket:
    """Connect to one of the host's addresses, any: large stores answer with several to spread the load."""
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    random.shuffle(addresses)
    failed: OSError = OSError("it has no address")
    for family, kind, protocol, _, address in addresses:
        sock = socket.socket(family, kind, protocol)
        sock.settimeout(CONNECT_TIMEOUT_S)
        try:
            sock.connect(address)
        except OSError as error:
            sock.close()
            failed = error
        else:
            sock.settimeout(SILENCE_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return sock
    raise failed


@cache
def _tls() -> ssl.SSLContext:
    own = os.environ.get("AWS_CA_BUNDLE") or os.environ.get("REQUESTS_CA_BUNDLE")
    context = ssl.create_default_context()
    if own:
        context.load_verify_locations(own)
    return context


@cache
def _proxy(scheme: str, host: str) -> SplitResult | None:
    from urllib.request import getproxies, proxy_bypass

    proxy = getproxies().get(scheme)
    if not proxy or proxy_bypass(host):
        return None
    return urlsplit(proxy if "://" in proxy else f"http://{proxy}")


def _tunnel(sock: socket.socket, proxy: SplitResult, host: str, port: int) -> None:
    headers: Headers = {"Host": f"{host}:{port}"}
    if proxy.username:
        import base64

        user = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
        headers["Proxy-Authorization"] = f"Basic {base64.b64encode(user.encode()).decode()}"
    lines = [f"CONNECT {host}:{port} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    sock.sendall(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
    answer = bytearray()
    while b"\r\n\r\n" not in answer:
        got = sock.recv(4096)
        if not got:
            raise OSError("the proxy closed the connection")
        answer += got
    if b" 200" not in answer[:16]:
        raise OSError(f"the proxy refuses: {answer[:64].splitlines()[0].decode(errors='replace')}")


def _parse(head: bytes, where: str) -> tuple[int, Headers]:
    first, *lines = head.decode("latin-1").split("\r\n")
    try:
        status = int(first.split(" ", 2)[1])
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    except (IndexError, ValueError) as error:
        raise Hiccup("Network", f"{where} does not speak HTTP") from error
    return status, headers
