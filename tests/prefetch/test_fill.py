"""fill: from every kind of source to a proven tree, whatever the source does on the way."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from tasks.prefetch import fill as fill_module
from tasks.prefetch import transfer
from tasks.prefetch.journal import read_journal
from tasks.prefetch.store import Store


@pytest.mark.parametrize("kind", ["hub", "s3"])
def test_a_fill_publishes_exactly_the_files_of_the_manifest(node, origin, manifest_of, read, kind):
    """Pains 4 and 5: nobody sees a part of a model, and Ready means all of it."""
    manifest = manifest_of[kind](origin)
    status, report = node.fill(manifest)
    assert status == 0
    assert read(node.tree(manifest)) == origin.files
    assert report["outcome"] == "Ready"
    assert report["digest"] == manifest.digest
    assert report["fetched_bytes"] == report["size_bytes"] == manifest.size_bytes
    assert report["reused_bytes"] == report["unverified_files"] == 0
    assert report["free_bytes"] < report["capacity_bytes"]
    assert report["boot_id"]
    assert node.leftovers() == []


def test_files_are_plain_read_only_hard_links_that_any_pod_may_read(node, s3):
    """Pains 19 and 22: no symbolic links that break across mounts, and no pod's user is kept out."""
    node.fill(s3)
    for file in s3.files:
        found = (node.tree(s3) / file.path).lstat()
        assert stat.S_ISREG(found.st_mode)
        assert stat.S_IMODE(found.st_mode) == 0o444
        assert found.st_nlink == 2
    assert stat.S_IMODE((node.tree(s3) / "nested").stat().st_mode) == 0o755


def test_everything_is_on_the_disk_before_a_revision_gets_its_name(node, hub, monkeypatch):
    """A power cut leaves a whole revision or none."""
    steps = []
    monkeypatch.setattr(os, "fsync", lambda fd: steps.append(Path(f"/proc/self/fd/{fd}").readlink()))
    rename = Path.rename
    monkeypatch.setattr(Path, "rename", lambda one, other: (steps.append((one, other)), rename(one, other))[1])
    node.fill(hub)
    tree = node.tree(hub).parent
    published = next(i for i, step in enumerate(steps) if isinstance(step, tuple) and step[1] == tree)
    partial = steps[published][0].parent
    before = {step for step in steps[:published] if isinstance(step, Path)}
    assert {partial / "parts" / str(index) for index in range(len(hub.files))} <= before
    assert {partial / "tree", partial / "tree" / "files", partial / "tree" / "files" / "nested"} <= before
    assert tree.parent in steps[published:]


def test_a_second_fill_fetches_nothing_and_asks_the_source_nothing(node, origin, s3):
    """Pains 9, 13 and 26: a proven copy stays usable and is not fetched again, also when the source says 401 or 429."""
    node.fill(s3)
    origin.heads.clear()
    origin.faults[""] = ["401"] * 20
    status, report = node.fill(s3)
    assert status == 0
    assert report["fetched_bytes"] == 0
    assert report["reused_bytes"] == s3.size_bytes
    assert origin.heads == []


def test_what_a_program_killed_after_publishing_left_is_cleared(node, hub):
    node.fill(hub)
    (Store(node.root).partial(hub.digest) / "parts").mkdir(parents=True)
    assert node.fill(hub)[1]["fetched_bytes"] == 0
    assert node.leftovers() == []


def test_a_mounted_source_is_copied_and_verified(node, tmp_path, origin, manifest_of, read):
    folder = tmp_path / "fsx"
    for path, body in origin.files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(body)
    manifest = manifest_of["file"](folder)
    assert node.fill(manifest)[0] == 0
    assert read(node.tree(manifest)) == origin.files


def test_a_mounted_file_that_changed_since_it_was_listed_is_refused(node, tmp_path, manifest_of):
    """Pain 6, for mounted sources."""
    folder = tmp_path / "fsx"
    folder.mkdir()
    (folder / "a.safetensors").write_bytes(b"x" * 1000)
    manifest = manifest_of["file"](folder)
    (folder / "a.safetensors").write_bytes(b"y" * 1000)
    os.utime(folder / "a.safetensors", ns=(1, 1))
    status, report = node.fill(manifest)
    assert (status, report["reason"]) == (2, "SourceChanged")
    assert node.trees() == []


