from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from infra.local.cluster.store import Store
from tasks.kube import EmbeddedKube, KubeError, Unavailable, connect


def test_connect_opens_the_cluster_that_the_environment_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARMPATH_KUBE", f"embedded:{tmp_path}")
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "default"}}
    connect().create(body)
    assert EmbeddedKube(Store(tmp_path)).get("ConfigMap", "a", "default")
    assert connect() is connect()


@pytest.mark.parametrize(("value", "told"), [("", "is not set"), ("embedded:", 'is "embedded:"'), ("k3s", 'is "k3s"')])
def test_connect_says_what_to_set(value: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARMPATH_KUBE", value)
    with pytest.raises(KubeError, match=f"WARMPATH_KUBE {told}"):
        connect()


def test_a_store_that_does_not_answer_is_unavailable(tmp_path: Path) -> None:
    kube = EmbeddedKube(Store(tmp_path, busy_s=0.01))
    with closing(sqlite3.connect(tmp_path / "store.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert kube.list("Node").items == []
        with pytest.raises(Unavailable, match="does not answer"):
            kube.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}})
