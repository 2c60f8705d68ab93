"""python -m tasks.prefetch fill|link|audit|evict: what runs on a node. Knows neither Prefect nor Kubernetes.

Credentials come from the environment (AWS_*, HF_TOKEN) or the machine's role. JSON lines on standard output; the last
is the report. Exit status: 0 done, 1 failed and worth another try, 2 failed and another try cannot help.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tasks.prefetch.errors import PrefetchError
from tasks.prefetch.report import Report, disk_report, failure_report, write_report
from tasks.prefetch.store import Store

RETRY, TERMINAL = 1, 2


def main(arguments: list[str] | None = None) -> int:
    told = _parser().parse_args(arguments)
    started = time.monotonic()
    status = 0
    try:
        report: Report = {"outcome": "Ready", **told.run(told), "reason": "", "message": ""}
    except PrefetchError as error:
        status = TERMINAL if error.terminal else RETRY
        report = {**failure_report(error), **_digest(told)}
    if told.command in {"fill", "audit", "evict"} or told.capacity_bytes is not None:
        report |= disk_report(told.root, told.capacity_bytes)
    write_report(told.report, {**report, "seconds": round(time.monotonic() - started, 3)})
    return status


def _fill(told: argparse.Namespace) -> Report:
    # Imported here: hashing and boto3 take longer to load than an audit takes to run.
    from tasks.prefetch.fill import Room, fill
    from tasks.prefetch.manifests import read_manifest, told_of

    manifest = read_manifest(told.manifest)
    store = Store(told.root)
    store.prepare(told.host_path, allow_root_disk=told.allow_root_disk)
    progress = fill(store, manifest, Room(told.capacity_bytes, told.reserve_bytes), told.connections)
    return told_of(manifest, progress)


def _link(told: argparse.Namespace) -> Report:
    from tasks.prefetch.link import link
    from tasks.prefetch.manifests import read_manifest, told_of

    manifest = read_manifest(told.manifest)
    outcome, progress = link(
        Store(told.root), manifest, told.into, scratch_ok=told.scratch_ok, connections=told.connections
    )
    return {**told_of(manifest, progress), "outcome": outcome}


def _audit(told: argparse.Namespace) -> Report:
    from tasks.prefetch.audit import audit

    return {"entries": audit(Store(told.root), full=told.full)}


def _evict(told: argparse.Namespace) -> Report:
    from tasks.prefetch.audit import evict

    evict(Store(told.root), told.digest)
    return {"digest": told.digest}


def _digest(told: argparse.Namespace) -> Report:
    return {"digest": told.digest} if "digest" in told else {}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tasks.prefetch", description="The weights cache of one node.")
    commands = parser.add_subparsers(dest="command", required=True)
    fill = commands.add_parser("fill", help="put one revision on this node's disk, verified")
    link = commands.add_parser("link", help="give an engine its weights: links when the node is warm, else a download")
    audit = commands.add_parser("audit", help="tell what is on the disk, and prove it again")
    evict = commands.add_parser("evict", help="take one revision off the disk")
    for command, run in ((fill, _fill), (link, _link), (audit, _audit), (evict, _evict)):
        command.set_defaults(run=run)
        command.add_argument("--root", type=Path, required=True, help="directory of the store")
        command.add_argument("--report", type=Path, help="write the report to this file too")
        command.add_argument("--capacity-bytes", type=int, help="use no more of the disk than this")
    for command in (fill, link):
        command.add_argument("--manifest", type=Path, required=True, help="JSON of the revision")
        command.add_argument("--connections", type=int, default=8, help="requests at once")
    fill.add_argument("--reserve-bytes", type=int, default=0, help="leave this much of the disk free")
    fill.add_argument("--host-path", default="", help="path of the root on the host, to notice a missing mount")
    fill.add_argument("--allow-root-disk", action="store_true", help="fill even where no other disk is mounted")
    link.add_argument("--into", type=Path, required=True, help="directory that the engine reads")
    link.add_argument("--scratch-ok", action="store_true", help="on a cold node download into --into")
    audit.add_argument("--full", action="store_true", help="hash every file again")
    evict.add_argument("--digest", required=True, help="digest of the revision")
    return parser


if __name__ == "__main__":
    sys.exit(main())
