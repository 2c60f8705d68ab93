"""The disk below a store: how large, how full, which one, and whether it is the one that was meant."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
MOUNTS = Path("/proc/self/mountinfo")


@dataclass(frozen=True, slots=True)
class Disk:
    """capacity_bytes, free_bytes: of the file system, or of the limit set for the store where that is less."""

    capacity_bytes: int
    free_bytes: int
    used_bytes: int
    filesystem_id: str


def observe_disk(root: Path, capacity_limit_bytes: int | None = None) -> Disk:
    """The disk that holds `root`, or would hold it. Creates nothing."""
    found = os.statvfs(existing(root))
    capacity_bytes, free_bytes = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    used_bytes = used(root)
    if capacity_limit_bytes is not None:
        capacity_bytes = min(capacity_bytes, capacity_limit_bytes)
        free_bytes = min(free_bytes, max(0, capacity_bytes - used_bytes))
    return Disk(capacity_bytes, free_bytes, used_bytes, filesystem_id(root))


def filesystem_id(root: Path) -> str:
    return f"{os.statvfs(existing(root)).f_fsid:x}"


def boot_id() -> str:
    return BOOT_ID.read_text().strip()


def existing(path: Path) -> Path:
    """`path`, or its nearest parent that exists."""
    while not path.exists():
        path = path.parent
    return path


def used(root: Path) -> int:
    """Bytes of the blocks below `root`; an inode with several names counts once."""
    seen: set[int] = set()
    total = 0
    folders = [os.fspath(root)]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    elif entry.inode() not in seen:
                        seen.add(entry.inode())
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
        except FileNotFoundError:
            continue  # removed while we looked
    return total


def unmounted(root: Path, host_path: str) -> bool:
    """Whether `root`, which is `host_path` on the host, lies on the host's root disk: then no other disk is mounted.

    A container sees in mountinfo where inside its file system a volume begins: for a mounted disk the mount point's own
    path is missing there.
    """
    real = os.path.realpath(root)
    inside, mount_point = "", ""
    for line in MOUNTS.read_text().splitlines():
        fields = line.split(" ")
        begins, point = _unescape(fields[3]), _unescape(fields[4])
        if (real == point or real.startswith(point.rstrip("/") + "/")) and len(point) >= len(mount_point):
            inside, mount_point = begins, point
    return Path(inside) / Path(real).relative_to(mount_point or "/") == Path(host_path)


def _unescape(field: str) -> str:
    return field.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
