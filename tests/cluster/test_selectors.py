from __future__ import annotations

import pytest

from infra.local.cluster.objects import Object
from infra.local.cluster.selectors import BadSelector, match_node_term, match_selector, parse_fields, parse_labels


@pytest.mark.parametrize(
    ("selector", "labels", "matches"),
    [
        ("", {}, True),
        ("a=b", {"a": "b"}, True),
        ("a==b", {"a": "c"}, False),
        ("a=", {"a": ""}, True),
        ("a!=b", {}, True),
        ("a", {"a": ""}, True),
        ("!a", {"a": ""}, False),
        ("! a", {}, True),
        ("a in (b,c), d", {"a": "c", "d": "1"}, True),
        ("a in (b)", {}, False),
        ("a notin (b)", {}, True),
        ("warmpath.dev/weights-cache-ready.1-2=true", {"warmpath.dev/weights-cache-ready.1-2": "true"}, True),
    ],
)
def test_label_selectors(selector: str, labels: dict[str, str], matches: bool) -> None:
    assert parse_labels(selector)(labels) is matches


@pytest.mark.parametrize("selector", ["a=b=c", "a in b", "(a)", "a b", "in (a)"])
def test_label_selectors_that_cannot_be_read(selector: str) -> None:
    with pytest.raises(BadSelector):
        parse_labels(selector)


def test_a_field_selector_reads_booleans_and_absent_fields() -> None:
    cordoned: Object = {"metadata": {"name": "n"}, "spec": {"unschedulable": True}}
    assert parse_fields("spec.unschedulable=true", "Node")(cordoned)
    assert not parse_fields("spec.unschedulable=true", "Node")({"metadata": {"name": "n"}})
    with pytest.raises(BadSelector, match=r"spec\.nodeName"):
        parse_fields("spec.nodeName=a", "Node")


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        (None, False),
        ({}, True),
        ({"matchLabels": {"a": "1"}}, True),
        ({"matchLabels": {"a": "2"}}, False),
        ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["2"]}]}, True),
        ({"matchExpressions": [{"key": "b", "operator": "Exists"}]}, False),
        ({"matchLabels": {"a": "1"}, "matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}, False),
    ],
)
def test_label_selector_objects(selector: Object | None, matches: bool) -> None:
    assert match_selector(selector, {"a": "1"}) is matches


@pytest.mark.parametrize(
    ("term", "matches"),
    [
        ({}, False),
        ({"matchExpressions": [{"key": "gpus", "operator": "Gt", "values": ["4"]}]}, True),
        ({"matchExpressions": [{"key": "gpus", "operator": "Lt", "values": ["8"]}]}, False),
        ({"matchExpressions": [{"key": "name", "operator": "Gt", "values": ["1"]}]}, False),
        ({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}, True),
        ({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}, False),
    ],
)
def test_node_selector_terms(term: Object, matches: bool) -> None:
    node: Object = {"metadata": {"name": "n1", "labels": {"gpus": "8", "name": "n1"}}}
    assert match_node_term(term, node) is matches


def test_an_unknown_operator_is_told() -> None:
    with pytest.raises(BadSelector, match="Near"):
        match_selector({"matchExpressions": [{"key": "a", "operator": "Near"}]}, {})
