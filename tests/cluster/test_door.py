"""How the API behaves behind the door, whatever stands behind it."""

from __future__ import annotations

import re
import threading

import pytest

from tasks.kube import AlreadyExists, Conflict, Gone, Invalid, Kube, NotFound, Object, WatchEvent

NAMESPACE = "default"


def config_map(name: str = "", data: dict[str, str] | None = None, **metadata: object) -> Object:
    named = {"name": name} if name else {}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {**named, "namespace": NAMESPACE, **metadata},
        "data": data or {},
    }


def deployment(name: str = "web", **spec: object) -> Object:
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "main", "image": "engine"}]}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": name}}, "template": template, **spec},
    }


def job(name: str = "fill", **spec: object) -> Object:
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "command": ["true"]}]}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"template": template, **spec},
    }


def pod(name: str, **spec: object) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"containers": [{"name": "main", "command": ["true"]}], **spec},
    }


def cache(name: str = "weights", **spec: object) -> Object:
    return {
        "apiVersion": "warmpath.dev/v1alpha1",
        "kind": "ModelDataCacheConfig",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"model": "llama", **spec},
    }


def owned_by(owner: Object) -> dict[str, object]:
    metadata = owner["metadata"]
    reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": metadata["name"]}
    return {"ownerReferences": [{**reference, "uid": metadata["uid"]}]}


def version(obj: Object) -> str:
    return str(obj["metadata"]["resourceVersion"])


def names(kube: Kube, kind: str, labels: str = "", fields: str = "") -> list[str]:
    return [obj["metadata"]["name"] for obj in kube.list(kind, NAMESPACE, labels, fields).items]


def test_a_created_object_has_an_identity_and_reads_back(kube: Kube) -> None:
    made = kube.create(config_map("a", {"x": "1"}))
    metadata = made["metadata"]
    assert re.fullmatch(r"[0-9a-f-]{36}", metadata["uid"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", metadata["creationTimestamp"])
    assert int(metadata["resourceVersion"]) > 0
    assert kube.get("ConfigMap", "a", NAMESPACE) == made


def test_a_name_is_taken_only_once_and_a_deleted_one_is_free_again(kube: Kube) -> None:
    first = kube.create(config_map("a"))
    with pytest.raises(AlreadyExists, match="ConfigMap default/a"):
        kube.create(config_map("a"))
    kube.delete("ConfigMap", "a", NAMESPACE)
    assert kube.create(config_map("a"))["metadata"]["uid"] != first["metadata"]["uid"]


def test_what_is_not_there_is_not_found_by_any_verb(kube: Kube) -> None:
    with pytest.raises(NotFound, match="ConfigMap default/a does not exist"):
        kube.get("ConfigMap", "a", NAMESPACE)
    with pytest.raises(NotFound):
        kube.patch("ConfigMap", "a", {"data": {}}, NAMESPACE)
    with pytest.raises(NotFound):
        kube.delete("ConfigMap", "a", NAMESPACE)
    with pytest.raises(NotFound):
        kube.logs("a", NAMESPACE)


def test_generate_name_gives_each_its_own(kube: Kube) -> None:
    made = [kube.create(config_map(generateName="gen-"))["metadata"]["name"] for _ in range(20)]
    assert len(set(made)) == 20
    assert all(re.fullmatch(r"gen-[a-z0-9]{5}", name) for name in made)


def test_a_namespace_is_a_wall_and_an_empty_one_lists_all(kube: Kube) -> None:
    kube.create(config_map("a"))
    kube.create({**config_map("a"), "metadata": {"name": "a", "namespace": "other"}})
    assert len(kube.list("ConfigMap", "other").items) == 1
    assert len(kube.list("ConfigMap").items) == 2
    kube.delete("ConfigMap", "a", "other")
    assert names(kube, "ConfigMap") == ["a"]


def test_cluster_scoped_kinds_have_no_namespace(kube: Kube) -> None:
    made = kube.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "namespace": "default"}})
    assert "namespace" not in made["metadata"]
    assert kube.get("Node", "n1") == made


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (config_map("Bad_Name!"), "metadata.name"),
        (config_map("a", labels={"k": "v" * 64}), 'label "k"'),
        (config_map("a", labels={"bad key": "v"}), "label key"),
        (config_map("a", {"x": 1}), "data"),  # type: ignore[dict-item]
        (config_map("a", {"x": "1" * 1_100_000}), "larger than"),
        ({**config_map("a"), "apiVersion": "v2"}, "apiVersion"),
        ({**config_map("a"), "kind": "Nothing"}, 'kind "Nothing" is unknown'),
        ({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}}, "generateName"),
        (deployment(template={}), "template"),
        (deployment(selector={"matchLabels": {"app": "other"}}), "selector"),
        (deployment(replicas=-1), "replicas"),
        (job(template={"spec": {"containers": [{"name": "c"}]}}), "restartPolicy"),
        (pod("p", containers=[]), "containers"),
        (pod("p", containers=[{"name": "c"}, {"name": "c"}]), "own name"),
        (pod("p", containers=[{"name": "c", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]), "volumes"),
        (pod("p", containers=[{"name": "c", "resources": {"limits": {"cpu": "many"}}}]), "resources"),
        (pod("p", containers="c"), "cannot be read"),
    ],
)
def test_what_the_api_would_refuse_is_invalid_and_not_stored(kube: Kube, body: Object, told: str) -> None:
    with pytest.raises(Invalid, match=re.escape(told)):
        kube.create(body)
    assert all(not kube.list(kind).items for kind in ("ConfigMap", "Deployment", "Job", "Pod"))


