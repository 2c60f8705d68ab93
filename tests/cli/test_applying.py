from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from infra.cli import applying
from infra.cli.home import shipped
from infra.local.cluster.store import Store
from tasks.kube import EmbeddedKube
from tasks.plan.resources import InvalidResource
from tasks.plan.schema import KIND
from tasks.sources import read_credentials


@pytest.fixture
def kube(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EmbeddedKube:
    monkeypatch.setenv("WARMPATH_KUBE", f"embedded:{tmp_path / 'cluster'}")
    return EmbeddedKube(Store(tmp_path / "cluster"))


def write(path: Path, **spec: object) -> Path:
    """The example with these fields of its spec changed."""
    resource = yaml.safe_load(shipped("examples/endpoint.yaml").read_text())
    resource["spec"] |= spec
    path.write_text(yaml.safe_dump(resource))
    return path


def test_an_endpoint_is_recorded_in_the_default_namespace(kube: EmbeddedKube, tmp_path: Path) -> None:
    endpoint = applying.record(kube, write(tmp_path / "e.yaml"), change_source=False)
    assert (endpoint.namespace, endpoint.name) == ("default", "chat")
    assert kube.get(KIND, "chat", "default")["spec"]["modelName"] == "tiny-llama"


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"routing": {"strategy": "FASTEST"}}, "spec.routing.strategy"),
        ({"routing": {"strategy": "PREFIX_AWARE", "prefixLength": 1023, "concurrencyThreshold": 1}}, "prefixLength"),
        ({"routing": {"strategy": "PREFIX_AWARE", "prefixLength": 65537, "concurrencyThreshold": 1}}, "prefixLength"),
        ({"modelCacheConfig": {"weightsCache": {"enabled": True, "hostPath": "nvme"}}}, "hostPath"),
        ({"modelSourceConfig": {"modelSourceType": "ftp"}}, "modelSourceType"),
    ],
)
def test_a_bad_field_is_named_and_nothing_is_recorded(
    kube: EmbeddedKube, tmp_path: Path, spec: dict[str, object], field: str
) -> None:
    with pytest.raises(InvalidResource, match=field):
        applying.record(kube, write(tmp_path / "e.yaml", **spec), change_source=False)
    assert kube.list(KIND).items == []


def test_another_source_needs_a_word(kube: EmbeddedKube, tmp_path: Path) -> None:
    applying.record(kube, write(tmp_path / "e.yaml"), change_source=False)
    other = {
        "modelSourceType": "s3",
        "modelLocation": "other/",
        "s3Storage": {"bucketName": "models", "region": "us-east-1"},
    }
    changed = write(tmp_path / "e.yaml", modelSourceConfig=other)
    with pytest.raises(InvalidResource, match="modelSourceConfig"):
        applying.record(kube, changed, change_source=False)
    assert applying.record(kube, changed, change_source=True).source.uri == "s3://models/other/"


@pytest.mark.parametrize(
    ("text", "told"), [("a: [", "is not YAML"), ("", "0 documents"), ("a: 1\n---\nb: 2", "2 documents")]
)
def test_a_file_that_is_no_endpoint_is_refused(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "e.yaml").write_text(text)
    with pytest.raises(applying.Refused, match=told):
        applying.read(tmp_path / "e.yaml")


def test_credentials_are_kept_from_the_environment_or_not_at_all(
    kube: EmbeddedKube, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "planted")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY", raising=False)
    with pytest.raises(applying.Refused, match="AWS_SECRET_ACCESS_KEY is not set"):
        applying.keep_secret(kube, "keys", "default", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
    assert kube.list("Secret").items == []
    applying.keep_secret(kube, "keys", "default", ["AWS_ACCESS_KEY_ID"])
    applying.keep_secret(kube, "keys", "default", ["AWS_ACCESS_KEY_ID"])
    assert read_credentials("keys", "default") == {"AWS_ACCESS_KEY_ID": "planted"}
