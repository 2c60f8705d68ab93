"""Model repositories of the local hub: `<root>/<org>/<model>/<files>`, each state of a directory one commit.

    <root>/.hub/blobs/<oid>-<mtime>       hard links to every file that was ever part of a commit
    <root>/.hub/<org>/<model>/<commit>    the files of a commit; so an old commit is still served after an update

A file that changes must be replaced, not written in place, or its old content is gone from the old commit too.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

LARGE_SUFFIXES = frozenset({".safetensors", ".gguf", ".bin", ".pt", ".pth", ".ckpt", ".onnx", ".h5", ".msgpack"})
LARGE_BYTES = 10 << 20


@dataclass(frozen=True, slots=True)
class Blob:
    """One file of a commit. oid: git's blob id of the file (of its pointer, for LFS); sha256: "" unless LFS."""

    path: str
    size_bytes: int
    mtime_ns: int
    oid: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Commit:
    id: str
    blobs: tuple[Blob, ...]

    def find(self, path: str) -> Blob | None:
        return next((blob for blob in self.blobs if blob.path == path), None)


@dataclass(frozen=True, slots=True)
class Repository:
    """One model. `name` is "org/model"."""

    root: Path
    name: str

    @property
    def directory(self) -> Path:
        return self.root / self.name

    def exists(self) -> bool:
        return self.directory.is_dir()

    def is_gated(self) -> bool:
        return (self.directory / ".gated").exists()

    def is_private(self) -> bool:
        return (self.directory / ".private").exists()

    def commit(self, revision: str) -> Commit | None:
        """What a revision names: "main" is the directory as it is now. None when it names nothing."""
        if revision == "main":
            return self._commit_now()
        path = self._commits / revision
        return _read_commit(path) if revision.isalnum() and path.is_file() else None

    def content(self, blob: Blob) -> Path | None:
        """The file with a blob's content, None when it was overwritten in place since."""
        path = self._blob_path(blob)
        status = path.stat()
        return path if (status.st_size, status.st_mtime_ns) == (blob.size_bytes, blob.mtime_ns) else None

    @property
    def _commits(self) -> Path:
        return self.root / ".hub" / self.name

    def _blob_path(self, blob: Blob) -> Path:
        return self.root / ".hub" / "blobs" / f"{blob.oid}-{blob.mtime_ns}"

    def _commit_now(self) -> Commit:
        known = self._known_blobs()
        blobs = tuple(self._blob(file, known) for file in sorted(self.directory.rglob("*")) if self._is_content(file))
        digest = hashlib.sha1("".join(f"{blob.oid} {blob.path}\n" for blob in blobs).encode())  # noqa: S324 - as git
        commit = Commit(digest.hexdigest(), blobs)
        path = self._commits / commit.id
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps([asdict(blob) for blob in blobs]))
        return commit

    def _is_content(self, file: Path) -> bool:
        return file.is_file() and not any(part.startswith(".") for part in file.relative_to(self.directory).parts)

    def _known_blobs(self) -> dict[tuple[str, int, int], Blob]:
        """Blobs of all commits by path, size and time: what needs no hashing again."""
        commits = [_read_commit(path) for path in self._commits.iterdir()] if self._commits.is_dir() else []
        return {(blob.path, blob.size_bytes, blob.mtime_ns): blob for commit in commits for blob in commit.blobs}

    def _blob(self, file: Path, known: dict[tuple[str, int, int], Blob]) -> Blob:
        status, path = file.stat(), file.relative_to(self.directory).as_posix()
        blob = known.get((path, status.st_size, status.st_mtime_ns))
        if blob is None:
            blob = _hash(file, path, status.st_size, status.st_mtime_ns)
            kept = self._blob_path(blob)
            kept.parent.mkdir(parents=True, exist_ok=True)
            if not kept.exists():
                kept.hardlink_to(file)
        return blob


def _hash(file: Path, path: str, size_bytes: int, mtime_ns: int) -> Blob:
    if file.suffix not in LARGE_SUFFIXES and size_bytes <= LARGE_BYTES:
        return Blob(path, size_bytes, mtime_ns, _git_oid(file.read_bytes()), "")
    with file.open("rb") as content:
        sha256 = hashlib.file_digest(content, "sha256").hexdigest()
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size_bytes}\n"
    return Blob(path, size_bytes, mtime_ns, _git_oid(pointer.encode()), sha256)


def _git_oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()  # noqa: S324 - as git


def _read_commit(path: Path) -> Commit:
    return Commit(path.name, tuple(Blob(**entry) for entry in json.loads(path.read_text())))
