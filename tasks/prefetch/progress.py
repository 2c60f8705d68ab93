"""What is told while a command runs: JSON lines on standard output, one object each."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

EVERY_S = 0.5
# Rates are of the last few seconds: an average since the start hides a stall.
WINDOW_S = 5.0


def say(event: str, **fields: object) -> None:
    """One line; a reader that went away must not stop a download."""
    line = json.dumps({"event": event, **fields}, separators=(",", ":"))
    try:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        sys.stdout = open("/dev/null", "w")  # noqa: PTH123, SIM115 - for the rest of this process


def log(message: str) -> None:
    say("log", message=message)


@dataclass(slots=True)
class Progress:
    """Counters of one command.

    done_bytes: on the disk and hashed. fetched_bytes: received, also what had to be thrown away. flushing: files on
    their way from the kernel to the disk, which may take long and shows no bytes.
    """

    total_bytes: int
    files: int
    reused_bytes: int = 0
    fetched_bytes: int = 0
    done_bytes: int = 0
    files_done: int = 0
    flushing: int = 0
    moved_at: float = field(default_factory=time.monotonic)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _marks: list[tuple[float, int]] = field(default_factory=list)

    def reuse(self, count: int, *, files: int = 0) -> None:
        with self._lock:
            self.reused_bytes += count
            self.done_bytes += count
            self.files_done += files

    def receive(self, count: int) -> None:
        with self._lock:
            self.fetched_bytes += count
            self.moved_at = time.monotonic()

    def prove(self, count: int) -> None:
        with self._lock:
            self.done_bytes += count

    def drop(self, count: int) -> None:
        """Bytes that were counted as done, and are not what the source says."""
        with self._lock:
            self.done_bytes -= count

    def move(self) -> None:
        """A sign of life that brings no bytes, such as hashing."""
        self.moved_at = time.monotonic()

    @contextmanager
    def flush_file(self) -> Iterator[None]:
        """Around the last steps of a file."""
        with self._lock:
            self.flushing += 1
        try:
            yield
            with self._lock:
                self.files_done += 1
        finally:
            with self._lock:
                self.flushing -= 1
                self.moved_at = time.monotonic()

    def tell(self) -> None:
        now = time.monotonic()
        self._marks = [mark for mark in self._marks if now - mark[0] <= WINDOW_S] + [(now, self.fetched_bytes)]
        since, before = self._marks[0]
        rate = (self.fetched_bytes - before) / (now - since) if now > since else 0.0
        left = self.total_bytes - self.done_bytes
        say(
            "progress",
            done_bytes=self.done_bytes,
            total_bytes=self.total_bytes,
            fetched_bytes=self.fetched_bytes,
            reused_bytes=self.reused_bytes,
            bytes_per_s=round(rate),
            eta_s=round(left / rate, 1) if rate else None,
            files_done=self.files_done,
            files=self.files,
        )
