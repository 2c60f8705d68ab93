"""fill: put one revision on this node's disk, as a proven tree, fetching only what no other revision has."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tasks.plan.pins import content_key
from tasks.plan.types import Manifest, ModelFile
from tasks.prefetch.digest import Chunk, chunk_count, tree_hash
from tasks.prefetch.disk import filesystem_id, observe_disk
from tasks.prefetch.download import Download, proven_bytes
from tasks.prefetch.errors import PrefetchError, disk_errors
from tasks.prefetch.progress import EVERY_S, Progress, log
from tasks.prefetch.schedule import Part
from tasks.prefetch.store import Store, sync_folder
from tasks.prefetch.trees import FileProof, chunk_digests, fault, read_tree, touched, write_tree

LONGEST_WAIT_S = 24 * 3600.0
OTHER_STALLS_S = 120.0


@dataclass(frozen=True, slots=True)
class Room:
    """What the store may use. capacity_bytes: of the whole store; reserve_bytes: never to be used."""

    capacity_bytes: int | None = None
    reserve_bytes: int = 0


def fill(store: Store, manifest: Manifest, room: Room, connections: int = 8) -> Progress:
    """Publish the revision. Safe to kill and to run twice at once: the second waits, and adopts what the first made."""
    progress = Progress(manifest.size_bytes, len(manifest.files))
    wait = _Waiting(store, manifest, progress)
    with store.lock(manifest.digest, LONGEST_WAIT_S, wait.look):
        progress.done_bytes = 0
        store.empty_trash()
        if adopt(store, manifest.digest):
            # A program killed right after it published leaves its folder.
            store.discard(store.partial(manifest.digest))
            progress.reuse(manifest.size_bytes, files=len(manifest.files))
            progress.tell()
            return progress
        with disk_errors():
            _Filling(store, manifest, room, progress, connections).run()
    return progress


def adopt(store: Store, digest: str) -> bool:
    """Whether the revision is published and proven; one that is not is taken away."""
    path = store.tree(digest)
    tree = read_tree(path)
    why = fault(tree, here=filesystem_id(store.root)) if tree else "its manifest or proof cannot be read"
    if tree and not why:
        return True
    if path.exists():
        log(f"the copy of {digest} here is no good ({why}); making it anew")
        store.discard(path)
        store.drop_unused_blobs()
    return False


@dataclass(slots=True)
class _Waiting:
    """Tells how far the other program is that fills the same revision, and loses patience when it stands still."""

    store: Store
    manifest: Manifest
    progress: Progress
    told_at: float = 0.0

    def look(self) -> None:
        now = time.monotonic()
        if now - self.told_at < EVERY_S:
            return
        if not self.told_at:
            log("another program fills this revision here; waiting for it")
        self.told_at = now
        done_bytes = proven_bytes(self.manifest, self.store.partial(self.manifest.digest))
        if done_bytes != self.progress.done_bytes:
            self.progress.done_bytes, self.progress.moved_at = done_bytes, now
        self.progress.tell()
        if now - self.progress.moved_at > OTHER_STALLS_S:
            raise PrefetchError("Stalled", f"The program that fills this revision stands still for {OTHER_STALLS_S} s.")


@dataclass(slots=True)
class _Filling:
    """The one program that fills this revision now. Also the Place of its Download: files go to blobs and the tree."""

    store: Store
    manifest: Manifest
    room: Room
    progress: Progress
    connections: int
    proofs: dict[str, FileProof] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return self.store.partial(self.manifest.digest)

    @property
    def tree(self) -> Path:
        return self.folder / "tree"

    def run(self) -> None:
        (self.tree / "files").mkdir(parents=True, exist_ok=True)
        with Download(self.manifest, self.folder, self, self.progress, self.connections).opened() as download:
            self._reuse(download)
            self._take_room(download)
            chunks = download.run()
        self._publish(chunks)

    def kept(self, file: ModelFile) -> Path | None:
        path = self.tree / "files" / file.path
        with suppress(FileNotFoundError, NotADirectoryError):
            if path.lstat().st_size == file.size_bytes:
                return path
        return None

    def keep(self, part: Part, digest: str) -> None:
        blob = self.store.blob(digest)
        blob.parent.mkdir(parents=True, exist_ok=True)
        try:
            blob.hardlink_to(part.path)
        except FileExistsError:
            # Nobody has looked at that one since it was made; ours was hashed just now.
            if chunk_digests(blob) != tuple(part.chunks[index].blake3 for index in range(part.count)):
                blob.unlink()
                blob.hardlink_to(part.path)
        sync_folder(blob.parent)
        # Should the blob's name be removed just now, the bytes are still ours.
        self._stage(blob if blob.exists() else part.path, part.file)
        part.path.unlink()

    def _stage(self, source: Path, file: ModelFile) -> None:
        path = self.tree / "files" / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.hardlink_to(source)

    def _reuse(self, download: Download) -> None:
        """Link every file whose content a published revision has."""
        held = _held(self.store)
        for index, file in enumerate(self.manifest.files):
            found = held.get(content_key(self.manifest.source, file))
            if found is None or download.is_kept(index):
                continue
            path, proof = found
            with suppress(FileNotFoundError):  # evicted at this moment: then it is fetched
                self._stage(path, file)
                download.reuse(index, proof.chunks)

    def _take_room(self, download: Download) -> None:
        try:
            # Two fills must not both find the same room free.
            with self.store.lock("room", 600.0):
                self._check_room(download.missing_bytes())
                download.preallocate()
        except PrefetchError:
            if not download.has_proven:
                self.store.discard(self.folder)
            raise

    def _check_room(self, need_bytes: int) -> None:
        disk = observe_disk(self.store.root, self.room.capacity_bytes)
        free_bytes = disk.free_bytes - self.room.reserve_bytes
        if need_bytes > free_bytes:
            raise PrefetchError(
                "NoSpace",
                f"The revision needs {need_bytes} bytes more, and {max(0, free_bytes)} are free for it in"
                f" {self.store.root} (capacity {disk.capacity_bytes}, used by the store {disk.used_bytes},"
                f" reserved {self.room.reserve_bytes}); evict another revision or use a larger disk.",
            )

    def _publish(self, chunks: Mapping[str, tuple[Chunk, ...]]) -> None:
        """Everything to the disk, then one rename: readers see all of it or nothing."""
        proofs = {}
        for file in self.manifest.files:
            found = (self.tree / "files" / file.path).lstat()
            digest = file.digest or tree_hash(chunks[file.path])
            proofs[file.path] = FileProof(digest, found.st_mtime_ns, tuple(c.blake3 for c in chunks[file.path]))
        write_tree(self.tree, self.manifest, proofs)
        target = self.store.tree(self.manifest.digest)
        try:
            self.tree.rename(target)
        except OSError:
            # Somebody without our lock published it, such as a restored backup.
            if not adopt(self.store, self.manifest.digest):
                self.tree.rename(target)
        sync_folder(self.store.trees)
        self.store.discard(self.folder)


def _held(store: Store) -> dict[str, tuple[Path, FileProof]]:
    """Proven files of all published revisions by their content; touched ones are left out."""
    held = {}
    for path in sorted(store.trees.iterdir()):
        tree = read_tree(path)
        if tree is None or tree.filesystem_id != filesystem_id(store.root):
            continue
        for file in tree.manifest.files:
            proof = tree.proofs.get(file.path)
            if proof and len(proof.chunks) == chunk_count(file.size_bytes) and not touched(tree, file):
                held[content_key(tree.manifest.source, file)] = (tree.file(file.path), proof)
    return held
