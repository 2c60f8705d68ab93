"""Deployments and ReplicaSets, their pods played by hand."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from infra.local.cluster.actions import Action, Create, Delete, Patch, SetStatus, Wake
from infra.local.cluster.admission import with_defaults
from infra.local.cluster.merge import merge_patch
from infra.local.cluster.objects import Object, condition, format_time, with_condition
from infra.local.cluster.state import State
from infra.local.cluster.workloads.deployments import current_replicaset, plan_deployment, resolve
from infra.local.cluster.workloads.replicasets import plan_replicaset

START_S = 1_000_000.0


def deployment(replicas: int = 3, image: str = "one", **spec: Any) -> Object:
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": image}]}}
    metadata = {"name": "web", "namespace": "default", "uid": "deployment", "generation": 1}
    selector = {"matchLabels": {"app": "web"}}
    body = {"replicas": replicas, "selector": selector, "template": template, **spec}
    return with_defaults({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": body})


class World:
    """Takes the place of store and runner: carries out what the controllers decide, without I/O."""

    def __init__(self, deployment: Object) -> None:
        self.state = State([deployment])
        self.now_s = START_S
        self.ids = itertools.count()
        self.wakes: list[float] = []

    @property
    def deployment(self) -> Object:
        return self.state.all("Deployment")[0]

    @property
    def pods(self) -> list[Object]:
        return self.state.all("Pod")

    @property
    def status(self) -> Object:
        return dict(self.deployment.get("status") or {})

    def images(self) -> list[str]:
        return sorted(pod["spec"]["containers"][0]["image"] for pod in self.pods)

    def settle(self) -> None:
        for _ in range(50):
            actions = self.decide()
            self.wakes = [action.at_s for action in actions if isinstance(action, Wake)]
            changes = [action for action in actions if isinstance(action, Create | Delete | Patch | SetStatus)]
            for action in changes:
                self.do(action)
            if not changes:
                return
        raise AssertionError("the controllers never come to rest")

    def decide(self) -> list[Action]:
        sets = self.state.controlled(self.deployment, "ReplicaSet")
        current = current_replicaset(self.deployment, sets)
        old_pods = [p for r in sets if r is not current for p in self.state.controlled(r, "Pod")]
        actions = plan_deployment(self.deployment, sets, old_pods, self.now_s)
        for replicaset in sets:
            actions += plan_replicaset(replicaset, self.state.controlled(replicaset, "Pod"), self.now_s)
        return actions

    def do(self, action: Action) -> None:
        match action:
            case Create(body):
                number = next(self.ids)
                metadata = body["metadata"]
                name = metadata.get("name") or f"{metadata['generateName']}{number:05}"
                born = {"name": name, "uid": f"uid-{number}", "generation": 1}
                made = {**metadata, **born, "creationTimestamp": format_time(self.now_s + number / 1e6)}
                self.state.put(with_defaults({**body, "metadata": made}))
            case Delete(target):
                self.state.drop(target)
            case Patch(target, body):
                self.change(target, body)
            case SetStatus(target, status):
                self.change(target, {"status": status})

    def change(self, target: Object, body: Object) -> None:
        live = self.state.find(target["kind"], "default", target["metadata"]["name"])
        if live is None:
            return
        new = with_defaults(merge_patch(live, body))
        if new["spec"] != live["spec"]:
            new = merge_patch(new, {"metadata": {"generation": live["metadata"]["generation"] + 1}})
        self.state.put(new)

    def set_ready(self, pod: Object, ready: bool = True) -> None:
        conditions = with_condition([], "Ready", ready, "", "", format_time(self.now_s))
        self.change(pod, {"spec": {"nodeName": "n"}, "status": {"phase": "Running", "conditions": conditions}})

    def ready_all(self) -> None:
        for pod in self.pods:
            self.set_ready(pod)
        self.settle()

    def ready_count(self) -> int:
        return sum(condition(pod, "Ready").get("status") == "True" for pod in self.pods)

    def set_image(self, image: str) -> None:
        containers = [{"name": "c", "image": image}]
        self.change(self.deployment, {"spec": {"template": {"spec": {"containers": containers}}}})


def running(**spec: Any) -> World:
    world = World(deployment(**spec))
    world.settle()
    world.ready_all()
    return world


def rolling(surge: int | str, unavailable: int | str) -> Object:
    return {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}


def progress(world: World) -> tuple[str, str]:
    found = condition(world.deployment, "Progressing")
    return found["status"], found["reason"]


@pytest.mark.parametrize(
    ("amount", "replicas", "up", "down"),
    [(2, 10, 2, 2), ("25%", 3, 1, 0), ("25%", 4, 1, 1), ("100%", 3, 3, 3), (0, 5, 0, 0)],
)
def test_bounds_are_counts_or_percentages(amount: int | str, replicas: int, up: int, down: int) -> None:
    assert (resolve(amount, replicas, up=True), resolve(amount, replicas, up=False)) == (up, down)


def test_a_deployment_makes_a_replicaset_and_its_pods() -> None:
    world = World(deployment())
    world.settle()
    assert world.images() == ["one"] * 3
    assert (world.status["replicas"], world.status["availableReplicas"]) == (3, 0)
    assert condition(world.deployment, "Available")["status"] == "False"
    world.ready_all()
    assert (world.status["availableReplicas"], world.status["observedGeneration"]) == (3, 1)
    assert condition(world.deployment, "Available")["status"] == "True"
    assert progress(world) == ("True", "NewReplicaSetAvailable")
    label = world.pods[0]["metadata"]["labels"]["pod-template-hash"]
    assert world.state.all("ReplicaSet")[0]["spec"]["selector"]["matchLabels"]["pod-template-hash"] == label


def test_a_rolling_update_goes_one_by_one_with_surge_1_and_unavailable_0() -> None:
    world = running(strategy=rolling(1, 0))
    world.set_image("two")
    steps = []
    while world.images() != ["two"] * 3:
        world.settle()
        steps.append((world.images().count("one"), world.images().count("two")))
        world.ready_all()
    assert steps == [(3, 1), (2, 2), (1, 3)]
    assert progress(world) == ("True", "NewReplicaSetAvailable")
    assert len(world.state.all("ReplicaSet")) == 2


def test_with_surge_0_an_old_pod_leaves_first() -> None:
    world = running(strategy=rolling(0, 1))
    world.set_image("two")
    world.settle()
    assert world.images() == ["one", "one", "two"]


def test_old_pods_that_do_not_serve_leave_first() -> None:
    world = running(strategy=rolling(1, 1))
    world.set_ready(world.pods[0], False)
    world.set_image("two")
    world.settle()
    world.ready_all()
    assert world.images() == ["two"] * 3


def test_an_old_pod_that_does_not_serve_stays_while_no_pod_may_be_missing() -> None:
    world = running(strategy=rolling(1, 0))
    world.set_ready(world.pods[0], False)
    world.set_image("two")
    world.settle()
    assert world.images() == ["one", "one", "one", "two"]


def test_a_smaller_replicaset_loses_the_pods_that_serve_least() -> None:
    world = running(replicas=5)
    pods = world.pods
    for pod, node in zip(pods, ("a", "a", "b", "c", ""), strict=True):
        world.change(pod, {"spec": {"nodeName": node}})
    world.set_ready(pods[2], False)
    world.change(pods[2], {"spec": {"nodeName": "b"}})
    world.change(pods[3], {"status": {"phase": "Pending"}})
    left = []
    for replicas in (4, 3, 2, 1):
        world.change(world.deployment, {"spec": {"replicas": replicas}})
        world.settle()
        left.append([pods.index(pod) for pod in pods if world.state.find("Pod", "default", pod["metadata"]["name"])])
    assert left == [[0, 1, 2, 3], [0, 1, 2], [0, 1], [0]]


def test_a_template_that_never_gets_ready_exceeds_its_deadline_and_the_old_pods_stay() -> None:
    world = running(strategy=rolling(1, 0), progressDeadlineSeconds=60)
    world.set_image("broken")
    world.settle()
    assert progress(world) == ("True", "ReplicaSetUpdated")
    assert world.wakes == [world.now_s + 60]
    world.now_s += 60
    world.settle()
    assert progress(world) == ("False", "ProgressDeadlineExceeded")
    assert world.images() == ["broken", "one", "one", "one"]
    world.set_image("one")
    world.settle()
    assert world.images() == ["one"] * 3
    assert progress(world) == ("True", "NewReplicaSetAvailable")


def test_progress_moves_the_deadline() -> None:
    world = running(strategy=rolling(1, 0), progressDeadlineSeconds=60)
    world.set_image("slow")
    for _ in range(3):
        world.settle()
        world.now_s += 50
        world.ready_all()
        assert progress(world)[0] == "True"
    assert world.images() == ["slow"] * 3


def test_a_finished_rollout_stays_finished_when_a_pod_fails_later() -> None:
    world = running(progressDeadlineSeconds=60)
    world.set_ready(world.pods[0], False)
    world.now_s += 1000
    world.settle()
    assert progress(world) == ("True", "NewReplicaSetAvailable")
    assert condition(world.deployment, "Available")["status"] == "False"


def test_scaling_keeps_the_ready_pods() -> None:
    world = running()
    world.change(world.deployment, {"spec": {"replicas": 5}})
    world.settle()
    assert len(world.pods) == 5
    assert world.status["unavailableReplicas"] == 2
    world.change(world.deployment, {"spec": {"replicas": 3}})
    world.settle()
    assert world.ready_count() == len(world.pods) == 3


def test_recreate_ends_the_old_before_it_starts_the_new() -> None:
    world = running(strategy={"type": "Recreate"})
    leaving = world.pods
    world.set_image("two")
    for pod in leaving:  # a grace period: they stay while they end
        world.change(pod, {"metadata": {"deletionTimestamp": format_time(world.now_s)}})
    world.settle()
    assert world.images() == ["one"] * 3
    for pod in leaving:
        world.do(Delete(pod))
    world.settle()
    assert world.images() == ["two"] * 3


def test_a_paused_deployment_does_not_roll() -> None:
    world = running(paused=True)
    assert world.pods == []
    world.change(world.deployment, {"spec": {"paused": None}})
    world.settle()
    assert len(world.pods) == 3


def test_history_keeps_the_newest_replicasets_and_a_rollback_is_the_newest_again() -> None:
    world = running(revisionHistoryLimit=2)
    for image in ("two", "three", "four", "three"):
        world.set_image(image)
        for _ in range(6):
            world.settle()
            world.ready_all()
    revisions = {
        r["spec"]["template"]["spec"]["containers"][0]["image"]: r["metadata"]["annotations"][
            "deployment.kubernetes.io/revision"
        ]
        for r in world.state.all("ReplicaSet")
    }
    assert revisions == {"two": "2", "four": "4", "three": "5"}


def test_min_ready_seconds_delay_availability() -> None:
    world = World(deployment(1, minReadySeconds=30))
    world.settle()
    world.ready_all()
    assert (world.status["readyReplicas"], world.status["availableReplicas"]) == (1, 0)
    assert world.now_s + 30 in world.wakes
    world.now_s += 30
    world.settle()
    assert world.status["availableReplicas"] == 1


class Rollouts(RuleBasedStateMachine):
    """Templates and replicas change at any time, pods get ready and fail: the bounds hold and it ends well."""

    @initialize(replicas=st.integers(1, 5), surge=st.integers(0, 2), unavailable=st.integers(0, 2))
    def begin(self, replicas: int, surge: int, unavailable: int) -> None:
        self.world = World(deployment(replicas, strategy=rolling(surge, unavailable)))
        self.most = replicas + surge
        self.fewest = replicas - max(unavailable, 1 if surge == 0 else 0)
        self.world.settle()
        self.lost = 0

    @rule(image=st.sampled_from(["one", "two", "three"]))
    def change_the_template(self, image: str) -> None:
        self.world.set_image(image)

    @rule(index=st.integers(0, 10))
    @precondition(lambda self: self.world.pods)
    def a_pod_gets_ready(self, index: int) -> None:
        self.world.set_ready(self.world.pods[index % len(self.world.pods)])

    @rule()
    def controllers_work(self) -> None:
        before = self.world.ready_count()
        self.world.settle()
        assert self.world.ready_count() >= min(before, self.fewest)

    @rule()
    def everything_gets_ready_in_the_end(self) -> None:
        for _ in range(20):
            self.world.settle()
            self.world.ready_all()
        spec = self.world.deployment["spec"]
        assert self.world.images() == [spec["template"]["spec"]["containers"][0]["image"]] * spec["replicas"]

    @invariant()
    def never_too_many(self) -> None:
        if hasattr(self, "world"):
            assert len(self.world.pods) <= self.most


TestRollouts = Rollouts.TestCase
TestRollouts.settings = settings(max_examples=25, stateful_step_count=15, deadline=None)
