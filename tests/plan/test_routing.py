from __future__ import annotations

from typing import Any

import pytest

from router.config import InstanceConfig, Strategy
from tasks.plan.objects import ready_label
from tasks.plan.routing import build_router_config

Object = dict[str, Any]


def iec(name: str = "chat", namespace: str = "default", **spec: Any) -> Object:
    return {"metadata": {"name": name, "namespace": namespace}, "spec": {"modelName": "tiny", **spec}}


def member(uid: str, node: str = "n1", **conditions: bool | None) -> Object:
    return {
        "addresses": [f"127.0.0.{uid[-1]}"],
        "conditions": conditions,
        "targetRef": {"kind": "Pod", "name": f"pod-{uid}", "uid": uid},
        "nodeName": node,
    }


def slice_of(*members: Object, service: str = "chat", namespace: str = "default", port: int | None = 8000) -> Object:
    return {
        "metadata": {"name": "s", "namespace": namespace, "labels": {"kubernetes.io/service-name": service}},
        "endpoints": list(members),
        "ports": [{"name": "http", "port": port}],
    }


def node(name: str, *labels: str) -> Object:
    return {"metadata": {"name": name, "labels": dict.fromkeys(labels, "true")}}


def test_a_ready_pod_becomes_an_instance_that_knows_whether_its_node_is_warm() -> None:
    config = build_router_config(
        [iec()],
        [slice_of(member("u1", "n1", ready=True, serving=True), member("u2", "n2", ready=True, serving=True))],
        [node("n1", ready_label("cache-1")), node("n2", ready_label("another"))],
        {"chat": "cache-1"},
    )
    assert config.endpoints[0].models == ("tiny",)
    assert config.endpoints[0].instances == (
        InstanceConfig(uid="u1", name="pod-u1", host="127.0.0.1", port=8000, node="n1", warm=True),
        InstanceConfig(uid="u2", name="pod-u2", host="127.0.0.2", port=8000, node="n2", warm=False),
    )


@pytest.mark.parametrize(
    ("conditions", "draining"),
    [
        ({"ready": False, "serving": False}, None),
        ({"ready": False, "serving": True, "terminating": True}, True),
        ({"ready": False, "serving": False, "terminating": True}, None),
        ({"ready": True}, False),
        ({"ready": False}, None),
        ({}, False),
        ({"ready": None, "serving": None}, False),
    ],
)
def test_who_serves_is_told_and_who_leaves_is_draining(conditions: dict[str, bool], draining: bool | None) -> None:
    (endpoint,) = build_router_config([iec()], [slice_of(member("u1", **conditions))], [], {}).endpoints
    assert [instance.draining for instance in endpoint.instances] == ([] if draining is None else [draining])


def test_without_a_cache_nobody_is_warm() -> None:
    (endpoint,) = build_router_config([iec()], [slice_of(member("u1"))], [node("n1", ready_label(""))], {}).endpoints
    assert [instance.warm for instance in endpoint.instances] == [False]


def test_a_pod_in_two_slices_is_one_instance() -> None:
    (endpoint,) = build_router_config([iec()], [slice_of(member("u1")), slice_of(member("u1"))], [], {}).endpoints
    assert len(endpoint.instances) == 1


def test_what_is_no_pod_or_has_no_port_is_no_instance() -> None:
    manual = {"addresses": ["10.0.0.1"], "conditions": {"ready": True}}
    slices = [slice_of(manual), slice_of(member("u1"), port=None), {**slice_of(), "endpoints": None, "ports": None}]
    (endpoint,) = build_router_config([iec()], slices, [], {}).endpoints
    assert endpoint.instances == ()


def test_pods_of_other_services_and_namespaces_stay_out() -> None:
    slices = [slice_of(member("u1"), service="other"), slice_of(member("u2"), namespace="prod")]
    (endpoint,) = build_router_config([iec()], slices, [], {}).endpoints
    assert endpoint.instances == ()


def test_a_name_in_two_namespaces_does_not_cost_the_whole_file() -> None:
    config = build_router_config([iec(namespace="prod"), iec()], [slice_of(member("u1"))], [], {})
    assert [endpoint.name for endpoint in config.endpoints] == ["chat", "prod.chat"]
    assert [len(endpoint.instances) for endpoint in config.endpoints] == [1, 0]


def test_a_model_that_two_endpoints_name_stays_with_the_oldest_that_serves() -> None:
    old, new = iec("old"), iec("new")
    old["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    new["metadata"]["creationTimestamp"] = "2026-01-02T00:00:00Z"
    slices = {name: slice_of(member(uid, ready=True), service=name) for name, uid in (("old", "u1"), ("new", "u2"))}

    def models(*serving: str) -> dict[str, tuple[str, ...]]:
        config = build_router_config([new, old], [slices[name] for name in serving], [], {})
        return {endpoint.name: endpoint.models for endpoint in config.endpoints}

    assert models("old") == {"old": ("tiny",), "new": ()}  # a rollout that failed takes no requests away
    assert models("old", "new") == {"old": ("tiny",), "new": ()}
    assert models("new") == {"old": (), "new": ("tiny",)}
    assert models() == {"old": ("tiny",), "new": ()}


def test_settings_are_taken_over_and_bad_ones_cost_no_instance() -> None:
    good = {"strategy": "PREFIX_AWARE", "prefixLength": 4096, "concurrencyThreshold": 8}
    bad = {"strategy": "PREFIX_AWARE", "prefixLength": 7}
    endpoints = [iec("good", routing=good), iec("bad", routing=bad), iec("none")]
    config = build_router_config(endpoints, [slice_of(member("u1"), service="bad")], [], {})
    told = {endpoint.name: endpoint for endpoint in config.endpoints}
    assert told["good"].routing.prefix_length == 4096
    assert (told["bad"].routing.strategy, len(told["bad"].instances)) == (Strategy.RANDOM, 1)
    assert told["none"].routing.strategy is Strategy.RANDOM


def test_the_same_cluster_gives_the_same_file_whatever_the_order() -> None:
    members = [member("u1"), member("u2"), member("u3")]
    one = build_router_config([iec("a"), iec("b")], [slice_of(*members, service="a")], [], {})
    two = build_router_config([iec("b"), iec("a")], [slice_of(*reversed(members), service="a")], [], {})
    assert one == two
