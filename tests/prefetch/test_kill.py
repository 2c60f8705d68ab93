"""SIGKILL at any point, then again: the tree is right, never seen half-made, and nothing proven is fetched twice."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.plan.manifest import manifest_to_json
from tasks.prefetch.digest import chunk_size
from tasks.prefetch.journal import read_journal
from tasks.prefetch.store import Store
from tasks.prefetch.trees import read_tree

pytestmark = pytest.mark.chaos


class Mortal:
    """Node programs that die when told."""

    def __init__(self, root: Path) -> None:
        self.root = root
        script = Path(__file__).with_name("mortal.py")
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        self.process = subprocess.Popen(
            [sys.executable, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def run(self, *argv: object, operation: int = 0, proven: int = 0, after_s: float = 0.0) -> int | None:
        """Exit status, None when it was killed."""
        words = [argv[0], "--root", self.root, *argv[1:]]
        told = {"argv": [str(word) for word in words], "operation": operation, "proven": proven, "after_s": after_s}
        self.process.stdin.write(json.dumps(told) + "\n")
        self.process.stdin.flush()
        status = int(self.process.stdout.readline())
        if os.WIFSIGNALED(status):
            assert os.WTERMSIG(status) == signal.SIGKILL
            return None
        return os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(10)
        self.process.stdout.close()


@pytest.fixture
def mortal(node):
    made = Mortal(node.root)
    yield made
    made.close()


def check_visible(node, origin, manifest, read):
    """Whatever readers can see is whole and right."""
    if (node.root / "trees").is_dir():
        for name in node.trees():
            assert name == manifest.digest.removeprefix("sha256:")
            assert read(node.tree(manifest)) == origin.files


def proven(node, manifest) -> set[tuple[str, int]]:
    """(path, first byte) of the chunks that the journal holds."""
    folder = Store(node.root).partial(manifest.digest)
    return {
        (manifest.files[index].path, i * (64 << 10))
        for index, chunks in read_journal(folder / "journal", {})[0].items()
        for i in chunks
    }


def check_not_asked(origin, chunks, since):
    """No request after `since` was for a byte of `chunks`."""
    for path, start, end in origin.asked[since:]:
        again = [at for name, at in chunks if name == path and start <= at < end]
        assert again == [], f"{path} bytes {start}-{end} were proven"


def until_done(mortal, node, origin, manifest, read, arguments, kill) -> int:
    """Run and kill until it ends by itself; how often it was killed."""
    before, since, kept = set(), 0, 0
    for kills in range(400):
        status = mortal.run("fill", *arguments, **kill(kills))
        check_visible(node, origin, manifest, read)
        check_not_asked(origin, before, since)
        if status is not None:
            assert status == 0
            assert kept > 1, "nothing was ever proven before a kill, so this has tried nothing"
            return kills
        before, since = proven(node, manifest), len(origin.asked)
        kept = max(kept, len(before))
    raise AssertionError("it never got to the end")


def test_killed_before_every_operation_on_the_disk_a_fill_still_gets_to_the_end(
    node, origin, hub, read, tmp_path, mortal
):
    """Pains 3, 4, 9 and 26: each try dies one operation later than the one before."""
    (tmp_path / "manifest.json").write_text(manifest_to_json(hub))
    arguments = ("--manifest", tmp_path / "manifest.json")
    kills = until_done(mortal, node, origin, hub, read, arguments, lambda n: {"operation": n + 1})
    assert kills > 20
    assert node.leftovers() == []


def test_killed_once_at_any_operation_the_next_fill_ends_right(
    node, origin, hub, read, tmp_path, mortal, record_property
):
    """Pains 4 and 5, every fourth operation of a fill from nothing, others each time."""
    first = random.randrange(1, 5)
    record_property("first", first)
    (tmp_path / "manifest.json").write_text(manifest_to_json(hub))
    arguments = ("--manifest", tmp_path / "manifest.json", "--connections", 2)
    for operation in range(first, 1000, 4):
        killed = mortal.run("fill", *arguments, operation=operation) is None
        check_visible(node, origin, hub, read)
        before, since = proven(node, hub), len(origin.asked)
        assert mortal.run("fill", *arguments) == 0
        check_not_asked(origin, before, since)
        assert read(node.tree(hub)) == origin.files
        assert node.leftovers() == []
        if not killed:
            break
        shutil.rmtree(node.root)
    assert operation > 60


def test_killed_at_random_times_a_fill_fetches_nothing_twice_that_was_proven(
    node, origin, manifest_of, read, tmp_path, mortal, record_property
):
    """Pains 3 and 26, while bytes flow."""
    seed = random.randrange(1 << 30)
    record_property("seed", seed)
    numbers = random.Random(seed)
    origin.bytes_per_s = 1e6
    manifest = manifest_of["s3"](origin)
    (tmp_path / "manifest.json").write_text(manifest_to_json(manifest))
    arguments = ("--manifest", tmp_path / "manifest.json", "--connections", 4)
    kills = until_done(
        mortal,
        node,
        origin,
        manifest,
        read,
        arguments,
        lambda n: {"proven": numbers.randrange(1, 4), "after_s": numbers.uniform(0, 0.05)},
    )
    assert kills > 0


def test_killed_while_it_is_evicted_a_revision_is_whole_or_gone(node, origin, manifest_of, read, mortal):
    """Removal is one rename as well, and what another revision shares stays."""
    old, old_files = manifest_of["hub"](origin), dict(origin.files)
    origin.files["config.json"] = b"{}"
    new = manifest_of["hub"](origin)
    node.fill(new)
    status, operation = None, 0
    while status is None:
        origin.files = old_files
        node.fill(old)
        operation += 1
        status = mortal.run("evict", "--digest", old.digest, operation=operation)
        assert read_tree(Store(node.root).tree(new.digest))
        assert node.trees() in ([tree_name(new)], sorted((tree_name(old), tree_name(new))))
        if tree_name(old) in node.trees():
            assert read(node.tree(old)) == old_files
    assert operation > 10
    assert mortal.run("evict", "--digest", old.digest) == 0
    assert node.trees() == [tree_name(new)]
    assert node.leftovers() == []
    assert len(list(node.root.glob("blobs/*/*/*"))) == len(new.files)


def tree_name(manifest):
    return manifest.digest.removeprefix("sha256:")


def test_chunks_of_an_earlier_boot_are_hashed_before_they_are_trusted(node, origin, hub, read, tmp_path, mortal):
    """A machine that lost power may have kept the journal and lost the bytes."""
    (tmp_path / "manifest.json").write_text(manifest_to_json(hub))
    arguments = ("--manifest", tmp_path / "manifest.json", "--connections", 1)
    origin.bytes_per_s = 1e6
    assert mortal.run("fill", *arguments, proven=2) is None
    folder = Store(node.root).partial(hub.digest)
    journal = folder / "journal"
    head, rest = journal.read_text().split("\n", 1)
    journal.write_text(json.dumps({**json.loads(head), "boot_id": "another"}) + "\n" + rest)
    kept = proven(node, hub)
    lost = next((path, at) for path, at in sorted(kept) if path == "a.safetensors")
    index = next(i for i, file in enumerate(hub.files) if file.path == lost[0])
    with (folder / "parts" / str(index)).open("r+b") as part:
        part.seek(lost[1])
        part.write(bytes(chunk_size(hub.files[index].size_bytes, 0)))
    since, origin.bytes_per_s = len(origin.asked), 0
    assert mortal.run("fill", *arguments) == 0
    assert read(node.tree(hub)) == origin.files
    check_not_asked(origin, kept - {lost}, since)
