"""Which weights caches may go: those that nothing refers to any more. The others, each with the reason."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

PINNED = "warmpath.dev/pinned"


@dataclass(frozen=True, slots=True)
class Cache:
    """A ModelDataCacheConfig as plans see it."""

    name: str
    uid: str
    endpoint: str
    digest: str
    host_path: str = ""
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class Retention:
    """delete: caches to remove. keep: name → why it stays."""

    delete: tuple[Cache, ...]
    keep: dict[str, str]


def plan_retention(caches: Iterable[Cache], *, wanted: Collection[str], in_use: Collection[str]) -> Retention:
    """wanted: names that an endpoint is to serve; in_use: names that a pod or a Deployment still refers to."""
    delete, keep = [], {}
    for cache in sorted(caches, key=lambda cache: cache.name):
        if cache.name in wanted:
            keep[cache.name] = "its endpoint serves it"
        elif cache.name in in_use:
            keep[cache.name] = "a pod still uses it"
        elif cache.pinned:
            keep[cache.name] = f"it is pinned ({PINNED})"
        else:
            delete.append(cache)
    return Retention(tuple(delete), keep)


def digests_to_clear(deleted: Iterable[Cache], left: Iterable[Cache]) -> frozenset[tuple[str, str]]:
    """(digest, host path) that no remaining cache shares: another endpoint may serve the same revision."""
    shared = {(cache.digest, cache.host_path) for cache in left}
    return frozenset((cache.digest, cache.host_path) for cache in deleted) - shared
