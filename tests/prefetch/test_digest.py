"""Digests of chunks, files and what sources tell."""

from __future__ import annotations

import base64
import hashlib

import pytest
from awscrt import checksums
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from tasks.plan.types import ModelFile
from tasks.prefetch import digest
from tasks.prefetch.digest import Chunk, ChunkHasher
from tasks.prefetch.errors import PrefetchError
from tasks.prefetch.pins import trust


def chunks_of(body: bytes) -> list[Chunk]:
    found = []
    for index in range(digest.chunk_count(len(body))):
        hasher = ChunkHasher(with_crc=True)
        start = index * digest.CHUNK_BYTES
        hasher.update(memoryview(body[start : start + digest.chunk_size(len(body), index)]))
        found.append(hasher.chunk())
    return found


@given(st.binary(max_size=300), st.integers(1, 70))
def test_the_crc_of_a_file_is_combined_from_its_chunks(body, chunk_bytes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digest, "CHUNK_BYTES", chunk_bytes)
        combined = digest.combine_crc64nvme(len(body), chunks_of(body))
    assert combined == base64.b64encode(checksums.crc64nvme(body).to_bytes(8, "big")).decode()


def test_the_crc_is_written_as_s3_writes_it():
    """AWS's own example value of CRC64NVME for "123456789" is AE8B14860A799888."""
    assert (
        digest.combine_crc64nvme(9, chunks_of(b"123456789"))
        == base64.b64encode(bytes.fromhex("ae8b14860a799888")).decode()
    )


def test_the_digest_of_a_file_is_that_of_its_chunks_digests(monkeypatch):
    monkeypatch.setattr(digest, "CHUNK_BYTES", 4)
    expected = blake3(blake3(b"abcd").digest() + blake3(b"e").digest()).hexdigest()
    assert digest.tree_hash(chunks_of(b"abcde")) == f"blake3-16m:{expected}"


def test_a_file_of_the_hub_that_has_no_sha256_is_held_against_gits_blob_id():
    body = b"hello\n"
    file = ModelFile("a.txt", len(body), pin="commit:c;oid:ce013625030ba8dba906f756967f9e9ca394464a")
    ordered = digest.ordered_hash(file)
    ordered.hash.update(memoryview(body))
    assert digest.file_digest(file, chunks_of(body), ordered).startswith("blake3-16m:")
    assert trust(file) == "source-hash"


@pytest.mark.parametrize(
    "file",
    [
        ModelFile("a", 3, digest=f"sha256:{hashlib.sha256(b'xyz').hexdigest()}"),
        ModelFile("a", 3, pin="commit:c;oid:" + "0" * 40),
        ModelFile("a", 3, pin="etag:e", crc64nvme="AAAAAAAAAAA="),
    ],
)
def test_bytes_that_are_not_what_the_source_says_are_refused(file):
    """Pains 1, 2 and 7."""
    ordered = digest.ordered_hash(file)
    if ordered:
        ordered.hash.update(memoryview(b"abc"))
    with pytest.raises(PrefetchError, match=r"the source says") as caught:
        digest.file_digest(file, chunks_of(b"abc"), ordered)
    assert caught.value.reason == "IntegrityMismatch"
    assert not caught.value.terminal
