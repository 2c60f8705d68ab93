from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.local.cluster.objects import Object
from infra.local.cluster.scheduler import Placement, may_run_on, place, place_all, quantity, requests_of


def node(name: str, labels: dict[str, str] | None = None, *, ready: bool = True, **spec: object) -> Object:
    allocatable = spec.pop("allocatable", {"pods": "10"})
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": spec,
        "status": {"allocatable": allocatable, "conditions": conditions},
    }


def pod(name: str = "p", *, owner: str = "", gpus: int = 0, **spec: object) -> Object:
    limits = {"nvidia.com/gpu": gpus} if gpus else {}
    references = [{"uid": owner, "controller": True}] if owner else []
    return {
        "kind": "Pod",
        "metadata": {"name": name, "ownerReferences": references},
        "spec": {"containers": [{"name": "c", "resources": {"limits": limits}}], **spec},
        "status": {"phase": "Pending"},
    }


def expression(key: str, operator: str = "Exists", *values: str) -> Object:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def preferred(*terms: tuple[int, Object]) -> Object:
    listed = [{"weight": weight, "preference": term} for weight, term in terms]
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": listed}}


def required(*terms: Object) -> Object:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}


TAINT = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}
TOLERATION = {"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("pod", "node", "told"),
    [
        (pod(), node("n"), ""),
        (pod(nodeSelector={"a": "1"}), node("n", {"a": "1"}), ""),
        (pod(nodeSelector={"a": "1"}), node("n", {"a": "2"}), "affinity/selector"),
        (pod(affinity=required(expression("a", "In", "1"))), node("n"), "affinity/selector"),
        (pod(affinity=required(expression("a"), expression("b"))), node("n", {"b": ""}), ""),
        (pod(affinity=required()), node("n"), "affinity/selector"),
        (pod(), node("n", unschedulable=True), "unschedulable"),
        (pod(tolerations=[{"operator": "Exists"}]), node("n", unschedulable=True), ""),
        (pod(), node("n", ready=False), "not ready"),
        (pod(), node("n", taints=[TAINT]), "untolerated taint {gpu: yes}"),
        (pod(), node("n", taints=[{**TAINT, "effect": "NoExecute"}]), "untolerated taint"),
        (pod(), node("n", taints=[{**TAINT, "effect": "PreferNoSchedule"}]), ""),
        (pod(tolerations=[TOLERATION]), node("n", taints=[TAINT]), ""),
        (pod(tolerations=[{**TOLERATION, "value": "no"}]), node("n", taints=[TAINT]), "untolerated"),
        (pod(tolerations=[{**TOLERATION, "effect": "NoExecute"}]), node("n", taints=[TAINT]), "untolerated"),
        (pod(tolerations=[{"key": "gpu", "operator": "Exists"}]), node("n", taints=[TAINT]), ""),
        (pod(tolerations=[{"key": "other", "operator": "Exists"}]), node("n", taints=[TAINT]), "untolerated"),
    ],
)
def test_which_nodes_a_pod_may_run_on(pod: Object, node: Object, told: str) -> None:
    refusal = may_run_on(pod, node)
    assert told in refusal if told else refusal == ""


def test_preferred_affinity_weighs_more_than_spreading() -> None:
    warm, cold = node("a-cold"), node("b-warm", {"warm": "true"})
    affinity = preferred((100, expression("warm", "In", "true")))
    crowd = [{**pod(f"old{i}", owner="o"), "spec": {**pod()["spec"], "nodeName": "b-warm"}} for i in range(3)]
    assert place(pod(owner="o", affinity=affinity), [warm, cold], crowd).node == "b-warm"
    assert place(pod(owner="o"), [warm, cold], crowd).node == "a-cold"


def test_weights_of_preferred_terms_add_up() -> None:
    nodes = [node("one", {"a": ""}), node("two", {"b": "", "c": ""})]
    affinity = preferred((50, expression("a")), (30, expression("b")), (30, expression("c")))
    assert place(pod(affinity=affinity), nodes, []).node == "two"


