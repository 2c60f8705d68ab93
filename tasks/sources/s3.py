"""S3: every object below a prefix, each pinned to its version, or to its ETag in a bucket without versions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError

from tasks.plan.types import ModelFile, Source
from tasks.prefetch.refusals import BAD_CREDENTIALS, THROTTLES, retry_after_s
from tasks.prefetch.s3 import s3_client
from tasks.sources.errors import SourceError
from tasks.sources.selection import select

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client
    from mypy_boto3_s3.type_defs import HeadObjectOutputTypeDef

PARALLEL_HEADS = 16
REFUSALS = BAD_CREDENTIALS | {"AccessDenied", "401", "403"}


@dataclass(frozen=True, slots=True)
class Listed:
    key: str
    size_bytes: int
    etag: str


def files_of(source: Source, credentials: Mapping[str, str] | None) -> list[ModelFile]:
    """The model's files as they are now; SourceError when that cannot be told."""
    bucket, prefix = location(source)
    with _translated(source):
        client = s3_client(source, credentials)
        objects = {item.key.removeprefix(prefix): item for item in _objects(client, bucket, prefix)}
        if not objects:
            raise _empty(client, source, bucket, prefix)
        wanted = [objects[path] for path in select(source, objects)]
        with ThreadPoolExecutor(PARALLEL_HEADS, thread_name_prefix="s3-head") as pool:
            return list(pool.map(lambda item: _pin(client, source, bucket, prefix, item), wanted))


def location(source: Source) -> tuple[str, str]:
    """(bucket, prefix ending with "/"): `m-v1` must never pick up `m-v10/`."""
    bucket, _, prefix = source.uri.removeprefix("s3://").partition("/")
    prefix = prefix.strip("/")
    if not source.uri.startswith("s3://") or not bucket or not prefix:
        raise SourceError(
            "NotFound",
            f"{source.uri!r} names no {'prefix in the bucket' if bucket else 'bucket'}.",
            "Give the model its own prefix, as in s3://bucket/models/llama/.",
        )
    return bucket, f"{prefix}/"


def _objects(client: S3Client, bucket: str, prefix: str) -> Iterator[Listed]:
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
        for item in page.get("Contents", ()):
            # Consoles write "directories" as empty objects whose key ends with "/".
            if not item["Key"].endswith("/"):
                yield Listed(item["Key"], item["Size"], item["ETag"])


def _pin(client: S3Client, source: Source, bucket: str, prefix: str, item: Listed) -> ModelFile:
    try:
        head = client.head_object(Bucket=bucket, Key=item.key, ChecksumMode="ENABLED")
    except ClientError as error:
        if _code(error) in {"404", "NoSuchKey"}:
            raise _changed(source, item.key) from error
        raise
    if head["ETag"] != item.etag or head["ContentLength"] != item.size_bytes:
        raise _changed(source, item.key)
    return ModelFile(
        path=item.key.removeprefix(prefix),
        size_bytes=item.size_bytes,
        pin=_pin_text(head),
        # CRC64NVME is of the whole object; some stores leave the type out.
        crc64nvme="" if head.get("ChecksumType") == "COMPOSITE" else head.get("ChecksumCRC64NVME", ""),
    )


def _pin_text(head: HeadObjectOutputTypeDef) -> str:
    etag = f"etag:{head['ETag'].strip(chr(34))}"
    version = head.get("VersionId", "")
    # "null" is the one version that a later upload overwrites in place.
    return f"version:{version};{etag}" if version not in {"", "null"} else etag


def _changed(source: Source, key: str) -> SourceError:
    return SourceError(
        "SourceChanged",
        f"{key!r} of {source.uri} changed while it was listed.",
        "Wait until the upload is done, and upload new weights under a new prefix.",
    )


def _empty(client: S3Client, source: Source, bucket: str, prefix: str) -> SourceError:
    page = client.list_objects_v2(Bucket=bucket, Prefix=prefix.rstrip("/"), Delimiter="/", MaxKeys=5)
    near = [entry["Prefix"] for entry in page.get("CommonPrefixes", ())] + [o["Key"] for o in page.get("Contents", ())]
    begins = f"; what begins like it: {', '.join(near)}" if near else ""
    return SourceError(
        "NotFound",
        f"{source.uri} holds no object{begins}.",
        "Check the prefix (it ends at a '/') and that the upload is done.",
    )


@contextmanager
def _translated(source: Source) -> Iterator[None]:
    """botocore's errors as ours. Their text names no key, but the URL of a request may hold a signature: not quoted."""
    where = f"{source.uri} at {source.endpoint_url or 'AWS'}"
    try:
        yield
    except (NoCredentialsError, PartialCredentialsError) as error:
        raise SourceError(
            "AuthFailed", f"There are no usable credentials for {where}.", "Give a Secret or a role that may read it."
        ) from error
    except ClientError as error:
        raise _refusal(error, where) from error
    except BotoCoreError as error:
        raise SourceError(
            "Network", f"{where} did not answer ({type(error).__name__}).", "Check the endpoint and the network."
        ) from error


def _refusal(error: ClientError, where: str) -> SourceError:
    code, status = _code(error), error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code in THROTTLES or status in {429, 503}:
        headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        return SourceError(
            "RateLimited",
            f"{where} asks for fewer requests ({code}).",
            "Try again later.",
            retry_after_s(headers),
        )
    if code == "NoSuchBucket":
        return SourceError("NotFound", f"The bucket of {where} does not exist.", "Check its name and the region.")
    if code in REFUSALS or status in {401, 403}:
        return SourceError(
            "AuthFailed",
            f"{where} refuses us: {code} on {error.operation_name}.",
            "The credentials need s3:ListBucket and s3:GetObject (and s3:GetObjectVersion) there.",
        )
    if status >= 500:
        return SourceError("Network", f"{where} fails with HTTP {status} ({code}).", "Try again later.")
    return SourceError(
        "NotFound", f"{where} answers {code} (HTTP {status}).", "Check bucket, region and addressing style."
    )


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
