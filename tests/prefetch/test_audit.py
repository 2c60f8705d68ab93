"""audit and evict: what is on a disk is proven again, and what goes leaves nothing of others."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from tasks.prefetch import audit as audit_module
from tasks.prefetch.store import Store


def states(report):
    return {entry["digest"]: (entry["state"], entry["reason"]) for entry in report["entries"]}


def overwrite(path, body, *, keep_time=True):
    """Change a file in place, as a program gone wrong would."""
    found = path.stat()
    path.chmod(0o644)
    path.write_bytes(body)
    path.chmod(0o444)
    if keep_time:
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def test_an_audit_of_a_node_without_store_reports_its_disk_and_makes_nothing(node):
    status, report = node.run("audit")
    assert status == 0
    assert report["entries"] == []
    assert report["capacity_bytes"] > report["free_bytes"] > 0
    assert not node.root.exists()


def test_an_audit_lists_what_is_proven(node, s3, hub):
    node.fill(s3)
    node.fill(hub)
    report = node.run("audit", "--full", "--capacity-bytes", 10_000_000)[1]
    assert states(report) == {s3.digest: ("Ready", ""), hub.digest: ("Ready", "")}
    assert [entry["size_bytes"] for entry in report["entries"]] == [s3.size_bytes] * 2
    assert report["capacity_bytes"] == 10_000_000
    assert report["used_bytes"] == 10_000_000 - report["free_bytes"]
    # Each revision once: a blob and its names in trees are one file.
    assert 2 * s3.size_bytes < report["used_bytes"] < 2.5 * s3.size_bytes
    assert (report["filesystem_id"], report["boot_id"]) == (
        json.loads((node.root / "LAYOUT").read_text())["filesystem_id"],
        report["boot_id"],
    )


@pytest.mark.parametrize("damage", ["truncated", "removed", "replaced by a link", "touched and changed", "no manifest"])
def test_a_copy_that_fails_is_told_as_suspect_and_never_served_again(node, origin, s3, read, damage):
    """Pains 1, 23 and 25: a quick audit sees it, takes it away, and the next fill makes it right."""
    node.fill(s3)
    path, whole = node.tree(s3) / "a.safetensors", origin.files["a.safetensors"]
    match damage:
        case "truncated":
            overwrite(path, whole[:-1])
        case "removed":
            path.unlink()
        case "replaced by a link":
            path.unlink()
            path.symlink_to("/etc/hostname")
        case "touched and changed":
            overwrite(path, bytes(len(whole)), keep_time=False)
        case "no manifest":
            (node.tree(s3).parent / "manifest.json").unlink()
    assert states(node.run("audit")[1]) == {s3.digest: ("Suspect", "IntegrityMismatch")}
    assert node.trees() == node.leftovers() == []
    assert states(node.run("audit")[1]) == {}
    assert node.fill(s3)[0] == 0
    assert read(node.tree(s3)) == origin.files


def test_a_flipped_bit_that_left_no_trace_is_found_by_a_full_audit(node, origin, s3, read):
    node.fill(s3)
    whole = bytearray(origin.files["a.safetensors"])
    whole[70_000] ^= 1
    overwrite(node.tree(s3) / "a.safetensors", whole)
    assert states(node.run("audit")[1]) == {s3.digest: ("Ready", "")}
    assert states(node.run("audit", "--full")[1]) == {s3.digest: ("Suspect", "IntegrityMismatch")}
    assert node.fill(s3)[0] == 0
    assert read(node.tree(s3)) == origin.files


def test_a_file_that_was_only_touched_is_hashed_once_and_stays(node, s3, monkeypatch):
    node.fill(s3)
    os.utime(node.tree(s3) / "a.safetensors")
    assert states(node.run("audit")[1]) == {s3.digest: ("Ready", "")}
    monkeypatch.setattr("tasks.prefetch.trees.chunk_digests", None)
    assert states(node.run("audit")[1]) == {s3.digest: ("Ready", "")}


def test_a_store_that_was_copied_to_another_disk_is_proven_anew(node, s3, monkeypatch):
    """Pains 23 and 24: what was proven on another file system does not count here, whatever the sizes say."""
    node.fill(s3)
    monkeypatch.setattr(audit_module, "filesystem_id", lambda _: "another")
    whole = (node.tree(s3) / "a.safetensors").read_bytes()
    overwrite(node.tree(s3) / "a.safetensors", bytes(len(whole)))
    assert states(node.run("audit")[1]) == {s3.digest: ("Suspect", "IntegrityMismatch")}


def test_a_wiped_disk_has_no_entries(node, s3):
    """Pain 24."""
    node.fill(s3)
    shutil.rmtree(node.root)
    assert states(node.run("audit")[1]) == {}


def test_a_store_of_a_newer_program_is_left_alone(node, s3):
    node.fill(s3)
    (node.root / "LAYOUT").write_text('{"version":2}')
    status, report = node.run("audit")
    assert (status, report["reason"]) == (2, "LayoutMismatch")
    assert len(node.trees()) == 1


def test_a_report_too_long_for_a_termination_message_is_left_to_the_log(node, s3, monkeypatch, tmp_path):
    monkeypatch.setattr("tasks.prefetch.report.MOST_BYTES", 10)
    node.fill  # noqa: B018
    from tasks.prefetch.__main__ import main

    assert main(["audit", "--root", str(node.root), "--report", str(tmp_path / "report")]) == 0
    assert (tmp_path / "report").read_text() == ""
    assert json.loads(node.capsys.readouterr().out)["event"] == "report"


def test_evicting_frees_the_disk_and_can_be_repeated(node, s3):
    node.fill(s3)
    for _ in range(2):
        status, report = node.run("evict", "--digest", s3.digest)
        assert (status, report["outcome"], report["digest"]) == (0, "Ready", s3.digest)
        assert node.trees() == node.leftovers() == []
        assert list(node.root.glob("blobs/*/*/*")) == []


def test_evicting_leaves_what_other_revisions_share(node, origin, manifest_of, read):
    old = manifest_of["hub"](origin)
    node.fill(old)
    origin.files["config.json"] = b"{}"
    new = manifest_of["hub"](origin)
    node.fill(new)
    node.run("evict", "--digest", old.digest)
    assert states(node.run("audit", "--full")[1]) == {new.digest: ("Ready", "")}
    assert read(node.tree(new)) == origin.files
    assert len(list(node.root.glob("blobs/*/*/*"))) == len(new.files)


def test_evicting_takes_an_unfinished_download_too(node, origin, s3):
    origin.faults["a.safetensors"] = ["code:404:NoSuchKey"] * 9
    node.fill(s3)
    assert node.leftovers()
    node.run("evict", "--digest", s3.digest)
    assert node.leftovers() == []


def test_readers_of_an_evicted_revision_keep_what_they_opened(node, origin, s3):
    """Pain 39: deletion under a running engine takes no byte from what it has open."""
    node.fill(s3)
    with (node.tree(s3) / "a.safetensors").open("rb") as held:
        node.run("evict", "--digest", s3.digest)
        assert held.read() == origin.files["a.safetensors"]


@pytest.mark.parametrize("digest", ["", "sha256:abc", "sha256:../../etc", "../trees"])
def test_what_is_no_digest_is_never_a_path(node, s3, digest):
    """Pain 20."""
    node.fill(s3)
    status, report = node.run("evict", "--digest", digest)
    assert (status, report["outcome"]) == (2, "Failed")
    assert len(node.trees()) == 1


def test_trash_of_a_killed_program_is_emptied(node, s3):
    node.fill(s3)
    (node.root / "trash" / "left" / "files").mkdir(parents=True)
    node.run("audit")
    assert list(Store(node.root).trash.iterdir()) == []
