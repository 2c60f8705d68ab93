"""audit: what this node's disk holds, proven again; evict: take one revision off it."""

from __future__ import annotations

import re
from pathlib import Path

from tasks.prefetch.disk import filesystem_id
from tasks.prefetch.errors import PrefetchError, disk_errors
from tasks.prefetch.store import LAYOUT_VERSION, Store, read_json
from tasks.prefetch.trees import fault, read_tree

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
EVICT_WAIT_S = 60.0

Entry = dict[str, object]


def audit(store: Store, *, full: bool = False) -> list[Entry]:
    """One entry per published revision. What is not proven is told once, as Suspect, and is gone then."""
    if not store.trees.is_dir():
        return []
    told = read_json(store.layout)
    if told is not None and told.get("version") != LAYOUT_VERSION:
        raise PrefetchError(
            "LayoutMismatch", f"{store.layout} has version {told.get('version')}, expected {LAYOUT_VERSION}."
        )
    with disk_errors():
        store.empty_trash()
        here = filesystem_id(store.root)
        return [_entry(store, tree, here, full=full) for tree in sorted(store.trees.iterdir())]


def evict(store: Store, digest: str) -> None:
    """Remove a revision and whatever of it nobody else has. Does nothing when it is not there."""
    if not DIGEST.fullmatch(digest):
        raise PrefetchError("NotFound", f"{digest!r} is no digest of a revision; expected sha256: and 64 hex digits.")
    if not store.trees.is_dir():
        return
    with disk_errors(), store.lock(digest, EVICT_WAIT_S):
        store.discard(store.tree(digest))
        store.discard(store.partial(digest))
        store.drop_unused_blobs()
        store.empty_trash()
        store.partial(digest).with_suffix(".lock").unlink(missing_ok=True)


def _entry(store: Store, path: Path, here: str, *, full: bool) -> Entry:
    tree = read_tree(path)
    why = fault(tree, full=full, here=here) if tree else "its manifest or proof cannot be read"
    if why:
        store.discard(path)
        store.drop_unused_blobs()
    return {
        "digest": tree.manifest.digest if tree else f"sha256:{path.name}",
        "size_bytes": tree.manifest.size_bytes if tree else 0,
        "state": "Suspect" if why else "Ready",
        "reason": "IntegrityMismatch" if why else "",
        "message": why,
    }
