"""link: give an engine its weights. On a warm node links into the store, on a cold one a download of its own.

It writes nothing into the store, which is mounted read-only in an engine's pod, and a cold store is no failure.
"""

from __future__ import annotations

from pathlib import Path

from tasks.plan.types import Manifest
from tasks.prefetch.errors import PrefetchError, disk_errors
from tasks.prefetch.progress import Progress
from tasks.prefetch.store import Store
from tasks.prefetch.trees import Tree, read_tree, touched


def link(
    store: Store, manifest: Manifest, into: Path, *, scratch_ok: bool, connections: int = 8
) -> tuple[str, Progress]:
    """("hit" or "source", what was moved)."""
    progress = Progress(manifest.size_bytes, len(manifest.files))
    with disk_errors():
        into.mkdir(parents=True, exist_ok=True)
        if tree := proven_tree(store, manifest.digest):
            for file in manifest.files:
                _link(tree.file(file.path), into / file.path)
            progress.reuse(manifest.size_bytes, files=len(manifest.files))
            return "hit", progress
        if not scratch_ok:
            raise PrefetchError("NotFound", f"{store.root} has no proven copy of {manifest.digest}; fill this node.")
        # Imported here: a warm start needs none of it, and should not wait for it.
        from tasks.prefetch.scratch import download_into

        download_into(into, manifest, progress, connections)
    return "source", progress


def proven_tree(store: Store, digest: str) -> Tree | None:
    """The published tree, when every file has the size and time it had when it was proven."""
    try:
        tree = read_tree(store.tree(digest))
    except OSError:
        return None  # a store that cannot be read is a cold one
    if tree is None or any(touched(tree, file) for file in tree.manifest.files):
        return None
    return tree


def _link(target: Path, path: Path) -> None:
    """Replace whatever an earlier try left, in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name[:200]}.link")
    new.unlink(missing_ok=True)
    new.symlink_to(target.absolute())
    new.replace(path)
