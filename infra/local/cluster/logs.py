"""Where pods live on disk, and the end of their logs."""

from __future__ import annotations

import os
from pathlib import Path

from infra.local.cluster.objects import Object

_BLOCK_BYTES = 65_536


def pod_directory(cluster: Path, uid: str) -> Path:
    return cluster / "pods" / uid


def node_directory(cluster: Path, node: str) -> Path:
    """The root of a node's file system."""
    return cluster / "nodes" / node


def log_path(cluster: Path, uid: str, container: str) -> Path:
    return pod_directory(cluster, uid) / f"{container}.log"


def read_logs(cluster: Path, pod: Object, container: str, tail_lines: int) -> str:
    """The last lines of `container`, by default of the first container; "" while it has not started."""
    name = container or pod["spec"]["containers"][0]["name"]
    path = log_path(cluster, pod["metadata"]["uid"], name)
    return "\n".join(_tail(path, tail_lines)) if path.exists() else ""


def _tail(path: Path, lines: int) -> list[str]:
    """Read blocks from the end until there are enough lines."""
    with path.open("rb") as file:
        position = file.seek(0, os.SEEK_END)
        found = b""
        while position > 0 and found.count(b"\n") <= lines:
            step = min(_BLOCK_BYTES, position)
            position -= step
            file.seek(position)
            found = file.read(step) + found
    return found.decode(errors="replace").splitlines()[-lines:]
