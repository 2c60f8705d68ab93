"""What can go wrong on a node, each with a fixed reason.

PrefetchError     ends the command; `terminal` says that another try of the same command cannot help
└── Hiccup        the source may well answer the next request; raised and handled inside a transfer
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

Reason = Literal[
    "AuthFailed",
    "GatedRepo",
    "NotFound",
    "RevisionNotFound",
    "RateLimited",
    "Network",
    "Stalled",
    "IntegrityMismatch",
    "SourceChanged",
    "NoSpace",
    "UnsupportedFormat",
    "DiskMissing",
    "PermissionDenied",
    "LayoutMismatch",
]
RETRYABLE: frozenset[Reason] = frozenset({"RateLimited", "Network", "Stalled", "IntegrityMismatch"})


class PrefetchError(Exception):
    """`message`: what was found, what was expected, what to do. Never a URL: one may hold a signature."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(reason, message)
        self.reason = reason
        self.message = message

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"

    @property
    def terminal(self) -> bool:
        return self.reason not in RETRYABLE


class Hiccup(PrefetchError):
    """One request failed. retry_after_s: how long the source asked us to wait, None when it did not say."""

    def __init__(self, reason: Reason, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason, message)
        self.retry_after_s = retry_after_s


_DISK_REASONS: dict[int, tuple[Reason, str]] = {
    errno.ENOSPC: ("NoSpace", "the disk is full; evict a revision or use a larger disk"),
    errno.EDQUOT: ("NoSpace", "the disk quota is used up; evict a revision or raise it"),
    errno.EFBIG: ("NoSpace", "the file is larger than this file system allows"),
    errno.EACCES: ("PermissionDenied", "this user may not write there; give it the directory"),
    errno.EPERM: ("PermissionDenied", "this user may not write there; give it the directory"),
    errno.EROFS: ("PermissionDenied", "it is mounted read-only; mount it writable"),
    errno.EIO: ("DiskMissing", "the disk fails; replace it"),
    errno.ENODEV: ("DiskMissing", "the disk is gone; mount it"),
    errno.ESTALE: ("DiskMissing", "the mount is stale; mount it again"),
}


@contextmanager
def disk_errors() -> Iterator[None]:
    """The operating system's errors about the store as ours."""
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK_REASONS:
            raise
        reason, advice = _DISK_REASONS[error.errno]
        raise PrefetchError(reason, f"{error.filename or 'The store'}: {error.strerror}; {advice}") from error
