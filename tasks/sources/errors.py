"""What can be wrong with a source: one error with a fixed reason, so that a missing repository never reads as gated."""

from __future__ import annotations

from typing import Literal

Reason = Literal[
    "AuthFailed",
    "GatedRepo",
    "NotFound",
    "RevisionNotFound",
    "RateLimited",
    "Network",
    "SourceChanged",
    "UnsupportedFormat",
    "PermissionDenied",
]
RETRYABLE: frozenset[Reason] = frozenset({"RateLimited", "Network", "SourceChanged"})


class SourceError(Exception):
    """A source could not be pinned. `message` says what was found, `hint` what to do.

    retry_after_s: how long the source asked us to wait, None when it did not say.
    """

    def __init__(self, reason: Reason, message: str, hint: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason, message, hint, retry_after_s)  # all of them, so that it survives a pickle
        self.reason = reason
        self.message = message
        self.hint = hint
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return f"{self.reason}: {self.message} {self.hint}"

    @property
    def retryable(self) -> bool:
        """Whether the same question may get another answer soon."""
        return self.reason in RETRYABLE
