"""The access log: one JSON object a line and request, written in batches off the hot path. No prompts, no keys."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import NamedTuple

import orjson

MAX_WAITING = 100_000

log = logging.getLogger(__name__)


class Entry(NamedTuple):
    """A request that has ended. time_s: when it was whole, monotonic; ttft_s: 0 without a stream."""

    time_s: float
    endpoint: str
    instance: str
    reason: str
    path: bytes
    status: int
    received_bytes: int
    attempts: int
    duration_s: float
    ttft_s: float
    error: str


class AccessLog:
    """Without a path nothing is kept."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._waiting: list[Entry] = []
        self._dropped = 0

    def add(self, entry: Entry) -> None:
        if self.path is None:
            return
        if len(self._waiting) < MAX_WAITING:
            self._waiting.append(entry)
        else:
            self._dropped += 1

    def flush(self) -> None:
        if self.path is None or not self._waiting:
            return
        # Entries carry monotonic times; the wall clock is read once a batch.
        offset_s = time.time() - time.monotonic()
        lines = []
        for entry in self._waiting:
            record = entry._asdict() | {
                "time_s": round(entry.time_s + offset_s, 6),
                "path": entry.path.decode("latin-1"),
                "duration_s": round(entry.duration_s, 6),
                "ttft_s": round(entry.ttft_s, 6),
            }
            lines.append(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))
        self._waiting.clear()
        try:
            with self.path.open("ab") as file:
                file.write(b"".join(lines))
        except OSError as error:
            log.warning("access log %s cannot be written (%s): %d entries lost", self.path, error, len(lines))
        if self._dropped:
            log.warning("access log %s fell behind: %d entries lost", self.path, self._dropped)
            self._dropped = 0
