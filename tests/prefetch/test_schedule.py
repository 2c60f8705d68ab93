"""Whatever the order in which workers finish, every chunk is fetched once and hashed in order."""

from __future__ import annotations

import threading
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tasks.plan.types import ModelFile
from tasks.prefetch import digest as digests
from tasks.prefetch.digest import Chunk
from tasks.prefetch.schedule import CatchUp, Fetch, Finish, Part, Schedule


def part(index: int, chunks: int, *, ordered: bool) -> Part:
    size_bytes = max(0, chunks * digests.CHUNK_BYTES - 5)
    digest = "sha256:" + "0" * 64 if ordered else ""
    return Part(index, ModelFile(f"f{index}", size_bytes, digest, "pin"), Path("nowhere"))


sizes = st.lists(st.tuples(st.integers(0, 9), st.booleans(), st.integers(0, 3)), min_size=1, max_size=5)


@given(sizes, st.integers(1, 6), st.randoms(use_true_random=False))
def test_any_interleaving_ends_with_every_chunk_fetched_once_and_hashed_in_order(files, workers, numbers):
    parts = [part(index, chunks, ordered=ordered) for index, (chunks, ordered, _) in enumerate(files)]
    fetched, hashed, finished, at_work = set(), {p.index: [] for p in parts}, [], []
    for p, (_, _, known) in zip(parts, files, strict=True):
        p.chunks = {i: Chunk("") for i in range(min(known, p.count))}
        fetched |= {(p.index, i) for i in p.chunks}
    schedule = Schedule(parts)
    while not schedule.wait(0):
        if len(at_work) < workers and (work := schedule._choose()):
            at_work.append(work)
            continue
        assert at_work, "nobody works, and nothing is left to take"
        work = at_work.pop(numbers.randrange(len(at_work)))
        end(schedule, work, fetched, hashed, finished)
    assert at_work == []
    assert sorted(finished) == [p.index for p in parts]
    assert fetched == {(p.index, i) for p in parts for i in range(p.count)}
    assert all(seen == list(range(p.count)) for p, seen in ((p, hashed[p.index]) for p in parts) if p.ordered)


def end(schedule, work, fetched, hashed, finished):
    match work:
        case Fetch():
            for index in work.chunks:
                assert (work.part.index, index) not in fetched
                fetched.add((work.part.index, index))
                if work.feed:
                    hashed[work.part.index].append(index)
                schedule.proven(work, index, Chunk(""))
            schedule.fetched(work)
        case CatchUp():
            hashed[work.part.index].append(work.chunk)
            schedule.caught_up(work)
        case Finish():
            finished.append(work.part.index)
            schedule.finish(work)


def test_what_was_not_proven_is_fetched_again():
    one = part(0, 4, ordered=False)
    schedule = Schedule([one])
    work = schedule.take()
    assert work.chunks == (0, 1)
    schedule.proven(work, 0, Chunk(""))
    schedule.fetched(work)
    assert schedule.take().chunks == (1, 2)


def test_files_with_a_hash_of_their_own_stream_side_by_side():
    parts = [part(index, 8, ordered=True) for index in range(3)]
    schedule = Schedule(parts)
    works = [schedule.take() for _ in range(4)]
    assert [(work.part.index, work.chunks, work.feed) for work in works] == [
        (0, (0, 1), True),
        (1, (0, 1), True),
        (2, (0, 1), True),
        (0, (2, 3), False),
    ]


def test_a_failure_wakes_everybody_and_the_first_one_counts():
    schedule = Schedule([part(0, 1, ordered=False)])
    schedule.take()
    waiting = threading.Thread(target=schedule.take)
    waiting.start()
    schedule.fail(ValueError("first"))
    schedule.fail(ValueError("second"))
    waiting.join(5)
    assert not waiting.is_alive()
    assert str(schedule.failure) == "first"


def test_a_spoiled_file_begins_anew():
    one = part(0, 2, ordered=True)
    schedule = Schedule([one])
    work = schedule.take()
    for index in work.chunks:
        schedule.proven(work, index, Chunk(""))
    schedule.fetched(work)
    finish = schedule.take()
    assert isinstance(finish, Finish)
    schedule.restart(finish)
    again = schedule.take()
    assert (again.chunks, again.feed, one.spoiled) == ((0, 1), True, 1)
