"""Readiness and liveness probes: when they are due, what their answers mean, and how they ask."""

from __future__ import annotations

import socket
import subprocess
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from infra.local.cluster.objects import MALFORMED, Object

WORKERS = 4


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a probe's answers so far mean. The counts are of equal answers in a row."""

    passes: bool
    successes: int = 0
    failures: int = 0

    def after(self, succeeded: bool, probe: Object) -> Verdict:
        if succeeded:
            enough = self.successes + 1 >= probe.get("successThreshold", 1)
            return Verdict(self.passes or enough, successes=self.successes + 1)
        enough = self.failures + 1 >= probe.get("failureThreshold", 3)
        return Verdict(self.passes and not enough, failures=self.failures + 1)


@dataclass(slots=True)
class _Watched:
    """One probe of one attempt of a container."""

    probe: Object
    container: Object
    ip: str
    environment: dict[str, str]
    verdict: Verdict
    due_s: float
    asking: Future[bool] | None = None


Target = tuple[str, str, str]  # (pod uid, container, "readiness" or "liveness")


class Prober:
    """Asks in a few threads; `collect` is called by the loop that owns it."""

    def __init__(self) -> None:
        self._watched: dict[Target, _Watched] = {}
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="probe")

    def watch(
        self, uid: str, container: Object, ip: str, environment: dict[str, str], *, is_ready: bool = False
    ) -> None:
        """Probe this attempt of a container from now on; the verdicts of an earlier one are forgotten."""
        for kind, passes in (("readiness", is_ready), ("liveness", True)):
            probe = container.get(f"{kind}Probe")
            if probe:
                due_s = time.monotonic() + probe.get("initialDelaySeconds", 0)
                entry = _Watched(probe, container, ip, environment, Verdict(passes), due_s)
                self._watched[uid, container["name"], kind] = entry

    def forget(self, uid: str, container: str = "") -> None:
        """Stop probing a container, or all of a pod's."""
        for target in [t for t in self._watched if t[0] == uid and container in ("", t[1])]:
            del self._watched[target]

    def verdicts(self, uid: str, kind: str) -> dict[str, bool]:
        """By container."""
        return {t[1]: entry.verdict.passes for t, entry in self._watched.items() if (t[0], t[2]) == (uid, kind)}

    def collect(self) -> set[str]:
        """Take in answers and ask what is due; the uids of pods for which a verdict changed."""
        now_s, changed = time.monotonic(), set[str]()
        for target, entry in self._watched.items():
            if entry.asking is not None and entry.asking.done():
                before = entry.verdict.passes
                entry.verdict = entry.verdict.after(entry.asking.result(), entry.probe)
                entry.asking, entry.due_s = None, now_s + entry.probe.get("periodSeconds", 10)
                if entry.verdict.passes is not before:
                    changed.add(target[0])
            elif entry.asking is None and now_s >= entry.due_s:
                entry.asking = self._pool.submit(_ask, entry.probe, entry.container, entry.ip, entry.environment)
        return changed

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def _ask(probe: Object, container: Object, ip: str, environment: dict[str, str]) -> bool:
    timeout_s = probe.get("timeoutSeconds", 1)
    try:
        if "httpGet" in probe:
            return _http(probe["httpGet"], _port(probe["httpGet"]["port"], container), ip, timeout_s)
        if "tcpSocket" in probe:
            port = _port(probe["tcpSocket"]["port"], container)
            with socket.create_connection((probe["tcpSocket"].get("host", ip), port), timeout_s):
                return True
        command = probe["exec"]["command"]
        answer = subprocess.run(  # noqa: S603 - running what pods ask for is the purpose
            command, env=environment, capture_output=True, timeout=timeout_s, check=False
        )
    except (OSError, subprocess.TimeoutExpired, *MALFORMED):
        return False
    return answer.returncode == 0


def _http(get: Object, port: int, ip: str, timeout_s: float) -> bool:
    """Whether the answer is 2xx or 3xx. Only its first line is read: probes must cost nothing."""
    host = get.get("host", ip)
    headers = "".join(f"{header['name']}: {header['value']}\r\n" for header in get.get("httpHeaders") or ())
    request = f"GET {get.get('path', '/')} HTTP/1.1\r\nHost: {host}:{port}\r\n{headers}Connection: close\r\n\r\n"
    with socket.create_connection((host, port), timeout_s) as connection:
        connection.sendall(request.encode())
        line = b""
        while b"\n" not in line:
            block = connection.recv(256)
            if not block:
                break
            line += block
    parts = line.split(maxsplit=2)
    return len(parts) > 1 and parts[0].startswith(b"HTTP/") and parts[1][:1] in (b"2", b"3")


def _port(port: int | str, container: Object) -> int:
    if isinstance(port, int):
        return port
    for declared in container.get("ports") or ():
        if declared.get("name") == port:
            return int(declared["containerPort"])
    return int(port)
