from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.plan.manifest import (
    InvalidManifest,
    build_manifest,
    check_path,
    diff_manifests,
    manifest_from_json,
    manifest_to_json,
)
from tasks.plan.types import Formats, Manifest, ModelFile, Source, SourceKind

S3 = Source(SourceKind.S3, "s3://models/llama/")
SHA = "sha256:" + "a" * 64
names = st.text(st.sampled_from("abcXYZ019-_. é"), min_size=1, max_size=12).filter(lambda n: n not in (".", ".."))
paths = st.lists(names, min_size=1, max_size=3).map("/".join)
pins = st.text(st.sampled_from("abcdef0123456789"), min_size=1, max_size=16).map("etag:{}".format)
files = st.lists(
    st.builds(ModelFile, paths, st.integers(0, 2**40), st.sampled_from(["", SHA]), pins),
    min_size=1,
    max_size=6,
    unique_by=lambda file: file.path.casefold(),
)


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("", "empty"),
        ("/etc/passwd", "absolute"),
        ("../x", '".." part'),
        ("a/../../x", '".." part'),
        ("a//b", "empty"),
        ("a/./b", '"."'),
        ("a/", "empty"),
        ("a\\b", "backslash"),
        ("a\0b", "control"),
        ("a\nb", "control"),
        ("a\x7fb", "control"),
        ("é" * 128, "255 bytes"),
    ],
)
def test_a_path_that_could_leave_the_model_is_refused_with_the_reason(path: str, why: str) -> None:
    with pytest.raises(InvalidManifest, match=why) as refused:
        check_path(path)
    assert repr(path) in str(refused.value)


@given(st.text(max_size=40))
def test_whatever_is_accepted_stays_below_the_model(path: str) -> None:
    try:
        check_path(path)
    except InvalidManifest:
        return
    assert ".." not in PurePosixPath(path).parts
    assert not PurePosixPath(path).is_absolute()
    assert str(PurePosixPath(path)) == path
    assert path.isprintable() or all(ord(character) >= 32 for character in path)


@given(files)
def test_the_digest_does_not_depend_on_the_order_in_which_files_were_listed(found: list[ModelFile]) -> None:
    assert build_manifest(S3, "", found) == build_manifest(S3, "", list(reversed(found)))


@given(files, st.data())
def test_any_change_of_content_changes_the_digest(found: list[ModelFile], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(found) - 1))
    old = found[index]
    new = data.draw(
        st.sampled_from(
            [
                replace(old, size_bytes=old.size_bytes + 1),
                replace(old, path=f"{old.path}~"),
                replace(old, digest="sha256:" + "b" * 64),
            ]
        )
    )
    other = [*found[:index], new, *found[index + 1 :]]
    assert build_manifest(S3, "", other).digest != build_manifest(S3, "", found).digest


def test_two_folders_whose_files_have_the_same_sizes_and_times_are_two_revisions() -> None:
    found = [ModelFile("a.safetensors", 10, pin="stat:10-1")]
    first, second = (Source(SourceKind.FILE, f"file:///fsx/{name}") for name in ("llama", "qwen"))
    assert build_manifest(first, "", found).digest != build_manifest(second, "", found).digest


def test_a_commit_that_changes_no_file_of_the_model_is_the_same_revision() -> None:
    hub = Source(SourceKind.HUGGINGFACE, "hf://org/model")
    oid = "0" * 40
    old, new = (ModelFile("config.json", 10, pin=f"commit:{commit};oid:{oid}") for commit in ("a" * 40, "b" * 40))
    assert build_manifest(hub, "a" * 40, [old]).digest == build_manifest(hub, "b" * 40, [new]).digest


@given(files, st.sampled_from(SourceKind), st.sampled_from(Formats))
def test_a_manifest_survives_json(found: list[ModelFile], kind: SourceKind, formats: Formats) -> None:
    source = Source(kind, "hf://org/model", "main", "http://hub:1", include=("*.gguf",), formats=formats)
    manifest = build_manifest(source, "c0ffee", found)
    text = manifest_to_json(manifest)
    assert manifest_from_json(text) == manifest
    assert "\n" not in text


