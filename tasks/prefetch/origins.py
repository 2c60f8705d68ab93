"""Where the bytes of a manifest come from: one Origin per source, one Session of it per worker.

Every range is bound to the pinned content: a version or If-Match, a commit in the address, or size and time of a file.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import quote, urljoin, urlsplit

from tasks.plan.pins import pins_of
from tasks.plan.types import Manifest, ModelFile, SourceKind
from tasks.prefetch.errors import Hiccup, PrefetchError
from tasks.prefetch.http import Connections, Headers, Response
from tasks.prefetch.refusals import hub_refusal
from tasks.prefetch.s3 import S3Addresses, s3_client

__all__ = ["Body", "Origin", "Session", "open_origin", "s3_client"]

HUB = "https://huggingface.co"
REDIRECTS = frozenset({301, 302, 303, 307, 308})
EXPIRED = frozenset({400, 401, 403, 404, 410})
MOST_REDIRECTS = 5


class Body(Protocol):
    """The bytes of one range, in order."""

    def read_into(self, view: memoryview, /) -> None:
        """Fill `view`; Hiccup when the source fails on the way."""

    def close(self) -> None: ...


class Session(Protocol):
    """An Origin as one worker uses it."""

    def open(self, file: ModelFile, start: int, end: int, /) -> Body:
        """Bytes start..end-1 of the pinned file. Hiccup: try again; PrefetchError: it will not help."""

    def close(self) -> None: ...


class Origin(Protocol):
    def session(self) -> Session: ...


def open_origin(manifest: Manifest) -> Origin:
    """The source of this manifest. Credentials come from the environment or the machine's role."""
    source = manifest.source
    match source.kind:
        case SourceKind.S3:
            return HttpOrigin(S3Addresses(source))
        case SourceKind.HUGGINGFACE:
            endpoint = source.endpoint_url or os.environ.get("HF_ENDPOINT", "") or HUB
            model = source.uri.removeprefix("hf://").strip("/")
            token = os.environ.get("HF_TOKEN", "").strip()
            return HttpOrigin(HubAddresses(endpoint.rstrip("/"), model, manifest.revision, token))
        case SourceKind.FILE:
            return MountedOrigin(Path(source.uri.removeprefix("file://")))


class Addresses(Protocol):
    """How one kind of HTTP source is asked, and what its refusals mean."""

    def locate(self, file: ModelFile) -> tuple[str, Headers]:
        """(address, headers). The headers go to that host only, wherever it redirects to."""

    def check(self, file: ModelFile, response: Response) -> None:
        """SourceChanged when the answer shows other content than the pinned one."""

    def refusal(self, file: ModelFile, response: Response) -> PrefetchError: ...