@pytest.mark.parametrize("kind", ["hub", "s3"])
@pytest.mark.parametrize("fault", ["truncate", "stall", "503", "429", "500", "whole"])
def test_a_source_that_fails_now_and_then_is_asked_again(node, origin, manifest_of, read, kind, fault):
    """Pains 1, 2, 3, 11, 37: truncated, stalled, throttled and failing answers cost time, never a wrong or no file."""
    origin.faults["a.safetensors"] = [fault, "", fault]
    manifest = manifest_of[kind](origin)
    assert node.fill(manifest)[0] == 0
    assert read(node.tree(manifest)) == origin.files


def test_a_truncated_answer_is_taken_up_where_it_stopped(node, origin, s3, monkeypatch):
    """Pain 3: bytes that came are not fetched again."""
    monkeypatch.setattr(transfer, "PIECE_BYTES", 4096)
    origin.faults["a.safetensors"] = ["truncate"]
    node.fill(s3)
    asked = sorted((start, end) for path, start, end in origin.asked if path == "a.safetensors")
    truncated = [edge for edge in asked if sum(edge[1] == other[1] for other in asked) > 1]
    (first, again) = truncated
    assert again[0] - first[0] >= (first[1] - first[0]) // 2 - 4096


@pytest.mark.parametrize("kind", ["hub", "s3"])
@pytest.mark.parametrize("path", ["a.safetensors", "config.json"])
def test_bytes_that_are_not_what_the_source_says_are_fetched_once_more(node, origin, manifest_of, read, kind, path):
    """Pains 2, 3 and 7: a flipped bit of the same size is seen, in large files and in small ones."""
    origin.faults[path] = ["corrupt"]
    manifest = manifest_of[kind](origin)
    status, report = node.fill(manifest)
    assert status == 0
    assert read(node.tree(manifest)) == origin.files
    assert report["fetched_bytes"] == manifest.size_bytes + len(origin.files[path])


@pytest.mark.parametrize("kind", ["hub", "s3"])
def test_a_source_whose_copy_is_damaged_is_never_published(node, origin, manifest_of, kind):
    origin.faults["a.safetensors"] = ["corrupt"] * 50
    manifest = manifest_of[kind](origin)
    status, report = node.fill(manifest)
    assert (status, report["reason"]) == (1, "IntegrityMismatch")
    assert "a.safetensors" in report["message"]
    assert node.trees() == []
    index = next(i for i, file in enumerate(manifest.files) if file.path == "a.safetensors")
    assert index not in read_journal(Store(node.root).partial(manifest.digest) / "journal", {})[0]


def test_an_object_replaced_during_the_download_is_not_mixed(node, origin, s3):
    """Pain 6: the second range of a replaced object is refused, not appended to the first of the old one."""
    origin.etags["a.safetensors"] = "another"
    status, report = node.fill(s3)
    assert (status, report["reason"]) == (2, "SourceChanged")
    assert "roll out again" in report["message"]
    assert node.trees() == []


def test_an_object_without_etag_check_that_grew_is_seen_by_its_size(node, origin, s3):
    origin.etags["a.safetensors"] = origin.etag("a.safetensors")
    origin.files["a.safetensors"] += b"more"
    assert node.fill(s3)[1]["reason"] == "SourceChanged"


@pytest.mark.parametrize(
    ("kind", "fault", "status", "reason"),
    [
        ("s3", "code:403:AccessDenied", 2, "AuthFailed"),
        ("s3", "code:400:ExpiredToken", 2, "AuthFailed"),
        ("s3", "code:404:NoSuchKey", 2, "NotFound"),
        ("s3", "code:404:NoSuchVersion", 2, "NotFound"),
        ("hub", "code:401:GatedRepo", 2, "GatedRepo"),
        ("hub", "code:403:GatedRepo", 2, "GatedRepo"),
        ("hub", "code:401:RepoNotFound", 2, "NotFound"),
        ("hub", "code:404:RevisionNotFound", 2, "RevisionNotFound"),
        ("hub", "401", 2, "AuthFailed"),
    ],
)
def test_refusals_are_told_apart_and_end_the_fill(node, origin, manifest_of, kind, fault, status, reason):
    """Pain 14: not every failure is a gated repository."""
    origin.faults["a.safetensors"] = [fault] * 50
    found, report = node.fill(manifest_of[kind](origin))
    assert (found, report["reason"]) == (status, reason)
    assert "a.safetensors" in report["message"]


