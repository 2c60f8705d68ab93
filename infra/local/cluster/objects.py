"""What every object has: times, conditions, owners."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

Object = dict[str, Any]

CLUSTER_SCOPED = frozenset({"Node", "NodeCache"})

# What reading an object that makes no sense raises.
MALFORMED = (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError)

# (kind, namespace, name): how objects are told apart inside one moment.
Key = tuple[str, str, str]


def now() -> str:
    """Microseconds, which Kubernetes has not, so that the start of a pod can be measured."""
    return format_time(datetime.now(UTC).timestamp())


def format_time(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_time(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def key_of(obj: Object) -> Key:
    metadata = obj["metadata"]
    return obj["kind"], metadata.get("namespace", ""), metadata["name"]


def name_of(obj: Object) -> str:
    return str(obj["metadata"]["name"])


def namespace_of(obj: Object) -> str:
    return str(obj["metadata"].get("namespace", ""))


def uid_of(obj: Object) -> str:
    return str(obj["metadata"]["uid"])


def labels_of(obj: Object) -> dict[str, str]:
    return obj["metadata"].get("labels") or {}


def is_deleting(obj: Object) -> bool:
    return bool(obj["metadata"].get("deletionTimestamp"))


def owner_uids(obj: Object) -> tuple[str, ...]:
    return tuple(reference["uid"] for reference in obj["metadata"].get("ownerReferences") or ())


def controller_uid(obj: Object) -> str:
    """The uid of the owner that manages `obj`, "" when nobody does."""
    for reference in obj["metadata"].get("ownerReferences") or ():
        if reference.get("controller"):
            return str(reference["uid"])
    return ""


def owned_by(owner: Object, objects: Iterable[Object]) -> list[Object]:
    return [obj for obj in objects if controller_uid(obj) == owner["metadata"]["uid"]]


def controller_reference(owner: Object) -> Object:
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def condition(obj: Object, kind: str) -> Object:
    """The condition `kind` of `obj`, {} when it has none."""
    for entry in (obj.get("status") or {}).get("conditions") or ():
        if entry["type"] == kind:
            return dict(entry)
    return {}


def is_true(obj: Object, kind: str) -> bool:
    return condition(obj, kind).get("status") == "True"


def with_condition(
    conditions: list[Object], kind: str, status: bool, reason: str, message: str, at: str
) -> list[Object]:
    """`conditions` with `kind` set; the transition time moves only when the status does."""
    previous = next((entry for entry in conditions if entry["type"] == kind), None)
    word = "True" if status else "False"
    since = previous["lastTransitionTime"] if previous and previous["status"] == word else at
    changed = {"type": kind, "status": word, "reason": reason, "message": message, "lastTransitionTime": since}
    if previous is None:
        return [*conditions, changed]
    return [changed if entry["type"] == kind else entry for entry in conditions]
