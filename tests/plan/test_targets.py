from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.local.cluster.scheduler import may_run_on
from tasks.plan.deployments import deployment_object
from tasks.plan.resources import Endpoint
from tasks.plan.targets import choose_targets
from tasks.plan.types import Manifest, Node

Endpoints = Callable[..., Endpoint]
Nodes = Callable[..., Node]
TYPE = "node.kubernetes.io/instance-type"


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"deleting": True}, "it is being deleted"),
        ({"ready": False}, "it is not Ready"),
        ({"schedulable": False}, "it is cordoned"),
        ({"labels": {TYPE: "ml.g5.xlarge"}}, f"it is not of the kind that the endpoint asks for ({TYPE} in ml.local)"),
        ({"labels": {}}, "it is not of the kind"),
        ({"taints": (("team", "other", "NoSchedule"),)}, "its taint team=other:NoSchedule is not tolerated"),
        ({"taints": (("gone", "", "NoExecute"),)}, "its taint gone:NoExecute is not tolerated"),
        (
            {"labels": {TYPE: "ml.local", "sagemaker.amazonaws.com/node-health-status": "UnschedulablePendingReboot"}},
            "its health is UnschedulablePendingReboot",
        ),
    ],
)
def test_a_node_that_cannot_take_a_pod_is_left_out_with_the_reason(
    endpoint: Endpoints, node: Nodes, fields: dict[str, Any], why: str
) -> None:
    targets = choose_targets(endpoint(), [node("good"), node("bad", **fields)])
    assert [found.name for found in targets.nodes] == ["good"]
    assert list(targets.excluded) == ["bad"]
    assert targets.excluded["bad"].startswith(why)


@pytest.mark.parametrize(
    "taint",
    [
        ("soft", "", "PreferNoSchedule"),
        ("nvidia.com/gpu", "present", "NoSchedule"),
        ("team", "ml", "NoSchedule"),
    ],
)
def test_a_taint_that_is_soft_or_tolerated_keeps_nobody_away(
    endpoint: Endpoints, node: Nodes, taint: tuple[str, str, str]
) -> None:
    mine = endpoint({"spec.cachePolicy.tolerations": [{"key": "team", "value": "ml"}]})
    assert choose_targets(mine, [node(taints=(taint,))]).excluded == {}


@pytest.mark.parametrize(
    ("expression", "labels", "matches"),
    [
        ({"key": "zone", "operator": "In", "values": ["a", "b"]}, {"zone": "a"}, True),
        ({"key": "zone", "operator": "In", "values": ["a", "b"]}, {"zone": "c"}, False),
        ({"key": "zone", "operator": "In", "values": ["a"]}, {}, False),
        ({"key": "zone", "operator": "NotIn", "values": ["a"]}, {"zone": "a"}, False),
        ({"key": "zone", "operator": "NotIn", "values": ["a"]}, {}, True),
        ({"key": "zone", "operator": "Exists"}, {"zone": "a"}, True),
        ({"key": "zone", "operator": "Exists"}, {}, False),
        ({"key": "zone", "operator": "DoesNotExist"}, {}, True),
        ({"key": "gpus", "operator": "Gt", "values": ["4"]}, {"gpus": "8"}, True),
        ({"key": "gpus", "operator": "Gt", "values": ["4"]}, {"gpus": "4"}, False),
        ({"key": "gpus", "operator": "Lt", "values": ["4"]}, {"gpus": "2"}, True),
        ({"key": "gpus", "operator": "Lt", "values": ["4"]}, {"gpus": "many"}, False),
    ],
)
def test_node_affinity_means_what_it_means_to_the_scheduler(
    endpoint: Endpoints, node: Nodes, expression: dict[str, Any], labels: dict[str, str], matches: bool
) -> None:
    affinity = {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    }
    mine = endpoint({"spec.instanceType": "", "spec.nodeAffinity": affinity})
    assert bool(choose_targets(mine, [node(labels=labels)]).nodes) is matches


def test_any_of_the_terms_selects_a_node_but_its_type_must_fit_in_each(endpoint: Endpoints, node: Nodes) -> None:
    terms = [
        {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]},
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["special"]}]},
    ]
    affinity = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    mine = endpoint({"spec.nodeAffinity": affinity})
    fleet = [
        node("in-zone", labels={TYPE: "ml.local", "zone": "a"}),
        node("special", labels={TYPE: "ml.local"}),
        node("other-zone", labels={TYPE: "ml.local", "zone": "b"}),
        node("other-type", labels={TYPE: "ml.p5", "zone": "a"}),
    ]
    assert [found.name for found in choose_targets(mine, fleet).nodes] == ["in-zone", "special"]


effects = st.sampled_from(["NoSchedule", "NoExecute", "PreferNoSchedule"])
taints = st.tuples(st.sampled_from(["team", "nvidia.com/gpu", "spot"]), st.sampled_from(["", "ml"]), effects)
tolerations = st.fixed_dictionaries(
    {"key": st.sampled_from(["team", "spot"])},
    optional={"operator": st.just("Exists"), "value": st.sampled_from(["", "ml"]), "effect": effects},
).filter(lambda t: not (t.get("operator") == "Exists" and "value" in t))


@given(st.data())
def test_a_node_is_a_target_exactly_when_the_scheduler_lets_a_pod_on_it(
    endpoint: Endpoints, node: Nodes, manifest: Callable[..., Manifest], data: st.DataObject
) -> None:
    changes = {
        "spec.cachePolicy.tolerations": data.draw(st.lists(tolerations, max_size=2)),
        "spec.instanceType": data.draw(st.sampled_from(["", "ml.local", "ml.p5"])),
    }
    mine = endpoint(changes)
    fleet = [
        node(
            f"n{index}",
            ready=data.draw(st.booleans()),
            schedulable=data.draw(st.booleans()),
            deleting=data.draw(st.booleans()),
            taints=tuple(data.draw(st.lists(taints, max_size=2))),
            labels={TYPE: data.draw(st.sampled_from(["ml.local", "ml.p5"]))},
        )
        for index in range(3)
    ]
    targets = choose_targets(mine, fleet)
    assert {found.name for found in targets.nodes} | targets.excluded.keys() == {found.name for found in fleet}
    assert not {found.name for found in targets.nodes} & targets.excluded.keys()
    pod = deployment_object(mine, manifest(), None, 1)["spec"]["template"]
    schedulable = {found.name for found in fleet if not may_run_on(pod, as_object(found))}
    assert {found.name for found in targets.nodes} == schedulable


def as_object(node: Node) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": node.name, "labels": node.labels}
    if node.deleting:
        metadata["deletionTimestamp"] = "2026-12-01T00:00:00Z"
    return {
        "metadata": metadata,
        "spec": {
            "unschedulable": not node.schedulable,
            "taints": [{"key": key, "value": value, "effect": effect} for key, value, effect in node.taints],
        },
        "status": {"conditions": [{"type": "Ready", "status": str(node.ready)}]},
    }