@pytest.mark.parametrize(("fault", "reason"), [("429", "RateLimited"), ("503", "RateLimited"), ("500", "Network")])
def test_a_source_that_never_answers_ends_the_fill_with_the_reason(node, origin, hub, manifest_of, fault, reason):
    """Pain 37: a watchdog on progress, so that nothing waits for ever."""
    origin.faults["a.safetensors"] = [fault] * 10000
    manifest = manifest_of["s3" if fault == "503" else "hub"](origin)
    if fault == "500":
        manifest = hub
    status, report = node.fill(manifest)
    assert (status, report["reason"]) == (1, reason)


@pytest.mark.parametrize("headers", [{"Retry-After": "1"}, {"RateLimit": '"resolvers";r=0;t=1'}])
def test_the_wait_that_a_source_asks_for_is_honoured_by_all_workers(node, origin, hub, headers):
    """Pains 11 and 12: no worker comes back before the time in Retry-After, or in the hub's RateLimit header."""
    origin.retry_after = headers
    origin.faults[""] = ["429"]
    times = []
    original = origin.next_fault

    def noted(path):
        import time

        fault = original(path)
        times.append((time.monotonic(), fault))
        return fault

    origin.next_fault = noted
    assert node.fill(hub, "--connections", 2)[0] == 0
    throttled_at = next(at for at, fault in times if fault == "429")
    later = [at - throttled_at for at, fault in times if not fault and at > throttled_at + 0.1]
    assert min(later) >= 1.0


def test_a_wait_longer_than_a_fill_should_take_ends_it(node, origin, hub):
    origin.retry_after = {"Retry-After": "86400"}
    origin.faults["a.safetensors"] = ["429"]
    status, report = node.fill(hub)
    assert (status, report["reason"]) == (1, "RateLimited")
    assert "86400" in report["message"]


def test_an_update_fetches_only_the_files_that_changed(node, origin, manifest_of, read):
    node.fill(manifest_of["s3"](origin))
    origin.files["a.safetensors"] = bytes(len(origin.files["a.safetensors"]))
    new = manifest_of["s3"](origin)
    status, report = node.fill(new)
    assert status == 0
    assert report["fetched_bytes"] == len(origin.files["a.safetensors"])
    assert read(node.tree(new)) == origin.files
    assert len(node.trees()) == 2


def test_a_file_known_by_its_sha256_is_shared_between_sources_and_names(node, origin, manifest_of):
    node.fill(manifest_of["hub"](origin))
    origin.files["renamed.safetensors"] = origin.files.pop("a.safetensors")
    report = node.fill(manifest_of["hub"](origin))[1]
    assert report["fetched_bytes"] == 0


def test_a_copy_that_was_touched_is_not_a_source_for_others(node, origin, manifest_of, read):
    old = manifest_of["s3"](origin)
    node.fill(old)
    path = node.tree(old) / "a.safetensors"
    path.chmod(0o644)
    path.write_bytes(bytes(len(origin.files["a.safetensors"])))
    origin.files["config.json"] = b"{}"
    new = manifest_of["s3"](origin)
    assert node.fill(new)[0] == 0
    assert read(node.tree(new)) == origin.files


def test_a_damaged_copy_is_made_anew(node, origin, s3, read):
    """Pain 25: Ready is not believed without a look at the disk."""
    node.fill(s3)
    (node.tree(s3) / "config.json").unlink()
    status, report = node.fill(s3)
    assert status == 0
    assert read(node.tree(s3)) == origin.files
    assert report["fetched_bytes"] > 0


def test_a_model_that_does_not_fit_is_refused_before_the_first_byte(node, origin, s3):
    """Pain 34: a declared size that is not there shows before the download, with the figures."""
    status, report = node.fill(s3, "--capacity-bytes", s3.size_bytes - 1)
    assert (status, report["reason"]) == (2, "NoSpace")
    assert str(s3.size_bytes - 1) in report["message"]
    assert origin.heads == []
    assert report["capacity_bytes"] == s3.size_bytes - 1
    assert node.leftovers() == []


def test_what_is_reserved_is_not_used(node, s3):
    assert node.fill(s3, "--capacity-bytes", 2 * s3.size_bytes, "--reserve-bytes", s3.size_bytes + 1)[0] == 2
    assert node.fill(s3, "--capacity-bytes", 3 * s3.size_bytes, "--reserve-bytes", s3.size_bytes)[0] == 0


def test_a_disk_that_fills_up_gives_the_room_back(node, origin, s3, monkeypatch):
    def full(fd, offset, length):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    status, report = node.fill(s3)
    assert (status, report["reason"]) == (2, "NoSpace")
    assert not list(node.root.glob("partial/*/parts/*"))