def test_secrets_are_written_plain_and_kept_as_base64(kube: Kube) -> None:
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": NAMESPACE}}
    made = kube.create({**body, "stringData": {"token": "hf_x"}})
    assert made["data"] == {"token": "aGZfeA=="}
    assert "stringData" not in made
    with pytest.raises(Invalid, match="base64"):
        kube.patch("Secret", "s", {"data": {"token": "not base64!"}}, NAMESPACE)


def test_a_merge_patch_sets_replaces_and_removes(kube: Kube) -> None:
    kube.create(config_map("a", {"x": "1", "y": "2"}))
    patched = kube.patch("ConfigMap", "a", {"data": {"x": None, "z": "3"}}, NAMESPACE)
    assert patched["data"] == {"y": "2", "z": "3"}


def test_a_patch_cannot_change_who_an_object_is(kube: Kube) -> None:
    made = kube.create(config_map("a"))
    body = {"metadata": {"name": "b", "namespace": "elsewhere", "creationTimestamp": "2020-01-01T00:00:00Z"}}
    patched = kube.patch("ConfigMap", "a", body, NAMESPACE)
    for field in ("name", "namespace", "creationTimestamp", "uid"):
        assert patched["metadata"][field] == made["metadata"][field]


def test_a_change_made_from_an_old_version_is_a_conflict(kube: Kube) -> None:
    old = kube.create(config_map("a", {"x": "1"}))
    kube.patch("ConfigMap", "a", {"data": {"x": "2"}}, NAMESPACE)
    stale = {"metadata": {"resourceVersion": version(old)}, "data": {"x": "3"}}
    with pytest.raises(Conflict, match="read it again"):
        kube.patch("ConfigMap", "a", stale, NAMESPACE)
    assert kube.get("ConfigMap", "a", NAMESPACE)["data"] == {"x": "2"}


def test_a_change_that_changes_nothing_keeps_the_version(kube: Kube) -> None:
    made = kube.create(config_map("a", {"x": "1"}))
    assert version(kube.patch("ConfigMap", "a", {"data": {"x": "1"}}, NAMESPACE)) == version(made)
    applied = kube.apply(config_map("b", {"x": "1"}))
    assert version(kube.apply(config_map("b", {"x": "1"}))) == version(applied)


def test_the_generation_counts_changes_of_the_spec_alone(kube: Kube) -> None:
    made = kube.create(cache())
    assert made["metadata"]["generation"] == 1
    labelled = kube.patch("ModelDataCacheConfig", "weights", {"metadata": {"labels": {"a": "b"}}}, NAMESPACE)
    assert labelled["metadata"]["generation"] == 1
    assert kube.patch("ModelDataCacheConfig", "weights", {"spec": {"x": 1}}, NAMESPACE)["metadata"]["generation"] == 2


