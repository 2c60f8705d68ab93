"""Which manager owns which field: the part of server-side apply that decides.

A field set is a set of paths. A path holds "f:<field>", 'k:{"name":"c"}' for an item of a list with a key, and
'v:"x"' for an item of a list that is a set; other lists are one value. `metadata.managedFields` stores each set in
Kubernetes' own nested form. Two rules:

    apply    owns what it names. A field that another manager owns with another value is a conflict, or taken by
             force. A field this manager named last time, does not name now, and nobody else owns, is removed.
    update   (create, patch, scale) takes what it changes from whoever owned it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from infra.local.cluster.objects import Object

Path = tuple[str, ...]
Fields = frozenset[Path]

# Lists that merge by the key of their items. Lists of custom resources are one value, but for their metadata.
_ITEM_KEYS: dict[str, tuple[str, ...]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "volumes": ("name",),
    "env": ("name",),
    "volumeMounts": ("mountPath",),
    "ports": ("containerPort", "port"),
}
_METADATA_ITEM_KEYS: dict[str, tuple[str, ...]] = {"ownerReferences": ("uid",)}
_SETS = frozenset({"finalizers"})
_NOT_OWNED = frozenset({"apiVersion", "kind", "status"})
_NOT_OWNED_METADATA = frozenset(
    {"name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp"}
    | {"deletionGracePeriodSeconds", "managedFields", "generateName", "selfLink"}
)


class FieldConflict(Exception):
    """Another manager owns fields that an apply would change."""

    def __init__(self, owners: dict[str, list[str]]) -> None:
        told = "; ".join(f'"{manager}" owns {", ".join(paths)}' for manager, paths in sorted(owners.items()))
        super().__init__(f"{told}. Leave these fields out, or apply with force to take them over")


class Entry(NamedTuple):
    """One manager's claim, as in metadata.managedFields."""

    manager: str
    operation: str
    subresource: str
    fields: Fields


def apply_fields(live: Object, wanted: Object, manager: str, force: bool, at: str) -> Object:
    """`live` after `manager` applied `wanted`; raises FieldConflict."""
    entries = read_entries(live)
    mine = next((entry for entry in entries if (entry.manager, entry.operation) == (manager, "Apply")), None)
    others = [entry for entry in entries if entry is not mine]
    values_now, values_wanted = _values(live), _values(wanted)
    named = frozenset(values_wanted)
    contested = _contested(values_now, values_wanted)
    conflicts = {
        entry.manager: [_readable(path) for path in sorted(entry.fields & contested)]
        for entry in others
        if entry.fields & contested
    }
    if conflicts and not force:
        raise FieldConflict(conflicts)
    others = [entry._replace(fields=entry.fields - contested) for entry in others]
    result = _overlay(live, _without_foreign(wanted), _keys(live))
    dropped = (mine.fields if mine else frozenset()) - named
    kept = _with_parents(named.union(*(entry.fields for entry in others)))
    # Whole items first, by their key; then single fields, but never the key of an item that stays.
    for path in sorted(dropped - kept, key=lambda path: (path[-1].startswith("f:"), -len(path))):
        if not _is_key(path):
            _remove(result, path, kept)
    return _with_entries(result, live, [*others, Entry(manager, "Apply", "", named)], at)


def _contested(now: dict[Path, Any], wanted: dict[Path, Any]) -> frozenset[Path]:
    """Fields that an apply would change or swallow: another value, a mapping for a value, a value for a mapping."""
    above = _with_parents(wanted) - set(wanted)
    swallowing = {path for path, value in wanted.items() if value is not None and value != {}}
    return frozenset(
        path
        for path, value in now.items()
        if (path in wanted and wanted[path] != value)
        or (path in above and value is not None)
        or any(path[:length] in swallowing for length in range(1, len(path)))
    )


def update_fields(old: Object, new: Object, manager: str, subresource: str, at: str) -> Object:
    """`new`, with what differs from `old` now owned by `manager`."""
    before, after = _values(old), _values(new)
    changed = frozenset(path for path, value in after.items() if path not in before or before[path] != value)
    removed = frozenset(before) - frozenset(after)
    if not changed and not removed:
        return new
    entries = read_entries(old)
    mine = next((e for e in entries if e[:3] == (manager, "Update", subresource)), None)
    others = [entry._replace(fields=entry.fields - changed - removed) for entry in entries if entry is not mine]
    owned = ((mine.fields if mine else frozenset()) - removed) | changed
    return _with_entries(new, old, [*others, Entry(manager, "Update", subresource, owned)], at)


def read_entries(obj: Object) -> list[Entry]:
    return [
        Entry(item["manager"], item["operation"], item.get("subresource", ""), frozenset(_decode(item["fieldsV1"])))
        for item in obj["metadata"].get("managedFields") or ()
    ]


def _with_entries(obj: Object, old: Object, entries: list[Entry], at: str) -> Object:
    times = {
        entry: item.get("time", at)
        for entry, item in zip(read_entries(old), old["metadata"].get("managedFields") or (), strict=True)
    }
    managed = [
        {
            "manager": entry.manager,
            "operation": entry.operation,
            "apiVersion": obj["apiVersion"],
            "time": times.get(entry, at),
            "fieldsType": "FieldsV1",
            "fieldsV1": _encode(entry.fields),
        }
        | ({"subresource": entry.subresource} if entry.subresource else {})
        for entry in sorted(entries)
        if entry.fields
    ]
    return {**obj, "metadata": {**obj["metadata"], "managedFields": managed}}


