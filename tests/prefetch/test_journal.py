"""The journal of proven chunks survives being cut anywhere."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tasks.prefetch.digest import Chunk
from tasks.prefetch.journal import Journal, read_journal

HERE = {"boot_id": "b", "filesystem_id": "f"}
CHUNK = Chunk("ab" * 32, 7)


def written(path, *entries, known=None):
    journal = Journal(path, HERE, known or {})
    for file, index in entries:
        journal.prove(file, index, CHUNK)
    journal.close()
    return path


def test_what_was_proven_is_read_back(tmp_path):
    path = written(tmp_path / "journal", (0, 0), (0, 2), (3, 1))
    assert read_journal(path, HERE) == ({0: {0: CHUNK, 2: CHUNK}, 3: {1: CHUNK}}, True)


def test_no_journal_means_nothing_is_proven(tmp_path):
    assert read_journal(tmp_path / "journal", HERE) == ({}, True)


def test_a_reset_file_counts_no_more(tmp_path):
    journal = Journal(tmp_path / "journal", HERE, {0: {0: CHUNK}, 1: {0: CHUNK}})
    journal.reset(0)
    journal.prove(0, 5, CHUNK)
    journal.close()
    assert read_journal(tmp_path / "journal", HERE)[0] == {0: {5: CHUNK}, 1: {0: CHUNK}}


def test_another_boot_or_disk_is_not_trusted(tmp_path):
    path = written(tmp_path / "journal", (0, 0))
    assert read_journal(path, {**HERE, "boot_id": "later"}) == ({0: {0: CHUNK}}, False)
    assert read_journal(path, {**HERE, "filesystem_id": "other"}) == ({0: {0: CHUNK}}, False)


@given(cut=st.integers(0, 600), junk=st.binary(max_size=20))
def test_cut_anywhere_it_tells_only_what_was_written_whole(tmp_path_factory, cut, junk):
    path = written(tmp_path_factory.mktemp("j") / "journal", *((0, index) for index in range(4)))
    whole = path.read_bytes()[:cut]
    path.write_bytes(whole + junk.replace(b"\n", b""))
    found, _ = read_journal(path, HERE)
    lines = max(0, whole.count(b"\n") - 1)
    assert found.get(0, {}) == dict.fromkeys(range(lines), CHUNK)


def test_going_on_leaves_no_cut_off_line_inside(tmp_path):
    path = written(tmp_path / "journal", (0, 0))
    path.write_text(path.read_text() + '{"file":0,"chu')
    known, _ = read_journal(path, HERE)
    written(path, (0, 1), known=known)
    assert read_journal(path, HERE)[0] == {0: {0: CHUNK, 1: CHUNK}}
