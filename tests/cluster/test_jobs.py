from __future__ import annotations

import pytest

from infra.local.cluster.actions import Action, Create, Delete, SetStatus, Wake
from infra.local.cluster.objects import Object, format_time
from infra.local.cluster.workloads.jobs import plan_job

NOW_S = 1_000_000.0


def job(status: Object | None = None, **spec: object) -> Object:
    template = {"metadata": {"labels": {"job-name": "fill"}}, "spec": {"containers": [], "restartPolicy": "Never"}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "fill", "namespace": "default", "uid": "job-uid"},
        "spec": {"backoffLimit": 2, "completions": 1, "parallelism": 1, "template": template, **spec},
        "status": status or {},
    }


def pod(phase: str, *, ended_ago_s: float = 100, restarts: int = 0, deleting: bool = False) -> Object:
    state = {"terminated": {"finishedAt": format_time(NOW_S - ended_ago_s)}} if phase in ("Failed", "Succeeded") else {}
    leaving = {"deletionTimestamp": format_time(NOW_S)} if deleting else {}
    return {
        "kind": "Pod",
        "metadata": {"name": "p", "creationTimestamp": format_time(NOW_S - 200), **leaving},
        "spec": {},
        "status": {"phase": phase, "containerStatuses": [{"state": state, "restartCount": restarts}]},
    }


def plan(job: Object, *pods: Object) -> tuple[dict[str, int], Object, list[Action]]:
    """(how many creations and deletions, the status after them, all actions)."""
    actions = plan_job(job, list(pods), NOW_S)
    count = {kind.__name__: sum(isinstance(a, kind) for a in actions) for kind in (Create, Delete)}
    status = next((a.status for a in actions if isinstance(a, SetStatus)), job["status"])
    return count, status, actions


def verdict(status: Object) -> list[tuple[str, str]]:
    return [(c["type"], c["reason"]) for c in status.get("conditions", []) if c["status"] == "True"]


def test_a_new_job_starts_a_pod_that_it_controls() -> None:
    count, status, actions = plan(job())
    assert count == {"Create": 1, "Delete": 0}
    body = next(a.body for a in actions if isinstance(a, Create))
    assert body["metadata"]["generateName"] == "fill-"
    assert body["metadata"]["labels"] == {"job-name": "fill"}
    (owner,) = body["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("Job", "job-uid", True)
    assert status["startTime"] == format_time(NOW_S)


def test_a_job_waits_for_its_pod() -> None:
    count, status, _ = plan(job(), pod("Running"))
    assert count == {"Create": 0, "Delete": 0}
    assert (status["active"], verdict(status)) == (1, [])


def test_a_succeeded_pod_completes_the_job() -> None:
    count, status, _ = plan(job(), pod("Succeeded"))
    assert count == {"Create": 0, "Delete": 0}
    assert verdict(status) == [("Complete", "CompletionsReached")]
    assert (status["succeeded"], status["completionTime"]) == (1, format_time(NOW_S))


@pytest.mark.parametrize(("failed", "pause_s"), [(1, 0.5), (2, 1.0), (5, 8.0), (9, 10.0)])
def test_a_failed_pod_is_replaced_after_a_pause_that_doubles(failed: int, pause_s: float) -> None:
    limit = {"backoffLimit": 20}
    early = [pod("Failed", ended_ago_s=pause_s - 0.1)] * failed
    count, _, actions = plan(job(**limit), *early)
    assert count["Create"] == 0
    assert next(a.at_s for a in actions if isinstance(a, Wake)) == pytest.approx(NOW_S + 0.1)
    assert plan(job(**limit), *[pod("Failed", ended_ago_s=pause_s + 0.1)] * failed)[0]["Create"] == 1


def test_more_failures_than_the_limit_fail_the_job() -> None:
    assert plan(job(), *[pod("Failed")] * 2)[0]["Create"] == 1
    count, status, _ = plan(job(), *[pod("Failed")] * 3)
    assert count["Create"] == 0
    assert verdict(status) == [("Failed", "BackoffLimitExceeded")]


def test_restarts_in_place_count_as_failures() -> None:
    count, status, _ = plan(job(), pod("Running", restarts=3))
    assert (count["Delete"], verdict(status)) == (1, [("Failed", "BackoffLimitExceeded")])


def test_a_pod_that_was_deleted_is_replaced_and_does_not_count() -> None:
    assert plan(job(backoffLimit=0), pod("Running", deleting=True))[0]["Create"] == 1
    assert plan(job(backoffLimit=0))[0]["Create"] == 1


def test_failures_are_remembered_when_their_pods_are_gone() -> None:
    assert verdict(plan(job({"failed": 3, "startTime": format_time(NOW_S)}))[1]) == [("Failed", "BackoffLimitExceeded")]


def test_the_deadline_ends_pods_and_job() -> None:
    started = {"startTime": format_time(NOW_S - 60)}
    count, status, _ = plan(job(started, activeDeadlineSeconds=60), pod("Running"))
    assert (count["Delete"], verdict(status)) == (1, [("Failed", "DeadlineExceeded")])
    _, _, actions = plan(job(started, activeDeadlineSeconds=61), pod("Running"))
    assert Wake(NOW_S + 1) in actions


def test_completions_run_side_by_side_up_to_parallelism() -> None:
    wide = {"completions": 5, "parallelism": 2}
    assert plan(job(**wide))[0]["Create"] == 2
    assert plan(job(**wide), pod("Running"), *[pod("Succeeded")] * 2)[0]["Create"] == 1
    assert plan(job(**wide), *[pod("Succeeded")] * 4)[0]["Create"] == 1
    assert plan(job(**wide, suspend=True))[0]["Create"] == 0


def test_a_finished_job_rests_until_its_time_to_live_is_over() -> None:
    ended = {"type": "Complete", "status": "True", "lastTransitionTime": format_time(NOW_S - 10)}
    done = {"conditions": [ended], "succeeded": 1}
    assert plan_job(job(done), [pod("Failed")], NOW_S) == []
    assert plan_job(job(done, ttlSecondsAfterFinished=15), [], NOW_S) == [Wake(NOW_S + 5)]
    finished = job(done, ttlSecondsAfterFinished=10)
    assert plan_job(finished, [], NOW_S) == [Delete(finished)]
