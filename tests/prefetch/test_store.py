"""The store under any sequence of fills, evictions, damage and audits of revisions that share files."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tasks.plan.manifest import build_manifest
from tasks.plan.types import ModelFile, Source, SourceKind
from tasks.prefetch.audit import audit, evict
from tasks.prefetch.disk import used
from tasks.prefetch.errors import PrefetchError
from tasks.prefetch.fill import Room, fill
from tasks.prefetch.store import Store

# Revision → its files; "a" has the same content in all, "b" in two of them.
REVISIONS = {
    "one": {"a": b"shared by all" * 900, "b": b"old", "deep/c": b"one"},
    "two": {"a": b"shared by all" * 900, "b": b"old", "deep/c": b"two"},
    "three": {"a": b"shared by all" * 900, "b": b"new"},
}
names = st.sampled_from(sorted(REVISIONS))


class Stores(RuleBasedStateMachine):
    """What the store should hold is a set of names; what it holds must be exactly those files."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="warmpath-"))
        self.store = Store(self.folder / "nvme" / "warmpath")
        self.store.root.parent.mkdir()
        self.store.prepare()
        self.held: set[str] = set()
        self.damaged: set[str] = set()
        self.manifests = {name: self.mounted(name, files) for name, files in REVISIONS.items()}

    def mounted(self, name, files):
        """The revision on a mounted file system, where only equal paths with equal pins are the same file."""
        for path, body in files.items():
            target = self.folder / "source" / name / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(body)
            os.utime(target, ns=(1, int.from_bytes(name.encode())))
        pins = {path: (self.folder / "source" / name / path).stat().st_mtime_ns for path in files}
        pinned = [ModelFile(path, len(body), pin=f"stat:{len(body)}-{pins[path]}") for path, body in files.items()]
        return build_manifest(Source(SourceKind.FILE, f"file://{self.folder / 'source' / name}"), "", pinned)

    def tree(self, name):
        return self.store.tree(self.manifests[name].digest)

    @rule(name=names)
    def fill(self, name):
        progress = fill(self.store, self.manifests[name], Room(), connections=2)
        assert progress.fetched_bytes + progress.reused_bytes == self.manifests[name].size_bytes
        self.held.add(name)
        self.damaged.discard(name)

    @rule(name=names)
    def evict(self, name):
        evict(self.store, self.manifests[name].digest)
        self.held.discard(name)
        self.damaged.discard(name)

    @rule(full=st.booleans())
    def audit(self, full):
        found = {entry["digest"]: entry["state"] for entry in audit(self.store, full=full)}
        assert set(found) == {self.manifests[name].digest for name in self.held}
        for name in self.held:
            state = found[self.manifests[name].digest]
            assert state == ("Suspect" if name in self.damaged else "Ready")
        self.held -= self.damaged
        self.damaged.clear()

    @rule(name=names)
    def lose_a_file(self, name):
        if name in self.held:
            (self.tree(name) / "files" / "b").unlink(missing_ok=True)
            self.damaged.add(name)

    @rule()
    def fill_beyond_the_disk(self):
        with pytest.raises(PrefetchError, match="NoSpace"):
            fill(self.store, self.mounted("four", {"a": b"never" * 9999}), Room(capacity_bytes=used(self.store.root)))

    @invariant()
    def readers_see_exactly_what_is_held(self):
        assert {path.name for path in self.store.trees.iterdir()} == {self.tree(name).name for name in self.held}
        for name in self.held - self.damaged:
            for path, body in REVISIONS[name].items():
                assert (self.tree(name) / "files" / path).read_bytes() == body

    @invariant()
    def nothing_half_made_is_left(self):
        partial = [path for path in (self.store.root / "partial").iterdir() if path.suffix != ".lock"]
        assert partial + list(self.store.trash.iterdir()) == []

    def teardown(self):
        for name in list(self.held):
            evict(self.store, self.manifests[name].digest)
        assert list(self.store.blobs.glob("*/*/*")) == []
        shutil.rmtree(self.folder)


Stores.TestCase.settings = settings(
    max_examples=25, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck)
)
TestStores = Stores.TestCase
