"""S3 and stores like it: boto3 signs, the bytes come through our own sockets."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tasks.plan.pins import pins_of
from tasks.plan.types import ModelFile, Source
from tasks.prefetch.errors import PrefetchError
from tasks.prefetch.http import Headers, Response
from tasks.prefetch.refusals import s3_refusal

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

DEFAULT_REGION = "us-east-1"
SIGNED_FOR_S = 900
# Temporary credentials may end before their signature does, so an address is signed again early.
FRESH_S = 60.0


def s3_client(source: Source, credentials: Mapping[str, str] | None = None) -> S3Client:
    """A client for `source`. Without `credentials` boto3's chain decides; with none anywhere it is anonymous."""
    import boto3
    from botocore import UNSIGNED
    from botocore.config import Config

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


class S3Addresses:
    """Presigned addresses of pinned objects, signed again before they age."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._bucket, _, prefix = source.uri.removeprefix("s3://").partition("/")
        self._prefix = f"{prefix.strip('/')}/"
        self._client = s3_client(source)
        self._signed: dict[str, tuple[float, str]] = {}
        self._lock = threading.Lock()

    def locate(self, file: ModelFile) -> tuple[str, Headers]:
        pins = pins_of(file)
        # Not part of the signature; the store honours it all the same.
        headers = {"If-Match": f'"{pins["etag"]}"'} if pins.get("etag") else {}
        with self._lock:
            signed_at, url = self._signed.get(file.path, (0.0, ""))
            if not url or time.monotonic() - signed_at > FRESH_S:
                url = self._sign(file, pins.get("version", ""))
                self._signed[file.path] = (time.monotonic(), url)
        return url, headers

    def check(self, file: ModelFile, response: Response) -> None:
        told, pinned = response.headers.get("etag", "").strip('"'), pins_of(file).get("etag")
        if told and pinned and told != pinned:
            raise PrefetchError(
                "SourceChanged", f"{file.path} of {self._source.uri} was replaced (ETag {told}); roll out again."
            )

    def refusal(self, file: ModelFile, response: Response) -> PrefetchError:
        where = f"{file.path} of {self._source.uri} at {self._source.endpoint_url or 'AWS'}"
        return s3_refusal(where, response)

    def _sign(self, file: ModelFile, version: str) -> str:
        from botocore.exceptions import BotoCoreError

        params = {"Bucket": self._bucket, "Key": self._prefix + file.path}
        if version:
            params["VersionId"] = version
        try:
            return self._client.generate_presigned_url("get_object", Params=params, ExpiresIn=SIGNED_FOR_S)
        except BotoCoreError as error:
            raise PrefetchError(
                "AuthFailed",
                f"The credentials for {self._source.uri} cannot be used ({type(error).__name__}); renew them.",
            ) from error
