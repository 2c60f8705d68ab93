"""A file as an HTTP answer: its own ETag, If-Match, one range, and the faults of a bad line.

aiohttp's FileResponse is not used because it puts an ETag of its own, made from the file's time, over the given one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from aiohttp import web

from infra.local.faults import Fault

PIECE_BYTES = 1 << 20


async def send_file(
    request: web.Request, file: Path, headers: dict[str, str], fault: Fault | None = None
) -> web.StreamResponse:
    """Answer with `file`, or the range of it that was asked for; `headers` hold its ETag."""
    size_bytes = (await asyncio.to_thread(file.stat)).st_size
    if request.headers.get("If-Match", headers["ETag"]) not in {headers["ETag"], "*"}:
        return web.Response(status=412)
    wanted = _range(request, size_bytes)
    if wanted is None:
        return web.Response(status=416, headers={"Content-Range": f"bytes */{size_bytes}"})
    response = web.StreamResponse(headers={**headers, "Accept-Ranges": "bytes"})
    response.content_type = "application/octet-stream"
    response.content_length = len(wanted)
    if "Range" in request.headers:
        response.set_status(206)
        response.headers["Content-Range"] = f"bytes {wanted.start}-{wanted.stop - 1}/{size_bytes}"
    await response.prepare(request)
    if request.method != "HEAD":
        await _send_body(request, response, file, wanted, fault or Fault())
    return response


def _range(request: web.Request, size_bytes: int) -> range | None:
    """The bytes that were asked for, None when there are none of them."""
    try:
        asked = request.http_range
    except ValueError:
        return None
    start, stop, _ = slice(asked.start, asked.stop).indices(size_bytes)
    return range(start, stop) if start < stop or size_bytes == 0 else None


async def _send_body(
    request: web.Request, response: web.StreamResponse, file: Path, wanted: range, fault: Fault
) -> None:
    left_bytes = len(wanted) if fault.truncate_bytes is None else fault.truncate_bytes
    corrupt = fault.corrupt
    async for piece in _read(file, wanted):
        if corrupt:
            piece = bytes([piece[0] ^ 1]) + piece[1:]
            corrupt = False
        await response.write(piece[:left_bytes])
        left_bytes -= len(piece)
        if left_bytes <= 0 and fault.truncate_bytes is not None:
            if request.transport is not None:
                request.transport.close()
            return


async def _read(file: Path, wanted: range) -> AsyncIterator[bytes]:
    with await asyncio.to_thread(file.open, "rb") as opened:
        opened.seek(wanted.start)
        for start in range(wanted.start, wanted.stop, PIECE_BYTES):
            yield await asyncio.to_thread(opened.read, min(PIECE_BYTES, wanted.stop - start))
