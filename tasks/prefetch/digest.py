"""Digests: of chunks while they stream, of files from their chunks, and what a source told to hold them against.

A file is cut into chunks of 16 MiB. `blake3-16m:<hex>` is the blake3 of its chunks' blake3 digests one after another:
computed in parallel, resumed, and checked chunk by chunk.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from awscrt import checksums  # type: ignore[import-untyped]
from blake3 import blake3

from tasks.plan.pins import git_oid
from tasks.plan.types import ModelFile
from tasks.prefetch.errors import PrefetchError

CHUNK_BYTES = 16 << 20
ALGORITHM = "blake3-16m"


@dataclass(frozen=True, slots=True)
class Chunk:
    """What a proven chunk hashes to. crc64nvme: 0 where the source keeps none to compare with."""

    blake3: str
    crc64nvme: int = 0


class ChunkHasher:
    """Digest of one chunk, fed in order."""

    def __init__(self, *, with_crc: bool) -> None:
        self._blake3 = blake3()
        self._with_crc = with_crc
        self._crc = 0

    def update(self, data: memoryview) -> None:
        self._blake3.update(data)
        if self._with_crc:
            # The annotation says bytes; any buffer is taken, without a copy.
            self._crc = checksums.crc64nvme(data, self._crc)

    def chunk(self) -> Chunk:
        return Chunk(self._blake3.hexdigest(), self._crc)


class Hash(Protocol):
    def update(self, data: memoryview, /) -> None: ...
    def hexdigest(self) -> str: ...


@dataclass(frozen=True, slots=True)
class OrderedHash:
    """A hash of the whole file that must see its bytes in order. name, expected: as the source tells."""

    name: str
    expected: str
    hash: Hash


def chunk_count(size_bytes: int) -> int:
    return -(-size_bytes // CHUNK_BYTES)


def chunk_size(size_bytes: int, index: int) -> int:
    return min(CHUNK_BYTES, size_bytes - index * CHUNK_BYTES)


def ordered_hash(file: ModelFile) -> OrderedHash | None:
    """The hash by which the source names this file: sha256, or git's for the hub's small files; None for neither."""
    if file.digest.startswith("sha256:"):
        return OrderedHash("sha256", file.digest.removeprefix("sha256:"), hashlib.sha256())
    if oid := git_oid(file):
        # Not for security: git chose it. The commit's address is what we trust here.
        header = b"blob %d\0" % file.size_bytes
        return OrderedHash("git blob id", oid, hashlib.sha1(header, usedforsecurity=False))
    return None


def file_digest(file: ModelFile, chunks: Sequence[Chunk], ordered: OrderedHash | None) -> str:
    """The digest that names the file's blob; IntegrityMismatch when the bytes are not what the source says."""
    if ordered and ordered.hash.hexdigest() != ordered.expected:
        raise _mismatch(file, ordered.name, ordered.hash.hexdigest(), ordered.expected)
    if file.crc64nvme:
        combined = combine_crc64nvme(file.size_bytes, chunks)
        if combined != file.crc64nvme:
            raise _mismatch(file, "CRC64NVME", combined, file.crc64nvme)
    return file.digest or tree_hash(chunks)


def tree_hash(chunks: Sequence[Chunk]) -> str:
    return f"{ALGORITHM}:{blake3(b''.join(bytes.fromhex(chunk.blake3) for chunk in chunks)).hexdigest()}"


def combine_crc64nvme(size_bytes: int, chunks: Sequence[Chunk]) -> str:
    """The file's CRC from its chunks', without a second read, as S3 writes it."""
    combined = 0
    for index, chunk in enumerate(chunks):
        combined = checksums.combine_crc64nvme(combined, chunk.crc64nvme, chunk_size(size_bytes, index))
    return base64.b64encode(combined.to_bytes(8, "big")).decode()


def _mismatch(file: ModelFile, name: str, found: str, expected: str) -> PrefetchError:
    return PrefetchError(
        "IntegrityMismatch",
        f"{file.path}: its {name} is {found}, the source says {expected}; nothing of it is used."
        " If it happens again the source's copy is damaged: upload it again.",
    )
