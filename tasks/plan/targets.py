"""Which nodes should be warm for an endpoint: those its pods may run on, now. The others, each with the reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.plan.deployments import node_selection
from tasks.plan.resources import Endpoint
from tasks.plan.types import Node

# HyperPod's word on a node: Schedulable, Unschedulable, UnschedulablePendingReplacement or …PendingReboot.
NODE_HEALTH = "sagemaker.amazonaws.com/node-health-status"
REPELLING = ("NoSchedule", "NoExecute")


@dataclass(frozen=True, slots=True)
class Targets:
    """nodes: to be warm, by name. excluded: node → why not."""

    nodes: tuple[Node, ...]
    excluded: dict[str, str]


def choose_targets(endpoint: Endpoint, nodes: Iterable[Node]) -> Targets:
    """Split `nodes` into targets and excluded; every node is in exactly one of the two."""
    terms = node_selection(endpoint)
    chosen, excluded = [], {}
    for node in sorted(nodes, key=lambda node: node.name):
        why = _why_not(node, terms, endpoint.tolerations)
        if why:
            excluded[node.name] = why
        else:
            chosen.append(node)
    return Targets(tuple(chosen), excluded)


def matches(term: Mapping[str, Any], node: Node) -> bool:
    """Whether a nodeSelectorTerm selects the node; an empty term selects every node here."""
    labels = [_matches_expression(e, node.labels.get(e["key"])) for e in term.get("matchExpressions") or []]
    fields = [_matches_expression(e, node.name) for e in term.get("matchFields") or []]
    return all([*labels, *fields])


def _why_not(node: Node, terms: Sequence[Mapping[str, Any]], tolerated: Sequence[Mapping[str, Any]]) -> str:
    if node.deleting:
        return "it is being deleted"
    if not node.ready:
        return "it is not Ready"
    if not node.schedulable:
        return "it is cordoned"
    health = node.labels.get(NODE_HEALTH, "Schedulable")
    if health != "Schedulable":
        return f"its health is {health} ({NODE_HEALTH})"
    if terms and not any(matches(term, node) for term in terms):
        return f"it is not of the kind that the endpoint asks for ({_told(terms)})"
    for key, value, effect in node.taints:
        if effect in REPELLING and not any(_tolerates(t, key, value, effect) for t in tolerated):
            return f"its taint {key}{'=' + value if value else ''}:{effect} is not tolerated (cachePolicy.tolerations)"
    return ""


def _matches_expression(expression: Mapping[str, Any], value: str | None) -> bool:
    operator, values = expression["operator"], list(expression.get("values") or [])
    if operator == "Exists":
        return value is not None
    if operator == "DoesNotExist":
        return value is None
    if operator == "In":
        return value in values
    if operator == "NotIn":
        return value not in values
    number = value is not None and value.lstrip("-").isdigit()
    return number and (int(value or 0) > int(values[0]) if operator == "Gt" else int(value or 0) < int(values[0]))


def _tolerates(toleration: Mapping[str, Any], key: str, value: str, effect: str) -> bool:
    if toleration.get("effect") not in (None, "", effect):
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return toleration.get("key") in (None, "", key)
    return toleration.get("key") == key and toleration.get("value", "") == value


def _told(terms: Sequence[Mapping[str, Any]]) -> str:
    expressions = [
        " ".join((e["key"], e["operator"].lower(), "/".join(e.get("values") or []))).strip()
        for term in terms
        for e in [*(term.get("matchExpressions") or []), *(term.get("matchFields") or [])]
    ]
    return ", ".join(expressions)
