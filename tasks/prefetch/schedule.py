"""Who does what next in a download. Shared by the workers; every decision is made under one lock.

In this order: finish files whose bytes are all here; let a file's own hash, which must see the bytes in order, catch up
with what is here already; fetch the chunk such a hash needs next, and feed it on the way; fetch any other chunk.
So files with a sha256 stream side by side, each hashed as it comes, and read back only where workers share one file.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tasks.plan.types import ModelFile
from tasks.prefetch.digest import Chunk, OrderedHash, chunk_count, ordered_hash

RANGE_CHUNKS = 2


@dataclass(eq=False, slots=True)
class Part:
    """One file on its way. index: its place in the manifest.

    chunks: proven ones. taken: being fetched. hashed: how many chunks `ordered` has seen. busy: a worker feeds
    `ordered`, or finishes the file. cursor: below it nothing is missing.
    """

    index: int
    file: ModelFile
    path: Path
    chunks: dict[int, Chunk] = field(default_factory=dict)
    ordered: OrderedHash | None = None
    taken: set[int] = field(default_factory=set)
    hashed: int = 0
    busy: bool = False
    spoiled: int = 0
    cursor: int = 0

    def __post_init__(self) -> None:
        self.ordered = ordered_hash(self.file)

    @property
    def count(self) -> int:
        return chunk_count(self.file.size_bytes)

    @property
    def complete(self) -> bool:
        return len(self.chunks) == self.count and (self.ordered is None or self.hashed == self.count)

    def take_missing(self) -> tuple[int, ...]:
        """Take the next few chunks in a row that nobody has or fetches; () when there are none."""
        while self.cursor < self.count and not self._is_missing(self.cursor):
            self.cursor += 1
        row: list[int] = []
        while len(row) < RANGE_CHUNKS and self._is_missing(self.cursor):
            row.append(self.cursor)
            self.cursor += 1
        self.taken.update(row)
        return tuple(row)

    def give_back(self, row: tuple[int, ...]) -> None:
        """Whatever of `row` is not proven is missing again."""
        self.taken.difference_update(row)
        self.cursor = min((self.cursor, *(index for index in row if index not in self.chunks)))

    def restart(self) -> None:
        """Forget everything: what came was not what the source says."""
        self.chunks.clear()
        self.hashed = self.cursor = 0
        self.ordered = ordered_hash(self.file)
        self.spoiled += 1

    def _is_missing(self, index: int) -> bool:
        return index < self.count and index not in self.chunks and index not in self.taken


@dataclass(frozen=True, slots=True)
class Fetch:
    """Fetch these chunks, one request. feed: the file's ordered hash is this worker's, and sees them."""

    part: Part
    chunks: tuple[int, ...]
    feed: bool


@dataclass(frozen=True, slots=True)
class CatchUp:
    """Read one chunk back for the file's ordered hash."""

    part: Part
    chunk: int


@dataclass(frozen=True, slots=True)
class Finish:
    part: Part


Work = Fetch | CatchUp | Finish


class Schedule:
    """Hands out work until every part is finished, somebody fails, or it is stopped."""

    def __init__(self, parts: Sequence[Part]) -> None:
        # The largest first: the end of a download should not wait for one late large file.
        self._parts = sorted(parts, key=lambda part: -part.file.size_bytes)
        self._changed = threading.Condition()
        self.failure: Exception | None = None
        self.stopped = threading.Event()

    def wait(self, timeout_s: float) -> bool:
        """Whether it is over: everything finished, or stopped. Looks again whenever something changes."""
        with self._changed:
            if self._parts and not self.stopped.is_set():
                self._changed.wait(timeout_s)
            return not self._parts or self.stopped.is_set()

    def take(self) -> Work | None:
        """The next piece of work; None when there will be no more. Blocks while others may still make some."""
        with self._changed:
            while self._parts and not self.stopped.is_set():
                work = self._choose()
                if work:
                    return work
                self._changed.wait()
            return None

    def proven(self, work: Fetch, index: int, chunk: Chunk) -> None:
        with self._changed:
            part = work.part
            part.chunks[index] = chunk
            part.taken.discard(index)
            if work.feed:
                part.hashed += 1
            self._changed.notify_all()

    def caught_up(self, work: CatchUp) -> None:
        with self._changed:
            work.part.hashed += 1
            work.part.busy = False
            self._changed.notify_all()

    def fetched(self, work: Fetch) -> None:
        with self._changed:
            work.part.give_back(work.chunks)
            if work.feed:
                work.part.busy = False
            self._changed.notify_all()

    def finish(self, work: Finish) -> None:
        with self._changed:
            self._parts.remove(work.part)
            self._changed.notify_all()

    def restart(self, work: Finish) -> None:
        with self._changed:
            work.part.restart()
            work.part.busy = False
            self._changed.notify_all()

    def fail(self, failure: Exception) -> None:
        """Stop everybody. The first failure counts; the others follow from it."""
        with self._changed:
            if self.failure is None:
                self.failure = failure
            self.stopped.set()
            self._changed.notify_all()

    def _choose(self) -> Work | None:
        free = [part for part in self._parts if not part.busy]
        for part in free:
            if part.complete:
                part.busy = True
                return Finish(part)
        unhashed = [part for part in free if part.ordered and part.hashed < part.count]
        for part in unhashed:
            if part.hashed in part.chunks:
                part.busy = True
                return CatchUp(part, part.hashed)
        for part in unhashed:
            if part.hashed not in part.taken:
                part.busy = True
                return Fetch(part, part.take_missing(), feed=True)
        for part in self._parts:
            if row := part.take_missing():
                return Fetch(part, row, feed=False)
        return None
