"""A real S3 server for laptops and tests: SeaweedFS from its wheel, on loopback.

    python -m infra.local.s3 --dir DIR --port 20000      becomes the server; its keys are in DIR/credentials.json

It enforces signatures and knows versions, ranges, If-Match and CRC64NVME.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

HOST = "127.0.0.1"
PORTS = range(20000, 32000)
INNER_PORTS = (
    *("master.port", "master.port.grpc", "volume.port", "volume.port.grpc"),
    *("filer.port", "filer.port.grpc", "s3.port.grpc"),
)
START_S = 60.0
# Its own graceful stop waits ten seconds for its parts to hang up on each other; what was written is safe before.
STOP_S = 2.0


class S3NotReady(Exception):
    """The server did not start; the message says where its log is."""


@dataclass(frozen=True, slots=True)
class Credentials:
    access_key: str
    secret_key: str = field(repr=False)

    def environment(self) -> dict[str, str]:
        """As boto3 reads them."""
        return {"AWS_ACCESS_KEY_ID": self.access_key, "AWS_SECRET_ACCESS_KEY": self.secret_key}


@dataclass(slots=True)
class S3Server:
    """A running server; leaving the `with` block stops it."""

    endpoint_url: str
    credentials: Credentials
    directory: Path
    process: subprocess.Popen[bytes] = field(repr=False)

    @property
    def pid(self) -> int:
        return self.process.pid

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for port in (int(self.endpoint_url.rpartition(":")[2]), *_inner_ports(self.directory)):
            for left_behind in Path(tempfile.gettempdir()).glob(f"seaweedfs-*-{port}.sock"):
                left_behind.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def start(directory: Path, *, port: int = 0) -> S3Server:
    """Start a server on `directory` and wait until it answers; port 0 takes a free one."""
    port = port or free_ports(1)[0]
    command = [sys.executable, "-m", "infra.local.s3", "--dir", str(directory), "--port", str(port)]
    log = directory / "weed.log"
    directory.mkdir(parents=True, exist_ok=True)
    keys = credentials(directory)
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)  # noqa: S603
    server = S3Server(f"http://{HOST}:{port}", keys, directory, process)
    try:
        _wait_ready(server, log)
    except BaseException:
        server.stop()
        raise
    return server


def credentials(directory: Path) -> Credentials:
    """The keys of the server on `directory`, made at the first call."""
    path = directory / "credentials.json"
    if not path.exists():
        directory.mkdir(parents=True, exist_ok=True)
        made = {"access_key": f"local{secrets.token_hex(8)}", "secret_key": secrets.token_urlsafe(30)}
        _write_private(path, json.dumps(made))
    found = json.loads(path.read_text())
    return Credentials(found["access_key"], found["secret_key"])


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on now, below the range from which the kernel takes ports for connections."""
    found: list[int] = []
    while len(found) < count:
        port = PORTS.start + secrets.randbelow(len(PORTS))
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if port not in found and probe.connect_ex((HOST, port)) != 0:
                found.append(port)
    return found


def command(directory: Path, port: int) -> list[str]:
    """The command line of the server: everything on loopback, nothing reported home, no second protocol."""
    (directory / "data").mkdir(parents=True, exist_ok=True)
    inner = [f"-{name}={inner_port}" for name, inner_port in zip(INNER_PORTS, _inner_ports(directory), strict=True)]
    return [
        str(Path(sysconfig.get_path("scripts")) / "weed"),
        *("-logtostderr=true", "-v=0"),
        *("server", f"-dir={directory / 'data'}", f"-ip={HOST}", f"-ip.bind={HOST}"),
        *inner,
        *("-master.telemetry=false", "-master.volumeSizeLimitMB=1024", "-master.electionTimeout=1s"),
        *("-volume.max=0", "-volume.preStopSeconds=0"),
        *("-s3", f"-s3.port={port}", "-s3.port.iceberg=0", "-s3.port.lance=0"),
        *(f"-s3.config={_identities(directory)}", "-s3.autoCreateBucket=false"),
    ]


def environment() -> dict[str, str]:
    """No AWS variables: the server would take them for the keys of its administrator."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    # Without a limit its heap grows to more than twice of what is uploaded.
    return {**kept, "GOMEMLIMIT": "700MiB", "GOGC": "50"}


def _inner_ports(directory: Path) -> list[int]:
    """The same at every start: the master remembers its volume servers by address."""
    path = directory / "ports.json"
    if not path.exists():
        path.write_text(json.dumps(free_ports(len(INNER_PORTS))))
    return [int(port) for port in json.loads(path.read_text())]


def _identities(directory: Path) -> Path:
    keys = credentials(directory)
    identity = {
        "name": "local",
        "credentials": [{"accessKey": keys.access_key, "secretKey": keys.secret_key}],
        "actions": ["Admin", "Read", "List", "Tagging", "Write"],
    }
    path = directory / "identities.json"
    _write_private(path, json.dumps({"identities": [identity]}))
    return path


def _write_private(path: Path, content: str) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(content)
    draft.replace(path)


def _wait_ready(server: S3Server, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        # An old server on the same port would answer too: ours must be alive.
        if server.process.poll() is not None:
            raise S3NotReady(f"The S3 server ended with status {server.process.returncode} while starting; see {log}.")
        if is_ready(server.endpoint_url):
            return
        time.sleep(0.1)
    raise S3NotReady(f"The S3 server did not answer within {START_S:.0f} s; see {log}.")


def is_ready(endpoint_url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{endpoint_url}/healthz", timeout=2) as response:  # noqa: S310
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m infra.local.s3", description="SeaweedFS on loopback")
    parser.add_argument("--dir", type=Path, required=True, help="data, keys and log")
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args(argv)
    arguments = command(options.dir.resolve(), options.port)
    os.execve(arguments[0], arguments, environment())  # noqa: S606 - becomes the server, so its pid is ours


if __name__ == "__main__":
    sys.exit(main())
