"""A model, a source that can misbehave, and a store to fill."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import random
import threading
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import boto3
import pytest
from awscrt import checksums

from tasks.plan.manifest import build_manifest, manifest_to_json
from tasks.plan.types import Manifest, ModelFile, Source, SourceKind
from tasks.prefetch import digest, download, http, transfer
from tasks.prefetch.__main__ import main

Session = boto3.Session
COMMIT = "c0ffee" + "0" * 34
SMALL_CHUNK_BYTES = 64 << 10


@dataclass
class Origin:
    """A hub and an S3 store on loopback: `/org/model/resolve/<commit>/<path>` and `/bucket/m/<path>`.

    faults: per path ("" is any), what the next requests get instead of an answer. asked: (path, start, end) of all.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    faults: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    etags: dict[str, str] = field(default_factory=dict)
    asked: list[tuple[str, int, int]] = field(default_factory=list)
    heads: list[dict[str, str]] = field(default_factory=list)
    cdn: str = ""
    retry_after: dict[str, str] = field(default_factory=dict)
    bytes_per_s: float = 0.0
    release: threading.Event = field(default_factory=threading.Event)
    url: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def etag(self, path: str) -> str:
        return self.etags.get(path) or hashlib.md5(self.files[path]).hexdigest()  # noqa: S324

    def next_fault(self, path: str) -> str:
        with self.lock:
            for name in (path, ""):
                if self.faults[name]:
                    return self.faults[name].pop(0)
        return ""

    @property
    def asked_bytes(self) -> int:
        return sum(end - start for _, start, end in self.asked)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    origin: Origin

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path).split("/", 5)[-1] if "/resolve/" in self.path else ""
        path = path or unquote(urlsplit(self.path).path).removeprefix("/bucket/m/").removeprefix("/cdn/")
        origin, hub = self.origin, "/resolve/" in self.path
        with origin.lock:
            origin.heads.append({**dict(self.headers.items()), "path": self.path})
        if path not in origin.files:
            return self.refuse(404, {"X-Error-Code": "EntryNotFound"}, "<Error><Code>NoSuchKey</Code></Error>")
        if hub and origin.cdn:
            return self.refuse(302, {"Location": f"{origin.cdn}/cdn/{path}", "X-Repo-Commit": COMMIT})
        if self.headers.get("If-Match", "").strip('"') not in ("", origin.etag(path)):
            return self.refuse(412)
        return self.answer(path, hub, origin.next_fault(path))

    def answer(self, path: str, hub: bool, fault: str) -> None:
        body = self.origin.files[path]
        if fault.isdigit():
            self.refuse(int(fault), self.origin.retry_after, "<Error><Code>SlowDown</Code></Error>")
            return
        if fault.startswith("code:"):
            _, status, code = fault.split(":")
            self.refuse(int(status), {"X-Error-Code": code}, f"<Error><Code>{code}</Code></Error>")
            return
        asked = self.headers.get("Range")
        start, end = 0, len(body)
        if asked and fault != "whole":
            start, end = (int(edge) for edge in asked.removeprefix("bytes=").split("-"))
            end += 1
        with self.origin.lock:
            self.origin.asked.append((path, start, end))
        self.send_response(206 if asked and fault != "whole" else 200)
        if asked and fault != "whole":
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(body)}")
        self.send_header("Content-Length", str(end - start))
        self.send_header("ETag", f'"{self.origin.etag(path)}"')
        if hub:
            self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        self.send_body(bytearray(body[start:end]), fault)

    def send_body(self, body: bytearray, fault: str) -> None:
        if fault == "corrupt":
            body[len(body) // 2] ^= 1
        if fault in ("truncate", "stall"):
            body = body[: len(body) // 2]
            self.close_connection = True
        rate = self.origin.bytes_per_s
        try:
            for at in range(0, len(body), 16 << 10):
                self.wfile.write(body[at : at + (16 << 10)])
                if rate:
                    self.origin.release.wait((16 << 10) / rate)
            if fault == "stall":
                self.origin.release.wait(60)
        except OSError:
            self.close_connection = True

    def refuse(self, status: int, headers: dict[str, str] | None = None, text: str = "") -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *args: object) -> None:
        """Nothing on standard error."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients are killed here on purpose."""


def serve(origin: Origin) -> Server:
    server = Server(("127.0.0.1", 0), type("Bound", (Handler,), {"origin": origin}))
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    return server


@pytest.fixture
def origin() -> Iterator[Origin]:
    """Three files: two of several chunks, one small one, and an empty one."""
    numbers = random.Random(7)
    made = Origin()
    made.files = {
        "a.safetensors": numbers.randbytes(5 * SMALL_CHUNK_BYTES + 123),
        "nested/b.safetensors": numbers.randbytes(4 * SMALL_CHUNK_BYTES),
        "config.json": b'{"model_type":"llama"}',
        "empty.txt": b"",
    }
    server = serve(made)
    made.url = f"http://127.0.0.1:{server.server_port}"
    yield made
    made.release.set()
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small chunks, and short patience; credentials that must not be looked for on the network."""
    for module in (digest, download, transfer):
        monkeypatch.setattr(module, "CHUNK_BYTES", SMALL_CHUNK_BYTES)
    monkeypatch.setattr(http, "SILENCE_S", 0.3)
    monkeypatch.setattr(transfer, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(transfer, "LONGEST_PAUSE_S", 0.05)
    monkeypatch.setattr(transfer, "STALL_S", 1.0)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "planted-key-id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted-secret")
    monkeypatch.setenv("HF_TOKEN", "planted-token")
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    # No test cuts the power, and the disks of test machines are slow.
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    # Reading what botocore knows of S3 takes longer than most of these tests.
    monkeypatch.setattr(boto3, "Session", session)


@cache
def known_session() -> boto3.Session:
    return Session()


def session(**arguments: str | None) -> boto3.Session:
    usual = os.environ.get("AWS_ACCESS_KEY_ID") and not any(arguments.values())
    return known_session() if usual else Session(**arguments)


def hub_manifest(origin: Origin) -> Manifest:
    """As the hub tells it: sha256 of the large files, git's blob id of the small ones."""
    files = []
    for path, body in origin.files.items():
        oid = hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()  # noqa: S324
        sha256 = f"sha256:{hashlib.sha256(body).hexdigest()}" if path.endswith(".safetensors") else ""
        pin = f"commit:{COMMIT};oid:{oid if not sha256 else '0' * 40}"
        files.append(ModelFile(path, len(body), sha256, pin))
    return build_manifest(Source(SourceKind.HUGGINGFACE, "hf://org/model", endpoint_url=origin.url), COMMIT, files)


def s3_manifest(origin: Origin) -> Manifest:
    files = [
        ModelFile(
            path,
            len(body),
            pin=f"etag:{origin.etag(path)}",
            crc64nvme=base64.b64encode(checksums.crc64nvme(body).to_bytes(8, "big")).decode(),
        )
        for path, body in origin.files.items()
    ]
    source = Source(SourceKind.S3, "s3://bucket/m/", endpoint_url=origin.url, addressing_style="path")
    return build_manifest(source, "", files)


def file_manifest(folder: Path) -> Manifest:
    files = []
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            found = path.stat()
            pin = f"stat:{found.st_size}-{found.st_mtime_ns}"
            files.append(ModelFile(path.relative_to(folder).as_posix(), found.st_size, pin=pin))
    return build_manifest(Source(SourceKind.FILE, f"file://{folder}"), "", files)


@dataclass
class Node:
    """The node program's command line on a store of its own."""

    folder: Path
    capsys: pytest.CaptureFixture[str]
    output: str = ""

    @property
    def root(self) -> Path:
        return self.folder / "nvme" / "warmpath"

    def run(self, command: str, *arguments: object, manifest: Manifest | None = None) -> tuple[int, dict]:
        """(exit status, report)."""
        argv = [command, "--root", str(self.root), "--report", str(self.folder / "report")]
        if manifest:
            (self.folder / "manifest.json").write_text(manifest_to_json(manifest))
            argv += ["--manifest", str(self.folder / "manifest.json")]
        status = main([*argv, *map(str, arguments)])
        self.output = self.capsys.readouterr().out
        last = json.loads(self.output.splitlines()[-1])
        assert last.pop("event") == "report"
        assert json.loads((self.folder / "report").read_text()) == last
        return status, last

    def fill(self, manifest: Manifest, *arguments: object) -> tuple[int, dict]:
        return self.run("fill", *arguments, manifest=manifest)

    def tree(self, manifest: Manifest) -> Path:
        return self.root / "trees" / manifest.digest.removeprefix("sha256:") / "files"

    def trees(self) -> list[str]:
        return sorted(path.name for path in (self.root / "trees").iterdir())

    def leftovers(self) -> list[str]:
        """What no finished command should leave."""
        partial = [path.name for path in (self.root / "partial").iterdir() if path.suffix != ".lock"]
        return partial + [path.name for path in (self.root / "trash").iterdir()]


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture
def node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Node:
    (tmp_path / "nvme").mkdir()
    return Node(tmp_path, capsys)


@pytest.fixture
def hub(origin: Origin) -> Manifest:
    return hub_manifest(origin)


@pytest.fixture
def s3(origin: Origin) -> Manifest:
    return s3_manifest(origin)


@pytest.fixture
def manifest_of() -> dict:
    """How each kind of source tells an origin's files, for tests that change them on the way."""
    return {"hub": hub_manifest, "s3": s3_manifest, "file": file_manifest}


@pytest.fixture
def read() -> object:
    return contents
