"""Long-running processes of a home: started apart from the terminal, recorded, found again, stopped by pid.

A pid alone can belong to somebody else after a crash, so the record holds the start time that the kernel gives.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from infra.cli.home import Home, is_free
from infra.local.cluster.kubelet.processes import start_ticks
from infra.local.server import last_words


class ServiceFailed(Exception):
    """A service did not start or died; the message ends with its last words and where to read on."""


@dataclass(frozen=True, slots=True)
class Service:
    """How one process runs.

    environment: added to the caller's; credentials go here, never into `command`.
    is_ready: asked until it is true; start_s: how long that may take.
    ports: on loopback, each of which the process itself must hold: another's answers would be taken for its own.
    """

    name: str
    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    is_ready: Callable[[], bool] = lambda: True
    start_s: float = 60.0
    stop_s: float = 15.0
    ports: tuple[int, ...] = ()


def start(home: Home, service: Service) -> bool:
    """Start `service` unless it runs already; True when it was started now. Does not wait."""
    if running_pid(home, service.name) is not None:
        return False
    for port in service.ports:
        if not is_free(port):
            raise ServiceFailed(
                f"{service.name} needs port {port}, which another process of this machine holds. Stop that one, or "
                "let this fleet choose other ports: warmpath down, then warmpath up."
            )
    log = home.log(service.name)
    log.parent.mkdir(exist_ok=True)
    environment = {**os.environ, "PREFECT_LOGGING_LEVEL": "INFO", **service.environment}
    # Not subprocess: its Popen belongs to a parent that waits, and this process outlives us.
    pid = os.posix_spawn(
        service.command[0],
        service.command,
        environment,
        setsid=True,
        file_actions=(
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ),
    )
    record(home, service.name, pid)
    return True


def wait_ready(home: Home, service: Service) -> None:
    """Return when `service` answers; raise ServiceFailed when it dies or takes longer than `start_s`."""
    deadline = time.monotonic() + service.start_s
    while True:
        pid = running_pid(home, service.name)
        if pid is not None and all(holds_port(pid, port) for port in service.ports) and service.is_ready():
            return
        if pid is None:
            raise ServiceFailed(f"{service.name} ended while it started. {last_words(home.log(service.name))}")
        if time.monotonic() > deadline:
            raise ServiceFailed(
                f"{service.name} is not ready after {service.start_s:.0f} s. {last_words(home.log(service.name))}"
            )
        time.sleep(0.1)


def stop(home: Home, name: str, *, stop_s: float = 15.0) -> bool:
    """SIGTERM, then SIGKILL after `stop_s`, to the service's own process group. True when it ran."""
    pid = running_pid(home, name)
    if pid is None:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + stop_s
    while running_pid(home, name) is not None and time.monotonic() < deadline:
        time.sleep(0.05)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    pids = home.read("processes")
    pids.pop(name, None)
    home.write("processes", pids)
    return True


def holds_port(pid: int, port: int) -> bool:
    """Whether process `pid` listens on 127.0.0.1:`port`."""
    local = f"0100007F:{port:04X}"
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    sockets = {f"socket:[{row[9]}]" for row in rows if row[1] == local and row[3] == "0A"}
    with contextlib.suppress(OSError):  # it ended while we looked
        return any(_target(descriptor) in sockets for descriptor in Path(f"/proc/{pid}/fd").iterdir())
    return False


def _target(descriptor: Path) -> str:
    try:
        return str(descriptor.readlink())
    except OSError:
        return ""  # closed while we looked


def record(home: Home, name: str, pid: int) -> None:
    pids = home.read("processes")
    pids[name] = {"pid": pid, "started": start_ticks(pid)}
    home.write("processes", pids)


def running_pid(home: Home, name: str) -> int | None:
    """The pid of the service `name`, None when it does not run."""
    entry = home.read("processes").get(name)
    if entry is None:
        return None
    with contextlib.suppress(ChildProcessError):
        os.waitpid(entry["pid"], os.WNOHANG)  # our own dead child would stay a zombie, and look alive
    # None stands for a process that was dead when it was recorded, and for one that is dead now.
    started = start_ticks(entry["pid"])
    return entry["pid"] if started is not None and started == entry["started"] else None


def running(home: Home) -> list[str]:
    return [name for name in home.read("processes") if running_pid(home, name) is not None]
