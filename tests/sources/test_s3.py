"""S3 sources against a real S3 server: signatures, versions and checksums are its own."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from boto3.s3.transfer import TransferConfig
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import ClientError
from botocore.stub import Stubber

from tasks.plan.types import Formats, ModelFile, Source, SourceKind
from tasks.sources import SourceError, resolve, s3

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

pytestmark = pytest.mark.local

Make = Callable[..., Source]


def put(owner: S3Client, bucket: str, files: dict[str, bytes]) -> None:
    for key, body in files.items():
        owner.put_object(Bucket=bucket, Key=key, Body=body, ChecksumAlgorithm="CRC64NVME")


def by_path(files: tuple[ModelFile, ...]) -> dict[str, ModelFile]:
    return {file.path: file for file in files}


def refuse(source: Source, keys: dict[str, str] | None) -> SourceError:
    with pytest.raises(SourceError) as refused:
        resolve(source, keys)
    return refused.value


@pytest.mark.parametrize("bucket", ["versioned", "plain"])
def test_a_pin_gives_exactly_the_object_that_was_listed(
    owner: S3Client, s3_source: Make, s3_keys: dict[str, str], bucket: str
) -> None:
    """Pain 6: an object replaced during a download must be noticed, or its old version read."""
    put(owner, bucket, {"pin/config.json": b"{}", "pin/model.safetensors": b"old weights"})
    file = by_path(resolve(s3_source(f"s3://{bucket}/pin"), s3_keys).files)["model.safetensors"]
    put(owner, bucket, {"pin/model.safetensors": b"new weights"})

    pin = dict(part.split(":", 1) for part in file.pin.split(";"))
    assert file.size_bytes == len(b"old weights")
    if bucket == "versioned":
        got = owner.get_object(Bucket=bucket, Key="pin/model.safetensors", VersionId=pin["version"])
        assert got["Body"].read() == b"old weights"
    else:
        assert "version" not in pin
        with pytest.raises(ClientError, match="PreconditionFailed"):
            owner.get_object(Bucket=bucket, Key="pin/model.safetensors", IfMatch=f'"{pin["etag"]}"')


@pytest.mark.parametrize("bucket", ["versioned", "plain"])
def test_a_changed_object_gives_another_revision_and_an_unchanged_one_the_same(
    owner: S3Client, s3_source: Make, s3_keys: dict[str, str], bucket: str
) -> None:
    put(owner, bucket, {"again/a.safetensors": b"a", "again/b.safetensors": b"b"})
    first, second = (resolve(s3_source(f"s3://{bucket}/again/"), s3_keys) for _ in range(2))
    put(owner, bucket, {"again/b.safetensors": b"c"})
    third = resolve(s3_source(f"s3://{bucket}/again/"), s3_keys)
    assert first == second
    assert first.revision == first.digest.removeprefix("sha256:")[:12]
    assert third.digest != first.digest
    assert by_path(third.files)["a.safetensors"] == by_path(first.files)["a.safetensors"]


def test_a_prefix_ends_at_a_slash(owner: S3Client, s3_source: Make, s3_keys: dict[str, str]) -> None:
    """Pain 10: `m-v1` picked up its sibling `m-v10`."""
    put(owner, "plain", {"m-v1/model.gguf": b"1", "m-v10/model.gguf": b"10", "m-v1.gguf": b"x", "m-v1/": b""})
    put(owner, "plain", {"m-v1/sub/": b"", "m-v1/sub/x.safetensors": b"2"})
    for uri in ("s3://plain/m-v1", "s3://plain/m-v1/"):
        assert [file.path for file in resolve(s3_source(uri), s3_keys).files] == ["model.gguf", "sub/x.safetensors"]


def test_a_listing_of_several_pages_is_read_to_its_end(
    owner: S3Client, s3_source: Make, s3_keys: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"pages/model-{index:02}.safetensors" for index in range(7)]
    put(owner, "plain", dict.fromkeys(names, b"w"))
    original = s3.s3_client

    def small_pages(source: Source, credentials: Any) -> S3Client:
        client = original(source, credentials)
        client.meta.events.register(
            "provide-client-params.s3.ListObjectsV2", lambda params, **_: {**params, "MaxKeys": 3}
        )
        return client

    monkeypatch.setattr(s3, "s3_client", small_pages)
    assert len(resolve(s3_source("s3://plain/pages/"), s3_keys).files) == 7


def test_the_stored_checksum_of_the_whole_object_comes_along_also_of_a_multipart_upload(
    owner: S3Client, s3_source: Make, s3_keys: dict[str, str]
) -> None:
    """Pain 7: multi-range downloads without a checksum of the whole object."""
    crt = pytest.importorskip("awscrt.checksums")
    body = b"a" * (5 << 20) + b"tail"
    owner.upload_fileobj(
        io.BytesIO(body),
        "plain",
        "crc/model.safetensors",
        ExtraArgs={"ChecksumAlgorithm": "CRC64NVME"},
        Config=TransferConfig(multipart_threshold=5 << 20, multipart_chunksize=5 << 20),
    )
    (file,) = resolve(s3_source("s3://plain/crc/"), s3_keys).files
    expected = crt.crc64nvme(body).to_bytes(8, "big")
    assert base64.b64decode(file.crc64nvme) == expected


def test_what_is_missing_is_told_apart(owner: S3Client, s3_source: Make, s3_keys: dict[str, str]) -> None:
    put(owner, "plain", {"llama-70b/model.gguf": b"1"})
    assert refuse(s3_source("s3://no-such-bucket/m/"), s3_keys).reason == "NotFound"
    nearly = refuse(s3_source("s3://plain/llama"), s3_keys)
    assert nearly.reason == "NotFound"
    assert "llama-70b/" in nearly.message


@pytest.mark.parametrize("uri", ["s3://", "s3:///m", "s3://bucket", "s3://bucket/", "s3://bucket//", "bucket/m"])
def test_a_source_without_bucket_or_prefix_is_refused_before_anything_is_asked(uri: str) -> None:
    assert "names no" in refuse(Source(SourceKind.S3, uri, endpoint_url="http://127.0.0.1:1"), None).message


def test_wrong_and_absent_keys_are_auth_failures_that_show_no_key(
    owner: S3Client, s3_source: Make, s3_keys: dict[str, str]
) -> None:
    """Pain 14: any failure reported as the same one."""
    source = s3_source("s3://plain/any/")
    for keys in (None, {**s3_keys, "AWS_SECRET_ACCESS_KEY": "planted"}, {**s3_keys, "AWS_ACCESS_KEY_ID": "nobody"}):
        refused = refuse(source, keys)
        assert refused.reason == "AuthFailed"
        assert not refused.retryable
        assert "planted" not in f"{refused!r} {refused}"
        assert s3_keys["AWS_SECRET_ACCESS_KEY"] not in f"{refused!r} {refused}"


def test_credentials_of_the_environment_serve_when_none_are_given(
    owner: S3Client, s3_source: Make, s3_keys: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(owner, "plain", {"env/model.gguf": b"1"})
    for name, value in s3_keys.items():
        monkeypatch.setenv(name, value)
    assert resolve(s3_source("s3://plain/env/")).files


def test_an_endpoint_that_is_down_is_a_network_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.sources.ATTEMPTS", 1)
    source = Source(SourceKind.S3, "s3://bucket/m/", endpoint_url="http://127.0.0.1:1")
    refused = refuse(source, {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"})
    assert (refused.reason, refused.retryable) == ("Network", True)


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Stubber:
    """A client that answers as it is told, for what a real server does only under load."""
    client = boto3.client("s3", region_name="us-east-1", config=Config(signature_version=UNSIGNED))
    monkeypatch.setattr(s3, "s3_client", lambda *_: client)
    monkeypatch.setattr("tasks.sources.ATTEMPTS", 1)
    return Stubber(client)


STUBBED = Source(SourceKind.S3, "s3://bucket/m/")
LISTED = {"Key": "m/x.safetensors", "Size": 1, "ETag": '"one"'}


def test_a_store_that_throttles_is_rate_limited_with_the_time_it_asks_for(stub: Stubber) -> None:
    stub.add_client_error(
        "list_objects_v2", "SlowDown", http_status_code=503, response_meta={"HTTPHeaders": {"retry-after": "7"}}
    )
    with stub:
        refused = refuse(STUBBED, None)
    assert (refused.reason, refused.retry_after_s) == ("RateLimited", 7.0)


@pytest.mark.parametrize("head", [{"ETag": '"two"', "ContentLength": 1}, {"ETag": '"one"', "ContentLength": 2}, None])
def test_an_object_that_changes_while_it_is_listed_is_noticed(stub: Stubber, head: dict[str, Any] | None) -> None:
    stub.add_response("list_objects_v2", {"Contents": [LISTED]})
    if head is None:
        stub.add_client_error("head_object", "404", http_status_code=404)
    else:
        stub.add_response("head_object", head)
    with stub:
        refused = refuse(STUBBED, None)
    assert (refused.reason, refused.retryable) == ("SourceChanged", True)


@pytest.mark.parametrize(
    ("head", "pin", "crc"),
    [
        ({"VersionId": "null"}, "etag:one", ""),
        ({"VersionId": "v2"}, "version:v2;etag:one", ""),
        ({"ChecksumCRC64NVME": "AAAAAAAAAAA=", "ChecksumType": "FULL_OBJECT"}, "etag:one", "AAAAAAAAAAA="),
        ({"ChecksumCRC64NVME": "AAAAAAAAAAA=-2", "ChecksumType": "COMPOSITE"}, "etag:one", ""),
    ],
)
def test_a_pin_holds_only_what_binds_content(stub: Stubber, head: dict[str, Any], pin: str, crc: str) -> None:
    """The version "null" of a suspended bucket is overwritten in place."""
    stub.add_response("list_objects_v2", {"Contents": [LISTED]})
    stub.add_response("head_object", {"ETag": '"one"', "ContentLength": 1, **head})
    with stub:
        (file,) = resolve(STUBBED).files
    assert (file.pin, file.crc64nvme) == (pin, crc)


def test_directories_that_consoles_write_as_empty_objects_are_no_files(stub: Stubber) -> None:
    """`Any` keeps every file, so nothing else would drop them."""
    folders = [{**LISTED, "Key": key, "Size": 0} for key in ("m/", "m/sub/")]
    stub.add_response("list_objects_v2", {"Contents": [*folders, LISTED]})
    stub.add_response("head_object", {"ETag": '"one"', "ContentLength": 1})
    with stub:
        files = resolve(Source(SourceKind.S3, "s3://bucket/m/", formats=Formats.ANY)).files
    assert [file.path for file in files] == ["x.safetensors"]


def test_another_revision_than_the_present_one_is_refused(stub: Stubber) -> None:
    stub.add_response("list_objects_v2", {"Contents": [LISTED]})
    stub.add_response("head_object", {"ETag": '"one"', "ContentLength": 1})
    with stub:
        refused = refuse(Source(SourceKind.S3, "s3://bucket/m/", revision="cafe"), None)
    assert refused.reason == "RevisionNotFound"


def test_a_path_that_could_leave_the_model_is_refused(stub: Stubber) -> None:
    """Pain 20: path traversal from file names of the source."""
    stub.add_response("list_objects_v2", {"Contents": [{**LISTED, "Key": "m/../../etc/x.safetensors"}]})
    stub.add_response("head_object", {"ETag": '"one"', "ContentLength": 1})
    with stub:
        refused = refuse(STUBBED, None)
    assert refused.reason == "UnsupportedFormat"
    assert "../../etc/x.safetensors" in refused.message
