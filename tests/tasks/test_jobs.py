from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import pytest

from tasks import jobs
from tasks.jobs import JobEnd, Pace
from tasks.kube import EmbeddedKube, Object
from tasks.stop import Stopped, stop_tasks_on_exit

PACE = Pace(poll_s=0.01, stall_s=30)


def job(name: str = "fill-a") -> Object:
    container = {"name": "fill", "image": "warmpath", "command": ["python", "-m", "tasks.prefetch", "fill"]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [container]}}},
    }


def pod(kube: EmbeddedKube, owner: Object, name: str, phase: str, exit_code: int = 0, message: str = "") -> None:
    """What the kubelet would have made of `owner`."""
    labels = {jobs.JOB_NAME: owner["metadata"]["name"]}
    spec = owner["spec"]["template"]["spec"]
    metadata = {"name": name, "namespace": "default", "labels": labels}
    kube.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    state = {"terminated": {"exitCode": exit_code, "message": message}} if phase in ("Succeeded", "Failed") else {}
    status = {"phase": phase, "containerStatuses": [{"name": "fill", "state": state}]}
    kube.patch("Pod", name, {"status": status}, "default", subresource="status")


def fail(kube: EmbeddedKube, name: str = "fill-a") -> None:
    condition = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "it tried 4 times"}
    kube.patch("Job", name, {"status": {"conditions": [condition]}}, "default", subresource="status")


def test_a_node_ends_with_the_report_its_pod_left(kube: EmbeddedKube) -> None:
    running = kube.create(job())
    pod(kube, running, "p", "Succeeded", message=json.dumps({"outcome": "Ready", "size_bytes": 7}))
    assert list(jobs.run(kube, {"node-a": job()}, PACE)) == [
        JobEnd("node-a", ok=True, report={"outcome": "Ready", "size_bytes": 7})
    ]


def test_a_running_namesake_is_adopted_and_an_ended_one_replaced(kube: EmbeddedKube) -> None:
    first = jobs.start(kube, job())
    assert jobs.start(kube, job())["metadata"]["uid"] == first["metadata"]["uid"]
    fail(kube)
    assert jobs.start(kube, job())["metadata"]["uid"] != first["metadata"]["uid"]


def test_a_failed_try_is_no_end_while_the_job_may_try_again(kube: EmbeddedKube) -> None:
    running = kube.create(job())
    said = json.dumps({"outcome": "Failed", "reason": "Network", "message": "the source hung up"})
    pod(kube, running, "p", "Failed", exit_code=1, message=said)
    threading.Timer(0.3, lambda: fail(kube)).start()
    looks = iter(jobs.run(kube, {"node-a": job()}, PACE))
    end = next(looks)
    assert jobs.condition(kube.get("Job", "fill-a", "default"), "Failed"), "it ended before the Job had"
    assert (end.ok, end.reason, end.message) == (False, "Network", "the source hung up")


def test_a_terminal_exit_ends_the_job_before_it_tries_again(kube: EmbeddedKube) -> None:
    running = kube.create(job())
    said = json.dumps({"outcome": "Failed", "reason": "GatedRepo", "message": "ask for access"})
    pod(kube, running, "p", "Failed", exit_code=jobs.TERMINAL, message=said)
    (end,) = jobs.run(kube, {"node-a": job()}, PACE)
    assert end.reason == "GatedRepo"
    assert kube.list("Job", "default").items == []


def test_a_job_that_somebody_deletes_is_told(kube: EmbeddedKube) -> None:
    threading.Timer(0.2, lambda: kube.delete("Job", "fill-a", "default")).start()
    (end,) = jobs.run(kube, {"node-a": job()}, PACE)
    assert end.reason == "JobDeleted"


def test_a_job_without_progress_is_given_up_and_deleted(kube: EmbeddedKube) -> None:
    (end,) = jobs.run(kube, {"node-a": job()}, Pace(poll_s=0.01, stall_s=0.1))
    assert end.reason == "Stalled"
    assert "No progress on node-a" in end.message
    assert kube.list("Job", "default").items == []


def test_stopping_deletes_only_the_jobs_that_still_run(kube: EmbeddedKube) -> None:
    ended = kube.create(job("fill-b"))
    pod(kube, ended, "p", "Succeeded", message="{}")

    def until_stopped() -> Iterator[JobEnd]:
        with stop_tasks_on_exit() as stop:
            for end in jobs.run(kube, {"node-a": job(), "node-b": job("fill-b")}, PACE):
                yield end
                stop.request("somebody cancelled it")

    ends = until_stopped()
    assert next(ends).node == "node-b"
    with pytest.raises(Stopped, match="somebody cancelled it"):
        next(ends)
    assert [j["metadata"]["name"] for j in kube.list("Job", "default").items] == ["fill-b"]
