"""Kubernetes events: what happened to whom, counted instead of repeated."""

from __future__ import annotations

import hashlib

from infra.local.cluster.actions import Note
from infra.local.cluster.objects import Object, name_of, namespace_of, now, parse_time, uid_of
from infra.local.cluster.store import Store, StoreError

KEPT_S = 3600.0


def record(store: Store, note: Note) -> None:
    """Create the event, or count the one that says the same of the same object."""
    about = note.about
    said = f"{uid_of(about)} {note.reason} {note.message}"
    name = f"{name_of(about)[:200]}.{hashlib.sha256(said.encode()).hexdigest()[:16]}"
    namespace, at = namespace_of(about) or "default", now()
    try:
        known = store.get("Event", name, namespace)
        store.patch("Event", name, {"count": known["count"] + 1, "lastTimestamp": at}, namespace)
    except StoreError as error:
        if error.reason != "NotFound":
            raise
        store.create(_event(note, name, namespace, at))


def remove_old(store: Store, now_s: float) -> None:
    for event in store.list("Event").items:
        if parse_time(event.get("lastTimestamp") or event["metadata"]["creationTimestamp"]) < now_s - KEPT_S:
            store.delete("Event", name_of(event), namespace_of(event))


def _event(note: Note, name: str, namespace: str, at: str) -> Object:
    about = note.about
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": namespace},
        "involvedObject": {
            "apiVersion": about["apiVersion"],
            "kind": about["kind"],
            "name": name_of(about),
            "namespace": namespace_of(about),
            "uid": uid_of(about),
        },
        "reason": note.reason,
        "message": note.message,
        "type": "Warning" if note.is_warning else "Normal",
        "source": {"component": "embedded-cluster"},
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }
