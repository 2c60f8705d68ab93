"""Where the demo plays: a home of its own, emptied before and stopped after."""

from __future__ import annotations

import os
import shutil

from rich.console import Console

from infra.cli import applying, fleet, processes
from infra.cli.home import Home


def prepare() -> Home:
    """The demo's own home, empty; refuses one in which something runs."""
    os.environ.setdefault("WARMPATH_HOME", ".warmpath-demo")
    home = Home.open()
    alive = processes.running(home)
    if alive:
        raise applying.Refused(f"{', '.join(alive)} run already in {home.root}; stop them first: {down_command(home)}")
    if (home.root / "demo.json").exists():
        shutil.rmtree(home.root)
        home = Home.open()
    elif any(home.root.iterdir()):
        raise applying.Refused(f"{home.root} holds a fleet that is not the demo's; set WARMPATH_HOME to another folder")
    home.write("demo", {"home": "of warmpath demo, which empties it at each start"})
    os.environ.update({**fleet.environment(home), "PREFECT_LOGGING_LEVEL": "CRITICAL"})
    return home


def close(home: Home, out: Console) -> None:
    with out.status("stopping the fleet"):
        list(fleet.stop_all(home))


def tell_kept(home: Home, out: Console) -> None:
    where = fleet.addresses(home)
    out.print(f"Still running: Prefect UI {where.prefect}, router {where.router}. Stop it: {down_command(home)}")
    out.print(f"Look at it: {command(home, 'status')} (the home is the demo's own, not that of a plain `warmpath up`)")


def down_command(home: Home) -> str:
    return command(home, "down")


def command(home: Home, verb: str) -> str:
    return f"WARMPATH_HOME={os.path.relpath(home.root)} .venv/bin/warmpath {verb}"
