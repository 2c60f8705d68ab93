"""Puts the parts together on one event loop, and takes them apart without losing a request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

from router.admin import answer_admin, answer_public
from router.client import Client
from router.proxy import Proxy
from router.reload import RoutingFile

BACKLOG = 4096


class Server:
    """The router: its listeners, its routing file, its sweep."""

    def __init__(self, proxy: Proxy, routing_file: Path) -> None:
        self.proxy = proxy
        self.routing_file = RoutingFile(proxy, routing_file)
        self.port = self.admin_port = 0
        self._listeners: list[asyncio.Server] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, host: str, port: int, admin_port: int | None = None) -> None:
        """Load the routing and listen; port 0 takes a free one. The admin side is only ever on loopback."""
        self.routing_file.poll()
        proxy = self.proxy
        self.port = await self._listen(lambda: Client(proxy, partial(answer_public, proxy)), host, port)
        if admin_port is not None:
            admin = partial(Client, proxy, partial(answer_admin, proxy), forwards=False)
            self.admin_port = await self._listen(admin, "127.0.0.1", admin_port)
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self.routing_file.follow()), loop.create_task(proxy.sweep_for_ever())]

    async def _listen(self, protocol: Callable[[], Client], host: str, port: int) -> int:
        loop = asyncio.get_running_loop()
        listener = await loop.create_server(protocol, host, port, backlog=BACKLOG)
        self._listeners.append(listener)
        return int(listener.sockets[0].getsockname()[1])

    async def stop(self, grace_s: float) -> int:
        """Stop listening, let what runs end for `grace_s`, then cut it off. Returns how many requests were cut."""
        for listener in self._listeners:
            listener.close()
        self.proxy.drain()
        deadline = asyncio.get_running_loop().time() + grace_s
        while self.proxy.clients and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110 - once, at the end
            await asyncio.sleep(0.02)
        left = list(self.proxy.clients)
        for client in left:
            client.transport.abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for instance in self.proxy.live.instances.current:
            instance.close_idle()
        self.proxy.access_log.flush()
        await asyncio.sleep(0)
        return len(left)