def test_status_is_written_only_through_its_subresource(kube: Kube) -> None:
    made = kube.create({**cache(), "status": {"state": "Ready"}})
    assert "status" not in made
    patch = {"status": {"state": "Failed"}, "spec": {"model": "other"}}
    told = kube.patch("ModelDataCacheConfig", "weights", patch, NAMESPACE, subresource="status")
    assert (told["status"], told["spec"]["model"], told["metadata"]["generation"]) == ({"state": "Failed"}, "llama", 1)
    plain = kube.patch("ModelDataCacheConfig", "weights", {"status": {"state": "Ready"}}, NAMESPACE)
    assert plain["status"] == {"state": "Failed"}
    applied = kube.apply({**cache(), "status": {"state": "Ready"}}, force=True)
    assert applied["status"] == {"state": "Failed"}


def test_scale_changes_replicas_and_nothing_else(kube: Kube) -> None:
    kube.create(deployment())
    scale = kube.patch("Deployment", "web", {"spec": {"replicas": 5}}, NAMESPACE, subresource="scale")
    assert (scale["kind"], scale["spec"]) == ("Scale", {"replicas": 5})
    assert kube.get("Deployment", "web", NAMESPACE)["spec"]["replicas"] == 5
    with pytest.raises(NotFound):
        kube.patch("ConfigMap", "a", {"spec": {"replicas": 5}}, NAMESPACE, subresource="scale")
    with pytest.raises(Invalid):
        kube.patch("Deployment", "web", {"spec": {"replicas": -1}}, NAMESPACE, subresource="scale")


def test_defaults_are_filled_in_and_survive_an_apply(kube: Kube) -> None:
    applied = kube.apply(deployment())
    assert applied["spec"]["strategy"]["type"] == "RollingUpdate"
    assert applied["spec"]["template"]["spec"]["restartPolicy"] == "Always"
    assert version(kube.apply(deployment())) == version(applied)
    made = kube.create(job())
    labels = made["spec"]["template"]["metadata"]["labels"]
    assert labels["batch.kubernetes.io/job-name"] == labels["job-name"] == "fill"
    assert made["spec"]["backoffLimit"] == 6


@pytest.mark.parametrize(
    ("body", "patch"),
    [
        (job(), {"spec": {"template": {"spec": {"restartPolicy": "OnFailure"}}}}),
        (deployment(), {"spec": {"selector": {"matchLabels": {"app": "other"}}}}),
        (pod("p", nodeName="n1"), {"spec": {"nodeName": "n2"}}),
        (pod("p"), {"spec": {"restartPolicy": "Never"}}),
    ],
)
def test_what_is_immutable_cannot_be_patched(kube: Kube, body: Object, patch: Object) -> None:
    made = kube.create(body)
    with pytest.raises(Invalid, match=r"immutable|must match"):
        kube.patch(body["kind"], made["metadata"]["name"], patch, NAMESPACE)
    assert kube.get(body["kind"], made["metadata"]["name"], NAMESPACE) == made


def test_apply_creates_changes_and_removes_what_it_no_longer_names(kube: Kube) -> None:
    kube.apply(config_map("a", {"x": "1", "y": "2"}))
    kube.patch("ConfigMap", "a", {"metadata": {"labels": {"seen": "yes"}}}, NAMESPACE)
    applied = kube.apply(config_map("a", {"y": "3"}))
    assert applied["data"] == {"y": "3"}
    assert applied["metadata"]["labels"] == {"seen": "yes"}


def test_apply_conflicts_with_the_owner_of_a_field_unless_forced(kube: Kube) -> None:
    kube.apply(config_map("a", {"x": "1"}), manager="first")
    with pytest.raises(Conflict, match=r'"first" owns \.data\.x'):
        kube.apply(config_map("a", {"x": "2"}), manager="second")
    assert kube.apply(config_map("a", {"x": "1", "y": "1"}), manager="second")["data"]["y"] == "1"
    assert kube.apply(config_map("a", {"x": "2", "y": "1"}), manager="second", force=True)["data"]["x"] == "2"
    with pytest.raises(Conflict, match="second"):
        kube.apply(config_map("a", {"x": "1"}), manager="first")


