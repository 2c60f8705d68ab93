"""Label, field and node selectors, as strings and as objects."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from infra.local.cluster.objects import Object

Labels = Mapping[str, str]
Match = Callable[[Labels], bool]

_SET = re.compile(r"^(?P<key>\S+)\s+(?P<op>in|notin)\s*\((?P<values>[^)]*)\)$")
_EQUAL = re.compile(r"^(?P<key>[^=!\s]+)\s*(?P<op>!=|==|=)\s*(?P<value>[^=!\s]*)$")
_KEY = re.compile(r"^(?P<no>!?)\s*(?P<key>[A-Za-z0-9][\w./-]*)$")

_SELECTABLE_FIELDS: dict[str, frozenset[str]] = {
    "Pod": frozenset({"spec.nodeName", "spec.restartPolicy", "status.phase", "status.podIP"}),
    "Event": frozenset(
        {
            "involvedObject.kind",
            "involvedObject.name",
            "involvedObject.namespace",
            "involvedObject.uid",
            "reason",
            "type",
        }
    ),
    "Node": frozenset({"spec.unschedulable"}),
    "Job": frozenset({"status.successful"}),
    "Secret": frozenset({"type"}),
}


class BadSelector(ValueError):
    """A selector that Kubernetes would refuse."""


def parse_labels(selector: str) -> Match:
    """A label selector such as "a=b,c in (d,e),!f" as a predicate on labels."""
    requirements = [_requirement(part) for part in _split(selector)]
    return lambda labels: all(holds(labels) for holds in requirements)


def parse_fields(selector: str, kind: str) -> Callable[[Object], bool]:
    """A field selector such as "spec.nodeName=n1,status.phase!=Failed" as a predicate on objects of `kind`."""
    allowed = {"metadata.name", "metadata.namespace"} | _SELECTABLE_FIELDS.get(kind, frozenset())
    wanted: list[tuple[str, bool, str]] = []
    for part in _split(selector):
        found = _EQUAL.match(part)
        if not found or found["key"] not in allowed:
            raise BadSelector(
                f'field selector "{part}" is not supported for {kind}: '
                f"use = or != on one of {', '.join(sorted(allowed))}"
            )
        wanted.append((found["key"], found["op"] != "!=", found["value"]))
    return lambda obj: all((field_text(obj, path) == value) is equal for path, equal, value in wanted)


def field_text(obj: Object, path: str) -> str:
    """The value at a dotted path as field selectors see it: "" when absent."""
    value: Any = obj
    for part in path.split("."):
        value = (value or {}).get(part)
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def match_selector(selector: Object | None, labels: Labels) -> bool:
    """A LabelSelector object (matchLabels, matchExpressions). None selects nothing, {} everything."""
    if selector is None:
        return False
    wanted: dict[str, str] = selector.get("matchLabels") or {}
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        match_expression(expression, labels) for expression in selector.get("matchExpressions") or ()
    )


def match_expression(expression: Object, labels: Labels) -> bool:
    """One expression of a label selector or of a node selector term (which also knows Gt and Lt)."""
    key, operator = expression["key"], expression["operator"]
    values: list[str] = expression.get("values") or []
    found = labels.get(key)
    match operator:
        case "In":
            return found in values
        case "NotIn":
            return found not in values
        case "Exists":
            return found is not None
        case "DoesNotExist":
            return found is None
        case "Gt":
            return found is not None and _is_number(found) and int(found) > int(values[0])
        case "Lt":
            return found is not None and _is_number(found) and int(found) < int(values[0])
    raise BadSelector(f'operator "{operator}" on "{key}": use In, NotIn, Exists, DoesNotExist, Gt or Lt')


def match_node_term(term: Object, node: Object) -> bool:
    """A node selector term: expressions on labels and on metadata.name. An empty term matches no node."""
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not expressions and not fields:
        return False
    labels = node["metadata"].get("labels") or {}
    names = {"metadata.name": node["metadata"]["name"]}
    return all(match_expression(entry, labels) for entry in expressions) and all(
        match_expression(entry, names) for entry in fields
    )


def _requirement(part: str) -> Match:
    if found := _SET.match(part):
        key, values = found["key"], {value.strip() for value in found["values"].split(",")}
        if found["op"] == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    if found := _EQUAL.match(part):
        key, value, equal = found["key"], found["value"], found["op"] != "!="
        return lambda labels: (labels.get(key) == value) is equal
    if found := _KEY.match(part):
        key, present = found["key"], not found["no"]
        return lambda labels: (key in labels) is present
    raise BadSelector(
        f'label selector "{part}" cannot be read: write it as a=b, a!=b, a in (b,c), a notin (b,c), a or !a'
    )


def _split(selector: str) -> Iterable[str]:
    """Parts between commas that are not inside parentheses."""
    return [part.strip() for part in re.split(r",(?![^(]*\))", selector) if part.strip()]


def _is_number(text: str) -> bool:
    return text.removeprefix("-").isdigit()
