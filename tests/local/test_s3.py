from __future__ import annotations

import stat
from pathlib import Path

import boto3
import pytest
from botocore.exceptions import ClientError
from mypy_boto3_s3.client import S3Client

from infra.local import s3
from infra.local.server import ServerFailed


def connect(url: str, keys: s3.Credentials) -> S3Client:
    client: S3Client = boto3.client(
        "s3",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id=keys.access_key,
        aws_secret_access_key=keys.secret_key,
    )
    return client


@pytest.mark.local
def test_a_server_asks_for_its_keys_and_keeps_objects_over_a_restart(tmp_path: Path) -> None:
    with s3.start(tmp_path) as server:
        owner = connect(server.url, s3.credentials(tmp_path))
        owner.create_bucket(Bucket="models")
        owner.put_object(Bucket="models", Key="m/x", Body=b"kept")
        stranger = connect(server.url, s3.Credentials("nobody", "nothing"))
        with pytest.raises(ClientError, match="InvalidAccessKeyId"):
            stranger.list_objects_v2(Bucket="models")
        owner.close()
        stranger.close()
    with s3.start(tmp_path) as server:
        owner = connect(server.url, s3.credentials(tmp_path))
        assert owner.get_object(Bucket="models", Key="m/x")["Body"].read() == b"kept"
        owner.close()


def test_keys_are_made_once_private_to_their_owner_and_never_shown(tmp_path: Path) -> None:
    keys = s3.credentials(tmp_path / "new")
    assert s3.credentials(tmp_path / "new") == keys
    assert keys.secret_key not in repr(keys)
    command = s3.command(tmp_path / "new", 20000)
    assert keys.secret_key not in " ".join(command)
    for file in (tmp_path / "new").glob("*.json"):
        if keys.secret_key in file.read_text():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_the_server_listens_on_loopback_only_and_reports_nothing_home(tmp_path: Path) -> None:
    command = s3.command(tmp_path, 20000)
    assert {"-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false"} <= set(command)
    assert all("AWS" not in name for name in s3.environment())


def test_a_server_that_cannot_start_says_where_its_log_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infra.local.s3.sys.executable", "/bin/false")
    with pytest.raises(ServerFailed, match=r"ended with status 1.*s3\.log"):
        s3.start(tmp_path)
