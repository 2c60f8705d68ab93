from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.plan.capacity import FLOOR_SHARE, admit, largest_bytes, usable_bytes
from tasks.plan.types import CacheEntry, Manifest, Node

Nodes = Callable[..., Node]
Manifests = Callable[..., Manifest]
GB = 10**9


def test_a_node_with_room_is_admitted_for_what_it_lacks(node: Nodes, manifest: Manifests) -> None:
    found = admit(manifest(), node(), {})
    assert (found.fetch_bytes, found.reuse_bytes, found.holds_it, found.reason) == (4 * GB, 0, False, "")


def test_a_node_without_room_is_told_with_every_figure(node: Nodes, manifest: Manifests) -> None:
    found = admit(manifest(), node(free_bytes=5 * GB, reserved_bytes=GB), {})
    assert found.reason == (
        "NoSpace: it needs 4 GB and 3 GB are usable (5 GB free, 1 GB reserved, 5% of 20 GB kept free)"
    )


def test_files_that_another_revision_brought_need_no_room(node: Nodes, manifest: Manifests) -> None:
    old = manifest({"a": (3 * GB, "etag:1"), "b": (GB, "etag:2")})
    new = manifest({"a": (3 * GB, "etag:1"), "b": (GB, "etag:3")})
    holder = node(free_bytes=2 * GB, entries=(CacheEntry(old.digest, "Ready"),))
    found = admit(new, holder, {old.digest: old})
    assert (found.fetch_bytes, found.reuse_bytes, found.reason) == (GB, 3 * GB, "")


def test_files_of_several_revisions_add_up(node: Nodes, manifest: Manifests) -> None:
    one, two = manifest({"a": (GB, "etag:1")}), manifest({"b": (GB, "etag:2")})
    new = manifest({"a": (GB, "etag:1"), "b": (GB, "etag:2"), "c": (5, "etag:3")})
    holder = node(entries=(CacheEntry(one.digest, "Ready"), CacheEntry(two.digest, "Ready")))
    assert admit(new, holder, {m.digest: m for m in (one, two)}).fetch_bytes == 5


@pytest.mark.parametrize("state", ["Failed", "Downloading", "Suspect", "Absent"])
def test_only_a_proven_copy_is_reused(node: Nodes, manifest: Manifests, state: str) -> None:
    old, new = manifest({"a": (GB, "etag:1")}), manifest({"a": (GB, "etag:1"), "b": (1, "etag:2")})
    holder = node(entries=(CacheEntry(old.digest, state),))
    assert admit(new, holder, {old.digest: old}).fetch_bytes == GB + 1


def test_a_node_that_holds_the_revision_is_warm_even_on_a_full_disk(node: Nodes, manifest: Manifests) -> None:
    wanted = manifest()
    found = admit(wanted, node(free_bytes=0, entries=(CacheEntry(wanted.digest, "Ready"),)), {})
    assert (found.holds_it, found.fetch_bytes, found.reason) == (True, 0, "")


@pytest.mark.parametrize(
    ("state", "reason", "admitted"),
    [
        ("Downloading", "", True),
        ("Partial", "", True),
        ("Failed", "Network", True),
        ("Failed", "NoSpace", False),
        ("Suspect", "", False),
    ],
)
def test_a_fill_that_was_interrupted_is_not_asked_for_its_room_again(
    node: Nodes, manifest: Manifests, state: str, reason: str, admitted: bool
) -> None:
    wanted = manifest()
    entry = CacheEntry(wanted.digest, state, reason=reason)
    found = admit(wanted, node(free_bytes=GB, entries=(entry,)), {})
    assert found.resumes is admitted
    assert (found.reason == "") is admitted


def test_a_fill_of_another_revision_reserves_nothing_for_this_one(node: Nodes, manifest: Manifests) -> None:
    other = CacheEntry("sha256:other", "Downloading")
    assert admit(manifest(), node(free_bytes=GB, entries=(other,)), {}).reason.startswith("NoSpace")


def test_a_node_nobody_looked_at_is_left_to_its_own_fill(node: Nodes, manifest: Manifests) -> None:
    found = admit(manifest(), node(free_bytes=None, capacity_bytes=None), {})
    assert (found.reason, found.free_bytes) == ("", None)


def test_the_largest_node_is_measured_empty_less_its_floor(node: Nodes) -> None:
    fleet = [node("a", capacity_bytes=10 * GB, free_bytes=0), node("b", capacity_bytes=None)]
    assert largest_bytes(fleet) == int(10 * GB * (1 - FLOOR_SHARE))
    assert largest_bytes([]) == 0


amounts = st.integers(0, 40 * GB)


@given(capacity=amounts, free=amounts, reserved=amounts, size=st.integers(0, 20 * GB))
def test_no_admission_eats_into_the_floor_or_into_what_others_reserved(
    node: Nodes, manifest: Manifests, capacity: int, free: int, reserved: int, size: int
) -> None:
    place: dict[str, Any] = {"capacity_bytes": capacity, "free_bytes": free, "reserved_bytes": reserved}
    found = admit(manifest({"a": (size, "etag:1")}), node(**place), {})
    left = free - reserved - found.fetch_bytes
    assert (found.reason == "") == (size == 0 or left >= int(FLOOR_SHARE * capacity))
    assert (usable_bytes(node(**place)) or 0) >= 0
