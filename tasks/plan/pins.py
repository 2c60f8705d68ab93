"""What binds a file of a manifest to its content, and which files have the same content by it."""

from __future__ import annotations

import re

from tasks.plan.types import ModelFile, Source, SourceKind

GIT_OID = re.compile(r"[0-9a-f]{40}")


def pins_of(file: ModelFile) -> dict[str, str]:
    """The parts of a pin such as `version:<id>;etag:<etag>`, by name."""
    return dict(part.partition(":")[::2] for part in file.pin.split(";"))


def git_oid(file: ModelFile) -> str:
    """The blob id by which the hub names a small file, "" for others: that of a large file is of its pointer."""
    oid = pins_of(file).get("oid", "")
    return oid if GIT_OID.fullmatch(oid) and not file.digest else ""


def content_key(source: Source, file: ModelFile) -> str:
    """Equal for two files only when their bytes are: by the source's hash, or by pin inside the same place.

    Plans and nodes ask this one function, so that a node reuses just what its plan counted on.
    """
    if file.digest:
        return file.digest
    match source.kind:
        case SourceKind.HUGGINGFACE if git_oid(file):
            return f"git:{git_oid(file)}"
        case SourceKind.S3:
            bucket = source.uri.removeprefix("s3://").partition("/")[0]
            # With a checksum beside it, a new version with the old ETag is a second upload of the same bytes.
            pin = f"{pins_of(file).get('etag')} {file.crc64nvme}" if file.crc64nvme else file.pin
            return f"s3:{source.endpoint_url} {bucket} {file.size_bytes} {pin}"
    # The path too: size and time alone do not tell two shards apart, as archives are unpacked with one time for all.
    return f"{source.kind}:{source.endpoint_url} {source.uri} {file.path} {file.pin}"
