"""The parts of a laptop fleet, in the order in which they start."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from infra.cli import processes, runs
from infra.cli.home import Home, is_free
from infra.cli.processes import Service
from infra.local.cluster import nodes
from infra.local.cluster.store import Store
from infra.local.server import answers
from router.config import RouterConfig
from tasks.plan.deployments import INSTANCE_TYPE

PREFECT_SETTINGS = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    # A run starts within a second of the click instead of ten.
    "PREFECT_RUNNER_POLL_FREQUENCY": "1",
    # The runner's default lease store is memory: a restart of the server would leak the lock of an endpoint.
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
    # The defaults drop events of large fan-outs: the in-memory queue holds 10 000.
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "200",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE": "200",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
    "PREFECT_SERVER_SERVICES_TRIGGERS_READ_BATCH_SIZE": "200",
}


STOP_ORDER = ("flows", "router", "routing", "cluster", "prefect", "hub", "s3")


@dataclass(frozen=True, slots=True)
class Addresses:
    prefect: str
    router: str
    admin: str

    @property
    def prefect_api(self) -> str:
        return f"{self.prefect}/api"


def addresses(home: Home) -> Addresses:
    return Addresses(
        prefect=f"http://127.0.0.1:{home.port('prefect', 4200)}",
        router=f"http://127.0.0.1:{home.port('router', 8080)}",
        admin=f"http://127.0.0.1:{home.port('router-admin', 8081)}",
    )


def environment(home: Home) -> dict[str, str]:
    """What every part, and every command, needs to find the others."""
    where = addresses(home)
    return {
        **PREFECT_SETTINGS,
        "PREFECT_HOME": str(home.root / "prefect"),
        "PREFECT_API_URL": where.prefect_api,
        "WARMPATH_HOME": str(home.root),
        "WARMPATH_KUBE": f"embedded:{home.cluster}",
        "WARMPATH_ROUTER_URL": where.admin,
    }


def services(home: Home) -> tuple[Service, ...]:
    """All parts; each starts only after those before it answer."""
    common = environment(home)
    where = addresses(home)
    return (
        Service(
            "cluster",
            (sys.executable, "-m", "infra.local.cluster", "--dir", str(home.cluster)),
            common,
            is_ready=(home.cluster / "store.db").exists,
        ),
        Service(
            "prefect",
            (
                sys.executable,
                "-m",
                "prefect",
                "server",
                "start",
                "--host",
                "127.0.0.1",
                "--port",
                port_of(where.prefect),
            ),
            {**common, "PREFECT_SERVER_API_HOST": "127.0.0.1", "PREFECT_SERVER_API_PORT": port_of(where.prefect)},
            is_ready=lambda: answers(f"{where.prefect_api}/health"),
            start_s=180,
            ports=(int(port_of(where.prefect)),),
        ),
        Service(
            "routing",
            (sys.executable, "-m", "tasks.routers", "--config", str(home.routing_file)),
            common,
            is_ready=home.routing_file.exists,
        ),
        Service(
            "router",
            (
                *(sys.executable, "-m", "router", "--config", str(home.routing_file), "--host", "127.0.0.1"),
                *("--port", port_of(where.router), "--admin-port", port_of(where.admin)),
            ),
            common,
            is_ready=lambda: answers(f"{where.admin}/healthz"),
            ports=(int(port_of(where.router)), int(port_of(where.admin))),
        ),
        Service(
            "flows",
            (sys.executable, "-m", "infra.cli.serve"),
            common,
            is_ready=lambda: is_served(where.prefect_api, runs.ROLL),
            start_s=120,
            stop_s=40,
        ),
    )


def give_up_taken_ports(home: Home) -> None:
    """Forget ports that somebody else has by now, unless a part that knows them runs."""
    if not processes.running(home):
        home.write("ports", {service: port for service, port in home.read("ports").items() if is_free(port)})


def begin(home: Home, wanted: tuple[Service, ...]) -> None:
    """Start what does not run yet, and wait for nothing. The flows come later: they need Prefect to answer."""
    home.cluster.mkdir(parents=True, exist_ok=True)
    if not home.routing_file.exists():
        home.routing_file.write_text(RouterConfig().model_dump_json(by_alias=True))
    for service in wanted:
        if service.name != "flows":
            processes.start(home, service)


def start_all(home: Home, wanted: tuple[Service, ...], say: Callable[[str], None]) -> None:
    """Start what does not run yet. Processes start together; readiness is awaited in order."""
    begin(home, wanted)
    for service in wanted:
        processes.start(home, service)
        processes.wait_ready(home, service)
        say(f"{service.name} is ready")


def add_nodes(home: Home, count: int, *, nvme_bytes: int, gpus: int) -> None:
    """Give a cluster that has no nodes `count` of them; one that has nodes keeps those."""
    store = Store(home.cluster)
    if store.list("Node").items:
        return
    for index in range(count):
        add_node(home, f"node-{index + 1}", nvme_bytes=nvme_bytes, gpus=gpus)


def add_node(home: Home, name: str, *, nvme_bytes: int, gpus: int) -> None:
    """Let a node join the embedded cluster."""
    labels = {INSTANCE_TYPE: "ml.local"}
    nodes.add_node(
        Store(home.cluster), name, labels=labels, capacity={"nvidia.com/gpu": str(gpus)}, nvme_bytes=nvme_bytes
    )


def check_prefect(home: Home) -> None:
    """Refuse to ask a Prefect at this home's address that is another fleet's: its runs would be theirs."""
    is_own = os.environ.get("PREFECT_API_URL") == addresses(home).prefect_api
    if is_own and processes.running_pid(home, "prefect") is None:
        raise runs.NotServed("Prefect does not run here; start what has stopped: warmpath up")


def wait_for_interrupt() -> None:
    """Return at Ctrl-C or SIGTERM."""
    interrupted = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: interrupted.set())
    interrupted.wait()


def stop_all(home: Home) -> Iterator[str]:
    """Stop what runs, flows first so that a run in progress is cancelled, not lost; yields names as they stop."""
    # The S3 server's own way to end takes ten seconds and saves nothing here.
    slow = {service.name: service.stop_s for service in services(home)} | {"s3": 1.0}
    for name in sorted(processes.running(home), key=STOP_ORDER.index):
        if processes.stop(home, name, stop_s=slow.get(name, 15.0)):
            yield name


def is_served(api: str, deployment: str) -> bool:
    """Whether a process polls for runs of `deployment`."""
    with (
        contextlib.suppress(urllib.error.URLError, OSError, ValueError),
        urllib.request.urlopen(f"{api}/deployments/name/{deployment}", timeout=2) as response,  # noqa: S310
    ):
        return bool(json.load(response).get("status") == "READY")
    return False


def port_of(url: str) -> str:
    return url.rpartition(":")[2]
