"""Which chunks of a partial download are proven: lines appended as they are, read again after a crash.

    {"version":1,"boot_id":…,"filesystem_id":…}         first line
    {"file":3,"chunk":17,"blake3":…,"crc64nvme":…}      this chunk is on the disk
    {"file":3,"reset":true}                             nothing of this file counts any more

A line without its end was cut off by a crash and does not count. What another boot wrote may never have reached the
disk, so the reader hashes it again before it is trusted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.prefetch.digest import Chunk

VERSION = 1

Chunks = dict[int, dict[int, Chunk]]  # file index → chunk index → chunk


def read_journal(path: Path, here: Mapping[str, str]) -> tuple[Chunks, bool]:
    """(what is proven, whether it was proven since this boot on this file system)."""
    lines = _whole_lines(path)
    if not lines or lines[0].get("version") != VERSION:
        return {}, True
    found: Chunks = {}
    for line in lines[1:]:
        if line.get("reset"):
            found.pop(line["file"], None)
        else:
            found.setdefault(line["file"], {})[line["chunk"]] = Chunk(line["blake3"], line["crc64nvme"])
    return found, all(lines[0].get(name) == value for name, value in here.items())


def _whole_lines(path: Path) -> list[dict[str, Any]]:
    """The lines up to the first that a crash has spoiled."""
    lines: list[dict[str, Any]] = []
    try:
        text = path.read_text(errors="replace")
    except FileNotFoundError:
        return lines
    for line in text.splitlines(keepends=True):
        try:
            told = json.loads(line) if line.endswith("\n") else None
        except ValueError:
            told = None
        if not isinstance(told, dict):
            break
        lines.append(told)
    return lines


class Journal:
    """The writing side. Starts a new file from what is known, in one step, so that no cut-off line stays inside."""

    def __init__(self, path: Path, here: Mapping[str, str], known: Chunks) -> None:
        new = path.with_suffix(".new")
        lines = [{"version": VERSION, **here}]
        lines += [_line(file, index, chunk) for file, chunks in known.items() for index, chunk in chunks.items()]
        new.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
        new.rename(path)
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def prove(self, file: int, index: int, chunk: Chunk) -> None:
        self._append(_line(file, index, chunk))

    def reset(self, file: int) -> None:
        self._append({"file": file, "reset": True})

    def close(self) -> None:
        os.close(self._fd)

    def _append(self, line: dict[str, Any]) -> None:
        # One write: a killed process leaves a whole line or none.
        os.write(self._fd, (json.dumps(line, separators=(",", ":")) + "\n").encode())


def _line(file: int, index: int, chunk: Chunk) -> dict[str, Any]:
    return {"file": file, "chunk": index, "blake3": chunk.blake3, "crc64nvme": chunk.crc64nvme}
