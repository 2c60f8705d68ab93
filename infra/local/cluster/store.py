"""The object store: Kubernetes' verbs on plain dicts, kept in one SQLite file that several processes share."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from infra.local.cluster import database, transitions
from infra.local.cluster.admission import check_namespace
from infra.local.cluster.database import Changes, Database
from infra.local.cluster.logs import read_logs
from infra.local.cluster.objects import CLUSTER_SCOPED, Object, labels_of
from infra.local.cluster.transitions import Event, StoreError, told

__all__ = ["Event", "Listing", "Store", "StoreError"]

# A reader further behind than this lists again.
LOG_LENGTH = 5_000
POLL_S = 0.03
# How long a write waits for others to finish theirs.
BUSY_S = 30.0


class Listing(NamedTuple):
    items: list[Object]
    resource_version: str


class Store:
    """The state of one cluster, in `<directory>/store.db`. Safe to share between threads.

    `manager` names who owns the fields that a write changes; "" leaves ownership alone.
    """

    def __init__(self, directory: Path | str, *, log_length: int = LOG_LENGTH, busy_s: float = BUSY_S) -> None:
        self.directory = Path(directory).resolve()
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._database = Database(self.directory / "store.db", log_length, busy_s)

    def close(self) -> None:
        self._database.close()

    def revision(self) -> int:
        """The latest resourceVersion: cheap enough to poll."""
        with self._database.reading() as connection:
            return database.revision_of(connection)

    def get(self, kind: str, name: str, namespace: str = "") -> Object:
        with self._database.reading() as connection:
            return _found(connection, kind, namespace, name)

    def list(self, kind: str, namespace: str = "", labels: str = "", fields: str = "") -> Listing:
        """Objects of `kind`, and the moment to watch from. `kind` "" lists every kind."""
        matches, selected = transitions.labels_predicate(labels), transitions.fields_predicate(fields, kind)
        with self._database.reading() as connection:
            items = database.find_all(connection, kind, "" if kind in CLUSTER_SCOPED else namespace)
            revision = database.revision_of(connection)
        return Listing([obj for obj in items if matches(labels_of(obj)) and selected(obj)], str(revision))

    def create(self, body: Object, *, manager: str = "") -> Object:
        with self._database.writing() as connection:
            return self._insert(connection, transitions.named(body), manager)

    def apply(self, body: Object, *, manager: str, force: bool = False) -> Object:
        """Server-side apply; Conflict names the other managers."""
        body = transitions.located(body)
        metadata = body["metadata"]
        if not metadata.get("name"):
            raise StoreError("Invalid", f"{body['kind']}: apply needs metadata.name")
        with self._database.writing() as connection:
            old = database.find(connection, body["kind"], metadata.get("namespace", ""), metadata["name"])
            if old is None:
                return self._insert(connection, body, manager, is_apply=True)
            transitions.check_version(old, body)
            return self._replace(connection, old, transitions.applied(old, body, manager, force))

    def patch(
        self, kind: str, name: str, body: Object, namespace: str = "", *, subresource: str = "", manager: str = ""
    ) -> Object:
        """Merge patch of the object, of its "status" alone, or of its "scale" (which is returned as a Scale)."""
        with self._database.writing() as connection:
            old = _found(connection, kind, namespace, name)
            transitions.check_version(old, body)
            if subresource == "status":
                return self._replace(connection, old, transitions.with_status(old, body))
            if subresource == "scale":
                scaled = transitions.scaled(old, body, manager)
                return transitions.as_scale(self._replace(connection, old, scaled))
            if subresource:
                raise StoreError("NotFound", f'{told(old)} has no subresource "{subresource}": use status or scale')
            return self._replace(connection, old, transitions.patched(old, body, manager))

    def delete(self, kind: str, name: str, namespace: str = "", *, uid: str = "", grace_s: float | None = None) -> None:
        """Delete, dependents too. Finalizers hold an object; so does a pod's node until it deletes with grace_s=0."""
        with self._database.writing() as connection:
            old = _found(connection, kind, namespace, name)
            transitions.check_uid(old, uid)
            self._delete(connection, old, grace_s)

    def watch(
        self, kind: str, namespace: str = "", labels: str = "", *, resource_version: str = "", timeout_s: float = 60.0
    ) -> Iterator[Event]:
        """Changes after `resource_version` ("": first what is there, as ADDED) until `timeout_s`, then a BOOKMARK."""
        matches = transitions.labels_predicate(labels)
        namespace = "" if kind in CLUSTER_SCOPED else namespace
        deadline = time.monotonic() + timeout_s
        if resource_version in ("", "0"):
            listing = self.list(kind, namespace, labels)
            yield from (Event("ADDED", obj) for obj in listing.items)
            resource_version = listing.resource_version
        seen = transitions.parse_revision(resource_version)
        while True:
            changes, seen = self.changes(seen, kind)
            for change in changes:
                if namespace in ("", change.object["metadata"].get("namespace", "")):
                    yield from transitions.seen_through(change, matches)
            if time.monotonic() >= deadline:
                break
            time.sleep(min(POLL_S, max(0.0, deadline - time.monotonic())))
        yield Event("BOOKMARK", {"kind": kind, "metadata": {"resourceVersion": str(seen)}})

    def changes(self, revision: int, kind: str = "") -> tuple[Changes, int]:
        """What happened after `revision`, of all kinds when `kind` is "", and the revision to continue from."""
        with self._database.reading() as connection:
            latest = database.revision_of(connection)
            if latest == revision:
                return [], revision
            if revision > latest or revision + 1 < database.oldest_change(connection):
                raise StoreError("Expired", f"resourceVersion {revision} is too old or unknown: list again")
            return database.changes_after(connection, revision, kind), latest

    def logs(self, pod: str, namespace: str = "", *, container: str = "", tail_lines: int = 100) -> str:
        return read_logs(self.directory, self.get("Pod", pod, namespace), container, tail_lines)

    def _insert(self, connection: sqlite3.Connection, body: Object, manager: str, *, is_apply: bool = False) -> Object:
        new = transitions.born(body, manager, is_apply=is_apply)
        transitions.check(new, None)
        metadata = new["metadata"]
        if database.find(connection, new["kind"], metadata.get("namespace", ""), metadata["name"]):
            raise StoreError("AlreadyExists", f"{told(new)} already exists")
        return self._database.put(connection, None, new)

    def _replace(self, connection: sqlite3.Connection, old: Object, new: Object) -> Object:
        if new == old:
            return old
        transitions.check(new, old)
        new = transitions.with_generation(new, old)
        if transitions.is_released(new):
            self._remove(connection, new)
            return new
        return self._database.put(connection, old, new)

    def _delete(self, connection: sqlite3.Connection, old: Object, grace_s: float | None) -> None:
        marked = transitions.marked_for_deletion(old, grace_s)
        if transitions.is_released(marked):
            self._remove(connection, marked)
        elif marked != old:
            self._database.put(connection, old, marked)

    def _remove(self, connection: sqlite3.Connection, old: Object) -> None:
        """Remove `old` and, as the garbage collector would, what nobody else owns."""
        self._database.remove(connection, old)
        gone = old["metadata"]["uid"]
        for dependent in database.find_owned(connection, gone):
            references = dependent["metadata"]["ownerReferences"]
            alive = [r for r in references if r["uid"] != gone and database.exists(connection, r["uid"])]
            if alive:
                metadata = {**dependent["metadata"], "ownerReferences": alive}
                self._database.put(connection, dependent, {**dependent, "metadata": metadata})
            else:
                self._delete(connection, dependent, None)


def _found(connection: sqlite3.Connection, kind: str, namespace: str, name: str) -> Object:
    namespace = check_namespace(kind, namespace)
    obj = database.find(connection, kind, namespace, name)
    if obj is None:
        raise StoreError("NotFound", f"{kind} {namespace + '/' if namespace else ''}{name} does not exist")
    return obj
