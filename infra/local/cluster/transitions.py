"""What each verb makes of an object, and how it refuses. The store keeps the result."""

from __future__ import annotations

import json
import secrets
import uuid
from collections.abc import Callable, Iterator
from typing import NamedTuple

from infra.local.cluster.admission import Refused, check_identity, check_namespace, check_object, with_defaults
from infra.local.cluster.database import Change
from infra.local.cluster.merge import merge_patch
from infra.local.cluster.objects import MALFORMED, Object, is_deleting, labels_of, now
from infra.local.cluster.ownership import FieldConflict, apply_fields, update_fields
from infra.local.cluster.selectors import BadSelector, Match, parse_fields, parse_labels

_SCALABLE = frozenset({"Deployment", "ReplicaSet", "InferenceEndpointConfig"})
# Status is written at creation only where a kubelet registers itself; elsewhere by its own subresource.
_STATUS_AT_CREATION = frozenset({"Node"})
_NO_STATUS = frozenset({"ConfigMap", "Secret", "Event", "EndpointSlice", "Lease"})
_IDENTITY = ("name", "namespace", "uid", "creationTimestamp", "generation", "resourceVersion", "generateName")
_LIFE = ("deletionTimestamp", "deletionGracePeriodSeconds", "managedFields")
_FINISHED = ("Succeeded", "Failed")


class StoreError(Exception):
    """A refusal; `reason` is a Kubernetes Status reason: NotFound, AlreadyExists, Conflict, Invalid, Expired."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Event(NamedTuple):
    """type: ADDED, MODIFIED, DELETED or BOOKMARK."""

    type: str
    object: Object


def located(body: Object) -> Object:
    """`body` with its namespace, which is "default" where it names none."""
    kind, metadata = body.get("kind"), body.get("metadata") or {}
    if not isinstance(kind, str) or not kind:
        raise StoreError("Invalid", "the object has no kind")
    namespace = check_namespace(kind, metadata.get("namespace", ""))
    rest = {key: value for key, value in metadata.items() if key != "namespace"}
    return {**body, "metadata": rest | ({"namespace": namespace} if namespace else {})}


def named(body: Object) -> Object:
    """`body` located, with a name made from generateName where it has none."""
    body = located(body)
    metadata = body["metadata"]
    if not metadata.get("name"):
        if not metadata.get("generateName"):
            raise StoreError("Invalid", f"{body['kind']}: metadata.name or metadata.generateName is missing")
        metadata = {**metadata, "name": metadata["generateName"] + secrets.token_hex(3)[:5]}
    return {**body, "metadata": metadata}


def born(body: Object, manager: str, *, is_apply: bool) -> Object:
    """The object that a create or a first apply of `body` makes."""
    kind = body["kind"]
    identity = {"uid": str(uuid.uuid4()), "creationTimestamp": now(), "generation": 1}
    named_by = {key: body["metadata"][key] for key in ("name", "namespace") if key in body["metadata"]}
    blank = {"apiVersion": body.get("apiVersion", ""), "kind": kind, "metadata": {**named_by, **identity}}
    if kind == "Pod":
        blank["status"] = {"phase": "Pending"}
    if kind in _STATUS_AT_CREATION and "status" in body:
        blank["status"] = body["status"]
    if is_apply:
        return applied(blank, body, manager, force=True)
    return patched(blank, body, manager)


def applied(live: Object, body: Object, manager: str, force: bool) -> Object:
    """`live` after a server-side apply of `body`; status is not touched."""
    try:
        return _defaulted(with_identity(apply_fields(live, body, manager, force, now()), live, keep_managed=False))
    except FieldConflict as conflict:
        raise StoreError("Conflict", f"apply of {told(live)} by {manager}: {conflict}") from conflict


def patched(old: Object, changes: Object, manager: str) -> Object:
    """`old` after a merge patch; the status of a kind that has one is not touched."""
    if old["kind"] not in _NO_STATUS:
        changes = {key: value for key, value in changes.items() if key != "status"}
    new = _defaulted(with_identity(merge_patch(old, changes), old))
    return update_fields(old, new, manager, "", now()) if manager else new


def with_status(old: Object, body: Object) -> Object:
    return {**old, "status": merge_patch(old.get("status") or {}, body.get("status") or {})}


def scaled(old: Object, body: Object, manager: str) -> Object:
    """`old` with the replicas that the Scale `body` asks for."""
    if old["kind"] not in _SCALABLE:
        raise StoreError("NotFound", f'{told(old)} has no subresource "scale"')
    replicas = (body.get("spec") or {}).get("replicas")
    if not isinstance(replicas, int) or replicas < 0:
        raise StoreError("Invalid", f"{told(old)}: spec.replicas is {replicas!r}, it must be 0 or more")
    new = {**old, "spec": {**(old.get("spec") or {}), "replicas": replicas}}
    return update_fields(old, new, manager, "scale", now()) if manager else new


def as_scale(obj: Object) -> Object:
    """The Scale of a scalable object."""
    metadata = {key: obj["metadata"][key] for key in ("name", "namespace", "uid", "resourceVersion")}
    return {
        "apiVersion": "autoscaling/v1",
        "kind": "Scale",
        "metadata": metadata,
        "spec": {"replicas": obj["spec"]["replicas"]},
        "status": {"replicas": (obj.get("status") or {}).get("replicas", 0)},
    }


def marked_for_deletion(old: Object, grace_s: float | None) -> Object:
    metadata = old["metadata"]
    left_s = _grace_s(old) if grace_s is None else grace_s
    left_s = min(left_s, metadata.get("deletionGracePeriodSeconds", left_s))
    marks = {"deletionTimestamp": metadata.get("deletionTimestamp") or now(), "deletionGracePeriodSeconds": left_s}
    return {**old, "metadata": {**metadata, **marks}}


def is_released(obj: Object) -> bool:
    """Whether nothing holds a deleted object any more."""
    metadata = obj["metadata"]
    return is_deleting(obj) and not metadata.get("finalizers") and not metadata.get("deletionGracePeriodSeconds")


def with_identity(obj: Object, old: Object, *, keep_managed: bool = True) -> Object:
    """`obj` with what no writer may change taken from `old`."""
    fixed = _IDENTITY + (_LIFE if keep_managed else _LIFE[:2])
    metadata = {key: value for key, value in (obj.get("metadata") or {}).items() if key not in fixed}
    metadata |= {key: old["metadata"][key] for key in fixed if key in old["metadata"]}
    return {**obj, "apiVersion": old["apiVersion"], "kind": old["kind"], "metadata": metadata}


def with_generation(new: Object, old: Object) -> Object:
    """`new`, its generation one higher when more than metadata and status differ."""
    if _content(new) == _content(old):
        return new
    generation = int(old["metadata"].get("generation", 1)) + 1
    return {**new, "metadata": {**new["metadata"], "generation": generation}}


def check_version(old: Object, body: Object) -> None:
    """Conflict when `body` was made from another version of `old`, or for a namesake."""
    metadata = body.get("metadata") or {}
    check_uid(old, metadata.get("uid", ""))
    wanted = metadata.get("resourceVersion")
    found = old["metadata"].get("resourceVersion")
    if wanted and wanted != found:
        raise StoreError(
            "Conflict", f"{told(old)} is at resourceVersion {found}, the change was made from {wanted}: read it again"
        )


def check(new: Object, old: Object | None) -> None:
    """Invalid for what the API would refuse."""
    try:
        check_identity(new)
        check_object(new, old, len(json.dumps(new)))
    except Refused as error:
        raise StoreError("Invalid", f"{told(new)} is invalid: {error}") from error
    except MALFORMED as error:
        raise _unreadable(new, error) from error


def check_uid(old: Object, uid: str) -> None:
    """Conflict when `uid` is given and is not that of `old`."""
    if uid and uid != old["metadata"]["uid"]:
        raise StoreError("Conflict", f"{told(old)} has uid {old['metadata']['uid']}, not {uid}: it is a namesake")


def parse_revision(resource_version: str) -> int:
    if not resource_version.isdecimal():
        raise StoreError("Invalid", f'resourceVersion "{resource_version}" is not one that a list or a watch gave')
    return int(resource_version)


def labels_predicate(selector: str) -> Match:
    try:
        return parse_labels(selector)
    except BadSelector as error:
        raise StoreError("Invalid", str(error)) from error


def fields_predicate(selector: str, kind: str) -> Callable[[Object], bool]:
    try:
        return parse_fields(selector, kind)
    except BadSelector as error:
        raise StoreError("Invalid", str(error)) from error


def seen_through(change: Change, matches: Match) -> Iterator[Event]:
    """The change as a watcher with a label selector sees it: objects come and go as their labels change."""
    before = change.old_labels is not None and matches(change.old_labels)
    after = change.type != "DELETED" and matches(labels_of(change.object))
    if before and after:
        yield Event("MODIFIED", change.object)
    elif after:
        yield Event("ADDED", change.object)
    elif before:
        yield Event("DELETED", change.object)


def told(obj: Object) -> str:
    """`Pod default/web-1`"""
    metadata = obj["metadata"]
    namespace = metadata.get("namespace")
    return f"{obj['kind']} {namespace + '/' if namespace else ''}{metadata['name']}"


def _defaulted(obj: Object) -> Object:
    try:
        return with_defaults(obj)
    except MALFORMED as error:
        raise _unreadable(obj, error) from error


def _unreadable(obj: Object, error: Exception) -> StoreError:
    return StoreError("Invalid", f"{told(obj)} is invalid: it cannot be read, {type(error).__name__}: {error}")


def _grace_s(obj: Object) -> float:
    """Only a pod that its node still runs leaves gracefully."""
    spec, phase = obj.get("spec") or {}, (obj.get("status") or {}).get("phase")
    if obj["kind"] != "Pod" or not spec.get("nodeName") or phase in _FINISHED:
        return 0
    return float(spec["terminationGracePeriodSeconds"])


def _content(obj: Object) -> Object:
    return {key: value for key, value in obj.items() if key not in ("metadata", "status")}
