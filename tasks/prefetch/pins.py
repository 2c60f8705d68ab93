"""What the bytes of a file are held against."""

from __future__ import annotations

from tasks.plan.pins import git_oid
from tasks.plan.types import ModelFile


def trust(file: ModelFile) -> str:
    """The kind of proof that a file's source allows, for the report."""
    if file.digest or git_oid(file):
        return "source-hash"
    return "source-crc" if file.crc64nvme else "version-bound"
