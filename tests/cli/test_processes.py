from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.cli import fleet, processes, runs
from infra.cli.home import Home
from infra.cli.processes import Service, ServiceFailed
from infra.local.server import free_ports

SLEEPER = (sys.executable, "-c", "import time; time.sleep(60)")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    yield home
    for name in processes.running(home):
        processes.stop(home, name, stop_s=0.5)


def test_a_service_is_started_once_found_again_and_stopped(home: Home) -> None:
    service = Service("sleeper", SLEEPER)
    assert processes.start(home, service)
    pid = processes.running_pid(home, "sleeper")
    assert not processes.start(home, service)
    assert processes.running_pid(Home(home.root), "sleeper") == pid
    assert processes.stop(home, "sleeper")
    assert processes.running(home) == []
    assert not processes.stop(home, "sleeper")


def test_a_killed_service_is_started_anew(home: Home) -> None:
    service = Service("sleeper", SLEEPER)
    processes.start(home, service)
    first = processes.running_pid(home, "sleeper")
    assert first is not None
    os.kill(first, signal.SIGKILL)
    deadline = time.monotonic() + 5
    while processes.running_pid(home, "sleeper") and time.monotonic() < deadline:
        time.sleep(0.02)
    assert processes.start(home, service)
    assert processes.running_pid(home, "sleeper") != first


def test_a_pid_that_belongs_to_somebody_else_now_is_left_alone(home: Home) -> None:
    home.write("processes", {"cluster": {"pid": os.getpid(), "started": "1"}})
    assert processes.running_pid(home, "cluster") is None
    assert not processes.stop(home, "cluster")


def test_a_service_that_ends_while_it_starts_is_told_with_its_last_words(home: Home) -> None:
    service = Service("broken", (sys.executable, "-c", "print('no such disk')"), is_ready=lambda: False)
    processes.start(home, service)
    with pytest.raises(ServiceFailed, match=r"broken ended while it started[^$]*no such disk"):
        processes.wait_ready(home, service)


def test_what_a_home_holds_is_its_owners(home: Home) -> None:
    home.write("ports", {"router": 1})
    assert (home.root / "ports.json").stat().st_mode & 0o077 == 0


def test_a_port_stays_the_same_in_a_home(home: Home) -> None:
    assert home.port("router", 0) == home.port("router", 0)


LISTENER = "import socket, sys, time; s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); time.sleep(60)"


def test_a_port_that_another_process_holds_is_refused_by_its_number(home: Home) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServiceFailed, match=f"port {port}"):
            processes.start(home, Service("sleeper", SLEEPER, ports=(port,)))
    assert processes.running(home) == []


def test_only_the_answers_of_the_process_itself_make_it_ready(home: Home) -> None:
    (port,) = free_ports(1)
    mute = Service("mute", SLEEPER, start_s=0.3, ports=(port,))
    processes.start(home, mute)
    with socket.create_server(("127.0.0.1", port)), pytest.raises(ServiceFailed, match="mute is not ready"):
        processes.wait_ready(home, mute)
    heard = Service("heard", (sys.executable, "-c", LISTENER, str(port)), ports=(port,))
    processes.start(home, heard)
    processes.wait_ready(home, heard)


def test_a_fleet_that_is_down_gives_up_ports_that_somebody_has_taken(home: Home) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        (free,) = free_ports(1)
        ports = {"prefect": taken.getsockname()[1], "router": free}
        home.write("ports", ports)
        processes.start(home, Service("sleeper", SLEEPER))
        fleet.give_up_taken_ports(home)
        assert home.read("ports") == ports, "a part that runs knows them"
        processes.stop(home, "sleeper", stop_s=0.5)
        fleet.give_up_taken_ports(home)
        assert home.read("ports") == {"router": free}


def test_nobody_elses_prefect_is_asked(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", fleet.addresses(home).prefect_api)
    with pytest.raises(runs.NotServed, match="warmpath up"):
        fleet.check_prefect(home)
    monkeypatch.setenv("PREFECT_API_URL", "https://prefect.example/api")
    fleet.check_prefect(home)
