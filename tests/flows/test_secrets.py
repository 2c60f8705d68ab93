"""Rollouts from a real S3 server and from a gated model of a hub: keys and token open them, and appear nowhere."""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from prefect import State
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId

from infra.local import hub, s3
from tests.flows.fleet import Fleet

pytestmark = [pytest.mark.prefect, pytest.mark.local]

SECRET = "model-source"
TOKEN = "hf_plantedTokenThatNobodyMayRead"
MODEL = {"models/tiny/config.json": b"{}", "models/tiny/a.safetensors": bytes(range(256)) * 8000}


@pytest.fixture
def keys(tmp_path: Path, fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """A bucket with a model, the endpoint that names it, and the Secret that opens it."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    directory = tmp_path / "s3"
    directory.mkdir()
    with s3.start(directory) as server:
        keys = {**s3.credentials(directory).environment(), "HF_TOKEN": TOKEN}
        upload(server.url, keys)
        source = {"endpointUrl": server.url, "addressingStyle": "path", "credentialsSecretRef": {"name": SECRET}}
        bucket = {"bucketName": "models", "region": "us-east-1"}
        fleet.apply(
            modelSourceConfig={"modelSourceType": "s3", "modelLocation": "tiny/", "s3Storage": bucket},
            cachePolicy={"source": source},
        )
        put_secret(fleet, keys)
        yield keys


@pytest.fixture
def token(tmp_path: Path, fleet: Fleet) -> Iterator[dict[str, str]]:
    """A gated model of a hub, the endpoint that names it, and the Secret with a token of its own."""
    model = tmp_path / "hub" / "acme" / "tiny"
    model.mkdir(parents=True)
    for path, content in MODEL.items():
        (model / Path(path).name).write_bytes(content)
    (model / ".gated").touch()
    (tmp_path / "hub" / "tokens.json").write_text(json.dumps([TOKEN]))
    with hub.start(tmp_path / "hub") as server:
        named = {"modelId": "acme/tiny", "tokenSecretRef": {"name": SECRET, "key": "token"}}
        fleet.apply(
            modelSourceConfig={"modelSourceType": "huggingface", "huggingFaceModel": named},
            cachePolicy={"source": {"endpointUrl": server.url}},
        )
        put_secret(fleet, {"token": TOKEN})
        yield {"token": TOKEN}


def upload(url: str, keys: dict[str, str]) -> None:
    client = boto3.client(
        "s3",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id=keys["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=keys["AWS_SECRET_ACCESS_KEY"],
        config=Config(s3={"addressing_style": "path"}),
    )
    client.create_bucket(Bucket="models")
    for path, content in MODEL.items():
        client.put_object(Bucket="models", Key=path.removeprefix("models/"), Body=content)
    client.close()


def put_secret(fleet: Fleet, keys: dict[str, str]) -> None:
    metadata = {"name": SECRET, "namespace": "default"}
    fleet.kube.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": keys}, force=True)


class Watch:
    """Everything that a curious neighbour can read while a rollout goes on and afterwards."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.command_lines, self._ended = fleet, set[str](), threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(0.01):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                with contextlib.suppress(OSError):
                    self.command_lines.add(path.read_text(errors="replace"))

    def texts(self, state: State[Any], printed: str) -> dict[str, str]:
        objects = [obj for obj in self.fleet.store.list("").items if obj["kind"] != "Secret"]
        logs = [path.read_text(errors="replace") for path in self.fleet.directory.rglob("*.log")]
        return {
            "printed": printed,
            "command lines": "\n".join(self.command_lines),
            "resources": json.dumps(objects),
            "logs of pods and of the cluster": "\n".join(logs),
            "what Prefect keeps": from_prefect(self.fleet, state),
        }


def from_prefect(fleet: Fleet, state: State[Any]) -> str:
    """The run, its parameters, its tasks, its logs and all artifacts."""
    with get_client(sync_client=True) as client:
        run = client.read_flow_run(state.state_details.flow_run_id)
        by_run = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run.id]))
        fleet.until(lambda: [log for log in client.read_logs(by_run, limit=200) if "Finished in" in log.message])
        found = [run, *client.read_logs(by_run, limit=200), *client.read_artifacts(), *client.read_task_runs()]
    return "\n".join(one.model_dump_json() for one in found)


def check_unseen(secrets: dict[str, str], texts: dict[str, str]) -> None:
    for name, secret in secrets.items():
        if name == "AWS_ACCESS_KEY_ID":
            continue  # an identity, not a secret; signed requests carry it in clear
        for form in (secret, base64.b64encode(secret.encode()).decode()):
            assert [where for where, text in texts.items() if form in text] == [], f"{name} was seen"


@pytest.mark.parametrize("source", ["keys", "token"])
def test_what_opens_the_source_is_seen_nowhere(
    fleet: Fleet,
    source: str,
    request: pytest.FixtureRequest,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    secrets: dict[str, str] = request.getfixturevalue(source)
    caplog.set_level(logging.DEBUG)
    with Watch(fleet) as watch:
        state = fleet.roll()
    assert state.name == "Completed", state.message
    (tree,) = fleet.trees("node-1").values()
    assert tree == {path.removeprefix("models/tiny/"): content for path, content in MODEL.items()}
    texts = watch.texts(state, "".join(capfd.readouterr()) + caplog.text)
    assert "2 of 2 nodes are warm" in texts["printed"]
    assert "tasks.prefetch" in texts["command lines"]
    assert "a.safetensors" in texts["resources"]
    assert '"event"' in texts["logs of pods and of the cluster"]
    assert "nodes are warm" in texts["what Prefect keeps"]
    check_unseen(secrets, texts)


def test_wrong_keys_are_told_without_showing_them(
    fleet: Fleet, keys: dict[str, str], capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    wrong = {**keys, "AWS_SECRET_ACCESS_KEY": "plantedKeyThatOpensNothing"}
    put_secret(fleet, wrong)
    caplog.set_level(logging.DEBUG)
    with Watch(fleet) as watch:
        state = fleet.roll()
    assert state.is_failed()
    assert fleet.status()["reason"] == "AuthFailed"
    check_unseen(wrong, watch.texts(state, "".join(capfd.readouterr()) + caplog.text))
