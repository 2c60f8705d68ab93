from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tasks.plan.retention import Cache, digests_to_clear, plan_retention

names = st.sampled_from(["a", "b", "c", "d"])
caches = st.lists(
    st.builds(
        Cache, names, st.just("uid"), st.just("chat"), st.sampled_from(["sha256:1", "sha256:2"]), pinned=st.booleans()
    ),
    max_size=4,
    unique_by=lambda cache: cache.name,
)


def cache(name: str, digest: str = "sha256:1", host_path: str = "/nvme", *, pinned: bool = False) -> Cache:
    return Cache(name, f"uid-{name}", "chat", digest, host_path, pinned)


def test_only_what_nothing_refers_to_is_deleted_and_the_rest_says_why_it_stays() -> None:
    found = [cache("new"), cache("old"), cache("read"), cache("pinned", pinned=True)]
    plan = plan_retention(found, wanted={"new"}, in_use={"read"})
    assert [cache.name for cache in plan.delete] == ["old"]
    assert plan.keep == {
        "new": "its endpoint serves it",
        "read": "a pod still uses it",
        "pinned": "it is pinned (warmpath.dev/pinned)",
    }


def test_bytes_that_another_cache_shares_stay_on_the_disk() -> None:
    deleted = [cache("old"), cache("older", "sha256:2"), cache("elsewhere", "sha256:3", "/other")]
    left = [cache("theirs", "sha256:2"), cache("same-digest-other-disk", "sha256:3", "/nvme")]
    assert digests_to_clear(deleted, left) == {("sha256:1", "/nvme"), ("sha256:3", "/other")}


@given(caches, st.sets(names), st.sets(names))
def test_nothing_referenced_or_pinned_is_ever_deleted(found: list[Cache], wanted: set[str], in_use: set[str]) -> None:
    plan = plan_retention(found, wanted=wanted, in_use=in_use)
    deleted = {cache.name for cache in plan.delete}
    assert deleted.isdisjoint(wanted | in_use | {cache.name for cache in found if cache.pinned})
    assert deleted | plan.keep.keys() == {cache.name for cache in found}
    left = [cache for cache in found if cache.name in plan.keep]
    assert not {(c.digest, c.host_path) for c in left} & digests_to_clear(plan.delete, left)
