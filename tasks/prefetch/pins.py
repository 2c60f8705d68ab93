"""What binds a file of a manifest to its content, and what its bytes can be held against."""

from __future__ import annotations

import re

from tasks.plan.types import ModelFile

GIT_OID = re.compile(r"[0-9a-f]{40}")


def pins_of(file: ModelFile) -> dict[str, str]:
    """The parts of a pin such as `version:<id>;etag:<etag>`, by name."""
    return dict(part.partition(":")[::2] for part in file.pin.split(";"))


def git_oid(file: ModelFile) -> str:
    """The blob id by which the hub names a small file, "" for others: that of a large file is of its pointer."""
    oid = pins_of(file).get("oid", "")
    return oid if GIT_OID.fullmatch(oid) and not file.digest else ""


def trust(file: ModelFile) -> str:
    """What a file's bytes are held against."""
    if file.digest or git_oid(file):
        return "source-hash"
    return "source-crc" if file.crc64nvme else "version-bound"
