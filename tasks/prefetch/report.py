"""The last word of a command: the last line of its output, and the file that becomes the pod's termination message."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tasks.prefetch.disk import boot_id, observe_disk
from tasks.prefetch.errors import PrefetchError
from tasks.prefetch.progress import say

# What Kubernetes keeps of a termination message.
MOST_BYTES = 4096
MOST_MESSAGE = 1000

Report = dict[str, Any]


def disk_report(root: Path, capacity_bytes: int | None) -> Report:
    """The disk's figures; {} when it cannot be asked."""
    try:
        disk = observe_disk(root, capacity_bytes)
    except OSError:
        return {}
    return {
        "capacity_bytes": disk.capacity_bytes,
        "free_bytes": disk.free_bytes,
        "used_bytes": disk.used_bytes,
        "filesystem_id": disk.filesystem_id,
        "boot_id": boot_id(),
    }


def failure_report(error: PrefetchError) -> Report:
    return {"outcome": "Failed", "reason": error.reason, "message": error.message[:MOST_MESSAGE]}


def write_report(path: Path | None, report: Report) -> None:
    """Say it and write it. One too long for the file is left out there: cut in the middle it would mislead."""
    say("report", **report)
    if path is not None:
        line = json.dumps(report, separators=(",", ":"))
        # Not by rename: a termination message is a mount, which cannot be replaced.
        path.write_text(line if len(line.encode()) <= MOST_BYTES else "")
