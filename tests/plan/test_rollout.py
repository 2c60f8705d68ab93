from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.plan.objects import cache_name
from tasks.plan.resources import Endpoint
from tasks.plan.retention import Cache
from tasks.plan.rollout import RolloutPlan, plan_rollout
from tasks.plan.types import CacheEntry, Manifest, Node

Endpoints = Callable[..., Endpoint]
Nodes = Callable[..., Node]
Manifests = Callable[..., Manifest]
GB = 10**9


def fleet_of(node: Nodes) -> list[Node]:
    return [node("n1"), node("n2"), node("n3")]


def test_a_first_rollout_fills_every_target(endpoint: Endpoints, node: Nodes, manifest: Manifests) -> None:
    wanted = manifest()
    plan = plan_rollout(endpoint(), wanted, fleet_of(node), [], known={})
    assert plan.cache == f"chat-{wanted.digest[7:19]}"
    assert plan.targets == ("n1", "n2", "n3")
    assert (plan.fetch_bytes, plan.adopts, plan.old_caches, plan.refused, plan.notes) == (12 * GB, False, (), "", ())
    assert plan.steps() == [
        f"Create cache {plan.cache}: 4 files, 4 GB",
        "Fill 3 nodes, fetching 12 GB",
        f"Roll chat to revision {wanted.revision}, 3 replicas on warm nodes first",
    ]


def test_an_update_fetches_the_difference_and_tells_what_it_deletes(
    endpoint: Endpoints, node: Nodes, manifest: Manifests
) -> None:
    old = manifest({"a": (3 * GB, "etag:1"), "b": (GB, "etag:2")})
    new = manifest({"a": (3 * GB, "etag:1"), "b": (GB, "etag:3")})
    fleet = [replace(n, entries=(CacheEntry(old.digest, "Ready"),)) for n in fleet_of(node)]
    cache = Cache(cache_name("chat", old.digest), "uid-old", "chat", old.digest)
    plan = plan_rollout(endpoint(), new, fleet, [cache], known={old.digest: old}, replicas=5)
    assert [(a.node, a.fetch_bytes, a.reuse_bytes) for a in plan.fill] == [(n.name, GB, 3 * GB) for n in fleet]
    assert plan.old_caches == (cache.name,)
    assert plan.steps()[-2:] == [
        f"Roll chat to revision {new.revision}, 5 replicas on warm nodes first",
        f"Delete cache {cache.name} once no pod uses it",
    ]


def test_a_rollout_that_was_killed_adopts_what_it_had_made(
    endpoint: Endpoints, node: Nodes, manifest: Manifests
) -> None:
    wanted = manifest()
    fleet = [
        node("n1", entries=(CacheEntry(wanted.digest, "Ready"),)),
        node("n2", free_bytes=0, entries=(CacheEntry(wanted.digest, "Downloading"),)),
        node("n3"),
    ]
    cache = Cache(cache_name("chat", wanted.digest), "uid", "chat", wanted.digest)
    plan = plan_rollout(endpoint(), wanted, fleet, [cache], known={wanted.digest: wanted})
    assert (plan.adopts, [a.node for a in plan.warm], [a.node for a in plan.fill]) == (True, ["n1"], ["n2", "n3"])
    assert plan.old_caches == ()
    assert [row["action"] for row in plan.rows()] == ["resume", "fill", "is warm"]


def test_what_is_all_there_is_not_fetched_again(endpoint: Endpoints, node: Nodes, manifest: Manifests) -> None:
    wanted = manifest()
    fleet = [replace(n, entries=(CacheEntry(wanted.digest, "Ready"),)) for n in fleet_of(node)]
    plan = plan_rollout(endpoint(), wanted, fleet, [], known={})
    assert (plan.fill, plan.fetch_bytes, len(plan.warm)) == ((), 0, 3)
    assert plan.steps()[1] == "Fill no node; 3 warm already"


def test_a_node_without_room_is_left_out_and_the_others_go_on(
    endpoint: Endpoints, node: Nodes, manifest: Manifests
) -> None:
    plan = plan_rollout(endpoint(), manifest(), [node("n1"), node("full", free_bytes=GB)], [], known={})
    assert plan.targets == ("n1",)
    assert plan.excluded["full"].startswith("NoSpace: it needs 4 GB")
    assert plan.refused == ""
    assert plan.notes == ("the gate needs 2 warm nodes and 1 can hold the model",)


