"""Whether a node can hold a revision: what is missing there against what is free.

    free - reserved for fills in flight - floor  >=  bytes of the files that the node does not hold yet

The floor keeps a store from filling a disk to the brim: the kubelet evicts pods at 10 % free of a file system that it
watches (nodefs.available); an NVMe of its own needs less. A fill takes its room before it downloads, so one that began
is in the free bytes already and is not asked for it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tasks.plan.figures import bytes_text
from tasks.plan.manifest import diff_manifests
from tasks.plan.types import CacheEntry, Manifest, Node

FLOOR_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Admission:
    """What a revision means for one node. reason is "" when the node can hold it.

    free_bytes: None while no audit has told. resumes: a fill began before, so some of fetch_bytes may be there.
    """

    node: str
    fetch_bytes: int
    reuse_bytes: int
    free_bytes: int | None
    holds_it: bool
    reason: str = ""
    resumes: bool = False


def admit(manifest: Manifest, node: Node, known: Mapping[str, Manifest]) -> Admission:
    """Admission of `manifest` on `node`. known: manifests by digest, for what the node can reuse.

    A node that nobody has audited is admitted: its own fill refuses before it downloads.
    """
    held = {entry.digest for entry in node.entries if entry.state == "Ready"}
    if manifest.digest in held:
        return Admission(node.name, 0, manifest.size_bytes, node.free_bytes, holds_it=True)
    fetch_bytes = _missing_bytes(manifest, (known[digest] for digest in sorted(held) if digest in known))
    reuse_bytes = manifest.size_bytes - fetch_bytes
    resumes = any(_has_its_room(entry, manifest.digest) for entry in node.entries)
    reason = "" if resumes else _why_not(fetch_bytes, node)
    return Admission(node.name, fetch_bytes, reuse_bytes, node.free_bytes, False, reason, resumes)


def usable_bytes(node: Node) -> int | None:
    """Bytes that a fill may take on `node`; None when no audit has told."""
    if node.free_bytes is None or node.capacity_bytes is None:
        return None
    return max(0, node.free_bytes - node.reserved_bytes - int(FLOOR_SHARE * node.capacity_bytes))


def largest_bytes(nodes: Iterable[Node]) -> int:
    """What the roomiest of `nodes` could hold when empty."""
    return max((int((1 - FLOOR_SHARE) * (node.capacity_bytes or 0)) for node in nodes), default=0)


def _has_its_room(entry: CacheEntry, digest: str) -> bool:
    began = entry.state in ("Downloading", "Partial") or (entry.state == "Failed" and entry.reason != "NoSpace")
    return entry.digest == digest and began


def _why_not(fetch_bytes: int, node: Node) -> str:
    usable = usable_bytes(node)
    if usable is None or fetch_bytes <= usable:
        return ""
    return (
        f"NoSpace: it needs {bytes_text(fetch_bytes)} and {bytes_text(usable)} are usable "
        f"({bytes_text(node.free_bytes or 0)} free, {bytes_text(node.reserved_bytes)} reserved, "
        f"{FLOOR_SHARE:.0%} of {bytes_text(node.capacity_bytes or 0)} kept free)"
    )


def _missing_bytes(manifest: Manifest, held: Iterable[Manifest]) -> int:
    """Bytes of the files that none of the `held` manifests has."""
    missing = {file.path for file in manifest.files}
    for old in held:
        missing &= set(diff_manifests(old, manifest).fetch_paths)
    return sum(file.size_bytes for file in manifest.files if file.path in missing)
