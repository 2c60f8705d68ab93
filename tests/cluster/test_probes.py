from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from infra.local.cluster.kubelet.probes import Prober, Verdict
from infra.local.cluster.objects import Object


@pytest.mark.parametrize(
    ("answers", "probe", "verdicts"),
    [
        ("+", {}, "+"),
        ("-", {}, "-"),
        ("+--", {}, "+++"),
        ("+---", {}, "+++-"),
        ("+-+-+", {"failureThreshold": 2}, "+++++"),
        ("+--+", {"failureThreshold": 2}, "++-+"),
        ("+-+", {"failureThreshold": 1, "successThreshold": 2}, "---"),
        ("++", {"successThreshold": 2}, "-+"),
    ],
)
def test_only_equal_answers_in_a_row_change_a_verdict(answers: str, probe: Object, verdicts: str) -> None:
    verdict, seen = Verdict(passes=False), ""
    for answer in answers:
        verdict = verdict.after(answer == "+", probe)
        seen += "+" if verdict.passes else "-"
    assert seen == verdicts


@pytest.fixture
def prober() -> Iterator[Prober]:
    prober = Prober()
    yield prober
    prober.close()


@pytest.fixture
def port() -> Iterator[int]:
    """A server that answers each connection with the next line of `answers`, then 200."""
    answers = [b"HTTP/1.1 503 Busy\r\n\r\n", b"", b"nonsense\r\n", b"HTTP/1.1 302 Found\r\n\r\n"]
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        connection.recv(4096)
                        connection.sendall(answers.pop(0) if answers else b"HTTP/1.1 200 OK\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()


def until(prober: Prober, ready: bool) -> int:
    """How many looks it took until the verdict was `ready`."""
    for look in range(1000):
        if prober.collect() and prober.verdicts("uid", "readiness") == {"main": ready}:
            return look
        time.sleep(0.005)
    raise AssertionError("the verdict never changed")


def test_http_is_ready_from_2xx_to_3xx_and_forgotten_with_its_container(prober: Prober, port: int) -> None:
    probe = {"httpGet": {"port": "http", "path": "/health"}, "periodSeconds": 0}
    container: Object = {"name": "main", "readinessProbe": probe, "ports": [{"name": "http", "containerPort": port}]}
    prober.watch("uid", container, "127.0.0.1", {})
    assert prober.verdicts("uid", "readiness") == {"main": False}
    assert until(prober, ready=True) > 3
    prober.watch("uid", container, "127.0.0.1", {})
    assert prober.verdicts("uid", "readiness") == {"main": False}
    prober.forget("uid")
    assert prober.verdicts("uid", "readiness") == {}


def test_the_first_look_waits_for_the_initial_delay(prober: Prober, port: int) -> None:
    probe = {"tcpSocket": {"port": port}, "initialDelaySeconds": 60}
    prober.watch("uid", {"name": "main", "readinessProbe": probe}, "127.0.0.1", {})
    for _ in range(20):
        prober.collect()
        time.sleep(0.002)
    assert prober.verdicts("uid", "readiness") == {"main": False}
