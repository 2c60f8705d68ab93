"""Faults that the local hub shows on request: throttling, broken and truncated downloads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(slots=True)
class Fault:
    """What the next `times` requests whose path contains `path` meet.

    status: answer with this HTTP status, and `retry_after` or `rate_limit` as headers when they are given.
    corrupt: flip one byte of the body. truncate_bytes: hang up after so many bytes of the body.
    """

    path: str = ""
    times: int = 1
    status: int = 0
    retry_after: str = ""
    rate_limit: str = ""
    corrupt: bool = False
    truncate_bytes: int | None = None

    @property
    def is_of_body(self) -> bool:
        return self.corrupt or self.truncate_bytes is not None

    def headers(self) -> dict[str, str]:
        given = {"Retry-After": self.retry_after, "RateLimit": self.rate_limit}
        return {name: value for name, value in given.items() if value}


@dataclass(slots=True)
class Faults:
    """The faults in force; each is spent by the requests it meets."""

    waiting: list[Fault] = field(default_factory=list)

    def replace(self, wanted: Iterable[Mapping[str, Any]]) -> None:
        """Put `wanted` in force; ValueError names a field that does not exist."""
        known = {entry.name for entry in fields(Fault)}
        wanted = list(wanted)
        unknown = sorted({name for fault in wanted for name in fault} - known)
        if unknown:
            raise ValueError(f"no fault has {', '.join(unknown)}; known: {', '.join(sorted(known))}")
        self.waiting = [Fault(**fault) for fault in wanted]

    def take(self, path: str, *, of_body: bool) -> Fault | None:
        """The first fault for this request, one of its times spent; None when all is well."""
        for fault in self.waiting:
            if fault.times > 0 and fault.path in path and fault.is_of_body == of_body:
                fault.times -= 1
                return fault
        return None