def _keys(obj: Object) -> dict[str, tuple[str, ...]]:
    built_in = "." not in obj["apiVersion"].partition("/")[0] or ".k8s.io/" in obj["apiVersion"]
    return _METADATA_ITEM_KEYS | (_ITEM_KEYS if built_in else {})


def _without_foreign(obj: Object) -> Object:
    """What a manager may own: no identity, no status."""
    metadata = {key: value for key, value in obj["metadata"].items() if key not in _NOT_OWNED_METADATA}
    return {key: value for key, value in obj.items() if key not in _NOT_OWNED} | {"metadata": metadata}


def _values(obj: Object) -> dict[Path, Any]:
    found: dict[Path, Any] = {}
    for key, value in _without_foreign(obj).items():
        if not (key == "metadata" and not value):
            _collect(value, (f"f:{key}",), key, _keys(obj), found)
    return found


def _collect(value: Any, path: Path, field: str, keys: dict[str, tuple[str, ...]], found: dict[Path, Any]) -> None:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            if inner is not None:
                _collect(inner, (*path, f"f:{key}"), key, keys, found)
        return
    items = _keyed_items(value, field, keys)
    if items is None:
        found[path] = value
        return
    for element, inner in items.items():
        found[(*path, element)] = None  # the item is there; its fields have their own values
        if isinstance(inner, dict):
            for key, deeper in inner.items():
                _collect(deeper, (*path, element, f"f:{key}"), key, keys, found)


def _keyed_items(value: Any, field: str, keys: dict[str, tuple[str, ...]]) -> dict[str, Any] | None:
    """Items of a list by their path element; None where the list is one value."""
    if not isinstance(value, list) or not value:
        return None
    if field in _SETS:
        return {f"v:{json.dumps(item)}": item for item in value}
    for key in keys.get(field, ()):
        if all(isinstance(item, dict) and key in item for item in value):
            items = {f"k:{json.dumps({key: item[key]})}": item for item in value}
            return items if len(items) == len(value) else None
    return None


def _overlay(live: Any, wanted: Any, keys: dict[str, tuple[str, ...]], field: str = "") -> Any:
    """`wanted` laid over `live`; lists with keys merge, in the order of `wanted`."""
    if isinstance(wanted, dict) and isinstance(live, dict):
        merged = dict(live)
        for key, value in wanted.items():
            if value is not None:
                merged[key] = _overlay(live.get(key), value, keys, key)
        return merged
    theirs, ours = _keyed_items(live, field, keys), _keyed_items(wanted, field, keys)
    if theirs is None or ours is None:
        return wanted
    merged_items = {key: _overlay(theirs.get(key), value, keys) for key, value in ours.items()}
    return [*merged_items.values(), *(value for key, value in theirs.items() if key not in ours)]


def _remove(obj: Any, path: Path, kept: set[Path], at: Path = ()) -> bool:
    """Remove what `path` names, from copies along the way; True when `obj` (at `at`) is empty and nobody's own."""
    head, rest = path[0], path[1:]
    if head.startswith("f:"):
        field = head[2:]
        if not isinstance(obj, dict) or field not in obj:
            return False
        if rest:
            obj[field] = _copy(obj[field])
        if not rest or _remove(obj[field], rest, kept, (*at, head)):
            del obj[field]
    elif isinstance(obj, list):
        index = next((i for i, item in enumerate(obj) if _is_item(item, head)), None)
        if index is not None and rest:
            obj[index] = _copy(obj[index])
            _remove(obj[index], rest, kept, (*at, head))
        elif index is not None:
            del obj[index]
    return not obj and at not in kept


def _is_item(item: Any, element: str) -> bool:
    wanted = json.loads(element[2:])
    return bool(item == wanted if element.startswith("v:") else wanted.items() <= item.items())


def _is_key(path: Path) -> bool:
    """Whether `path` names the field by which an item of a list is found."""
    field, item = path[-1], path[-2] if len(path) > 1 else ""
    return item.startswith("k:") and field.removeprefix("f:") in json.loads(item[2:])


def _copy(value: Any) -> Any:
    return list(value) if isinstance(value, list) else dict(value) if isinstance(value, dict) else value


def _with_parents(fields: Iterable[Path]) -> set[Path]:
    return {path[:length] for path in fields for length in range(1, len(path) + 1)}


def _encode(fields: Fields) -> Object:
    nested: Object = {}
    for path in sorted(fields):
        place = nested
        for element in path:
            place = place.setdefault(element, {})
    for path in fields:
        place = nested
        for element in path:
            place = place[element]
        if place:
            place["."] = {}
    return nested


def _decode(nested: Object, path: Path = ()) -> Iterable[Path]:
    if not nested or "." in nested:
        yield path
    for element, inner in nested.items():
        if element != ".":
            yield from _decode(inner, (*path, element))


def _readable(path: Path) -> str:
    """`.spec.containers[name="c"].image`"""
    text = ""
    for element in path:
        kind, _, rest = element.partition(":")
        if kind == "f":
            text += f".{rest}"
        elif kind == "k":
            text += "[" + ",".join(f"{key}={json.dumps(value)}" for key, value in json.loads(rest).items()) + "]"
        else:
            text += f"[{rest}]"
    return text
