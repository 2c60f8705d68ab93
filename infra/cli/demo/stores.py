"""The demo's sources: a real S3 server with a model in a bucket, and a Hugging Face hub with a small one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from infra.cli import processes
from infra.cli.home import Home
from infra.cli.processes import Service
from infra.local import s3
from infra.local.server import answers
from tasks.kube import Kube

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

BUCKET, PREFIX = "models", "tiny-llama/"
SECRET = "model-source"  # noqa: S105 - the name of a Secret
HUB_MODEL = "warmpath/tiny-llama"


@dataclass(frozen=True, slots=True)
class Stores:
    s3_url: str
    hub_url: str
    credentials: s3.Credentials

    def client(self) -> S3Client:
        keys = self.credentials
        client: S3Client = boto3.client(
            "s3",
            endpoint_url=self.s3_url,
            region_name="us-east-1",
            aws_access_key_id=keys.access_key,
            aws_secret_access_key=keys.secret_key,
            config=Config(s3={"addressing_style": "path"}),
        )
        return client


def start(home: Home) -> Stores:
    """Start both servers; returns once they answer."""
    s3_port, hub_port = home.port("s3", 20080), home.port("hub", 20081)
    s3_url, hub_url = f"http://127.0.0.1:{s3_port}", f"http://127.0.0.1:{hub_port}"
    hub_dir = home.root / "hub"
    (hub_dir / HUB_MODEL).mkdir(parents=True, exist_ok=True)
    wanted = (
        Service(
            "s3",
            (sys.executable, "-m", "infra.local.s3", "--dir", str(home.root / "s3"), "--port", str(s3_port)),
            is_ready=lambda: answers(f"{s3_url}/healthz"),
            stop_s=2.0,
        ),
        Service(
            "hub",
            (sys.executable, "-m", "infra.local.hub", "--port", str(hub_port), "--dir", str(hub_dir)),
            is_ready=lambda: answers(f"{hub_url}/healthz"),
        ),
    )
    credentials = s3.credentials(home.root / "s3")
    for service in wanted:
        processes.start(home, service)
    for service in wanted:
        processes.wait_ready(home, service)
    return Stores(s3_url, hub_url, credentials)


def upload(stores: Stores, directory: Path, advance: Callable[[int], None], only: Path | None = None) -> None:
    """Put the model's files (or one of them) into the bucket; `advance` gets bytes as they go."""
    client = stores.client()
    if BUCKET not in (bucket["Name"] for bucket in client.list_buckets()["Buckets"]):
        client.create_bucket(Bucket=BUCKET)
    for path in [only] if only else sorted(directory.iterdir()):
        config = TransferConfig(multipart_threshold=64 << 20, multipart_chunksize=64 << 20, max_concurrency=2)
        # With its full-object checksum S3 can tell later what the bytes were.
        extra = {"ChecksumAlgorithm": "CRC64NVME"}
        client.upload_file(str(path), BUCKET, PREFIX + path.name, Callback=advance, Config=config, ExtraArgs=extra)


@contextmanager
def upload_bar(out: Console, total_bytes: int) -> Iterator[Callable[[int], None]]:
    """A progress bar for the block; it gives what to call with bytes as they go."""
    columns = (TextColumn("  upload"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=out) as progress:
        task = progress.add_task("upload", total=total_bytes)
        yield lambda done: progress.advance(task, done)


def keep_credentials(kube: Kube, stores: Stores) -> None:
    """The Secret that examples/endpoint.yaml names: read by the flow and by node Jobs, and nowhere else."""
    kube.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": SECRET, "namespace": "default"},
            "stringData": stores.credentials.environment(),
        }
    )