@dataclass(frozen=True, slots=True)
class HubAddresses:
    """Files of a commit on a Hugging Face hub."""

    endpoint: str
    model: str
    revision: str
    token: str = field(default="", repr=False)

    def locate(self, file: ModelFile) -> tuple[str, Headers]:
        headers = {"User-Agent": "warmpath"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        return f"{self.endpoint}/{self.model}/resolve/{self._commit(file)}/{quote(file.path)}", headers

    def check(self, file: ModelFile, response: Response) -> None:
        told = response.headers.get("x-repo-commit")
        if told and told != self._commit(file):
            raise PrefetchError("SourceChanged", f"{file.path}: the hub answers with commit {told}; roll out again.")

    def refusal(self, file: ModelFile, response: Response) -> PrefetchError:
        return hub_refusal(f"{file.path} of {self.model} at {self.endpoint}", response, has_token=bool(self.token))

    def _commit(self, file: ModelFile) -> str:
        return pins_of(file).get("commit", self.revision)


@dataclass(frozen=True, slots=True)
class HttpOrigin:
    addresses: Addresses

    def session(self) -> Session:
        return HttpSession(self.addresses)


@dataclass(slots=True)
class HttpSession:
    """Ranged GETs of one worker. Where a redirect led is remembered until that address refuses."""

    addresses: Addresses
    _connections: Connections = field(default_factory=Connections)
    _moved: dict[str, str] = field(default_factory=dict)

    def open(self, file: ModelFile, start: int, end: int, /) -> Body:
        if moved := self._moved.get(file.path):
            response = self._connections.get(moved, _range(file, start, end))
            if response.status not in EXPIRED:
                return self._taken(file, start, end, response)
            # Addresses of a content network expire; the source gives a new one.
            response.close()
            del self._moved[file.path]
        url, own = self.addresses.locate(file)
        home = here = _host(url)
        for _ in range(MOST_REDIRECTS):
            # A token or a condition for the source is nobody else's business.
            response = self._connections.get(url, {**(own if here == home else {}), **_range(file, start, end)})
            if here == home and response.status in REDIRECTS | {200, 206}:
                self.addresses.check(file, response)
            if response.status not in REDIRECTS or "location" not in response.headers:
                if here != home:
                    self._moved[file.path] = url
                return self._taken(file, start, end, response)
            url = urljoin(url, response.headers["location"])
            here = _host(url)
            response.close()
        raise PrefetchError("Network", f"{file.path}: the source redirects more than {MOST_REDIRECTS} times.")

    def close(self) -> None:
        self._connections.close()

    def _taken(self, file: ModelFile, start: int, end: int, response: Response) -> Response:
        if response.status in {200, 206}:
            return _checked(file, start, end, response)
        refusal = self.addresses.refusal(file, response)
        response.close()
        raise refusal


def _host(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc


def _range(file: ModelFile, start: int, end: int) -> Headers:
    # Not every server knows ranges of small files; a whole one needs none.
    return {} if (start, end) == (0, file.size_bytes) else {"Range": f"bytes={start}-{end - 1}"}


def _checked(file: ModelFile, start: int, end: int, response: Response) -> Response:
    """The response, when it is exactly the range that was asked for."""
    whole = (start, end) == (0, file.size_bytes)
    found = response.headers.get("content-range", "")
    if response.status == 206 and not whole:
        asked, total = f"bytes {start}-{end - 1}/", str(file.size_bytes)
        right = found == asked + total or found == asked + "*"
        changed = found.startswith("bytes ") and found.rpartition("/")[2] not in {total, "*"}
    else:
        right = response.status == 200 and whole
        changed = whole and response.status == 200 and response.length != file.size_bytes
    encoded = response.headers.get("content-encoding", "identity") != "identity"
    if right and response.length == end - start and not encoded:
        return response
    told = f"HTTP {response.status}, {response.length} bytes{', ' + found if found else ''}"
    response.close()
    message = f"{file.path}: asked for bytes {start}-{end - 1} of {file.size_bytes}, the source answered {told}"
    if changed:
        raise PrefetchError("SourceChanged", f"{message}; it is another file now: roll out again.")
    raise Hiccup("Network", f"{message}; it must answer ranges exactly, check proxies in between.")


@dataclass(frozen=True, slots=True)
class MountedOrigin:
    """A mounted file system (FSx, NFS): plain reads."""

    directory: Path

    def session(self) -> Session:
        return MountedSession(self.directory)


@dataclass(slots=True)
class MountedSession:
    directory: Path
    _fds: dict[str, int] = field(default_factory=dict)

    def open(self, file: ModelFile, start: int, _end: int, /) -> Body:
        fd = self._fds.get(file.path, -1)
        if fd < 0:
            fd = self._fds[file.path] = self._open_file(file)
        return MountedBody(self.directory / file.path, fd, file, start)

    def close(self) -> None:
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()

    def _open_file(self, file: ModelFile) -> int:
        path = self.directory / file.path
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise PrefetchError(
                "NotFound", f"{path} is gone from the source; put it back or roll out again."
            ) from error
        except PermissionError as error:
            raise PrefetchError("PermissionDenied", f"{path} may not be read; give this user read access.") from error


@dataclass(slots=True)
class MountedBody:
    """Reads on from `offset`; the file must be the same before and after."""

    path: Path
    fd: int
    file: ModelFile
    offset: int

    def read_into(self, view: memoryview) -> None:
        self._check()
        done = 0
        while done < len(view):
            try:
                got = os.preadv(self.fd, [view[done:]], self.offset)
            except OSError as error:
                raise Hiccup("Network", f"{self.path}: {error.strerror}") from error
            if got == 0:
                raise self._changed()
            done, self.offset = done + got, self.offset + got
        self._check()

    def close(self) -> None:
        """The descriptor is the session's."""

    def _check(self) -> None:
        found = os.fstat(self.fd)
        if f"stat:{found.st_size}-{found.st_mtime_ns}" != self.file.pin:
            raise self._changed()

    def _changed(self) -> PrefetchError:
        return PrefetchError("SourceChanged", f"{self.path} was changed since it was listed; roll out again.")
