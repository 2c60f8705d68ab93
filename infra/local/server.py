"""A server of the demo or of a test as a child process on loopback: start, wait until it answers, stop."""

from __future__ import annotations

import secrets
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

HOST = "127.0.0.1"
# Below the range from which the kernel takes ports for connections.
PORTS = range(20000, 32000)


class ServerFailed(Exception):
    """A server did not start; the message ends with its last words."""


@dataclass(slots=True)
class Server:
    """A running server; leaving the `with` block stops it. stop_s: from SIGTERM to SIGKILL."""

    url: str
    process: subprocess.Popen[bytes] = field(repr=False)
    log: Path
    stop_s: float = 10.0

    @property
    def pid(self) -> int:
        return self.process.pid

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(self.stop_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def start(
    command: Sequence[str],
    *,
    url: str,
    health: str,
    log: Path,
    environment: Mapping[str, str] | None = None,
    start_s: float = 60.0,
    stop_s: float = 10.0,
) -> Server:
    """Start `command` and return when `url + health` answers 200; its output goes to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        process = subprocess.Popen(  # noqa: S603 - our own programs
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment
        )
    server = Server(url, process, log, stop_s)
    try:
        _wait_ready(server, f"{url}{health}", start_s)
    except BaseException:
        server.stop()
        raise
    return server


def free_ports(count: int) -> list[int]:
    """`count` different ports of PORTS on which nobody listens now."""
    found: list[int] = []
    while len(found) < count:
        port = PORTS.start + secrets.randbelow(len(PORTS))
        with socket.socket() as probe:
            if port not in found and probe.connect_ex((HOST, port)) != 0:
                found.append(port)
    return found


def _wait_ready(server: Server, url: str, start_s: float) -> None:
    deadline = time.monotonic() + start_s
    while time.monotonic() < deadline:
        # A server left over from before would answer at the same port: ours must be alive.
        if server.process.poll() is not None:
            raise ServerFailed(
                f"{url}: the server ended with status {server.process.returncode}. {last_words(server.log)}"
            )
        if answers(url):
            return
        time.sleep(0.05)
    raise ServerFailed(f"{url} did not answer within {start_s:.0f} s. {last_words(server.log)}")


def answers(url: str) -> bool:
    """Whether a GET of `url` answers 200."""
    try:
        with urllib.request.urlopen(url, timeout=2) as response:  # noqa: S310 - loopback
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def last_words(log: Path) -> str:
    """The end of a server's log, as the end of a sentence about its failure."""
    tail = log.read_text(errors="replace").splitlines()[-8:] if log.exists() else []
    return f"Its log ({log}) ends:\n  " + "\n  ".join(tail)
