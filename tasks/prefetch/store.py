"""The store on a node's disk: where things are, who may change them, and how they are removed.

    LAYOUT                      version, filesystem id, when it was made
    blobs/<algorithm>/ab/<hex>  one file of a model, 0444, shared by revisions and models through hard links
    trees/<hex>/                manifest.json, proof.json and files/<path>: links to blobs. All that readers look at
    partial/<hex>/              a revision on its way: journal, parts/<n>, and tree/, which becomes trees/<hex>
    partial/<hex>.lock          held while somebody changes that revision
    trash/                      renamed to here first, unlinked after

A blob without another name (a link count of 1) belongs to nobody: every file in use also has its name in a tree or in
`partial`. So removing a blob's name never takes a byte from a reader, whoever links it at the same moment.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tasks.prefetch.disk import filesystem_id, unmounted
from tasks.prefetch.errors import PrefetchError, disk_errors

LAYOUT_VERSION = 1
LOCK_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Store:
    root: Path

    @property
    def trees(self) -> Path:
        return self.root / "trees"

    @property
    def blobs(self) -> Path:
        return self.root / "blobs"

    @property
    def layout(self) -> Path:
        return self.root / "LAYOUT"

    @property
    def trash(self) -> Path:
        return self.root / "trash"

    def tree(self, digest: str) -> Path:
        return self.trees / hexadecimal(digest)

    def partial(self, digest: str) -> Path:
        return self.root / "partial" / hexadecimal(digest)

    def blob(self, digest: str) -> Path:
        algorithm, _, name = digest.partition(":")
        return self.blobs / algorithm / name[:2] / name

    def prepare(self, host_path: str = "", *, allow_root_disk: bool = False) -> None:
        """Make the layout, or recognise it. Refuses a disk that is not the one meant, and a layout of another program.

        host_path: the root's path on the host; "" when nobody told, and then a missing mount cannot be seen.
        """
        with disk_errors():
            if not self.root.parent.is_dir():
                raise PrefetchError("DiskMissing", f"{self.root.parent} does not exist; mount the node's disk there.")
            if host_path and not allow_root_disk and unmounted(self.root, host_path):
                raise PrefetchError(
                    "DiskMissing",
                    f"{host_path} lies on the node's root disk: nothing is mounted there."
                    " Mount the NVMe disk, or allow the root disk.",
                )
            for folder in (self.trees, self.blobs, self.root / "partial", self.trash):
                folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._recognise_layout()

    def _recognise_layout(self) -> None:
        told = read_json(self.layout)
        if told is None:
            now = datetime.now(UTC).isoformat(timespec="seconds")
            here = filesystem_id(self.root)
            write_json(self.layout, {"version": LAYOUT_VERSION, "filesystem_id": here, "created": now})
        elif told.get("version") != LAYOUT_VERSION:
            raise PrefetchError(
                "LayoutMismatch",
                f"{self.layout} has version {told.get('version')}, this program writes {LAYOUT_VERSION};"
                " run the program that wrote it, or remove the store.",
            )

    @contextmanager
    def lock(self, digest: str, wait_s: float, on_wait: Callable[[], None] | None = None) -> Iterator[None]:
        """Be the only one to change this revision; `on_wait` is called again and again while somebody else does."""
        path = self.partial(digest).with_suffix(".lock")
        deadline = time.monotonic() + wait_s
        while True:
            with disk_errors():
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            try:
                if _try_lock(fd, path):
                    break
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)
            if time.monotonic() > deadline:
                raise PrefetchError("Stalled", f"Another program holds {path} for more than {wait_s:.0f} s.")
            if on_wait:
                on_wait()
            time.sleep(LOCK_POLL_S)
        try:
            yield
        finally:
            os.close(fd)

    def discard(self, path: Path) -> None:
        """Take `path` away in one step, then delete it at leisure."""
        gone = self.trash / f"{path.name}.{secrets.token_hex(8)}"
        try:
            path.rename(gone)
        except FileNotFoundError:
            return
        remove(gone)

    def empty_trash(self) -> None:
        """Delete what a killed program left."""
        if self.trash.is_dir():
            for gone in self.trash.iterdir():
                remove(gone)

    def drop_unused_blobs(self) -> None:
        """Remove blobs that are in no tree and in no download."""
        for blob in self.blobs.glob("*/*/*"):
            try:
                if blob.lstat().st_nlink == 1:
                    blob.unlink()
            except FileNotFoundError:
                continue


def hexadecimal(digest: str) -> str:
    """The digest as a directory name; its algorithm is always sha256."""
    return digest.removeprefix("sha256:")


def remove(path: Path) -> None:
    """Delete a file or a tree, also when somebody else is deleting it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def read_json(path: Path) -> dict[str, object] | None:
    """The object in a file; None when there is none, or no JSON."""
    try:
        told = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return told if isinstance(told, dict) else None


def write_json(path: Path, told: object) -> None:
    write_text(path, json.dumps(told, separators=(",", ":")) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write whole or not at all, on the disk for good."""
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with new.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.chmod(0o644)
    new.rename(path)


def sync_folder(path: Path) -> None:
    """Names in a directory survive a power cut only after this."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _try_lock(fd: int, path: Path) -> bool:
    """Lock the file, unless another program has it or it was removed meanwhile."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    try:
        return path.stat().st_ino == os.fstat(fd).st_ino
    except FileNotFoundError:
        return False