def test_an_s3_revision_is_called_by_the_first_characters_of_its_digest() -> None:
    manifest = build_manifest(S3, "", [ModelFile("a", 1, pin="etag:1")])
    assert manifest.digest == f"sha256:{manifest.digest[7:]}"
    assert manifest.revision == manifest.digest[7:19]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda told: told["files"][0].update(size_bytes=2), "it was changed"),
        (lambda told: told["files"][0].update(path="../../etc/passwd"), r'"\.\." part'),
        (lambda told: told["files"][0].update(size_bytes=-1), "size -1"),
        (lambda told: told.update(digest="sha256:0"), "it was changed"),
        (lambda told: told.pop("files"), "not a manifest"),
        (lambda told: told["files"][0].update(mode=777), "not a manifest"),
        (lambda told: told["source"].update(kind="gcs"), "not a manifest"),
        (lambda told: told.update(files=[]), "no file"),
    ],
)
def test_a_manifest_that_was_tampered_with_is_refused(change: Callable[[dict[str, object]], object], why: str) -> None:
    told = json.loads(manifest_to_json(build_manifest(S3, "", [ModelFile("a", 1, pin="etag:1")])))
    change(told)
    with pytest.raises(InvalidManifest, match=why):
        manifest_from_json(json.dumps(told))


@pytest.mark.parametrize("text", ["", "[]", "null", "{", '"x"'])
def test_what_is_no_manifest_at_all_is_refused(text: str) -> None:
    with pytest.raises(InvalidManifest, match="not a manifest"):
        manifest_from_json(text)


@pytest.mark.parametrize(
    ("found", "why"),
    [
        ([], "no file"),
        ([ModelFile("a", 1, pin="p"), ModelFile("a", 1, pin="p")], "a and a are the same file"),
        ([ModelFile("Straße", 1, pin="p"), ModelFile("STRASSE", 1, pin="p")], "folds case"),
        ([ModelFile("a", 1)], "does not bind"),
        ([ModelFile("a", 1, pin="x y")], "does not bind"),
        ([ModelFile("a", 1, digest="md5:1")], "expected sha256"),
    ],
)
def test_files_that_make_no_sound_revision_are_refused(found: list[ModelFile], why: str) -> None:
    with pytest.raises(InvalidManifest, match=why):
        build_manifest(S3, "", found)


def test_only_the_changed_shard_has_to_be_fetched(manifest: Callable[..., Manifest]) -> None:
    old = manifest({"a": (10, "etag:1"), "b": (20, "etag:2"), "c": (5, "etag:3")})
    new = manifest({"a": (10, "etag:1"), "b": (20, "etag:9"), "renamed": (5, "etag:3")})
    difference = diff_manifests(old, new)
    assert (difference.kept_bytes, difference.fetch_bytes, difference.fetch_paths) == (15, 20, ("b",))


@pytest.mark.parametrize(
    "other",
    [
        replace(S3, uri="s3://elsewhere/llama/"),
        replace(S3, endpoint_url="http://minio:9000"),
    ],
)
def test_a_pin_of_another_store_proves_nothing(other: Source) -> None:
    old = build_manifest(other, "", [ModelFile("a", 1, pin="etag:1")])
    new = build_manifest(S3, "", [ModelFile("a", 1, pin="etag:1")])
    assert diff_manifests(old, new).fetch_bytes == 1


def test_a_digest_proves_content_wherever_it_came_from() -> None:
    old = build_manifest(replace(S3, uri="s3://elsewhere/x/"), "", [ModelFile("b", 1, digest=SHA)])
    new = build_manifest(S3, "", [ModelFile("a", 1, digest=SHA)])
    assert diff_manifests(old, new).fetch_bytes == 0


def test_two_mounted_shards_of_one_size_and_time_are_not_taken_for_each_other() -> None:
    mounted = Source(SourceKind.FILE, "file:///fsx/llama")
    old = build_manifest(mounted, "", [ModelFile("shard-1", 5, pin="stat:5-1")])
    new = build_manifest(mounted, "", [ModelFile("shard-2", 5, pin="stat:5-1")])
    assert diff_manifests(old, new).fetch_paths == ("shard-2",)


@given(files, files)
def test_every_byte_is_either_kept_or_fetched(before: list[ModelFile], after: list[ModelFile]) -> None:
    old, new = build_manifest(S3, "", before), build_manifest(S3, "", after)
    difference = diff_manifests(old, new)
    assert difference.kept_bytes + difference.fetch_bytes == new.size_bytes
    assert diff_manifests(new, new).fetch_bytes == 0
    assert diff_manifests(None, new).fetch_bytes == new.size_bytes