def test_a_preferred_node_without_room_falls_back_to_another() -> None:
    nodes = [node("cold"), node("warm", {"warm": ""}, allocatable={"pods": "1"})]
    pods = [pod(f"p{i}", affinity=preferred((100, expression("warm")))) for i in range(2)]
    assert [placement.node for placement in place_all(pods, nodes, [])] == ["warm", "cold"]


def test_pods_of_an_owner_spread() -> None:
    nodes = [node("a"), node("b"), node("c")]
    placed = [placement.node for placement in place_all([pod(f"p{i}", owner="o") for i in range(6)], nodes, [])]
    assert sorted(placed) == ["a", "a", "b", "b", "c", "c"]


def test_a_node_with_prefer_no_schedule_is_the_last_choice() -> None:
    taints = [{**TAINT, "effect": "PreferNoSchedule"}]
    assert place(pod(), [node("a", taints=taints), node("b")], []).node == "b"
    assert place(pod(), [node("a", taints=taints)], []).node == "a"


def test_a_pod_that_fits_nowhere_is_told_why_per_reason() -> None:
    nodes = [node("a", taints=[TAINT]), node("b"), node("c"), node("d", unschedulable=True)]
    assert place(pod(gpus=1), nodes, []) == Placement(
        "",
        "0/4 nodes are available: 2 Insufficient nvidia.com/gpu, "
        "1 node(s) had untolerated taint {gpu: yes}, 1 node(s) were unschedulable.",
    )
    assert place(pod(), [], []).message == "0/0 nodes are available."


def test_finished_pods_take_no_room_and_leaving_ones_do() -> None:
    small = node("a", allocatable={"pods": "1"})
    other = {**pod("other"), "spec": {**pod()["spec"], "nodeName": "a"}}
    assert place(pod(), [small], [{**other, "status": {"phase": "Succeeded"}}]).node == "a"
    leaving = {**other, "metadata": {**other["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    assert place(pod(), [small], [leaving]).message.endswith("1 Too many pods.")


def test_a_pod_needs_the_sum_of_its_containers_or_its_largest_init_container() -> None:
    containers = [{"name": "a", "resources": {"requests": {"cpu": "500m"}}}, {"name": "b", "resources": {}}]
    initial = [{"name": "i", "resources": {"limits": {"cpu": "2", "memory": "1Gi"}}}]
    needs = requests_of({"spec": {"containers": [*containers, containers[0]], "initContainers": initial}})
    assert needs == {"cpu": Decimal(2), "memory": Decimal(2**30)}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("500m", "0.5"),
        ("2", "2"),
        ("1.5Gi", str(1.5 * 2**30)),
        ("1e3", "1000"),
        ("3k", "3000"),
        (4, "4"),
        ("2Ki", "2048"),
    ],
)
def test_quantities(text: str, value: str) -> None:
    assert quantity(text) == Decimal(value)


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=4),
    st.lists(st.integers(0, 3), max_size=10),
)
def test_no_node_is_given_more_than_it_has(room: list[int], wanted: list[int]) -> None:
    nodes = [node(f"n{i}", allocatable={"nvidia.com/gpu": str(gpus), "pods": "4"}) for i, gpus in enumerate(room)]
    pods = [pod(f"p{i}", owner="o", gpus=gpus) for i, gpus in enumerate(wanted)]
    placements = place_all(pods, nodes, [])
    for index, gpus in enumerate(room):
        here = [count for count, placement in zip(wanted, placements, strict=True) if placement.node == f"n{index}"]
        assert sum(here) <= gpus
        assert len(here) <= 4
    for gpus, placement in zip(wanted, placements, strict=True):
        assert placement.node or f"0/{len(room)}" in placement.message
        if not placement.node and gpus == 0:
            assert "Too many pods" in placement.message
