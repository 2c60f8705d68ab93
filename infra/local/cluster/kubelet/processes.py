"""Containers as processes that outlive the runner.

A small shell stands between. It writes its start time and its own /proc stat line first, and the exit code of the
command last, so that a runner that was killed finds, after its restart, what runs and how the rest ended. Files of
one container, in `pods/<uid>/run/`: `<container>.<attempt>.process`, `.exit`, `.message` (its termination log).
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

_SHIM = """
exit_file=$1 process_file=$2 started=$3; shift 3
trap : TERM INT HUP QUIT USR1 USR2
read -r stat < /proc/$$/stat; echo "$started $stat" > "$process_file"
"$@"
echo $? > "$exit_file"
"""
_FILE = re.compile(r"^(?P<container>.+)\.(?P<attempt>\d+)\.process$")
_KILLED = 137
# More than the shell needs until it starts the command.
_SHIM_S = 0.3


@dataclass(slots=True)
class Process:
    """One attempt to run a container. exit_code and finished_s are None while it runs."""

    run: Path
    container: str
    attempt: int
    pid: int
    start_ticks: str
    started_s: float
    exit_code: int | None = None
    finished_s: float | None = None
    child: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def poll(self) -> bool:
        """Whether it still runs; notes the exit code once it does not."""
        if self.exit_code is not None:
            return False
        if self._is_alive():
            return True
        self.exit_code, self.finished_s = self._how_it_ended()
        self.signal(signal.SIGKILL)  # whatever it left behind in its group
        return False

    def _is_alive(self) -> bool:
        if self.child is not None:
            return self.child.poll() is None
        return start_ticks(self.pid) == self.start_ticks

    def terminate(self) -> bool:
        """SIGTERM, unless the shell would swallow it because the command does not run yet. False: ask again soon."""
        if not self._has_command():
            return False
        self.signal(signal.SIGTERM)
        return True

    def _has_command(self) -> bool:
        """Whether the shell's child has become the command: between fork and exec it still looks like the shell."""
        proc = Path("/proc")
        try:
            children = (proc / f"{self.pid}/task/{self.pid}/children").read_text().split()
        except OSError:  # a kernel without this file
            return time.time() - self.started_s > _SHIM_S
        try:
            shell, child = ((proc / pid / "cmdline").read_bytes() for pid in (str(self.pid), children[0]))
        except (OSError, IndexError):
            return False
        return child not in (b"", shell)

    def signal(self, number: signal.Signals) -> None:
        """To the container's whole process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    @property
    def message_path(self) -> Path:
        return self.run / f"{self.container}.{self.attempt}.message"

    def _how_it_ended(self) -> tuple[int, float]:
        exit_file = self.run / f"{self.container}.{self.attempt}.exit"
        with contextlib.suppress(OSError, ValueError):
            return int(exit_file.read_text()), exit_file.stat().st_mtime
        code = self.child.returncode if self.child is not None else -signal.SIGKILL
        return (128 - code if code < 0 else code or _KILLED), time.time()


def start(
    run: Path, container: str, attempt: int, argv: list[str], environment: dict[str, str], directory: Path, log: Path
) -> Process:
    """Start `argv` in its own session, its output appended to `log`."""
    stem, started_s = f"{container}.{attempt}", time.time()
    files = (str(run / f"{stem}.exit"), str(run / f"{stem}.process"))
    shim = ["/bin/sh", "-c", _SHIM, "container", *files, repr(started_s)]
    with log.open("ab") as output:
        child = subprocess.Popen(  # noqa: S603 - running what pods ask for is the purpose
            [*shim, *argv],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=directory,
            start_new_session=True,
        )
    ticks = start_ticks(child.pid) or ""
    return Process(run, container, attempt, child.pid, ticks, started_s, child=child)


def adopt(run: Path) -> dict[str, list[Process]]:
    """Every attempt that a pod's run directory records, by container, the newest last."""
    found: dict[str, list[Process]] = {}
    for path in run.glob("*.process"):
        parts, (started_s, _, stat) = _FILE.match(path.name), path.read_text().partition(" ")
        if parts and stat:
            pid, ticks = _identity(stat)
            attempt = int(parts["attempt"])
            process = Process(run, parts["container"], attempt, pid, ticks, float(started_s))
            found.setdefault(process.container, []).append(process)
    for attempts in found.values():
        attempts.sort(key=lambda process: process.attempt)
    return found


def _identity(stat: str) -> tuple[int, str]:
    """(pid, start time in ticks since boot) of a /proc stat line; the name inside may hold spaces and brackets."""
    fields = stat.rpartition(")")[2].split()
    return int(stat.split(maxsplit=1)[0]), fields[19]


def start_ticks(pid: int) -> str | None:
    """Start time of `pid` in ticks since boot, which no later process of that pid has; None for none or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return None if stat.rpartition(")")[2].split()[0] == "Z" else _identity(stat)[1]
