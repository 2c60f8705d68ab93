"""What a decision asks the runner to do. Decisions are pure; the runner does the writing."""

from __future__ import annotations

from dataclasses import dataclass

from infra.local.cluster.objects import Object


@dataclass(frozen=True, slots=True)
class Create:
    body: Object


@dataclass(frozen=True, slots=True)
class Delete:
    target: Object
    grace_s: float | None = None


@dataclass(frozen=True, slots=True)
class Patch:
    target: Object
    body: Object


@dataclass(frozen=True, slots=True)
class SetStatus:
    """Replace the whole status of `target`."""

    target: Object
    status: Object


@dataclass(frozen=True, slots=True)
class Note:
    """A Kubernetes event about `about`."""

    about: Object
    reason: str
    message: str
    is_warning: bool = False


@dataclass(frozen=True, slots=True)
class Wake:
    """Decide again at this time, though nothing may have changed."""

    at_s: float


Action = Create | Delete | Patch | SetStatus | Note | Wake


def status_change(target: Object, status: Object) -> list[Action]:
    """Nothing when the status is as it should be already."""
    return [] if (target.get("status") or {}) == status else [SetStatus(target, status)]
