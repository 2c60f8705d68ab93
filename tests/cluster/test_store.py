"""What holds when several threads and processes share a store."""

from __future__ import annotations

import multiprocessing
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from infra.local.cluster.objects import Object
from infra.local.cluster.store import Store, StoreError

WRITERS, WRITES = 4, 25


def counter(count: int = 0) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "counter"}, "data": {"count": str(count)}}


def count_up(store: Store, times: int) -> None:
    """Read, add one, write unless somebody else wrote meanwhile."""
    done = 0
    while done < times:
        found = store.get("ConfigMap", "counter")
        body = {
            "metadata": {"resourceVersion": found["metadata"]["resourceVersion"]},
            "data": {"count": str(int(found["data"]["count"]) + 1)},
        }
        with suppress(StoreError):
            store.patch("ConfigMap", "counter", body)
            done += 1


def count_up_elsewhere(directory: Path) -> None:
    store = Store(directory)
    count_up(store, WRITES)
    store.close()


def write_for_ever(directory: Path) -> None:
    store, count = Store(directory), 0
    while True:
        count += 1
        store.patch("ConfigMap", "counter", {"data": {"count": str(count), "again": str(count)}})


def test_processes_that_write_at_once_lose_nothing(store: Store) -> None:
    store.create(counter())
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=count_up_elsewhere, args=(store.directory,)) for _ in range(WRITERS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * WRITERS
    assert store.get("ConfigMap", "counter")["data"]["count"] == str(WRITERS * WRITES)
    revisions = [change.revision for change in store.changes(1)[0]]
    assert revisions == sorted(set(revisions))


def test_threads_share_a_store(store: Store) -> None:
    store.create(counter())
    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(lambda _: count_up(store, WRITES), range(WRITERS)))
    assert store.get("ConfigMap", "counter")["data"]["count"] == str(WRITERS * WRITES)


@pytest.mark.chaos
def test_a_writer_that_is_killed_leaves_whole_objects(store: Store) -> None:
    store.create(counter())
    process = multiprocessing.get_context("spawn").Process(target=write_for_ever, args=(store.directory,))
    process.start()
    while store.revision() < 50:
        pass
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    data = store.get("ConfigMap", "counter")["data"]
    assert data["count"] == data["again"]
    count_up(store, 1)
    assert store.get("ConfigMap", "counter")["data"]["count"] == str(int(data["count"]) + 1)


def test_a_reader_that_fell_behind_the_log_must_list_again(tmp_path: Path) -> None:
    store = Store(tmp_path, log_length=10)
    start = store.create(counter())["metadata"]["resourceVersion"]
    for count in range(200):
        store.patch("ConfigMap", "counter", {"data": {"count": str(count)}})
    with pytest.raises(StoreError, match="list again") as refusal:
        next(store.watch("ConfigMap", resource_version=start, timeout_s=0.1))
    assert refusal.value.reason == "Expired"
    listed = store.list("ConfigMap")
    assert [
        event.type for event in store.watch("ConfigMap", resource_version=listed.resource_version, timeout_s=0)
    ] == ["BOOKMARK"]
    store.close()


def test_a_store_is_private_to_its_owner(store: Store) -> None:
    assert store.directory.stat().st_mode & 0o077 == 0