def test_a_field_taken_by_force_goes_when_its_new_owner_drops_it(kube: Kube) -> None:
    kube.apply(config_map("a", {"x": "1", "y": "1"}), manager="first")
    kube.apply(config_map("a", {"x": "2"}), manager="second", force=True)
    assert kube.apply(config_map("a"), manager="second")["data"] == {"y": "1"}


def test_a_field_with_two_owners_stays_until_both_drop_it(kube: Kube) -> None:
    kube.apply(config_map("a", {"x": "1"}), manager="first")
    kube.apply(config_map("a", {"x": "1"}), manager="second")
    assert kube.apply(config_map("a"), manager="first")["data"] == {"x": "1"}
    assert "x" not in (kube.apply(config_map("a"), manager="second").get("data") or {})


def test_apply_leaves_the_replicas_that_somebody_scaled(kube: Kube) -> None:
    body = deployment()
    del body["spec"]["replicas"]
    assert kube.apply(body)["spec"]["replicas"] == 1
    kube.patch("Deployment", "web", {"spec": {"replicas": 7}}, NAMESPACE, subresource="scale")
    assert kube.apply(body)["spec"]["replicas"] == 7
    with pytest.raises(Conflict, match="replicas"):
        kube.apply(deployment(), manager="other")


def test_apply_merges_containers_by_name(kube: Kube) -> None:
    kube.apply(deployment())
    sidecar = {"template": {"spec": {"containers": [{"name": "side", "image": "logger"}]}}}
    body = {**deployment(), "spec": sidecar}
    kube.apply(body, manager="injector")
    containers = kube.apply(deployment())["spec"]["template"]["spec"]["containers"]
    assert {container["name"] for container in containers} == {"main", "side"}


def test_finalizers_hold_a_deleted_object(kube: Kube) -> None:
    made = kube.create(config_map("a", finalizers=["warmpath.dev/evict"]))
    kube.delete("ConfigMap", "a", NAMESPACE)
    held = kube.get("ConfigMap", "a", NAMESPACE)
    assert held["metadata"]["deletionTimestamp"]
    assert held["metadata"]["uid"] == made["metadata"]["uid"]
    kube.delete("ConfigMap", "a", NAMESPACE)
    assert kube.get("ConfigMap", "a", NAMESPACE) == held
    kube.patch("ConfigMap", "a", {"metadata": {"finalizers": None}}, NAMESPACE)
    with pytest.raises(NotFound):
        kube.get("ConfigMap", "a", NAMESPACE)


def test_delete_spares_a_namesake(kube: Kube) -> None:
    kube.create(config_map("a"))
    with pytest.raises(Conflict, match="namesake"):
        kube.delete("ConfigMap", "a", NAMESPACE, uid="00000000-0000-0000-0000-000000000000")
    with pytest.raises(Conflict, match="namesake"):
        kube.patch("ConfigMap", "a", {"metadata": {"uid": "00000000-0000-0000-0000-000000000000"}}, NAMESPACE)
    assert names(kube, "ConfigMap") == ["a"]


def test_dependents_follow_their_last_owner(kube: Kube) -> None:
    first, second = kube.create(cache("first")), kube.create(cache("second"))
    both = {"ownerReferences": [*owned_by(first)["ownerReferences"], *owned_by(second)["ownerReferences"]]}  # type: ignore[misc]
    kube.create(config_map("of-first", **owned_by(first)))
    child = kube.create(config_map("of-both", **both))
    kube.create(config_map("grandchild", **owned_by(child)))
    kube.delete("ModelDataCacheConfig", "first", NAMESPACE)
    assert names(kube, "ConfigMap") == ["grandchild", "of-both"]
    kube.delete("ModelDataCacheConfig", "second", NAMESPACE)
    assert names(kube, "ConfigMap") == []


