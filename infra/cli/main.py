"""`warmpath`: warm caches and hot prefixes for LLM fleets, from the command line."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from infra.cli import applying, fleet, processes, runs, views
from infra.cli.home import Home
from infra.cli.views import View
from tasks.kube import Kube, KubeError, connect
from tasks.plan.resources import InvalidResource

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_show_locals=False,
    help="""Warm a model's weights on every node before pods need them, then roll the endpoint; route by prefix.

A first look: `warmpath demo`. Your own: `warmpath up`, `warmpath plan -f FILE`, `warmpath apply -f FILE`,
`warmpath get endpoints`, `warmpath down`. State lies in ./.warmpath, or where WARMPATH_HOME says.""",
)
# A file or a pipe has no width: tables keep their columns whole there.
out = Console(soft_wrap=True, width=None if sys.stdout.isatty() else 200)
err = Console(stderr=True)

EXPECTED = (KubeError, InvalidResource, processes.ServiceFailed, runs.NotServed, applying.Refused)

EndpointFile = Annotated[
    Path, typer.Option("--file", "-f", exists=True, dir_okay=False, help="YAML of an InferenceEndpointConfig.")
]
Namespace = Annotated[str, typer.Option("--namespace", "-n", help="Kubernetes namespace.")]


class Kinds(StrEnum):
    CACHES = "caches"
    NODES = "nodes"
    ENDPOINTS = "endpoints"


class Output(StrEnum):
    TABLE = "table"
    WIDE = "wide"
    JSON = "json"


@app.command()
def up(
    nodes: Annotated[int, typer.Option(min=0, max=64, help="Nodes of a new embedded cluster.")] = 3,
    nvme_gb: Annotated[float, typer.Option("--nvme-gb", min=0.001, help="NVMe of each new node, in GB.")] = 20.0,
    gpus: Annotated[int, typer.Option(min=0, help="nvidia.com/gpu of each new node.")] = 2,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return when all is ready.")] = False,
) -> None:
    """Start Prefect, an embedded cluster, the router and the flows on this machine; Ctrl-C stops them.

    Run it again after anything died: it starts only what is not running.
    """
    home = Home.open()
    fleet.give_up_taken_ports(home)
    use(home)
    with out.status("starting ..."):
        fleet.start_all(home, fleet.services(home), lambda line: out.print(f"[green]✓[/] {line}"))
        fleet.add_nodes(home, nodes, nvme_bytes=int(nvme_gb * 1e9), gpus=gpus)
    print_addresses(home)
    if not detach:
        out.print("Ctrl-C stops all of it.")
        fleet.wait_for_interrupt()
        down()


@app.command()
def down() -> None:
    """Stop what `up` or `demo` started; state stays on disk, and `up` goes on from it."""
    stopped = list(fleet.stop_all(Home.open()))
    out.print(f"stopped: {', '.join(stopped)}" if stopped else "nothing was running")


@app.command()
def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Leave the fleet running afterwards.")] = False,
    size_mb: Annotated[int, typer.Option("--size-mb", min=20, help="Size of the model, in MB.")] = 1000,
) -> None:
    """Roll out a model twice on an embedded fleet, with requests running, and show what was gained."""
    from infra.cli.demo.story import tell  # the demo's own servers are an extra that production does not install

    raise typer.Exit(tell(out, keep=keep, size_bytes=size_mb * 1_000_000))


@app.command()
def apply(
    file: EndpointFile,
    roll: Annotated[bool, typer.Option(help="Roll it out now, or only record what is wanted.")] = True,
    change_source: Annotated[
        bool, typer.Option("--change-source", help="Allow another source for an endpoint that exists.")
    ] = False,
) -> None:
    """Check an endpoint, record it in the cluster and roll it out: warm its nodes, then move its pods.

    Run it again after the source changed: only what changed is fetched, and requests go on meanwhile.
    """
    home, kube = opened()
    endpoint = applying.record(kube, file, change_source=change_source)
    out.print(f"[green]✓[/] {endpoint.namespace}/{endpoint.name} is recorded")
    if roll:
        outcome = applying.roll(home, kube, endpoint, out)
        if not outcome.ok:
            fail(f"The rollout ended {outcome.state}: {outcome.message}\nRun: {outcome.url}{applying.advice(outcome)}")


@app.command()
def plan(file: EndpointFile) -> None:
    """Show what a rollout would do: nodes, bytes, free space, and what is left out and why. Changes nothing."""
    _, kube = opened()
    applying.show_plan(kube, file, out)


@app.command()
def get(
    kind: Kinds,
    namespace: Namespace = "default",
    output: Annotated[
        Output, typer.Option("--output", "-o", help="table, wide (with reasons) or json.")
    ] = Output.TABLE,
) -> None:
    """List caches, nodes or endpoints."""
    _, kube = opened()
    if output is Output.JSON:
        out.print_json(data=kube.list(views.KIND_OF[kind], views.namespace_of(kind, namespace)).items)
        return
    show(views.read(kube, kind, namespace), wide=output is Output.WIDE)


@app.command()
def delete(
    endpoint: str,
    namespace: Namespace = "default",
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Delete; without it only say what would be deleted.")
    ] = False,
) -> None:
    """Delete an endpoint and, unless its cachePolicy retains them, its copies on the nodes. A dry run without --yes."""
    home, _ = opened()
    outcome = applying.delete(home, endpoint, namespace, really=yes)
    if not outcome.ok:
        fail(f"The deletion ended {outcome.state}: {outcome.message}\nRun: {outcome.url}")
    out.print(outcome.message if yes else f"{outcome.message}\nNothing was deleted; add --yes to do it.")


@app.command()
def secret(
    name: Annotated[str, typer.Argument(help="As cachePolicy.source.credentialsSecretRef names it.")],
    variables: Annotated[list[str], typer.Argument(help="AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY, or HF_TOKEN …")],
    namespace: Namespace = "default",
) -> None:
    """Keep a source's credentials in the cluster: names of environment variables of this shell, never their values."""
    _, kube = opened()
    applying.keep_secret(kube, name, namespace, variables)
    out.print(f"[green]✓[/] Secret {namespace}/{name} holds {', '.join(variables)}")


