"""The download itself: a few workers, each with one buffer and its own connections, hashing what it receives.

Memory is workers x 4 MiB whatever the model's size. A request that fails is taken up again at the byte where it
stopped, on another connection; nobody waits longer than STALL_S without a byte, unless the source asked us to wait.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tasks.plan.types import ModelFile
from tasks.prefetch.digest import CHUNK_BYTES, ChunkHasher, chunk_size, file_digest
from tasks.prefetch.errors import Hiccup, PrefetchError, disk_errors
from tasks.prefetch.files import BUFFER_BYTES, PartFile, new_buffer
from tasks.prefetch.http import SILENCE_S
from tasks.prefetch.journal import Journal
from tasks.prefetch.origins import Body, Origin, Session
from tasks.prefetch.progress import EVERY_S, Progress, log
from tasks.prefetch.schedule import CatchUp, Fetch, Finish, Part, Schedule

STALL_S = 60.0
# Asked to wait again and again, we give up after this long without a byte.
PATIENCE_S = 900.0
# Hashed while still in the processor's cache.
PIECE_BYTES = 512 << 10
FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 20.0
# A file whose bytes are wrong once is fetched again; twice, the source itself is damaged.
MOST_TRIES = 2

# Takes a verified file, of this digest, to where it belongs.
Keep = Callable[[Part, str], None]


@dataclass(slots=True)
class Throttle:
    """When a source asks to wait, all workers wait."""

    until: float = 0.0
    last: Hiccup | None = None

    def note(self, hiccup: Hiccup, failures: int) -> float:
        """How long this worker pauses: at least what was asked, with jitter so that many do not come back together."""
        self.last = hiccup
        longest_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(failures, 10))
        pause_s = longest_s * random.uniform(0.5, 1.0)  # noqa: S311
        if hiccup.retry_after_s is not None:
            self.until = max(self.until, time.monotonic() + hiccup.retry_after_s)
        return max(pause_s, self.until + pause_s - time.monotonic())


@dataclass(slots=True)
class Transfer:
    """Everything the workers of one download share."""

    origin: Origin
    parts: Sequence[Part]
    journal: Journal
    progress: Progress
    keep: Keep
    connections: int = 8
    schedule: Schedule = field(init=False)
    throttle: Throttle = field(default_factory=Throttle)
    _files: dict[int, PartFile] = field(default_factory=dict)
    _opening: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.schedule = Schedule(self.parts)

    def run(self) -> None:
        """Download until every part is kept; the first failure that another request cannot mend is raised."""
        workers = [threading.Thread(target=self._work, daemon=True) for _ in range(self.connections)]
        for worker in workers:
            worker.start()
        try:
            self._watch()
        finally:
            self.schedule.stopped.set()
        # A worker may wait for its socket as long as that may be silent; a hung mount must not hold us for ever.
        deadline = time.monotonic() + 1.5 * SILENCE_S
        for worker in workers:
            worker.join(max(0.0, deadline - time.monotonic()))
        for file in self._files.values():
            file.close()
        if self.schedule.failure:
            raise self.schedule.failure

    def _watch(self) -> None:
        told_at = 0.0
        while not self.schedule.wait(EVERY_S):
            now = time.monotonic()
            if now - told_at >= EVERY_S:
                told_at = now
                self.progress.tell()
            if stalled := self._stalled(now):
                self.schedule.fail(stalled)

    def _stalled(self, now: float) -> PrefetchError | None:
        if self.progress.flushing:
            return None
        still_s = now - max(self.progress.moved_at, min(self.throttle.until, self.progress.moved_at + PATIENCE_S))
        if still_s < STALL_S:
            return None
        last = self.throttle.last
        if last is None:
            return PrefetchError("Stalled", f"No byte came for {STALL_S:.0f} s.")
        return PrefetchError(last.reason, f"No byte came for {STALL_S:.0f} s: {last.message}.")

    def _work(self) -> None:
        try:
            worker = Worker(self, self.origin.session())
            try:
                worker.run()
            finally:
                worker.session.close()
        except Exception as error:  # noqa: BLE001 - raised again by run(), in the caller's thread
            self.schedule.fail(error)

    def file(self, part: Part) -> PartFile:
        with self._opening:
            if part.index not in self._files:
                self._files[part.index] = PartFile(part.path, part.file.size_bytes, log)
            return self._files[part.index]

    def close_file(self, part: Part) -> None:
        with self._opening:
            self._files.pop(part.index).close()


@dataclass(slots=True)
class Worker:
    """One thread: its connections and its buffer."""

    shared: Transfer
    session: Session
    buffer: memoryview = field(default_factory=new_buffer)

    def run(self) -> None:
        schedule = self.shared.schedule
        while work := schedule.take():
            with disk_errors():
                match work:
                    case Fetch():
                        self._fetch(work)
                        schedule.fetched(work)
                    case CatchUp():
                        self._catch_up(work)
                        schedule.caught_up(work)
                    case Finish():
                        self._finish(work)

    def _fetch(self, work: Fetch) -> None:
        """Receive chunks in a row, one request for all."""
        part = work.part
        end = min(part.file.size_bytes, (work.chunks[-1] + 1) * CHUNK_BYTES)
        reader = Reader(self.shared, self.session, part.file, work.chunks[0] * CHUNK_BYTES, end)
        try:
            for index in work.chunks:
                if not self._fetch_chunk(work, index, reader):
                    return
        finally:
            reader.close()

    def _fetch_chunk(self, work: Fetch, index: int, reader: Reader) -> bool:
        """Receive, hash and write one chunk: proven as soon as it is on the disk. False: the download was stopped."""
        part, shared = work.part, self.shared
        target, hasher = shared.file(part), ChunkHasher(with_crc=bool(part.file.crc64nvme))
        start, size_bytes = index * CHUNK_BYTES, chunk_size(part.file.size_bytes, index)
        for offset in range(0, size_bytes, BUFFER_BYTES):
            count = min(BUFFER_BYTES, size_bytes - offset)
            for at in range(0, count, PIECE_BYTES):
                piece = self.buffer[at : min(at + PIECE_BYTES, count)]
                if not reader.fill(piece):
                    return False
                hasher.update(piece)
                if work.feed and part.ordered:
                    part.ordered.hash.update(piece)
            target.write(self.buffer, count, start + offset)
        chunk = hasher.chunk()
        shared.journal.prove(part.index, index, chunk)
        shared.progress.prove(size_bytes)
        shared.schedule.proven(work, index, chunk)
        return True

    def _catch_up(self, work: CatchUp) -> None:
        part, target = work.part, self.shared.file(work.part)
        start, size_bytes = work.chunk * CHUNK_BYTES, chunk_size(work.part.file.size_bytes, work.chunk)
        for offset in range(0, size_bytes, BUFFER_BYTES):
            count = min(BUFFER_BYTES, size_bytes - offset)
            target.read(self.buffer, count, start + offset)
            if part.ordered:
                part.ordered.hash.update(self.buffer[:count])
        self.shared.progress.move()

    def _finish(self, work: Finish) -> None:
        """Hold the file against what the source says of it; once more from the start when it is not that."""
        part, shared = work.part, self.shared
        try:
            digest = file_digest(part.file, [part.chunks[index] for index in range(part.count)], part.ordered)
        except PrefetchError as error:
            shared.journal.reset(part.index)
            shared.progress.drop(part.file.size_bytes)
            if part.spoiled + 1 == MOST_TRIES:
                raise
            log(f"{error.message} Fetching it again.")
            shared.schedule.restart(work)
            return
        with shared.progress.flush_file():
            shared.file(part).finish()
            shared.close_file(part)
            shared.keep(part, digest)
        shared.schedule.finish(work)


@dataclass(slots=True)
class Reader:
    """The bytes at..end-1 of a file, over as many requests as it takes."""

    shared: Transfer
    session: Session
    file: ModelFile
    at: int
    end: int
    _body: Body | None = None
    _failures: int = 0

    def fill(self, view: memoryview) -> bool:
        """Fill `view` with the next bytes; False when the download was stopped."""
        while not self.shared.schedule.stopped.is_set():
            try:
                if self._body is None:
                    self._wait_my_turn()
                    self._body = self.session.open(self.file, self.at, self.end)
                self._body.read_into(view)
            except Hiccup as hiccup:
                self.close()
                log(f"{self.file.path} at byte {self.at}: {hiccup.message}; trying again")
                pause_s = self.shared.throttle.note(hiccup, self._failures)
                self._failures += 1
                self.shared.schedule.stopped.wait(pause_s)
            else:
                self.at += len(view)
                self._failures = 0
                self.shared.progress.receive(len(view))
                return True
        return False

    def close(self) -> None:
        if self._body is not None:
            self._body.close()
            self._body = None

    def _wait_my_turn(self) -> None:
        left_s = self.shared.throttle.until - time.monotonic()
        if left_s > 0:
            self.shared.schedule.stopped.wait(left_s + random.uniform(0.0, FIRST_PAUSE_S))  # noqa: S311
