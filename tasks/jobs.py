"""Run the node program on nodes, as one Kubernetes Job each, and tell how each ended.

A Job's name says what it does, so a run that was killed finds its Jobs again and goes on waiting for them.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from tasks.kube import AlreadyExists, Conflict, Kube, KubeError, NotFound, Object
from tasks.plan.conditions import condition
from tasks.plan.objects import TERMINAL
from tasks.stop import Left, pause

JOB_NAME = "batch.kubernetes.io/job-name"

Look = Callable[[str, Object], None]


@dataclass(frozen=True, slots=True)
class JobEnd:
    """How the program ended on `node`. report: its last word, {} when it left none."""

    node: str
    ok: bool
    report: Object = field(default_factory=dict)
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Pace:
    """poll_s: time between looks at all pods; look_s: at the log of each; stall_s: when a Job is given up as stuck."""

    poll_s: float = 0.25
    look_s: float = 1.0
    stall_s: float = 180.0


@dataclass(slots=True)
class _Followed:
    """A Job in progress, what its log said last, and when it last showed a sign of life."""

    job: Object
    progress: Object = field(default_factory=dict)
    looked_at: float = 0.0
    sign: str = ""
    sign_at: float = field(default_factory=time.monotonic)

    def stalled_s(self, sign: str) -> float:
        if sign != self.sign:
            self.sign, self.sign_at = sign, time.monotonic()
        return time.monotonic() - self.sign_at


def run(kube: Kube, jobs: Mapping[str, Object], pace: Pace, look: Look | None = None) -> Iterator[JobEnd]:
    """Start a Job per node, or adopt the one that runs; yield each end as it comes.

    `look` gets a node's latest progress. Jobs that run when the caller stops are deleted, unless it
    leaves them; what they proved stays.
    """
    running: dict[str, _Followed] = {}
    try:
        for node, body in jobs.items():
            running[node] = _Followed(start(kube, body))
        while running:
            for end in _ended(kube, running, pace, look):
                del running[end.node]
                yield end
            if running:
                pause(pace.poll_s)
    except Left:
        running.clear()
        raise
    finally:
        for followed in running.values():
            _delete(kube, followed.job)


def start(kube: Kube, body: Object) -> Object:
    """Create the Job; adopt a namesake that still runs, replace one that has ended."""
    name, namespace = body["metadata"]["name"], body["metadata"]["namespace"]
    while True:
        with contextlib.suppress(AlreadyExists):
            return kube.create(body)
        with contextlib.suppress(NotFound):
            found = kube.get("Job", name, namespace)
            if "deletionTimestamp" in found["metadata"]:
                pause(0.2)
            elif condition(found, "Complete") or condition(found, "Failed"):
                _delete(kube, found)
            else:
                return found


def _ended(kube: Kube, running: Mapping[str, _Followed], pace: Pace, look: Look | None) -> list[JobEnd]:
    namespace = next(iter(running.values())).job["metadata"]["namespace"]
    names = ",".join(followed.job["metadata"]["name"] for followed in running.values())
    newest: dict[str, Object] = {}
    pods = kube.list("Pod", namespace, labels=f"{JOB_NAME} in ({names})").items
    for pod in sorted(pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"])):
        newest[pod["metadata"]["labels"][JOB_NAME]] = pod
    ends = (_end(kube, node, f, newest.get(f.job["metadata"]["name"]), pace, look) for node, f in running.items())
    return [end for end in ends if end]


def _end(
    kube: Kube, node: str, followed: _Followed, pod: Object | None, pace: Pace, look: Look | None
) -> JobEnd | None:
    phase = pod["status"].get("phase", "Pending") if pod else "Absent"
    if pod and phase == "Succeeded":
        return JobEnd(node, ok=True, report=_report(kube, pod))
    if pod and phase == "Running" and time.monotonic() - followed.looked_at >= pace.look_s:
        followed.looked_at = time.monotonic()
        followed.progress = _last_line(kube, pod, "progress")
        if followed.progress and look:
            look(node, followed.progress)
    if phase in ("Absent", "Failed"):
        failed = _failure(kube, node, followed.job, pod)
        if failed:
            return failed
    done = [followed.progress.get(key) for key in ("done_bytes", "files_done")]
    sign = f"{pod['metadata']['uid'] if pod else ''} {phase} {done}"
    if followed.stalled_s(sign) > pace.stall_s:
        _delete(kube, followed.job)
        return JobEnd(node, ok=False, reason="Stalled", message=_why_stalled(node, phase, pod, pace.stall_s))
    return None


def _failure(kube: Kube, node: str, job: Object, pod: Object | None) -> JobEnd | None:
    """How the Job failed; None while it may still try again."""
    report = _report(kube, pod) if pod else {}
    said = JobEnd(node, ok=False, report=report, reason=report.get("reason", ""), message=report.get("message", ""))
    if pod and _exit_code(pod) == TERMINAL:
        _delete(kube, job)
        return said
    try:
        found = kube.get("Job", job["metadata"]["name"], job["metadata"]["namespace"])
    except NotFound:
        return JobEnd(node, ok=False, reason="JobDeleted", message=f"Job {job['metadata']['name']} was deleted")
    failed = condition(found, "Failed")
    if failed is None:
        return None
    if said.reason:
        return said
    why = failed.get("message") or failed.get("reason", "")
    return JobEnd(node, ok=False, reason="JobFailed", message=f"Job {found['metadata']['name']} failed: {why}")


def _why_stalled(node: str, phase: str, pod: Object | None, stall_s: float) -> str:
    told = [c.get("message", "") for c in (pod or {"status": {}})["status"].get("conditions") or []]
    why = next((message for message in told if message), "")
    return f"No progress on {node} for {stall_s:.0f} s (pod {phase}{': ' + why if why else ''})"


def _terminated(pod: Object) -> Object:
    statuses = pod["status"].get("containerStatuses") or []
    ended: Object = next((s["state"]["terminated"] for s in statuses if "terminated" in (s.get("state") or {})), {})
    return ended


def _exit_code(pod: Object) -> int | None:
    code: int | None = _terminated(pod).get("exitCode")
    return code


def _report(kube: Kube, pod: Object) -> Object:
    """The termination message; the log's last line where the message was too long for it."""
    with contextlib.suppress(ValueError):
        report = json.loads(_terminated(pod).get("message") or "")
        if isinstance(report, dict):
            return report
    return _last_line(kube, pod, "report")


def _last_line(kube: Kube, pod: Object, event: str) -> Object:
    """The newest JSON line of this event in the pod's log; {} when there is none or the log cannot be read."""
    try:
        log = kube.logs(pod["metadata"]["name"], pod["metadata"]["namespace"], tail_lines=5)
    except KubeError:
        return {}
    for line in reversed(log.splitlines()):
        with contextlib.suppress(ValueError):
            told = json.loads(line)
            if isinstance(told, dict) and told.get("event") == event:
                return told
    return {}


def _delete(kube: Kube, job: Object) -> None:
    # Conflict: a namesake with another uid is somebody else's.
    with contextlib.suppress(NotFound, Conflict):
        kube.delete("Job", job["metadata"]["name"], job["metadata"]["namespace"], uid=job["metadata"]["uid"])
