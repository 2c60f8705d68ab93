"""What `apply`, `plan` and `delete` do: check, record, start the run, and show it until it ends."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from infra.cli import fleet, runs
from infra.cli.home import Home
from infra.cli.live import RolloutScreen
from infra.cli.quantities import size
from infra.cli.runs import Outcome
from tasks.kube import Kube, NotFound
from tasks.plan.resources import Endpoint, check_same_source, parse_endpoint
from tasks.plan.rollout import RolloutPlan
from tasks.plan.schema import API_VERSION, KIND


class Refused(Exception):
    """The command cannot do what was asked; the message says why and what to do."""


def read(file: Path) -> dict[str, Any]:
    """The one resource in a YAML file, under our apiVersion, with its namespace."""
    try:
        documents = [document for document in yaml.safe_load_all(file.read_text()) if document]
    except yaml.YAMLError as error:
        raise Refused(f"{file} is not YAML: {error}") from error
    if len(documents) != 1 or not isinstance(documents[0], dict):
        raise Refused(f"{file} holds {len(documents)} documents; expected one {KIND}")
    resource: dict[str, Any] = documents[0]
    parse_endpoint(resource)
    metadata = {**resource["metadata"], "namespace": resource["metadata"].get("namespace") or "default"}
    return {**resource, "apiVersion": API_VERSION, "metadata": metadata}


def existing(kube: Kube, wanted: Endpoint) -> Endpoint | None:
    """The endpoint of that name as the cluster has it."""
    try:
        return parse_endpoint(kube.get(KIND, wanted.name, wanted.namespace))
    except NotFound:
        return None


def record(kube: Kube, file: Path, *, change_source: bool) -> Endpoint:
    """Write the endpoint of `file` into the cluster, once all of it is checked."""
    resource = read(file)
    wanted = parse_endpoint(resource)
    before = existing(kube, wanted)
    if before and not change_source:
        check_same_source(before, wanted)
    return parse_endpoint(kube.apply(resource))


def roll(home: Home, kube: Kube, endpoint: Endpoint, out: Console, **parameters: object) -> Outcome:
    """Start a rollout through Prefect and show it until it ends."""
    where = fleet.addresses(home)
    fleet.check_prefect(home)
    asked = {"endpoint": endpoint.name, "namespace": endpoint.namespace, **parameters}
    run = runs.start(runs.ROLL, {"rollout": asked})
    out.print(f"run {where.prefect}/runs/flow-run/{run}")
    with RolloutScreen(kube, endpoint, out) as screen:
        return runs.follow(run, where.prefect, screen.show)


def advice(outcome: Outcome) -> str:
    """What to do about a run whose process died, as nothing could tell it on the endpoint."""
    is_lost = outcome.state in {"Crashed", "Cancelled"}
    return "\nApply again: it goes on from there, and fetches nothing twice that was proven." if is_lost else ""


def delete(home: Home, endpoint: str, namespace: str, *, really: bool) -> Outcome:
    """Start the deletion, or only its plan, through Prefect and wait for it."""
    fleet.check_prefect(home)
    asked = {"endpoint": endpoint, "namespace": namespace, "dry_run": not really}
    run = runs.start(runs.DELETE, {"deletion": asked})
    return runs.follow(run, fleet.addresses(home).prefect, lambda _state: None)


def show_plan(kube: Kube, file: Path, out: Console) -> None:
    """What a rollout of `file` would do, node by node. Looks at the nodes' disks; fetches and changes nothing."""
    # Prefect takes a second to import; only commands that need it should wait for it.
    from flows.plan_endpoint import plan_endpoint
    from tasks.sources import SourceError

    resource = read(file)
    wanted = parse_endpoint(resource)
    before = existing(kube, wanted)
    if before:
        check_same_source(before, wanted)
    with out.status("resolving the source and looking at the nodes ..."):
        try:
            prepared = plan_endpoint(resource)
        except SourceError as error:
            raise Refused(str(error)) from error
    manifest, plan = prepared.manifest, prepared.plan
    out.print(f"{manifest.source.uri} is revision {manifest.revision}: {plan.files} files, {size(plan.size_bytes)}")
    out.print(plan_table(plan))
    for step in plan.steps():
        out.print(f"- {step}", highlight=False)
    for note in plan.notes:
        out.print(f"[yellow]![/] {note}", highlight=False)
    if plan.refused:
        raise Refused(plan.refused)


def keep_secret(kube: Kube, name: str, namespace: str, variables: Sequence[str]) -> None:
    """Keep credentials from this process's environment as a Secret, which node Jobs and flows read by its name."""
    absent = [variable for variable in variables if variable not in os.environ]
    if absent:
        raise Refused(f"{', '.join(absent)} is not set in this shell; export it first. Nothing was written.")
    values = {variable: os.environ[variable] for variable in variables}
    metadata = {"name": name, "namespace": namespace}
    kube.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": values}, force=True)


def plan_table(plan: RolloutPlan) -> Table:
    """A row per node; what is left out says why."""
    table = Table("NODE", "ACTION", "FETCH", "REUSE", "FREE", "WHY", box=None, header_style="bold", pad_edge=False)
    for row in plan.rows():
        table.add_row(*(row[column] for column in ("node", "action", "fetch", "reuse", "free", "why")))
    return table
