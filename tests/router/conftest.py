"""A router on the test's own loop, engines that do as they are told, and a client that sends what it is given."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import settings

from router.proxy import Limits, Proxy
from router.routing import LiveRouting
from router.server import Server

WAIT_S = 30.0

# Other work shares the machine; what counts is what happens, not how long it takes.
settings.register_profile("router", deadline=None)
settings.load_profile("router")


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, Callable[[], Any]]:
    """The router runs on uvloop; what differs from the standard loop must not hide in tests."""
    return {"uvloop": uvloop.new_event_loop}


@dataclass
class Request:
    head: bytes
    body: bytes
    connection: int

    @property
    def path(self) -> str:
        return self.head.split(b" ")[1].decode()

    @property
    def fields(self) -> dict[str, str]:
        lines = self.head.decode("latin-1").split("\r\n")[1:]
        return {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}


Behaviour = Callable[["FakeEngine", Request, asyncio.StreamWriter], Awaitable[None]]


async def answer_json(engine: FakeEngine, request: Request, writer: asyncio.StreamWriter) -> None:
    body = json.dumps({"engine": engine.name, "path": request.path, "got": len(request.body)}).encode()
    writer.write(
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    )


@dataclass
class FakeEngine:
    """An HTTP server whose answer to each request is `behaviour`; it remembers what it was asked."""

    name: str
    behaviour: Behaviour = answer_json
    at_head: Behaviour | None = None
    """Instead of reading a body: what to do once its head is there; then the connection ends."""
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    open_connections: int = 0
    port: int = 0
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    server: asyncio.Server | None = None
    writers: set[asyncio.StreamWriter] = field(default_factory=set)

    async def start(self) -> None:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self.server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self.server:
            self.server.close()
            self.server = None
        for writer in list(self.writers):
            writer.transport.abort()
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open_connections += 1
        self.writers.add(writer)
        number = self.connections
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                request = Request(head, b"", number)
                self.requests.append(request)
                if self.at_head:
                    await self.at_head(self, request, writer)
                    break
                request.body = await read_body(reader, request.fields)
                self.arrived.set()
                await self.behaviour(self, request, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            self.open_connections -= 1
            self.writers.discard(writer)
            self.left.set()
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def config(self, **more: Any) -> dict[str, Any]:
        return {"uid": f"uid-{self.name}", "name": self.name, "host": "127.0.0.1", "port": self.port} | more


async def read_body(reader: asyncio.StreamReader, fields: dict[str, str]) -> bytes:
    if fields.get("transfer-encoding") == "chunked":
        pieces = []
        while size := int(await reader.readline(), 16):
            pieces.append(await reader.readexactly(size))
            await reader.readexactly(2)
        await reader.readexactly(2)
        return b"".join(pieces)
    return await reader.readexactly(int(fields.get("content-length", 0)))


@dataclass
class Response:
    status: int
    fields: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class RawClient:
    """One connection on which a test decides about every byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def head(self) -> Response:
        raw = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), WAIT_S)
        line, *lines = raw.decode("latin-1").split("\r\n")
        fields = {name.lower(): value.strip() for name, _, value in (one.partition(":") for one in lines if one)}
        return Response(int(line.split()[1]), fields, b"")

    async def response(self) -> Response:
        response = await self.head()
        if "content-length" in response.fields or "transfer-encoding" in response.fields:
            response.body = await asyncio.wait_for(read_body(self.reader, response.fields), WAIT_S)
        else:
            response.body = await asyncio.wait_for(self.reader.read(), WAIT_S)
        return response

    async def read(self, size: int) -> bytes:
        return await asyncio.wait_for(self.reader.readexactly(size), WAIT_S)

    async def rest(self) -> bytes:
        """All until the router closes the connection."""
        return await asyncio.wait_for(self.reader.read(), WAIT_S)

    async def is_closed(self) -> bool:
        with contextlib.suppress(ConnectionResetError):
            return await self.rest() == b""
        return True

    def reset(self) -> None:
        """Close with RST at once, whatever is still to be sent."""
        linger_0_s = struct.pack("ii", 1, 0)
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger_0_s)
        self.writer.transport.abort()

    def abort(self) -> None:
        self.writer.transport.abort()


class Rig:
    """A running router with its engines."""

    def __init__(self, server: Server, file: Path) -> None:
        self.server, self.file = server, file
        self.proxy = server.proxy
        self.engines: list[FakeEngine] = []
        self._clients: list[RawClient] = []

    async def engine(self, name: str, behaviour: Behaviour = answer_json) -> FakeEngine:
        engine = FakeEngine(name, behaviour)
        await engine.start()
        self.engines.append(engine)
        return engine

    def route(self, *engines: FakeEngine, strategy: str = "RANDOM", name: str = "m", **settings: Any) -> None:
        """Put one endpoint over `engines` into force."""
        routing = {"strategy": strategy, **settings}
        instances = [engine.config() for engine in engines]
        self.configure({"endpoints": [{"name": name, "routing": routing, "instances": instances}]})

    def configure(self, config: dict[str, Any]) -> None:
        self.proxy.replace_routing(json.dumps(config).encode())

    async def client(self, *, admin: bool = False) -> RawClient:
        port = self.server.admin_port if admin else self.server.port
        client = RawClient(*await asyncio.open_connection("127.0.0.1", port))
        self._clients.append(client)
        return client

    async def ask(self, request: bytes) -> Response:
        return await self.exchange(await self.client(), request)

    async def exchange(self, client: RawClient, request: bytes) -> Response:
        client.send(request)
        return await client.response()

    @staticmethod
    def post(body: bytes | dict[str, Any], path: str = "/v1/chat/completions", fields: str = "") -> bytes:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return f"POST {path} HTTP/1.1\r\nHost: router\r\n{fields}Content-Length: {len(raw)}\r\n\r\n".encode() + raw

    @staticmethod
    def chat(text: str = "hello", model: str = "m", **more: Any) -> dict[str, Any]:
        return {"model": model, "messages": [{"role": "user", "content": text}]} | more

    def in_flight(self) -> dict[str, int]:
        return {instance.name: instance.in_flight for instance in self.proxy.live.instances.current}

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not condition():  # noqa: ASYNC110 - any condition
                await asyncio.sleep(0.002)

    async def settled(self) -> None:
        """Until no instance is held by a request."""
        await self.until(lambda: not any(self.in_flight().values()))

    async def close(self) -> None:
        await self.server.stop(0)
        for engine in self.engines:
            await engine.stop()
        for client in self._clients:
            client.abort()
        await asyncio.sleep(0.01)


@pytest.fixture
def limits() -> Limits:
    """Overridden by tests that wait for a limit."""
    return Limits(sweep_s=0.02)


@pytest.fixture
async def rig(tmp_path: Path, limits: Limits) -> AsyncIterator[Rig]:
    file = tmp_path / "routing.json"
    file.write_text('{"endpoints": []}')
    server = Server(Proxy(LiveRouting(), limits=limits), file)
    await server.start("127.0.0.1", 0, 0)
    rig = Rig(server, file)
    yield rig
    await rig.close()
