"""The manifest as a command gets it, and what the report says of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tasks.plan.manifest import InvalidManifest, manifest_from_json
from tasks.plan.types import Manifest
from tasks.prefetch.errors import PrefetchError
from tasks.prefetch.pins import trust
from tasks.prefetch.progress import Progress
from tasks.prefetch.report import Report


def read_manifest(path: Path) -> Manifest:
    try:
        return manifest_from_json(path.read_text())
    except OSError as error:
        raise PrefetchError("NotFound", f"The manifest {path} cannot be read: {error.strerror}.") from error
    except InvalidManifest as error:
        raise PrefetchError("UnsupportedFormat", f"The manifest {path} is refused: {error}.") from error


def told_of(manifest: Manifest, progress: Progress) -> Report:
    """trust: how many files were held against what. No file is ever left unverified."""
    return {
        "digest": manifest.digest,
        "revision": manifest.revision,
        "size_bytes": manifest.size_bytes,
        "files": len(manifest.files),
        "fetched_bytes": progress.fetched_bytes,
        "reused_bytes": progress.reused_bytes,
        "unverified_files": len(manifest.files) - progress.files_done,
        "trust": dict(Counter(trust(file) for file in manifest.files)),
    }
