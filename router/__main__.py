"""`python -m router --config FILE`: the router as a process."""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import logging
import signal
from collections.abc import Sequence
from pathlib import Path

import uvloop

from router.access import AccessLog
from router.proxy import Proxy
from router.routing import LiveRouting
from router.server import Server

log = logging.getLogger("router")


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m router", description="Routes LLM requests to warm instances.")
    parser.add_argument("--config", type=Path, required=True, help="routing file (JSON), followed while it changes")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8080, help="port to listen on, 0 for a free one")
    parser.add_argument("--admin-port", type=int, help="port of the admin side, on loopback (default: none)")
    parser.add_argument("--log-json", type=Path, metavar="FILE", help="access log, one JSON object a request")
    parser.add_argument("--grace-s", type=float, default=30.0, help="how long requests may go on after SIGTERM")
    return parser.parse_args(arguments)


# mallopt parameters of glibc.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 64 * 1024 * 1024


def keep_freed_memory() -> None:
    """Bodies come and go all the time: giving their memory back after each costs more than passing them on does."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(M_MMAP_THRESHOLD, KEPT_BYTES // 2)


def calm_the_collector() -> None:
    """What was made until now lives for ever, and the hot path makes no cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


async def serve(arguments: argparse.Namespace) -> None:
    proxy = Proxy(LiveRouting(), access_log=AccessLog(arguments.log_json))
    server = Server(proxy, arguments.config)
    await server.start(arguments.host, arguments.port, arguments.admin_port)
    log.info("listening on http://%s:%d", arguments.host, server.port)
    if arguments.admin_port is not None:
        log.info("admin on http://127.0.0.1:%d", server.admin_port)
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    loop.add_signal_handler(signal.SIGHUP, server.routing_file.load)
    calm_the_collector()
    await stopping.wait()
    log.info("stopping: %d connections open", len(proxy.clients))
    cut = await server.stop(arguments.grace_s)
    log.info("stopped; %d connections cut off", cut)


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    keep_freed_memory()
    uvloop.run(serve(parse_arguments()))


if __name__ == "__main__":
    main()
