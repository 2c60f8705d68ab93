"""link: an engine gets its weights on a warm node and on a cold one."""

from __future__ import annotations

import os

import pytest


@pytest.fixture
def into(tmp_path):
    return tmp_path / "model"


def link(node, manifest, into, *arguments):
    return node.run("link", "--into", into, "--scratch-ok", *arguments, manifest=manifest)


def visible(folder, read):
    return {path: body for path, body in read(folder).items() if not path.startswith(".")}


def test_on_a_warm_node_the_weights_are_links_into_the_tree(node, origin, s3, into, read):
    node.fill(s3)
    origin.heads.clear()
    status, report = link(node, s3, into)
    assert (status, report["outcome"], report["fetched_bytes"]) == (0, "hit", 0)
    assert read(into) == origin.files
    assert (into / "nested/b.safetensors").readlink() == node.tree(s3) / "nested/b.safetensors"
    assert origin.heads == []


@pytest.mark.parametrize("kind", ["hub", "s3"])
def test_on_a_cold_node_the_weights_come_from_the_source(node, origin, manifest_of, into, read, kind):
    """Never worse than no cache: a pod on a cold node starts, and says so."""
    manifest = manifest_of[kind](origin)
    status, report = link(node, manifest, into)
    assert (status, report["outcome"]) == (0, "source")
    assert report["fetched_bytes"] == manifest.size_bytes
    assert visible(into, read) == origin.files
    assert not node.root.exists()


def test_a_restarted_pod_does_not_fetch_again_what_its_directory_has(node, origin, hub, into, read):
    link(node, hub, into)
    origin.asked.clear()
    status, report = link(node, hub, into)
    assert (status, report["fetched_bytes"], report["reused_bytes"]) == (0, 0, hub.size_bytes)
    assert origin.asked == []


def test_a_damaged_tree_is_not_linked(node, origin, hub, into, read):
    """Pain 4: an engine never starts on part of its weights."""
    node.fill(hub)
    path = node.tree(hub) / "a.safetensors"
    path.chmod(0o644)
    path.write_bytes(b"short")
    status, report = link(node, hub, into)
    assert (status, report["outcome"]) == (0, "source")
    assert visible(into, read) == origin.files


def test_a_partial_download_of_the_node_is_not_linked(node, origin, hub, into, read):
    origin.faults["a.safetensors"] = ["404"]
    assert node.fill(hub)[0] == 2
    assert link(node, hub, into)[1]["outcome"] == "source"


def test_links_of_an_earlier_try_are_replaced(node, origin, hub, into, read):
    node.fill(hub)
    link(node, hub, into)
    node.run("evict", "--digest", hub.digest)
    assert link(node, hub, into)[1]["outcome"] == "source"
    assert visible(into, read) == origin.files
    node.fill(hub)
    assert link(node, hub, into)[1]["outcome"] == "hit"
    assert visible(into, read) == origin.files


def test_linking_writes_nothing_into_the_store(node, hub, into):
    node.fill(hub)
    before = {path: os.lstat(path) for path in node.root.rglob("*")}
    link(node, hub, into)
    after = {path: os.lstat(path) for path in node.root.rglob("*")}
    assert {path: (s.st_mtime_ns, s.st_nlink) for path, s in before.items()} == {
        path: (s.st_mtime_ns, s.st_nlink) for path, s in after.items()
    }


def test_without_scratch_a_cold_node_is_told(node, hub, into):
    status, report = node.run("link", "--into", into, manifest=hub)
    assert (status, report["reason"]) == (2, "NotFound")
    assert hub.digest in report["message"]


def test_a_source_that_is_gone_leaves_no_file_an_engine_could_take_for_a_model(node, origin, hub, into, read):
    origin.faults["a.safetensors"] = ["404"]
    assert link(node, hub, into)[0] == 2
    assert "a.safetensors" not in read(into)


def test_a_scratch_that_is_too_small_is_told_and_left_empty(node, origin, hub, into, monkeypatch):
    """Pain 35: a pod that cannot hold its weights says so before the first byte."""

    def full(fd, offset, length):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    status, report = link(node, hub, into)
    assert (status, report["reason"]) == (2, "NoSpace")
    assert list((into / ".warmpath" / "parts").iterdir()) == origin.heads == []