def test_a_fill_of_a_disk_that_is_not_mounted_is_refused(node, s3, monkeypatch):
    """Pain 24: after a reboot without its NVMe, the node's root disk is not filled instead."""
    status, report = node.fill(s3, "--host-path", node.root)
    assert (status, report["reason"]) == (2, "DiskMissing")
    assert not node.root.exists()
    assert node.fill(s3, "--host-path", node.root, "--allow-root-disk")[0] == 0


def test_a_mounted_disk_is_recognised_inside_a_container(node, s3, tmp_path, monkeypatch):
    """There the path on the host is visible only in mountinfo: a mounted disk's own mount point is missing from it."""
    from tasks.prefetch import disk

    mounts = tmp_path / "mountinfo"
    monkeypatch.setattr(disk, "MOUNTS", mounts)
    for begins, refused in (("/opt/dlami/nvme/warmpath", True), ("/warmpath", False)):
        mounts.write_text(f"1 0 259:1 / / rw - overlay o rw\n2 1 259:2 {begins} {node.root} rw - xfs /dev/d rw\n")
        node.root.mkdir(exist_ok=True)
        assert disk.unmounted(node.root, "/opt/dlami/nvme/warmpath") is refused


def test_a_missing_disk_and_a_strange_layout_are_told_apart(node, s3):
    node.root.parent.rmdir()
    assert node.fill(s3)[1]["reason"] == "DiskMissing"
    node.root.mkdir(parents=True)
    (node.root / "LAYOUT").write_text('{"version":99}')
    assert node.fill(s3)[1]["reason"] == "LayoutMismatch"


def test_a_manifest_that_leads_out_of_the_store_is_refused(node, s3, tmp_path):
    """Pain 20: no file name of a repository may leave the model's directory."""
    node.fill(s3)
    text = (tmp_path / "manifest.json").read_text().replace("config.json", "../../escaped")
    (tmp_path / "manifest.json").write_text(text)
    status, report = node.run("fill", "--manifest", tmp_path / "manifest.json")
    assert (status, report["reason"]) == (2, "UnsupportedFormat")
    assert "../../escaped" in report["message"]


def test_two_fills_of_one_revision_at_once_fetch_it_once(node, origin, s3, tmp_path, monkeypatch):
    monkeypatch.setattr(fill_module, "EVERY_S", 0.0)
    origin.bytes_per_s = 2e6
    store, ends = Store(node.root), []
    store.prepare()
    fills = [
        threading.Thread(target=lambda: ends.append(fill_module.fill(store, s3, fill_module.Room()))) for _ in range(2)
    ]
    for one in fills:
        one.start()
    for one in fills:
        one.join(20)
    assert sorted(end.fetched_bytes for end in ends) == [0, s3.size_bytes]
    assert origin.asked_bytes == s3.size_bytes


def test_nothing_secret_is_said_written_or_left(node, origin, manifest_of, tmp_path):
    """Credentials reach the source and nothing else: neither output, report, store nor errors."""
    origin.faults["a.safetensors"] = ["503", "truncate"]
    node.fill(manifest_of["s3"](origin))
    said = node.output
    node.fill(manifest_of["hub"](origin))
    said += node.output
    origin.faults["config.json"] = ["401"]
    origin.files["config.json"] = b"new"
    node.fill(manifest_of["hub"](origin))
    said += node.output
    everything = said.encode() + b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for secret in (b"planted-key-id", b"planted-secret", b"planted-token", b"X-Amz-Signature"):
        assert secret not in everything


def test_progress_counts_up_to_the_whole(node, origin, s3):
    import json

    node.fill(s3)
    lines = [json.loads(line) for line in node.output.splitlines()]
    last = [line for line in lines if line["event"] == "progress"][-1]
    assert last["done_bytes"] == last["total_bytes"] == s3.size_bytes
    assert last["files_done"] == last["files"] == len(s3.files)
    assert set(last) >= {"fetched_bytes", "reused_bytes", "bytes_per_s", "eta_s"}


def test_a_file_system_without_direct_writes_is_filled_all_the_same(node, origin, s3, read, monkeypatch):
    original = os.open

    def refusing(path, flags, *args, **named):
        if flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return original(path, flags, *args, **named)

    monkeypatch.setattr(os, "open", refusing)
    assert node.fill(s3)[0] == 0
    assert read(node.tree(s3)) == origin.files
    assert "page cache" in node.output
