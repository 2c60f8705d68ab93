"""A real S3 server and a local hub, shared by the tests of this directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
import pytest

from infra.local import hub, s3
from tasks.plan.types import Source, SourceKind

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client


@pytest.fixture(scope="session")
def s3_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("s3")


@pytest.fixture(scope="session")
def s3_url(s3_directory: Path) -> Iterator[str]:
    with s3.start(s3_directory) as server:
        yield server.url


@pytest.fixture(scope="session")
def s3_keys(s3_directory: Path) -> dict[str, str]:
    return s3.credentials(s3_directory).environment()


@pytest.fixture(scope="session")
def owner(s3_url: str, s3_keys: dict[str, str]) -> Iterator[S3Client]:
    """A client of the owner of two buckets: "versioned" and "plain"."""
    client: S3Client = boto3.client(
        "s3",
        endpoint_url=s3_url,
        region_name="us-east-1",
        aws_access_key_id=s3_keys["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=s3_keys["AWS_SECRET_ACCESS_KEY"],
    )
    for bucket in ("versioned", "plain"):
        client.create_bucket(Bucket=bucket)
    client.put_bucket_versioning(Bucket="versioned", VersioningConfiguration={"Status": "Enabled"})
    yield client
    client.close()


@pytest.fixture(autouse=True)
def _no_credentials_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")


@pytest.fixture(scope="session")
def hub_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hub")


@pytest.fixture(scope="session")
def hub_url(hub_directory: Path) -> Iterator[str]:
    with hub.start(hub_directory) as server:
        yield server.url


@pytest.fixture
def s3_source(s3_url: str) -> Callable[..., Source]:
    return lambda uri, **more: Source(SourceKind.S3, uri, endpoint_url=s3_url, **more)


@pytest.fixture
def hub_source(hub_url: str) -> Callable[..., Source]:
    return lambda uri, **more: Source(SourceKind.HUGGINGFACE, uri, endpoint_url=hub_url, **more)
