"""How Warmpath speaks to S3 and to stores like it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import boto3
from botocore import UNSIGNED
from botocore.config import Config

from tasks.plan.types import Source

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

DEFAULT_REGION = "us-east-1"


def s3_client(source: Source, credentials: Mapping[str, str] | None = None) -> S3Client:
    """A client for `source`. Without `credentials` boto3's chain decides; with none anywhere it is anonymous."""
    given = credentials or {}
    session = boto3.Session(
        aws_access_key_id=given.get("AWS_ACCESS_KEY_ID"),
        aws_secret_access_key=given.get("AWS_SECRET_ACCESS_KEY"),
        aws_session_token=given.get("AWS_SESSION_TOKEN"),
        region_name=source.region or None,
    )
    config = Config(
        signature_version=UNSIGNED if session.get_credentials() is None else "s3v4",
        s3={"addressing_style": source.addressing_style},  # type: ignore[arg-type]  # checked where it is parsed
        connect_timeout=10,
        read_timeout=30,
        retries={"mode": "standard", "max_attempts": 3},
        # Stores like S3 refuse the checksums that botocore adds by itself.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        max_pool_connections=32,
    )
    client: S3Client = session.client(
        "s3",
        endpoint_url=source.endpoint_url or None,
        region_name=session.region_name or DEFAULT_REGION,
        config=config,
    )
    return client
