"""The SQLite file behind the store: objects, and a bounded log of what happened to them.

Several processes and threads use it at once. A write is one immediate transaction; a read sees one moment.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from infra.local.cluster.objects import Object

_SCHEMA = """
CREATE TABLE IF NOT EXISTS clock (one INTEGER PRIMARY KEY CHECK (one = 1), revision INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS objects (
    kind TEXT, namespace TEXT, name TEXT, uid TEXT NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (kind, namespace, name)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS owners (
    owner_uid TEXT, kind TEXT, namespace TEXT, name TEXT,
    PRIMARY KEY (owner_uid, kind, namespace, name)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS owned ON owners (kind, namespace, name);
CREATE INDEX IF NOT EXISTS objects_by_uid ON objects (uid);
CREATE TABLE IF NOT EXISTS changes (
    revision INTEGER PRIMARY KEY, type TEXT, kind TEXT, namespace TEXT, body TEXT, old_labels TEXT);
CREATE INDEX IF NOT EXISTS changes_by_kind ON changes (kind, revision);
INSERT OR IGNORE INTO clock VALUES (1, 1);
"""


class Change(NamedTuple):
    """type: ADDED, MODIFIED or DELETED. old_labels: before the change, None when there was no object."""

    revision: int
    type: str
    object: Object
    old_labels: dict[str, str] | None


Changes = list[Change]


class Database:
    """Connections to one file, reused between calls and never carried over a fork."""

    def __init__(self, path: Path, log_length: int, busy_s: float) -> None:
        self._path = path
        self._log_length = log_length
        self._busy_s = busy_s
        self._lock = threading.Lock()
        self._idle: list[sqlite3.Connection] = []
        self._pid = os.getpid()
        self._close = weakref.finalize(self, _close_all, self._idle, self._pid)
        with self._connection() as connection:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("BEGIN IMMEDIATE")
            for statement in _SCHEMA.split(";"):
                connection.execute(statement)
            connection.execute("COMMIT")

    def close(self) -> None:
        _close_all(self._idle, self._pid)

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """One moment of the store."""
        with self._connection() as connection:
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                connection.execute("ROLLBACK")

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """One change of the store: all of it, or nothing when the body raises."""
        with self._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            if self._pid != os.getpid():
                self._idle, self._pid = [], os.getpid()  # a connection must not cross a fork
            connection = self._idle.pop() if self._idle else None
        if connection is None:
            connection = sqlite3.connect(
                self._path, timeout=self._busy_s, isolation_level=None, check_same_thread=False
            )
            connection.execute("PRAGMA synchronous=NORMAL")
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        with self._lock:
            self._idle.append(connection)

    def put(self, connection: sqlite3.Connection, old: Object | None, new: Object) -> Object:
        """Store `new` under the next resourceVersion, and log it."""
        revision = self._next_revision(connection)
        new = {**new, "metadata": {**new["metadata"], "resourceVersion": str(revision)}}
        metadata, body = new["metadata"], json.dumps(new, separators=(",", ":"))
        key = (new["kind"], metadata.get("namespace", ""), metadata["name"])
        connection.execute("INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?)", (*key, metadata["uid"], body))
        self._set_owners(connection, key, old, new)
        self._log(connection, revision, "MODIFIED" if old else "ADDED", body, old, new)
        return new

    def remove(self, connection: sqlite3.Connection, old: Object) -> None:
        revision = self._next_revision(connection)
        last = {**old, "metadata": {**old["metadata"], "resourceVersion": str(revision)}}
        metadata = old["metadata"]
        key = (old["kind"], metadata.get("namespace", ""), metadata["name"])
        connection.execute("DELETE FROM objects WHERE kind = ? AND namespace = ? AND name = ?", key)
        connection.execute("DELETE FROM owners WHERE kind = ? AND namespace = ? AND name = ?", key)
        self._log(connection, revision, "DELETED", json.dumps(last, separators=(",", ":")), old, last)

    def _next_revision(self, connection: sqlite3.Connection) -> int:
        connection.execute("UPDATE clock SET revision = revision + 1")
        return revision_of(connection)

    def _set_owners(
        self, connection: sqlite3.Connection, key: tuple[str, str, str], old: Object | None, new: Object
    ) -> None:
        references = new["metadata"].get("ownerReferences") or []
        if old is not None and (old["metadata"].get("ownerReferences") or []) == references:
            return
        connection.execute("DELETE FROM owners WHERE kind = ? AND namespace = ? AND name = ?", key)
        rows = {(reference["uid"], *key) for reference in references}
        connection.executemany("INSERT INTO owners VALUES (?, ?, ?, ?)", rows)

    def _log(
        self, connection: sqlite3.Connection, revision: int, what: str, body: str, old: Object | None, new: Object
    ) -> None:
        old_labels = json.dumps(old["metadata"].get("labels") or {}) if old else None
        row = (revision, what, new["kind"], new["metadata"].get("namespace", ""), body, old_labels)
        connection.execute("INSERT INTO changes VALUES (?, ?, ?, ?, ?, ?)", row)
        if revision % 64 == 0:
            connection.execute("DELETE FROM changes WHERE revision <= ?", (revision - self._log_length,))


def find(connection: sqlite3.Connection, kind: str, namespace: str, name: str) -> Object | None:
    row = connection.execute(
        "SELECT body FROM objects WHERE kind = ? AND namespace = ? AND name = ?", (kind, namespace, name)
    ).fetchone()
    return json.loads(row[0]) if row else None


def find_all(connection: sqlite3.Connection, kind: str, namespace: str) -> list[Object]:
    """All objects of `kind`, of all namespaces when `namespace` is ""; of all kinds when `kind` is ""."""
    rows = connection.execute(
        "SELECT body FROM objects WHERE kind = ?1 AND (?2 = '' OR namespace = ?2) ORDER BY namespace, name"
        if kind
        else "SELECT body FROM objects WHERE ?1 = ?2",
        (kind, namespace),
    )
    return [json.loads(body) for (body,) in rows]


def find_owned(connection: sqlite3.Connection, owner_uid: str) -> list[Object]:
    rows = connection.execute("SELECT kind, namespace, name FROM owners WHERE owner_uid = ?", (owner_uid,)).fetchall()
    return [found for row in rows if (found := find(connection, *row)) is not None]


def exists(connection: sqlite3.Connection, uid: str) -> bool:
    return connection.execute("SELECT 1 FROM objects WHERE uid = ?", (uid,)).fetchone() is not None


def revision_of(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT revision FROM clock").fetchone()[0])


def oldest_change(connection: sqlite3.Connection) -> int:
    """The first revision that the log still holds."""
    found = connection.execute("SELECT MIN(revision) FROM changes").fetchone()[0]
    return int(found) if found is not None else revision_of(connection) + 1


def changes_after(connection: sqlite3.Connection, revision: int, kind: str = "") -> list[Change]:
    rows = connection.execute(
        "SELECT revision, type, body, old_labels FROM changes WHERE revision > ?1 AND kind = ?2 ORDER BY revision"
        if kind
        else "SELECT revision, type, body, old_labels FROM changes WHERE revision > ?1 AND ?2 = '' ORDER BY revision",
        (revision, kind),
    )
    return [
        Change(revision, what, json.loads(body), None if old is None else json.loads(old))
        for revision, what, body, old in rows
    ]


def _close_all(connections: list[sqlite3.Connection], pid: int) -> None:
    if pid != os.getpid():
        return
    while connections:
        with closing(connections.pop()):
            pass
