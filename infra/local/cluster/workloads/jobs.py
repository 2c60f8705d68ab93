"""Jobs: pods until enough succeed, `backoffLimit` is used up or the deadline has passed.

A pod that fails is replaced after a pause that doubles. Only pods that failed count: one that was deleted, or
whose node went away, is simply replaced.
"""

from __future__ import annotations

from infra.local.cluster.actions import Action, Create, Delete, Note, Wake, status_change
from infra.local.cluster.objects import Object, format_time, is_deleting, is_true, parse_time, with_condition
from infra.local.cluster.workloads.pods import is_active, is_ready, phase_of, pod_from

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 10.0


def plan_job(job: Object, pods: list[Object], now_s: float) -> list[Action]:
    if is_deleting(job):
        return []
    if is_true(job, "Complete") or is_true(job, "Failed"):
        return _plan_removal(job, now_s)
    spec, status = job["spec"], dict(job.get("status") or {})
    at = format_time(now_s)
    status.setdefault("startTime", at)
    active = [pod for pod in pods if is_active(pod)]
    succeeded = sum(phase_of(pod) == "Succeeded" for pod in pods)
    failed = max(sum(phase_of(pod) == "Failed" for pod in pods), status.get("failed", 0))
    restarts = sum(_restarts(pod) for pod in active)
    verdict = _failure(spec, failed + restarts, now_s - parse_time(status["startTime"]))
    actions: list[Action] = []
    conditions = status.get("conditions") or []
    if succeeded >= spec["completions"]:
        status |= {"conditions": with_condition(conditions, "Complete", True, "CompletionsReached", "", at)}
        status["completionTime"] = at
        actions += [Delete(pod) for pod in active] + [Note(job, "Completed", "Job completed")]
        active = []
    elif verdict:
        reason, message = verdict
        status |= {"conditions": with_condition(conditions, "Failed", True, reason, message, at)}
        actions += [Delete(pod) for pod in active] + [Note(job, reason, message, is_warning=True)]
        active = []
    else:
        wanted = min(spec["parallelism"], spec["completions"] - succeeded) - len(active)
        actions += _plan_starts(job, pods, failed, wanted, now_s)
        if spec.get("activeDeadlineSeconds") is not None:
            actions.append(Wake(parse_time(status["startTime"]) + spec["activeDeadlineSeconds"]))
    counts = {"active": len(active), "ready": sum(is_ready(pod) for pod in active)}
    status |= {**counts, "succeeded": succeeded, "failed": failed}
    return actions + status_change(job, status)


def _failure(spec: Object, failed: int, running_s: float) -> tuple[str, str] | None:
    """Reason and message when the job must give up."""
    if failed > spec["backoffLimit"]:
        return "BackoffLimitExceeded", f"Job has failed {failed} times, backoffLimit is {spec['backoffLimit']}"
    deadline_s = spec.get("activeDeadlineSeconds")
    if deadline_s is not None and running_s >= deadline_s:
        return "DeadlineExceeded", f"Job was active longer than {deadline_s} s"
    return None


def _plan_starts(job: Object, pods: list[Object], failed: int, wanted: int, now_s: float) -> list[Action]:
    if job["spec"].get("suspend") or wanted <= 0:
        return []
    ended = [_ended_s(pod) for pod in pods if phase_of(pod) == "Failed"]
    start_s = max(ended) + min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (failed - 1)) if ended else now_s
    if start_s > now_s:
        return [Wake(start_s)]
    return [Create(pod_from(job["spec"]["template"], job)) for _ in range(wanted)]


def _plan_removal(job: Object, now_s: float) -> list[Action]:
    """A finished job goes `ttlSecondsAfterFinished` later."""
    ttl_s = job["spec"].get("ttlSecondsAfterFinished")
    if ttl_s is None:
        return []
    finished = next(c for c in job["status"]["conditions"] if c["type"] in ("Complete", "Failed"))
    remove_s = parse_time(finished["lastTransitionTime"]) + ttl_s
    return [Delete(job)] if now_s >= remove_s else [Wake(remove_s)]


def _restarts(pod: Object) -> int:
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    initial = (pod.get("status") or {}).get("initContainerStatuses") or ()
    return sum(status.get("restartCount", 0) for status in (*statuses, *initial))


def _ended_s(pod: Object) -> float:
    """When the last container of a finished pod ended."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    times = [status["state"]["terminated"]["finishedAt"] for status in statuses if "terminated" in status["state"]]
    return max(map(parse_time, times), default=parse_time(pod["metadata"]["creationTimestamp"]))