def test_label_selectors_select(kube: Kube) -> None:
    for name, labels in {"one": {"tier": "a", "x": "1"}, "two": {"tier": "b"}, "three": {"x": "2"}}.items():
        kube.create(config_map(name, labels=labels))
    assert names(kube, "ConfigMap", "tier=a") == ["one"]
    assert names(kube, "ConfigMap", "tier in (a, b)") == ["one", "two"]
    assert names(kube, "ConfigMap", "x notin (1),x") == ["three"]
    assert names(kube, "ConfigMap", "x,!tier") == ["three"]
    assert names(kube, "ConfigMap", "tier!=a") == ["three", "two"]
    with pytest.raises(Invalid, match="cannot be read"):
        kube.list("ConfigMap", NAMESPACE, "a = = b")


def test_field_selectors_select(kube: Kube) -> None:
    kube.create(pod("p1", nodeName="n1"))
    kube.create(pod("p2"))
    assert names(kube, "Pod", fields="spec.nodeName=n1") == ["p1"]
    assert names(kube, "Pod", fields="spec.nodeName=") == ["p2"]
    assert names(kube, "Pod", fields="metadata.name!=p1,status.phase=Pending") == ["p2"]
    with pytest.raises(Invalid, match=r"spec\.bogus"):
        kube.list("Pod", NAMESPACE, fields="spec.bogus=1")


def seen(kube: Kube, labels: str = "", after: str = "") -> list[WatchEvent]:
    return list(kube.watch("ConfigMap", NAMESPACE, labels, resource_version=after, timeout_s=0.05))


def told(events: list[WatchEvent]) -> list[tuple[str, str]]:
    return [(event.type, event.object["metadata"]["name"]) for event in events if event.type != "BOOKMARK"]


def test_a_watch_goes_on_where_a_list_ended(kube: Kube) -> None:
    kube.create(config_map("a", {"x": "1"}))
    listed = kube.list("ConfigMap", NAMESPACE)
    kube.patch("ConfigMap", "a", {"data": {"x": "2"}}, NAMESPACE)
    kube.create(cache())
    kube.delete("ConfigMap", "a", NAMESPACE)
    events = seen(kube, after=listed.resource_version)
    assert told(events) == [("MODIFIED", "a"), ("DELETED", "a")]
    assert events[1].object["data"] == {"x": "2"}
    assert events[-1].type == "BOOKMARK"
    assert told(seen(kube, after=version(events[-1].object))) == []


def test_a_watch_from_nowhere_starts_with_what_is_there(kube: Kube) -> None:
    kube.create(config_map("a"))
    assert told(seen(kube)) == [("ADDED", "a")]


def test_a_watch_sees_changes_while_it_waits(kube: Kube) -> None:
    timer = threading.Timer(0.1, lambda: kube.create(config_map("late")))
    timer.start()
    events = kube.watch("ConfigMap", NAMESPACE, timeout_s=10)
    assert next(iter(events)).object["metadata"]["name"] == "late"
    timer.join()


def test_objects_enter_and_leave_a_watch_as_their_labels_change(kube: Kube) -> None:
    start = version(kube.create(config_map("a", labels={"in": "yes"})))
    for value in ("no", "still-no", "yes"):
        kube.patch("ConfigMap", "a", {"metadata": {"labels": {"in": value}}}, NAMESPACE)
    assert told(seen(kube, "in=yes", start)) == [("DELETED", "a"), ("ADDED", "a")]


def test_a_watch_from_a_version_nobody_gave_is_gone_or_invalid(kube: Kube) -> None:
    with pytest.raises(Gone, match="list again"):
        seen(kube, after="999999")
    with pytest.raises(Invalid):
        seen(kube, after="yesterday")


def test_a_pod_on_a_node_leaves_only_when_its_node_lets_it(kube: Kube) -> None:
    kube.create(pod("waiting"))
    kube.create(pod("placed", nodeName="n1"))
    kube.create(pod("done", nodeName="n1"))
    kube.patch("Pod", "done", {"status": {"phase": "Succeeded"}}, NAMESPACE, subresource="status")
    for name in ("waiting", "placed", "done"):
        kube.delete("Pod", name, NAMESPACE)
    (left,) = kube.list("Pod", NAMESPACE).items
    assert left["metadata"]["name"] == "placed"
    assert left["metadata"]["deletionGracePeriodSeconds"] == 30
