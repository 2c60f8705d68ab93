"""Brings files of a manifest into a folder, verified, resuming what an earlier try has proven.

    <folder>/journal      which chunks are proven
    <folder>/parts/<n>    file n of the manifest, preallocated

What becomes of a finished file is the caller's: `Place.keep` takes it away, `Place.kept` finds it again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, Self

from tasks.plan.types import Manifest, ModelFile
from tasks.prefetch.digest import CHUNK_BYTES, Chunk, ChunkHasher, chunk_count, chunk_size
from tasks.prefetch.disk import boot_id, filesystem_id
from tasks.prefetch.errors import PrefetchError, disk_errors
from tasks.prefetch.files import preallocate
from tasks.prefetch.journal import Chunks, Journal, read_journal
from tasks.prefetch.origins import open_origin
from tasks.prefetch.progress import Progress, log
from tasks.prefetch.schedule import Part
from tasks.prefetch.transfer import Transfer


class Place(Protocol):
    """Where finished files go."""

    def kept(self, file: ModelFile) -> Path | None:
        """The file when it was kept before, of the right size; None otherwise."""

    def keep(self, part: Part, digest: str, /) -> None:
        """Take a verified file. It may be called again for the same file after a crash."""


@dataclass(slots=True)
class Download:
    """One manifest on its way into `place`, by way of `folder`."""

    manifest: Manifest
    folder: Path
    place: Place
    progress: Progress
    connections: int = 8
    _known: Chunks = field(default_factory=dict)
    _journal: Journal = field(init=False)

    @contextmanager
    def opened(self) -> Iterator[Self]:
        """Around everything else: learn what is proven already, and note what becomes so."""
        self._prepare()
        try:
            yield self
        finally:
            self._journal.close()

    def reuse(self, index: int, chunks: Iterable[str]) -> None:
        """Note that a file was kept without a download, and what it consists of."""
        self._known[index] = {i: Chunk(blake3) for i, blake3 in enumerate(chunks)}
        for i, chunk in self._known[index].items():
            self._journal.prove(index, i, chunk)

    @property
    def has_proven(self) -> bool:
        return any(self._known.values())

    def missing_bytes(self) -> int:
        """Room that is still to be taken on the disk."""
        taken = sum(path.stat().st_blocks * 512 for path in map(self._path, self._unkept()) if path.exists())
        return max(0, sum(self.manifest.files[index].size_bytes for index in self._unkept()) - taken)

    def preallocate(self) -> None:
        """Take the room now, so that a full disk shows before the download; give it back when it is not enough."""
        try:
            with disk_errors():
                for index in self._unkept():
                    preallocate(self._path(index), self.manifest.files[index].size_bytes)
        except PrefetchError:
            for index in self._unkept():
                if not self._known.get(index):
                    self._path(index).unlink(missing_ok=True)
            raise

    def run(self) -> dict[str, tuple[Chunk, ...]]:
        """Fetch what is missing; returns each file's chunks. What was proven stays when this raises."""
        parts = []
        for index, file in enumerate(self.manifest.files):
            known = self._known.setdefault(index, {})
            self.progress.reuse(sum(chunk_size(file.size_bytes, i) for i in known), files=int(self.is_kept(index)))
            if not self.is_kept(index):
                parts.append(Part(index, file, self._path(index), known))
        if parts:
            origin = open_origin(self.manifest)
            Transfer(origin, parts, self._journal, self.progress, self.place.keep, self.connections).run()
        self.progress.tell()
        return {
            file.path: tuple(self._known[index][i] for i in range(chunk_count(file.size_bytes)))
            for index, file in enumerate(self.manifest.files)
        }

    def is_kept(self, index: int) -> bool:
        file = self.manifest.files[index]
        whole = len(self._known.get(index, {})) == chunk_count(file.size_bytes)
        return whole and self.place.kept(file) is not None

    def _prepare(self) -> None:
        (self.folder / "parts").mkdir(parents=True, exist_ok=True)
        here = {"boot_id": boot_id(), "filesystem_id": filesystem_id(self.folder)}
        self._known, trusted = read_journal(self.folder / "journal", here)
        self._known = {i: chunks for i, chunks in self._known.items() if i < len(self.manifest.files)}
        if not trusted:
            log("the machine was started anew, or this is another disk: hashing what is here before trusting it")
        for index, chunks in list(self._known.items()):
            self._known[index] = self._still_there(index, chunks, hashed=not trusted)
        self._journal = Journal(self.folder / "journal", here, self._known)

    def _unkept(self) -> list[int]:
        return [index for index in range(len(self.manifest.files)) if not self.is_kept(index)]

    def _path(self, index: int) -> Path:
        return self.folder / "parts" / str(index)

    def _still_there(self, index: int, chunks: Mapping[int, Chunk], *, hashed: bool) -> dict[int, Chunk]:
        """Those of `chunks` whose bytes are on the disk; `hashed`: and prove to be."""
        file = self.manifest.files[index]
        path = self.place.kept(file) or self._path(index)
        try:
            if path.stat().st_size < file.size_bytes:
                return {}
        except FileNotFoundError:
            return {}
        inside = {i: chunk for i, chunk in chunks.items() if i < chunk_count(file.size_bytes)}
        return {i: c for i, c in inside.items() if _hash(path, file, i) == c} if hashed else inside


def proven_bytes(manifest: Manifest, folder: Path) -> int:
    """How far another program is, by its journal."""
    found: Chunks = read_journal(folder / "journal", {})[0]
    return sum(
        chunk_size(manifest.files[index].size_bytes, i)
        for index, chunks in found.items()
        if index < len(manifest.files)
        for i in chunks
    )


def _hash(path: Path, file: ModelFile, index: int) -> Chunk:
    hasher, left = ChunkHasher(with_crc=bool(file.crc64nvme)), chunk_size(file.size_bytes, index)
    with path.open("rb") as content:
        content.seek(index * CHUNK_BYTES)
        while left and (piece := content.read(min(left, 1 << 20))):
            hasher.update(memoryview(piece))
            left -= len(piece)
        os.posix_fadvise(content.fileno(), index * CHUNK_BYTES, CHUNK_BYTES, os.POSIX_FADV_DONTNEED)
    return hasher.chunk()
