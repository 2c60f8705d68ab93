from __future__ import annotations

from typing import Any

import pytest

from infra.local.cluster.kubelet.lifecycle import Facts, PodPlan, Seen, plan_pod
from infra.local.cluster.objects import Object, condition

NOW_S = 1_000_000.0
RUNS = [Seen(0, NOW_S - 5)]


def ended(code: int, *, attempt: int = 0, ago_s: float = 0.1, ran_s: float = 1, message: str = "") -> list[Seen]:
    return [Seen(attempt, NOW_S - ago_s - ran_s, NOW_S - ago_s, code, message)]


def pod(policy: str = "Always", *, init: tuple[str, ...] = (), main: tuple[str, ...] = ("c",), **more: Any) -> Object:
    def containers(names: tuple[str, ...]) -> list[Object]:
        return [{"name": name, "image": f"{name}-image"} for name in names]

    spec = {
        "restartPolicy": policy,
        "containers": containers(main),
        **({"initContainers": containers(init)} if init else {}),
    }
    return {"metadata": {"name": "p", **more}, "spec": spec, "status": {}}


def plan(pod: Object, attempts: dict[str, list[Seen]] | None = None, **facts: Any) -> PodPlan:
    return plan_pod(pod, Facts("127.1.2.3", attempts or {}, **facts), NOW_S)


def state(plan: PodPlan, index: int = 0, kind: str = "containerStatuses") -> Object:
    return dict(plan.status[kind][index]["state"])


@pytest.mark.parametrize(
    ("policy", "attempts", "phase"),
    [
        ("Always", {}, "Pending"),
        ("Always", {"c": RUNS}, "Running"),
        ("Always", {"c": ended(0)}, "Running"),
        ("Always", {"c": ended(1)}, "Running"),
        ("OnFailure", {"c": ended(0)}, "Succeeded"),
        ("OnFailure", {"c": ended(1)}, "Running"),
        ("Never", {"c": ended(0)}, "Succeeded"),
        ("Never", {"c": ended(1)}, "Failed"),
    ],
)
def test_the_phase_follows_from_containers_and_policy(policy: str, attempts: dict[str, list[Seen]], phase: str) -> None:
    assert plan(pod(policy), attempts).status["phase"] == phase


@pytest.mark.parametrize(
    ("policy", "code", "again"),
    [("Always", 0, True), ("Always", 1, True), ("OnFailure", 0, False), ("OnFailure", 1, True), ("Never", 1, False)],
)
def test_what_ended_starts_again_as_the_policy_says(policy: str, code: int, again: bool) -> None:
    assert plan(pod(policy), {"c": ended(code, ago_s=60)}).start == (("c",) if again else ())


@pytest.mark.parametrize(("attempt", "pause_s"), [(0, 0.5), (1, 1.0), (3, 4.0), (9, 10.0), (500, 10.0)])
def test_the_pause_before_a_restart_doubles(attempt: int, pause_s: float) -> None:
    early = plan(pod(), {"c": ended(1, attempt=attempt, ago_s=pause_s - 0.1)})
    assert early.start == ()
    assert early.wake_s == pytest.approx(NOW_S + 0.1)
    assert state(early)["waiting"]["reason"] == "CrashLoopBackOff"
    assert early.status["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 1
    assert plan(pod(), {"c": ended(1, attempt=attempt, ago_s=pause_s + 0.1)}).start == ("c",)


def test_a_container_that_ran_for_long_starts_again_soon() -> None:
    assert plan(pod(), {"c": ended(1, attempt=9, ago_s=0.6, ran_s=100)}).start == ("c",)


def test_containers_start_together_and_init_containers_one_by_one() -> None:
    assert plan(pod(main=("a", "b"))).start == ("a", "b")
    two = pod(init=("i", "j"))
    assert plan(two).start == ("i",)
    assert plan(two, {"i": RUNS}).start == ()
    assert plan(two, {"i": ended(0)}).start == ("j",)
    done = plan(two, {"i": ended(0), "j": ended(0)})
    assert done.start == ("c",)
    assert condition({"status": done.status}, "Initialized")["status"] == "True"


def test_a_failing_init_container_is_tried_again_unless_the_policy_is_never() -> None:
    assert plan(pod(init=("i",)), {"i": ended(1, ago_s=60)}).start == ("i",)
    never = plan(pod("Never", init=("i",)), {"i": ended(1, ago_s=60)})
    assert (never.start, never.status["phase"]) == ((), "Failed")
    waiting = plan(pod(init=("i",)), {"i": RUNS})
    assert state(waiting)["waiting"]["reason"] == "PodInitializing"
    assert condition({"status": waiting.status}, "Initialized")["status"] == "False"


def test_a_pod_is_ready_when_all_its_containers_are() -> None:
    two = pod(main=("a", "b"))
    two["spec"]["containers"][1]["readinessProbe"] = {}
    attempts = {"a": RUNS, "b": RUNS}
    for ready, word in ((None, "False"), (False, "False"), (True, "True")):
        told = plan(two, attempts, ready={} if ready is None else {"b": ready})
        assert condition({"status": told.status}, "Ready")["status"] == word
        assert told.status["containerStatuses"][0]["ready"]
    assert condition({"status": plan(pod("Never"), {"c": ended(0)}).status}, "Ready")["reason"] == "PodCompleted"


def test_the_time_of_readiness_stays_while_it_lasts() -> None:
    first = plan(pod(), {"c": RUNS}).status
    later = plan_pod({**pod(), "status": first}, Facts("127.1.2.3", {"c": RUNS}), NOW_S + 100)
    assert later.status == first


def test_a_container_that_cannot_start_says_why() -> None:
    told = plan(pod(), blocked={"c": ("ImageNeedsCommand", "set command")})
    assert told.start == ()
    assert state(told) == {"waiting": {"reason": "ImageNeedsCommand", "message": "set command"}}
    assert told.status["phase"] == "Pending"


def test_last_words_and_exit_codes_are_in_the_status() -> None:
    told = plan(pod("Never"), {"c": ended(2, message="no space")})
    terminated = state(told)["terminated"]
    assert (terminated["exitCode"], terminated["reason"], terminated["message"]) == (2, "Error", "no space")
    again = plan(pod(), {"c": [*ended(3), Seen(1, NOW_S)]}).status["containerStatuses"][0]
    assert (again["restartCount"], again["lastState"]["terminated"]["exitCode"]) == (1, 3)


def test_nothing_starts_in_a_pod_that_is_leaving() -> None:
    leaving = plan(pod(deletionTimestamp="2026-01-01T00:00:00Z"), {"c": ended(1, ago_s=60)})
    assert (leaving.start, leaving.wake_s) == ((), None)
