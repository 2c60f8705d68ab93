"""The chunked coding under any cut of its bytes."""

from __future__ import annotations

import contextlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.chunks import ChunkReader
from router.http import Refused


def encode(pieces: list[bytes], extension: bytes = b"", trailer: bytes = b"") -> bytes:
    chunks = b"".join(b"%X%b\r\n%b\r\n" % (len(piece), extension, piece) for piece in pieces if piece)
    return chunks + b"0\r\n" + trailer + b"\r\n"


def cut(data: bytes, places: list[int]) -> list[bytes]:
    bounds = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(bounds)]


@given(
    pieces=st.lists(st.binary(max_size=40)),
    extension=st.sampled_from([b"", b";a=b", b' ;n="v"']),
    trailer=st.sampled_from([b"", b"Expires: never\r\n", b"a: 1\r\nb: 2\r\n"]),
    places=st.lists(st.integers(0, 10_000), max_size=8),
    surplus=st.binary(max_size=10),
)
def test_any_cut_reads_the_same_body_and_finds_its_end(
    pieces: list[bytes], extension: bytes, trailer: bytes, places: list[int], surplus: bytes
) -> None:
    encoded = encode(pieces, extension, trailer)
    reader, payload, taken = ChunkReader(), list[bytes](), 0
    for part in cut(encoded + surplus, places):
        end = reader.feed(part, payload)
        if end >= 0:
            assert taken + end == len(encoded)
            break
        taken += len(part)
    else:
        pytest.fail("the end was not found")
    assert b"".join(payload) == b"".join(pieces)


@given(data=st.binary(max_size=200), places=st.lists(st.integers(0, 200), max_size=5))
def test_noise_is_refused_or_unfinished_but_never_breaks(data: bytes, places: list[int]) -> None:
    reader = ChunkReader()
    with contextlib.suppress(Refused):
        for part in cut(data, places):
            assert reader.feed(part, []) <= len(part)


NO_SIZES = [b"", b" 2", b"2 ", b"+2", b"-2", b"0x2", b"2_0", b"2\t", b"g", b"1" * 16, b"2;a\x00", b"\xb2"]


@pytest.mark.parametrize("size", NO_SIZES)
def test_a_size_that_is_no_plain_hexadecimal_number_is_refused(size: bytes) -> None:
    with pytest.raises(Refused):
        ChunkReader().feed(size + b"\r\nab\r\n0\r\n\r\n")


def test_a_chunk_that_goes_on_beyond_its_size_is_refused() -> None:
    with pytest.raises(Refused):
        ChunkReader().feed(b"2\r\nabX\r\n0\r\n\r\n")


ENDLESS = [b"1;" + b"x" * 5000, b"0\r\n" + b"a: b\r\n" * 2000, b"0\r\n folded\r\n\r\n", b"0\r\nno field\r\n\r\n"]


@pytest.mark.parametrize("data", ENDLESS)
def test_endless_lines_and_trailers_that_are_no_fields_are_refused(data: bytes) -> None:
    with pytest.raises(Refused):
        ChunkReader().feed(data)