@app.command()
def status() -> None:
    """What runs on this machine, where, and how the endpoints are."""
    home = Home.open()
    alive = processes.running(home)
    table = Table("PART", "STATE", "LOG", box=None, header_style="dim")
    for service in fleet.services(home):
        table.add_row(
            service.name, "[green]running" if service.name in alive else "[red]stopped", str(home.log(service.name))
        )
    out.print(table)
    print_addresses(home)
    if "cluster" in alive:
        use(home)
        for kind in (Kinds.ENDPOINTS, Kinds.CACHES, Kinds.NODES):
            out.print()
            show(views.read(connect(), kind, ""), wide=False)


@app.command()
def simulate(
    trace: Annotated[str, typer.Option(help="A Mooncake trace, an OpenAI-style log, or a made-up workload's name.")],
    instances: Annotated[int, typer.Option(min=1, help="Instances of the simulated fleet.")] = 8,
    strategies: Annotated[str, typer.Option(help="Names, comma-separated; our own four when left out.")] = "",
    routers: Annotated[int, typer.Option(min=1, help="Router replicas that share the traffic.")] = 1,
    add_instance: Annotated[bool, typer.Option("--add-instance", help="One more joins at half of the trace.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first requests of the trace.")] = None,
    picture: Annotated[Path | None, typer.Option(help="Write a picture (SVG) to this file.")] = None,
) -> None:
    """Replay a trace against routing strategies on a simulated fleet; nothing real is asked.

    The router's own policy objects decide, and models of other routers' beside them.
    """
    from router.simulation.run import OWN  # numbers of simulated engines: not needed elsewhere
    from router.simulation.run import simulate as replay

    names = [name.strip() for name in strategies.split(",") if name.strip()] or list(OWN)
    try:
        with out.status("replaying ..."):
            report = replay(
                trace, instances, names, routers=routers, add_instance=add_instance, limit=limit, picture=picture
            )
    except (ValueError, OSError) as error:
        fail(f"{trace}: {error}")
    show(View("strategies", report.header(), list(report.rows()), wide=len(report.header())), wide=True)
    out.print(
        f"{report.requests} requests of {report.trace} on {instances} instances behind {routers} routers, simulated"
    )


def opened() -> tuple[Home, Kube]:
    """The home and the door to its cluster."""
    home = Home.open()
    use(home)
    return home, connect()


def use(home: Home) -> None:
    """Point this process at the home's fleet, unless the caller points elsewhere."""
    for name, value in fleet.environment(home).items():
        os.environ.setdefault(name, value)
    # A command speaks for itself, of failures too; Prefect's own log lines belong to the runs it starts.
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "CRITICAL")


def print_addresses(home: Home) -> None:
    where = fleet.addresses(home)
    out.print(f"Prefect UI  {where.prefect}   roll an endpoint: Deployments, roll-endpoint, from-the-ui")
    out.print(f"Router      {where.router}   OpenAI API at {where.router}/v1, what it obeys at {where.admin}/routing")


def show(view: View, *, wide: bool) -> None:
    columns, rows = view.shown(wide=wide)
    table = Table(*columns, box=None, header_style="bold", pad_edge=False)
    for row in rows:
        table.add_row(*row)
    out.print(table if rows else f"no {view.what}")


def fail(message: str) -> NoReturn:
    err.print(f"[red]✗[/] {message}")
    raise typer.Exit(1)


def main() -> None:
    """The entry point: expected failures are one clear sentence, not a traceback."""
    try:
        app()
    except EXPECTED as error:
        err.print("[red]✗[/] ", end="")
        err.print(str(error), markup=False, highlight=False)
        raise SystemExit(1) from None
