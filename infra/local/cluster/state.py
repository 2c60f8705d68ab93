"""The cluster at one moment, in memory: what controllers and the scheduler decide from."""

from __future__ import annotations

from collections.abc import Iterable

from infra.local.cluster.objects import Key, Object, controller_uid, key_of


class State:
    """Objects by kind and by the owner that controls them."""

    def __init__(self, objects: Iterable[Object] = ()) -> None:
        self._by_kind: dict[str, dict[Key, Object]] = {}
        self._by_controller: dict[str, set[Key]] = {}
        for obj in objects:
            self.put(obj)

    def put(self, obj: Object) -> bool:
        """Take in `obj` unless a newer version is known; True when it changed something."""
        key = key_of(obj)
        known = self.find(*key)
        if known is not None:
            if _version(known) >= _version(obj) > 0:
                return False
            self.drop(known)
        self._by_kind.setdefault(obj["kind"], {})[key] = obj
        self._by_controller.setdefault(controller_uid(obj), set()).add(key)
        return True

    def drop(self, obj: Object) -> bool:
        """Forget the object of this name; True when it was known."""
        key = key_of(obj)
        known = self._by_kind.get(obj["kind"], {}).pop(key, None)
        if known is None:
            return False
        self._by_controller[controller_uid(known)].discard(key)
        return True

    def all(self, kind: str) -> list[Object]:
        return list(self._by_kind.get(kind, {}).values())

    def find(self, kind: str, namespace: str, name: str) -> Object | None:
        return self._by_kind.get(kind, {}).get((kind, namespace, name))

    def controlled(self, owner: Object, kind: str) -> list[Object]:
        """Objects of `kind` that `owner` controls, in the order of their names."""
        keys = self._by_controller.get(owner["metadata"]["uid"], set())
        return [self._by_kind[kind][key] for key in sorted(keys) if key[0] == kind]


def _version(obj: Object) -> int:
    return int(obj["metadata"].get("resourceVersion") or 0)
