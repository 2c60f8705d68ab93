from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.local.cluster.merge import merge_patch
from infra.local.cluster.objects import Object
from infra.local.cluster.ownership import FieldConflict, apply_fields, read_entries, update_fields

NAMES = st.sampled_from(["a", "b", "c"])
LEAVES = st.one_of(st.integers(0, 3), st.lists(st.integers(0, 2), max_size=2))
SPECS = st.dictionaries(NAMES, st.one_of(LEAVES, st.dictionaries(NAMES, LEAVES, min_size=1)), max_size=3)
MANAGERS = st.sampled_from(["flow", "person"])


def body(spec: Object) -> Object:
    return {"apiVersion": "warmpath.dev/v1alpha1", "kind": "Thing", "metadata": {"name": "x"}, "spec": spec}


def contains(whole: object, part: object) -> bool:
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(key in whole and contains(whole[key], value) for key, value in part.items())
    return whole == part


def apply(live: Object, spec: Object, manager: str, *, force: bool = True) -> Object:
    return apply_fields(live, body(spec), manager, force, "2026-01-01T00:00:00.000000Z")


@given(st.lists(st.tuples(MANAGERS, SPECS), min_size=1, max_size=6))
def test_a_forced_apply_always_gives_what_was_asked_and_again_changes_nothing(steps: list[tuple[str, Object]]) -> None:
    live = body({})
    for manager, spec in steps:
        live = apply(live, spec, manager)
        assert contains(live["spec"], spec)
        assert apply(live, spec, manager) == live


@given(st.lists(SPECS, min_size=1, max_size=6))
def test_a_sole_manager_leaves_nothing_of_what_it_once_applied(specs: list[Object]) -> None:
    live = body({})
    for spec in specs:
        live = apply(live, spec, "flow")
    assert live.get("spec", {}) == specs[-1]


@given(SPECS, SPECS)
def test_an_apply_without_force_changes_nobody_elses_fields(theirs: Object, ours: Object) -> None:
    live = apply(body({}), theirs, "person")
    with suppress(FieldConflict):
        after = apply(live, ours, "flow", force=False)
        assert contains(after["spec"], ours)
        assert contains(after["spec"], theirs)


@given(NAMES, st.integers(0, 1), st.integers(2, 3))
def test_a_value_and_a_mapping_of_the_same_name_are_a_conflict(name: str, theirs: int, ours: int) -> None:
    for before, after in (({name: theirs}, {name: {"x": ours}}), ({name: {"x": theirs}}, {name: ours})):
        live = apply(body({}), before, "person")
        with pytest.raises(FieldConflict, match=rf'"person" owns \.spec\.{name}'):
            apply(live, after, "flow", force=False)
        assert apply(live, after, "flow")["spec"] == after


@given(SPECS, SPECS)
def test_an_update_takes_the_fields_that_it_changes(before: Object, after: Object) -> None:
    live = apply(body({}), before, "flow")
    new = update_fields(live, {**live, "spec": after}, "person", "", "2026-01-01T00:00:00.000000Z")
    if before == after:
        assert new == live
    owned = [path for entry in read_entries(new) for path in entry.fields]
    assert len(owned) == len(set(owned))


def test_the_finalizers_of_two_managers_live_side_by_side() -> None:
    def held(name: str) -> Object:
        return {**body({}), "metadata": {"name": "x", "finalizers": [name]}}

    live = apply_fields(body({}), held("one"), "first", False, "t")
    live = apply_fields(live, held("two"), "second", False, "t")
    assert sorted(live["metadata"]["finalizers"]) == ["one", "two"]
    live = apply_fields(live, {**body({}), "metadata": {"name": "x"}}, "first", False, "t")
    assert live["metadata"]["finalizers"] == ["two"]


def test_a_field_that_turns_into_a_mapping_is_not_lost() -> None:
    live = apply(body({}), {"a": 1}, "flow")
    assert apply(live, {"a": {"b": 2}}, "flow")["spec"] == {"a": {"b": 2}}


JSON = st.recursive(
    st.one_of(st.integers(), st.text(max_size=3), st.booleans()),
    lambda inner: st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


@given(JSON, JSON)
def test_a_merge_patch_given_twice_is_one_given_once(target: object, patch: object) -> None:
    once = merge_patch(target, patch)
    assert merge_patch(once, patch) == once


@given(st.dictionaries(NAMES, JSON, max_size=3))
def test_a_patch_of_none_for_every_key_empties(target: Object) -> None:
    assert merge_patch(target, dict.fromkeys(target)) == {}


def pod(*containers: Object) -> Object:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"containers": list(containers)}}


def test_an_item_that_its_manager_drops_goes_whole() -> None:
    live = apply_fields(pod(), pod({"name": "a", "image": "1"}, {"name": "b", "image": "1"}), "flow", True, "t")
    live = apply_fields(live, pod({"name": "b", "image": "1"}), "flow", True, "t")
    assert live["spec"]["containers"] == [{"name": "b", "image": "1"}]


def test_an_item_in_which_another_manager_owns_a_field_keeps_its_name() -> None:
    live = apply_fields(pod(), pod({"name": "a", "image": "1"}, {"name": "b"}), "flow", True, "t")
    live = apply_fields(live, pod({"name": "a", "tty": True}), "person", True, "t")
    live = apply_fields(live, pod({"name": "b"}), "flow", True, "t")
    assert sorted(live["spec"]["containers"], key=str) == [{"name": "a", "tty": True}, {"name": "b"}]