def test_a_model_larger_than_every_node_is_refused_with_the_largest(
    endpoint: Endpoints, node: Nodes, manifest: Manifests
) -> None:
    fleet = [node("small", capacity_bytes=GB, free_bytes=GB), node("big", capacity_bytes=3 * GB, free_bytes=3 * GB)]
    plan = plan_rollout(endpoint(), manifest(), fleet, [], known={})
    assert "4 GB and is larger than every target node's NVMe (the largest is big with 3 GB)" in plan.refused
    assert "larger disks" in plan.refused
    assert plan.steps() == [f"Nothing: {plan.refused}"]


def test_no_room_anywhere_is_refused_with_figures_and_what_to_do(
    endpoint: Endpoints, node: Nodes, manifest: Manifests
) -> None:
    plan = plan_rollout(endpoint(), manifest(), [node(free_bytes=2 * GB)], [], known={})
    assert plan.refused.startswith("no target node has room: node-1: NoSpace: it needs 4 GB and 1 GB are usable")
    assert "warmpath get nodes" in plan.refused


@pytest.mark.parametrize(
    ("fields", "why"),
    [(None, "the cluster has no node"), ({"ready": False}, "node-1: it is not Ready")],
)
def test_no_target_at_all_is_refused_with_what_keeps_nodes_away(
    endpoint: Endpoints, node: Nodes, manifest: Manifests, fields: dict[str, Any] | None, why: str
) -> None:
    fleet = [] if fields is None else [node(**fields)]
    refused = plan_rollout(endpoint(), manifest(), fleet, [], known={}).refused
    assert f"no node is a target of chat: {why}" in refused
    assert "spec.instanceType" in refused


def test_an_endpoint_without_weights_cache_rolls_from_the_source(
    endpoint: Endpoints, node: Nodes, manifest: Manifests
) -> None:
    mine = endpoint({"spec.modelCacheConfig": {}})
    plan = plan_rollout(mine, manifest(), [node(free_bytes=0)], [], known={})
    assert (plan.cache, plan.targets, plan.refused) == ("", (), "")
    assert plan.steps() == [f"Roll chat to revision {plan.revision}, 3 replicas from the source"]


def test_fields_without_effect_are_noted(endpoint: Endpoints, node: Nodes, manifest: Manifests) -> None:
    plan = plan_rollout(endpoint({"spec.tags": [{"name": "a", "value": "b"}]}), manifest(), [node()], [], known={})
    assert plan.notes == ("spec.tags is accepted and has no effect here",)


def test_another_endpoints_cache_is_not_touched(endpoint: Endpoints, node: Nodes, manifest: Manifests) -> None:
    theirs = Cache("other-0", "uid", "other", "sha256:0")
    assert plan_rollout(endpoint(), manifest(), [node()], [theirs], known={}).old_caches == ()


@given(st.data())
def test_every_node_is_in_the_table_once_and_never_both_filled_and_left_out(
    endpoint: Endpoints, node: Nodes, manifest: Manifests, data: st.DataObject
) -> None:
    wanted = manifest()
    states = st.sampled_from([(), (CacheEntry(wanted.digest, "Ready"),), (CacheEntry(wanted.digest, "Failed"),)])
    fleet = [
        node(
            f"n{index}",
            ready=data.draw(st.booleans()),
            free_bytes=data.draw(st.none() | st.integers(0, 20 * GB)),
            entries=data.draw(states),
        )
        for index in range(data.draw(st.integers(0, 5)))
    ]
    plan: RolloutPlan = plan_rollout(endpoint(), wanted, fleet, [], known={})
    assert sorted(row["node"] for row in plan.rows()) == sorted(n.name for n in fleet)
    assert set(plan.targets).isdisjoint(plan.excluded)
    assert bool(plan.refused) == (not plan.targets)
    done = [replace(n, entries=(CacheEntry(wanted.digest, "Ready"),)) for n in fleet]
    again = plan_rollout(endpoint(), wanted, done, [], known={})
    assert set(plan.targets) <= set(again.targets)
    assert again.fill == ()
