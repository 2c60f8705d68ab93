"""Published revisions: `trees/<hex>`, each with the manifest it was made from and the proof of what it holds.

    proof.json   filesystem_id, and per file: digest, mtime_ns when it was proven, and its chunks' blake3 digests

A tree is proven when every file has its size and its time; where a time or the file system differs, the file is
hashed again. A tree that fails is taken away before anybody is told.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tasks.plan.manifest import InvalidManifest, manifest_from_json, manifest_to_json
from tasks.plan.types import Manifest, ModelFile
from tasks.prefetch.disk import filesystem_id
from tasks.prefetch.store import hexadecimal, read_json, sync_folder, write_json, write_text

VERSION = 1
PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class FileProof:
    """What one file of a tree was proven to be."""

    digest: str
    mtime_ns: int
    chunks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tree:
    """A published revision, as read from the disk; nothing is checked yet."""

    path: Path
    manifest: Manifest
    filesystem_id: str
    proofs: Mapping[str, FileProof]

    def file(self, path: str) -> Path:
        return self.path / "files" / path


def read_tree(path: Path) -> Tree | None:
    """None when there is none, or when its manifest or proof cannot be read."""
    told = read_json(path / "proof.json")
    try:
        manifest = manifest_from_json((path / "manifest.json").read_text())
        if told is None or told["version"] != VERSION or hexadecimal(manifest.digest) != path.name:
            return None
        proofs = {name: _proof(proof) for name, proof in _mapping(told["files"]).items()}
    except (InvalidManifest, OSError, KeyError, TypeError, ValueError):
        return None
    return Tree(path, manifest, str(told["filesystem_id"]), proofs)


def write_tree(path: Path, manifest: Manifest, proofs: Mapping[str, FileProof]) -> None:
    """Write manifest and proof into a tree under construction, and everything of it to the disk for good."""
    write_text(path / "manifest.json", manifest_to_json(manifest))
    _write_proof(path, filesystem_id(path), proofs)
    for folder, _, _ in os.walk(path):
        Path(folder).chmod(0o755)
        sync_folder(Path(folder))


def fault(tree: Tree, *, full: bool = False, here: str) -> str:
    """Why this tree must not be used; "" when it is proven. Files that look touched are hashed, with `full` all are.

    here: filesystem id of the store; what was proven on another one is proven again.
    """
    moved = tree.filesystem_id != here
    times = {}
    for file in tree.manifest.files:
        if why := _file_fault(tree, file, hashed=full or moved):
            return why
        times[file.path] = tree.file(file.path).lstat().st_mtime_ns
    proofs = {path: replace(proof, mtime_ns=times[path]) for path, proof in tree.proofs.items()}
    if moved or proofs != tree.proofs:
        _write_proof(tree.path, here, proofs)
    return ""


def touched(tree: Tree, file: ModelFile) -> bool:
    """Whether a file has another size or time than when it was proven: the quick look, which hashes nothing."""
    proof = tree.proofs.get(file.path)
    try:
        found = tree.file(file.path).lstat()
    except OSError:
        return True
    return proof is None or (found.st_size, found.st_mtime_ns) != (file.size_bytes, proof.mtime_ns)


def chunk_digests(path: Path) -> tuple[str, ...]:
    """blake3 of each chunk, hashed in parallel."""
    from concurrent.futures import ThreadPoolExecutor

    from blake3 import blake3

    from tasks.prefetch.digest import CHUNK_BYTES, chunk_count

    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)

    def digest(index: int) -> str:
        hasher, offset, end = blake3(), index * CHUNK_BYTES, (index + 1) * CHUNK_BYTES
        while piece := os.pread(fd, min(PIECE_BYTES, end - offset), offset):
            hasher.update(piece)
            offset += len(piece)
        return hasher.hexdigest()

    try:
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1), thread_name_prefix="hash") as pool:
            digests = tuple(pool.map(digest, range(chunk_count(os.fstat(fd).st_size))))
        # What we read for a check is no reason to push an engine's pages out.
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
    return digests


def _file_fault(tree: Tree, file: ModelFile, *, hashed: bool) -> str:
    path, proof = tree.file(file.path), tree.proofs.get(file.path)
    if proof is None:
        return f"{file.path} was never proven"
    try:
        found = path.lstat()
        if found.st_size != file.size_bytes:
            return f"{file.path} has {found.st_size} bytes, expected {file.size_bytes}"
        if (hashed or found.st_mtime_ns != proof.mtime_ns) and chunk_digests(path) != proof.chunks:
            return f"{file.path} has other content than was proven"
    except FileNotFoundError:
        return f"{file.path} is missing"
    except OSError as error:
        return f"{file.path} cannot be read: {error.strerror}"
    return ""


def _write_proof(path: Path, here: str, proofs: Mapping[str, FileProof]) -> None:
    files = {name: {"digest": p.digest, "mtime_ns": p.mtime_ns, "chunks": p.chunks} for name, p in proofs.items()}
    write_json(path / "proof.json", {"version": VERSION, "filesystem_id": here, "files": files})


def _proof(told: Mapping[str, Any]) -> FileProof:
    return FileProof(str(told["digest"]), int(told["mtime_ns"]), tuple(map(str, told["chunks"])))


def _mapping(told: object) -> dict[str, Any]:
    if not isinstance(told, dict):
        raise TypeError
    return told
