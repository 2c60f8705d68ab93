from __future__ import annotations

import io
from typing import Any, ClassVar, cast

import yaml
from rich.console import Console

from infra.cli import live, views
from infra.cli.home import shipped
from tasks.kube import Kube, ObjectList
from tasks.plan.objects import ready_label
from tasks.plan.resources import parse_endpoint

CACHE: dict[str, Any] = {
    "metadata": {"name": "chat-0123456789ab", "uid": "u1", "creationTimestamp": ""},
    "spec": {"sizeBytes": 1_040_000_000, "revision": "0123456789abcdef", "digest": "sha256:d"},
    "status": {"state": "Ready", "readyNodes": 3, "targetNodes": 3, "reason": "AllWarm", "message": "3 of 3"},
}


def test_a_cache_shows_state_counts_size_and_revision_and_its_reason_only_when_asked() -> None:
    view = views.caches([CACHE])
    columns, [row] = view.shown(wide=False)
    assert dict(zip(columns, row, strict=True)) == {
        "NAME": "chat-0123456789ab",
        "STATE": "Ready",
        "READY": "3",
        "TARGET": "3",
        "SIZE": "1.0 GB",
        "REVISION": "0123456789ab",
        "AGE": "",
    }
    assert view.shown(wide=True)[1][0][-1] == "AllWarm: 3 of 3"


def test_a_node_names_the_caches_that_its_labels_prove() -> None:
    labels = {ready_label("u1"): "true", ready_label("gone"): "true"}
    node = {"metadata": {"name": "n1", "labels": labels}, "spec": {"unschedulable": True}, "status": {}}
    told = {"metadata": {"name": "n1"}, "status": {"capacityBytes": 4e9, "freeBytes": 1e9}}
    columns, [row] = views.nodes([node], [told], [CACHE]).shown(wide=False)
    shown = dict(zip(columns, row, strict=True))
    assert (shown["WARM"], shown["STATE"], shown["FREE"]) == ("chat-0123456789ab", "NotReady,Cordoned", "1.0 GB")


def test_an_endpoint_counts_the_replicas_that_serve() -> None:
    endpoint = {"metadata": {"name": "chat"}, "spec": {"replicas": 3, "modelName": "m"}, "status": {}}
    deployment = {"metadata": {"name": "chat"}, "status": {"readyReplicas": 2}}
    columns, [row] = views.endpoints([endpoint], [deployment]).shown(wide=False)
    shown = dict(zip(columns, row, strict=True))
    assert (shown["READY"], shown["STRATEGY"], shown["STATE"]) == ("2/3", "RANDOM", "Pending")


def test_a_bar_follows_the_revision_that_is_being_filled_and_no_other() -> None:
    entries = [
        {"digest": "sha256:old", "state": "Ready", "sizeBytes": 10},
        {"digest": "sha256:new", "state": "Downloading", "sizeBytes": 200, "doneBytes": 50, "bytesPerSecond": 10},
    ]
    [bar] = live.bars([{"metadata": {"name": "n1"}, "status": {"entries": entries}}], "sha256:new")
    assert (bar.node, bar.share, bar.bytes_per_s) == ("n1", 0.25, 10)


def test_bars_wait_for_the_revision_that_this_run_resolved() -> None:
    old = {"spec": {"digest": "sha256:old", "revision": "0123"}}
    new = {"spec": {"digest": "sha256:new", "revision": "4567"}}
    resolved = [("Resolved", "True", "revision 4567, 10 files, 1 GB")]
    assert live.pinned_digest([("Resolved", "Unknown", "NotYet")], [old]) == ""
    assert live.pinned_digest(resolved, [old]) == ""
    assert live.pinned_digest(resolved, [old, new]) == "sha256:new"


def test_stages_of_the_run_before_are_not_shown() -> None:
    class Cluster:
        conditions: ClassVar[list[dict[str, str]]] = [
            {"type": "Resolved", "status": "True", "message": "revision 0123, of the run before"},
            {"type": "GateOpen", "status": "Unknown", "reason": "NotYet"},
            {"type": "RolledOut", "status": "False", "message": "it failed"},
        ]

        def get(self, *_: str) -> dict[str, Any]:
            return {"status": {"conditions": self.conditions}}

        def list(self, *_: str, **__: str) -> ObjectList:
            return ObjectList([], "1")

    cluster, out = Cluster(), Console(file=io.StringIO(), width=200)
    endpoint = parse_endpoint(yaml.safe_load(shipped("examples/endpoint.yaml").read_text()))
    screen = live.RolloutScreen(cast(Kube, cluster), endpoint, out)
    screen.show("Pending")
    cluster.conditions = [{"type": kind, "status": "Unknown"} for kind in ("Resolved", "GateOpen", "RolledOut")]
    screen.show("Running")
    cluster.conditions = [{"type": "Resolved", "status": "True", "message": "revision 4567, of this one"}]
    screen.show("Running")
    assert cast(io.StringIO, out.file).getvalue() == "  ✓ Resolved: revision 4567, of this one\n"
