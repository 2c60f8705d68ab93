"""Keeps the routing in step with its file: read when it changes, then swapped in whole, or refused with reasons."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from pydantic import ValidationError

from router.proxy import Proxy

POLL_S = 0.1

log = logging.getLogger(__name__)

# What tells one state of the file from another: it is replaced by a rename, so the inode changes too.
Stamp = tuple[int, int, int]


class RoutingFile:
    def __init__(self, proxy: Proxy, path: Path) -> None:
        self.proxy = proxy
        self.path = path
        self._seen: Stamp | None = None
        self._is_missing = False

    def stamp(self) -> Stamp | None:
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    def poll(self) -> None:
        """Load the file if it changed."""
        stamp = self.stamp()
        if stamp is None and not self._is_missing:
            log.warning("%s is not there: the routing stays as it is until it comes", self.path)
        self._is_missing = stamp is None
        if stamp is not None and stamp != self._seen:
            self._seen = stamp
            self.load()

    def load(self) -> bool:
        """Load the file now. A bad one changes nothing, is logged field by field, and counted."""
        try:
            raw = self.path.read_bytes()
            self.proxy.replace_routing(raw)
        except (OSError, ValidationError) as error:
            self.proxy.metrics.reloads["rejected",] += 1
            log.error("%s is refused, the routing stays as it is: %s", self.path, explain(error))  # noqa: TRY400
            return False
        self.proxy.metrics.reloads["loaded",] += 1
        endpoints = self.proxy.live.current.endpoints.values()
        told = ", ".join(f"{one.name} {one.strategy} over {len(one.eligible)}" for one in endpoints)
        log.info("routing loaded from %s: %s", self.path, told or "no endpoints")
        return True

    async def follow(self) -> None:
        while True:
            self.poll()
            await asyncio.sleep(POLL_S)


def explain(error: OSError | ValidationError) -> str:
    """One line: each field by its path, and what is wrong with it."""
    if isinstance(error, OSError):
        return f"it cannot be read ({error.strerror})"
    found = error.errors(include_url=False, include_input=False, include_context=False)
    return "; ".join(f"{'.'.join(map(str, one['loc'])) or 'the file'}: {one['msg']}" for one in found)
