"""What becomes of a pod: which containers to start, and the status to tell. Pure.

Init containers run one after the other, each until it exits with 0; then all containers at once. What ended is
started again as restartPolicy says, after a pause that doubles from 0.5 s to 10 s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from infra.local.cluster.objects import Object, format_time, is_deleting, with_condition

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 10.0
# Who ran this long is healthy: the next pause is the first again.
CALM_S = 60.0


@dataclass(frozen=True, slots=True)
class Seen:
    """One attempt to run a container; finished_s is None while it runs."""

    attempt: int
    started_s: float
    finished_s: float | None = None
    exit_code: int = 0
    message: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a pod's containers, by name.

    attempts: the newest last. ready: of those with a readiness probe. blocked: why one cannot start.
    """

    ip: str
    attempts: Mapping[str, Sequence[Seen]] = field(default_factory=dict)
    ready: Mapping[str, bool] = field(default_factory=dict)
    blocked: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def last(self, container: Object) -> Seen | None:
        attempts = self.attempts.get(container["name"])
        return attempts[-1] if attempts else None


@dataclass(frozen=True, slots=True)
class PodPlan:
    """start: containers to start now. wake_s: when a pause ends. status: the whole status of the pod."""

    start: tuple[str, ...]
    status: Object
    wake_s: float | None = None


def plan_pod(pod: Object, facts: Facts, now_s: float) -> PodPlan:
    spec = pod["spec"]
    initial, main = spec.get("initContainers") or [], spec["containers"]
    waits = {c["name"]: _wait_s(c, spec["restartPolicy"], facts, is_initial=True) for c in initial}
    todo = [container for container in initial if not _succeeded(container, facts)]
    stuck = bool(todo) and waits[todo[0]["name"]] is None and _has_ended(todo[0], facts)
    if todo:
        candidates = todo[:1]
    else:
        waits |= {c["name"]: _wait_s(c, spec["restartPolicy"], facts, is_initial=False) for c in main}
        candidates = main
    due = [c["name"] for c in candidates if (wait := waits[c["name"]]) is not None and wait <= now_s]
    later = [wait for c in candidates if (wait := waits[c["name"]]) is not None and wait > now_s]
    may_start = not is_deleting(pod) and not stuck
    start = tuple(name for name in due if may_start and name not in facts.blocked)
    phase = "Failed" if stuck else _phase(main, facts, waits, is_initialized=not todo)
    status = _status(pod, facts, phase, waits, is_initialized=not todo, now_s=now_s)
    return PodPlan(start, status, min(later, default=None) if may_start else None)


def _wait_s(container: Object, policy: str, facts: Facts, *, is_initial: bool) -> float | None:
    """When to start the container next (0: at once); None while it runs or when it has had its turn."""
    last = facts.last(container)
    if last is None:
        return 0.0
    if last.finished_s is None:
        return None
    only_failures = policy == "OnFailure" or (policy == "Always" and is_initial)
    if policy == "Never" or (only_failures and last.exit_code == 0):
        return None
    calm = last.finished_s - last.started_s >= CALM_S
    pause_s: float = FIRST_PAUSE_S * 2 ** (0 if calm else min(last.attempt, 10))
    return last.finished_s + min(LONGEST_PAUSE_S, pause_s)


def _succeeded(container: Object, facts: Facts) -> bool:
    last = facts.last(container)
    return last is not None and last.finished_s is not None and last.exit_code == 0


def _has_ended(container: Object, facts: Facts) -> bool:
    last = facts.last(container)
    return last is not None and last.finished_s is not None


def _phase(main: list[Object], facts: Facts, waits: Mapping[str, float | None], *, is_initialized: bool) -> str:
    if not is_initialized or any(facts.last(container) is None for container in main):
        return "Pending"
    if any(waits[container["name"]] is not None or not _has_ended(container, facts) for container in main):
        return "Running"
    return "Succeeded" if all(_succeeded(container, facts) for container in main) else "Failed"


def _status(
    pod: Object,
    facts: Facts,
    phase: str,
    waits: Mapping[str, float | None],
    *,
    is_initialized: bool,
    now_s: float,
) -> Object:
    before, spec = pod.get("status") or {}, pod["spec"]
    at = format_time(now_s)
    initial = [_container_status(c, facts, waits, is_initial=True) for c in spec.get("initContainers") or ()]
    main = [_container_status(c, facts, waits, is_initial=False) for c in spec["containers"]]
    unready = [status["name"] for status in main if not status["ready"]]
    reason = "PodCompleted" if phase == "Succeeded" else "ContainersNotReady" if unready else ""
    message = f"containers with unready status: [{' '.join(unready)}]" if unready else ""
    conditions = with_condition(before.get("conditions") or [], "PodScheduled", True, "", "", at)
    conditions = with_condition(
        conditions, "Initialized", is_initialized, "" if is_initialized else "ContainersNotInitialized", "", at
    )
    for kind in ("ContainersReady", "Ready"):
        conditions = with_condition(conditions, kind, not unready, reason, message, at)
    return {
        "phase": phase,
        "hostIP": "127.0.0.1",
        "podIP": facts.ip,
        "podIPs": [{"ip": facts.ip}],
        "startTime": before.get("startTime", at),
        "conditions": conditions,
        "containerStatuses": main,
    } | ({"initContainerStatuses": initial} if initial else {})


def _container_status(
    container: Object, facts: Facts, waits: Mapping[str, float | None], *, is_initial: bool
) -> Object:
    name = container["name"]
    attempts = facts.attempts.get(name) or ()
    last = attempts[-1] if attempts else None
    runs = last is not None and last.finished_s is None
    ready = (
        _succeeded(container, facts)
        if is_initial
        else runs and facts.ready.get(name, "readinessProbe" not in container)
    )
    state, previous = _state(name, last, facts, waits), attempts[-2] if len(attempts) > 1 else None
    if "waiting" in state and last is not None:
        previous = last
    return {
        "name": name,
        "image": container.get("image", ""),
        "imageID": "",
        "ready": ready,
        "started": runs,
        "restartCount": last.attempt if last is not None else 0,
        "state": state,
        "lastState": {"terminated": _terminated(previous)} if previous is not None else {},
    }


def _state(name: str, last: Seen | None, facts: Facts, waits: Mapping[str, float | None]) -> Object:
    if last is not None and last.finished_s is None:
        return {"running": {"startedAt": format_time(last.started_s)}}
    if name in facts.blocked:
        reason, message = facts.blocked[name]
        return {"waiting": {"reason": reason, "message": message}}
    if last is None:
        return {"waiting": {"reason": "ContainerCreating" if waits.get(name) is not None else "PodInitializing"}}
    if waits.get(name) is not None:
        return {"waiting": {"reason": "CrashLoopBackOff", "message": f"it ended with exit code {last.exit_code}"}}
    return {"terminated": _terminated(last)}


def _terminated(seen: Seen) -> Object:
    told = {"message": seen.message} if seen.message else {}
    return {
        "exitCode": seen.exit_code,
        "reason": "Error" if seen.exit_code else "Completed",
        "startedAt": format_time(seen.started_s),
        "finishedAt": format_time(seen.finished_s or seen.started_s),
    } | told
