"""A real S3 server for laptops and tests: SeaweedFS from its wheel, on loopback.

    python -m infra.local.s3 --dir DIR --port 20000      becomes the server; its keys are in DIR/credentials.json

It enforces signatures and knows versions, ranges, If-Match and CRC64NVME.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
import sysconfig
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from infra.local import server
from infra.local.server import HOST, Server, free_ports

INNER_PORTS = (
    *("master.port", "master.port.grpc", "volume.port", "volume.port.grpc"),
    *("filer.port", "filer.port.grpc", "s3.port.grpc"),
)
# Its own graceful stop waits ten seconds for its parts to hang up on each other; what was written is safe before.
STOP_S = 0.5


@dataclass(frozen=True, slots=True)
class Credentials:
    access_key: str
    secret_key: str = field(repr=False)

    def environment(self) -> dict[str, str]:
        """As boto3 reads them, and as the Secret of a source holds them."""
        return {"AWS_ACCESS_KEY_ID": self.access_key, "AWS_SECRET_ACCESS_KEY": self.secret_key}


def start(directory: Path, *, port: int = 0) -> Server:
    """Start a server on `directory` and wait until it answers; port 0 takes a free one."""
    port = port or free_ports(1)[0]
    return server.start(
        [sys.executable, "-m", "infra.local.s3", "--dir", str(directory), "--port", str(port)],
        url=f"http://{HOST}:{port}",
        health="/healthz",
        log=directory / "s3.log",
        stop_s=STOP_S,
    )


def credentials(directory: Path) -> Credentials:
    """The keys of the server on `directory`, made at the first call."""
    path = directory / "credentials.json"
    if not path.exists():
        directory.mkdir(parents=True, exist_ok=True)
        made = {"access_key": f"local{secrets.token_hex(8)}", "secret_key": secrets.token_urlsafe(30)}
        _write_private(path, json.dumps(made))
    found = json.loads(path.read_text())
    return Credentials(found["access_key"], found["secret_key"])


def command(directory: Path, port: int) -> list[str]:
    """The command line of the server: everything on loopback, nothing reported home, no second protocol."""
    data = directory / "data"
    data.mkdir(parents=True, exist_ok=True)
    ports = zip(INNER_PORTS, _inner_ports(directory), strict=True)
    return [
        str(Path(sysconfig.get_path("scripts")) / "weed"),
        *("-logtostderr=true", "-v=0"),
        *("server", f"-dir={data}", f"-ip={HOST}", f"-ip.bind={HOST}"),
        *(f"-{name}={inner_port}" for name, inner_port in ports),
        # "none": there is but one master, so none waits for others to elect it.
        *("-master.telemetry=false", "-master.volumeSizeLimitMB=1024", "-master.peers=none"),
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


def _remove_old_sockets(directory: Path, port: int) -> None:
    """A server that was killed leaves its sockets behind."""
    for old_port in (port, *_inner_ports(directory)):
        for socket in Path(tempfile.gettempdir()).glob(f"seaweedfs-*-{old_port}.sock"):
            socket.unlink(missing_ok=True)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m infra.local.s3", description="SeaweedFS on loopback")
    parser.add_argument("--dir", type=Path, required=True, help="data, keys and log")
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args(argv)
    directory: Path = options.dir.resolve()
    arguments = command(directory, options.port)
    _remove_old_sockets(directory, options.port)
    os.execve(arguments[0], arguments, environment())  # noqa: S606 - becomes the server, so its pid is ours


if __name__ == "__main__":
    sys.exit(main())
