"""A mounted file system (FSx, NFS, a laptop's disk): the files below a directory, pinned by size and time."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from tasks.plan.types import ModelFile, Source
from tasks.sources.errors import SourceError
from tasks.sources.selection import select


def files_of(source: Source) -> list[ModelFile]:
    """The model's files as they are now; SourceError when that cannot be told."""
    root = directory(source)
    try:
        found = dict(_walk(root, root))
        return [_pin(source, root, path, found[path]) for path in select(source, found)]
    except FileNotFoundError as error:
        raise SourceError(
            "SourceChanged",
            f"{error.filename} of {source.uri} vanished while it was read.",
            "Wait until it is at rest.",
        ) from error
    except PermissionError as error:
        raise SourceError(
            "PermissionDenied", f"{error.filename} of {source.uri} may not be read.", "Give this user read access."
        ) from error


def directory(source: Source) -> Path:
    path = Path(source.uri.removeprefix("file://"))
    if not source.uri.startswith("file:///") or path == Path("/"):
        raise SourceError("NotFound", f"{source.uri!r} names no directory.", "Give one as file:///mnt/models/llama.")
    if not path.is_dir():
        raise SourceError("NotFound", f"{path} is no directory here.", "Check that its file system is mounted.")
    return path.resolve()


def _walk(root: Path, folder: Path) -> Iterator[tuple[str, Path]]:
    """Files by their path inside the model. Hidden entries (.git, .snapshot, .cache) are no part of it."""
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(root, Path(entry.path))
            else:
                yield Path(entry.path).relative_to(root).as_posix(), Path(entry.path)


def _pin(source: Source, root: Path, path: str, file: Path) -> ModelFile:
    # The real path first: a link could lead to any file that this user may read.
    if not file.resolve(strict=True).is_relative_to(root):
        raise SourceError(
            "PermissionDenied",
            f"{path!r} of {source.uri} links to {file.resolve()}, outside of the model's directory.",
            "Put the file itself there.",
        )
    status = file.stat()
    if not stat.S_ISREG(status.st_mode):
        raise SourceError("UnsupportedFormat", f"{path!r} of {source.uri} is no regular file.", "Remove or exclude it.")
    return ModelFile(path, status.st_size, pin=f"stat:{status.st_size}-{status.st_mtime_ns}")
