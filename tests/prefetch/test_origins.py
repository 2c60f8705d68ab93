"""Sources: every range bound to the pinned content, and credentials given to nobody else."""

from __future__ import annotations

import pytest

from tasks.plan.types import Manifest, ModelFile, Source, SourceKind
from tasks.prefetch.errors import Hiccup, PrefetchError
from tasks.prefetch.origins import open_origin, s3_client
from tasks.prefetch.refusals import retry_after_s


@pytest.fixture
def cdn(origin):
    """The same server under another name: what a redirect to a content network looks like."""
    origin.cdn = origin.url.replace("127.0.0.1", "localhost")
    return origin


def file_of(manifest, path):
    return next(file for file in manifest.files if file.path == path)


def test_the_token_is_given_to_the_hub_and_not_to_where_it_redirects(node, cdn, hub, read):
    assert node.fill(hub)[0] == 0
    assert read(node.tree(hub)) == cdn.files
    by_host = {True: set(), False: set()}
    for head in cdn.heads:
        by_host["/resolve/" in head["path"]].add(head.get("Authorization"))
    assert by_host == {True: {"Bearer planted-token"}, False: {None}}


def test_the_hub_is_asked_once_per_file_and_worker_not_once_per_range(node, cdn, hub):
    """Pain 11: hubs count requests."""
    node.fill(hub, "--connections", 1)
    asked = [head["path"] for head in cdn.heads if "/resolve/" in head["path"]]
    assert len(asked) == len(set(asked)) == len([file for file in hub.files if file.size_bytes])


def test_an_address_of_a_content_network_that_expired_is_asked_for_again(node, cdn, hub, read):
    cdn.faults["a.safetensors"] = ["", "403", ""]
    status, _ = node.fill(hub, "--connections", 1)
    assert status == 0
    assert read(node.tree(hub)) == cdn.files
    asked = [head["path"] for head in cdn.heads if "/resolve/" in head["path"] and "a.safetensors" in head["path"]]
    assert len(asked) == 2


def test_every_range_of_an_object_carries_its_pin(node, origin, manifest_of):
    """Pain 6."""
    manifest = manifest_of["s3"](origin)
    node.fill(manifest)
    for head in origin.heads:
        path = head["path"].partition("?")[0].removeprefix("/bucket/m/")
        assert head["If-Match"] == f'"{origin.etag(path)}"'
        assert "X-Amz-Signature=" in head["path"]


def test_a_version_is_part_of_the_signed_address(origin, monkeypatch):
    source = Source(SourceKind.S3, "s3://bucket/m/", endpoint_url=origin.url, addressing_style="path")
    file = ModelFile("config.json", 22, pin=f"version:v/1;etag:{origin.etag('config.json')}")
    session = open_origin(Manifest(source, "r", (file,), "sha256:x")).session()
    body = memoryview(bytearray(22))
    session.open(file, 0, 22).read_into(body)
    session.close()
    assert bytes(body) == origin.files["config.json"]
    assert "versionId=v%2F1" in origin.heads[-1]["path"]


@pytest.mark.parametrize(("style", "host"), [("path", "s3.test"), ("virtual", "bucket.s3.test")])
def test_both_addressing_styles_are_possible(style, host):
    """Pain 15: some stores want the bucket in the host name, others in the path."""
    client = s3_client(
        Source(
            SourceKind.S3, "s3://bucket/m/", endpoint_url="http://s3.test", addressing_style=style, region="eu-west-1"
        )
    )
    assert f"//{host}/" in client.generate_presigned_url("get_object", Params={"Bucket": "bucket", "Key": "k"})


def test_without_credentials_requests_are_anonymous(monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    client = s3_client(Source(SourceKind.S3, "s3://bucket/m/", endpoint_url="http://s3.test", addressing_style="path"))
    url = client.generate_presigned_url("get_object", Params={"Bucket": "bucket", "Key": "k"})
    assert url == "http://s3.test/bucket/k"


def test_paths_with_odd_characters_arrive_as_they_are(node, origin, manifest_of, read):
    """Pain 10: a path is not mangled on its way."""
    origin.files = {"a b/c+d#é%20?.json": b"odd"}
    for kind in ("hub", "s3"):
        manifest = manifest_of[kind](origin)
        assert node.fill(manifest)[0] == 0
        assert read(node.tree(manifest)) == origin.files


def test_a_server_that_ignores_ranges_is_not_believed(origin, s3):
    file = file_of(s3, "a.safetensors")
    session = open_origin(s3).session()
    origin.faults["a.safetensors"] = ["whole"]
    with pytest.raises(Hiccup, match="asked for bytes 10-19"):
        session.open(file, 10, 20)
    session.close()


def test_another_commit_than_the_pinned_one_is_refused(origin, hub):
    file = file_of(hub, "config.json")
    other = ModelFile(file.path, file.size_bytes, pin="commit:other;oid:x")
    session = open_origin(hub).session()
    with pytest.raises(PrefetchError, match="answers with commit") as caught:
        session.open(other, 0, file.size_bytes)
    assert caught.value.reason == "SourceChanged"
    session.close()


def test_errors_name_no_address(origin, s3):
    """A presigned address is a credential."""
    origin.faults[""] = ["403"]
    session = open_origin(s3).session()
    with pytest.raises(PrefetchError) as caught:
        session.open(file_of(s3, "config.json"), 0, 22)
    assert "X-Amz" not in str(caught.value)
    session.close()


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"ratelimit": '"api";r=0;t=55'}, 55.0),
        ({"ratelimit": '"api";r=12;t=55'}, None),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({}, None),
    ],
)
def test_how_long_to_wait_is_read_from_either_header(headers, seconds):
    """Pain 12."""
    assert retry_after_s(headers) == seconds
