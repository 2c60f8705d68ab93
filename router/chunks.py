"""The chunked transfer coding, read strictly: where a body ends decides where the next message begins."""

from __future__ import annotations

import re

from router.http import Refused

MAX_LINE_BYTES = 4096
MAX_TRAILER_BYTES = 8192
MAX_DIGITS = 15
HEX_DIGITS = b"0123456789abcdefABCDEF"

# RFC 9112: digits, then extensions. No sign, no blank, no "0x".
SIZE_WITH_EXTENSION = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[^\x00-\x08\x0a-\x1f\x7f]*)?")


class ChunkReader:
    """Follows one chunked body through any cut of its bytes."""

    __slots__ = ("_expects", "_left", "_partial", "_trailer_bytes")

    def __init__(self) -> None:
        self._left = 0
        self._expects = "size"  # the line to come: size, end (of a chunk), trailer
        self._partial = b""
        self._trailer_bytes = 0

    def feed(self, data: bytes, payload: list[bytes] | None = None) -> int:
        """Read on, adding what the chunks hold to `payload`.

        Returns the position just after the end of the body, -1 while it goes on. Raises Refused.
        """
        position, length = 0, len(data)
        while position < length:
            if self._left:
                size = min(self._left, length - position)
                if payload is not None:
                    payload.append(data[position : position + size])
                position += size
                self._left -= size
                continue
            end = data.find(b"\n", position) + 1
            if not end:
                self._partial += data[position:]
                self._check_line(self._partial)
                return -1
            line = data[position:end]
            position = end
            if self._partial:
                line, self._partial = self._partial + line, b""
            if self._expects == "size":
                size = self._left = self._size(line)
                self._expects = "end" if size else "trailer"
                # The usual case, an event in one piece: go on behind it.
                if size and data[position + size : position + size + 2] == b"\r\n":
                    if payload is not None:
                        payload.append(data[position : position + size])
                    position += size + 2
                    self._left = 0
                    self._expects = "size"
            elif self._other_line(line):
                return position
        return -1

    def _size(self, line: bytes) -> int:
        digits = line[:-2]
        if line[-2:] == b"\r\n" and 0 < len(digits) <= MAX_DIGITS and not digits.strip(HEX_DIGITS):
            return int(digits, 16)
        self._check_line(line)
        found = SIZE_WITH_EXTENSION.fullmatch(digits)
        if not found:
            raise Refused(400, "a chunk size is not a hexadecimal number")
        return int(found[1], 16)

    def _other_line(self, line: bytes) -> bool:
        """Take the end of a chunk or a trailer line; True when it ends the body."""
        self._check_line(line)
        if self._expects == "end":
            if line != b"\r\n":
                raise Refused(400, "a chunk is longer than its size says")
            self._expects = "size"
            return False
        if line == b"\r\n":
            return True
        self._trailer_bytes += len(line)
        if self._trailer_bytes > MAX_TRAILER_BYTES:
            raise Refused(431, f"trailer fields may take {MAX_TRAILER_BYTES} bytes")
        if b":" not in line or line[:1] in b" \t":
            raise Refused(400, "a trailer line is not a field")
        return False

    @staticmethod
    def _check_line(line: bytes) -> None:
        if len(line) > MAX_LINE_BYTES:
            raise Refused(400, f"a line of the chunked body is longer than {MAX_LINE_BYTES} bytes")
        if line.endswith(b"\n") and not line.endswith(b"\r\n"):
            raise Refused(400, "a line of the chunked body ends without CR")


def encode_chunk(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece)
