"""Files being downloaded: preallocated, written past the page cache where the file system allows it.

The page cache stays free for engines, and a write costs a third of the CPU time.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable
from pathlib import Path

ALIGNMENT = 4096
BUFFER_BYTES = 4 << 20
REFUSED = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP})


def new_buffer() -> memoryview:
    """A page-aligned buffer, as direct writes need."""
    return memoryview(mmap.mmap(-1, BUFFER_BYTES))


class PartFile:
    """One file of `size_bytes` under construction. Several threads may write different parts of it at once."""

    def __init__(self, path: Path, size_bytes: int, log: Callable[[str], None]) -> None:
        self.path = path
        self.size_bytes = size_bytes
        self._log = log
        self._direct = True
        try:
            self._fd = self._open(os.O_DIRECT)
        except PermissionError:
            # Finished by a program that was killed before it could say so.
            path.chmod(0o644)
            self._fd = self._open(os.O_DIRECT)

    def write(self, buffer: memoryview, count: int, offset: int) -> None:
        """Write the first `count` bytes of `buffer`. offset: a multiple of the alignment."""
        if self._direct:
            # The last block is written whole; `finish` cuts the file to its size.
            padded = -(-count // ALIGNMENT) * ALIGNMENT
            try:
                self._write(buffer[:padded], offset)
            except OSError as error:
                if error.errno not in REFUSED:
                    raise
                self._buffered()
            else:
                return
        self._write(buffer[:count], offset)

    def read(self, buffer: memoryview, count: int, offset: int) -> None:
        """Read back `count` bytes that were written."""
        if self._direct:
            padded = -(-count // ALIGNMENT) * ALIGNMENT
            try:
                got = os.preadv(self._fd, [buffer[:padded]], offset)
            except OSError as error:
                if error.errno not in REFUSED:
                    raise
                self._buffered()
            else:
                if got < count:
                    raise OSError(errno.EIO, f"read {got} bytes at {offset}, expected {count}", os.fspath(self.path))
                return
        done = 0
        while done < count:
            got = os.preadv(self._fd, [buffer[done:count]], offset + done)
            if got == 0:
                raise OSError(errno.EIO, f"ends at {offset + done}, expected more", os.fspath(self.path))
            done += got

    def finish(self) -> None:
        """Cut to size, on the disk for good, never written again."""
        if os.fstat(self._fd).st_size != self.size_bytes:  # else its time would change, and mean that it was touched
            os.ftruncate(self._fd, self.size_bytes)
        os.fchmod(self._fd, 0o444)
        os.fsync(self._fd)
        self.close()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write(self, data: memoryview, offset: int) -> None:
        while data:
            wrote = os.pwrite(self._fd, data, offset)
            data, offset = data[wrote:], offset + wrote

    def _open(self, direct: int) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            return os.open(self.path, flags | direct, 0o644)
        except OSError as error:
            if not direct or error.errno not in REFUSED:
                raise
        self._log(f"{self.path.parent}: this file system takes no direct writes; writing through the page cache")
        self._direct = False
        return os.open(self.path, flags, 0o644)

    def _buffered(self) -> None:
        """Go on through the page cache, on the same descriptor: other threads are using it."""
        if self._direct:
            self._log(f"{self.path.parent}: a direct write was refused; writing through the page cache")
            self._direct = False
            import fcntl

            flags = fcntl.fcntl(self._fd, fcntl.F_GETFL)
            fcntl.fcntl(self._fd, fcntl.F_SETFL, flags & ~os.O_DIRECT)


def preallocate(path: Path, size_bytes: int) -> None:
    """Take the room now: a full disk shows before the download."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        if size_bytes and os.fstat(fd).st_size < size_bytes:
            os.posix_fallocate(fd, 0, size_bytes)
    finally:
        os.close(fd)
