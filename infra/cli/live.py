"""A rollout as it goes: its stages, and a bar for every node that is being filled.

On a terminal it redraws in place; elsewhere (CI, a file) it writes a line for each change.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from infra.cli.quantities import duration, size
from tasks.kube import Kube, KubeError, Object
from tasks.plan.objects import ENDPOINT_LABEL
from tasks.plan.resources import Endpoint
from tasks.plan.schema import KIND

MARKS = {"True": ("✓", "green"), "False": ("✗", "red"), "Unknown": ("…", "yellow")}
SHOWN_NODES = 24


@dataclass(frozen=True, slots=True)
class Bar:
    """How far one node is."""

    node: str
    state: str
    done_bytes: int
    size_bytes: int
    bytes_per_s: float
    eta_s: float
    reason: str

    @property
    def share(self) -> float:
        if self.state == "Ready":
            return 1.0
        return self.done_bytes / self.size_bytes if self.size_bytes else 0.0


def bars(node_caches: list[Object], digest: str) -> list[Bar]:
    """One bar per node that knows of the revision `digest`."""
    return sorted(_bars(node_caches, digest), key=lambda bar: bar.node)


def _bars(node_caches: list[Object], digest: str) -> Iterator[Bar]:
    for cache in node_caches:
        for entry in (cache.get("status") or {}).get("entries") or []:
            if entry["digest"] == digest:
                yield Bar(
                    cache["metadata"]["name"],
                    entry["state"],
                    int(entry.get("doneBytes", 0)),
                    int(entry.get("sizeBytes", 0)),
                    float(entry.get("bytesPerSecond", 0)),
                    float(entry.get("etaSeconds", 0)),
                    str(entry.get("message", "")),
                )


def stages(conditions: list[Object]) -> list[tuple[str, str, str]]:
    """(type, status, what was found out), in the order in which they came true."""
    return [(c["type"], c["status"], c.get("message") or c.get("reason", "")) for c in conditions]


def pinned_digest(told: list[tuple[str, str, str]], caches: list[Object]) -> str:
    """The digest that the run has resolved to; "" until it has, and until its cache is there: others are old."""
    pinned = next((message for kind, status, message in told if kind == "Resolved" and status == "True"), "")
    return next(
        (str(c["spec"]["digest"]) for c in caches if pinned.startswith(f"revision {c['spec'].get('revision')},")), ""
    )


class RolloutScreen:
    """Shows one endpoint's rollout until the block ends."""

    def __init__(self, kube: Kube, endpoint: Endpoint, out: Console) -> None:
        self._kube, self._endpoint, self._out = kube, endpoint, out
        self._live = Live(console=out, refresh_per_second=8) if out.is_terminal else None
        self._told: set[str] = set()
        self._before: list[tuple[str, str, str]] | None = None
        self._began = False

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def show(self, run_state: str) -> None:
        """Draw what the cluster says now; a cluster that does not answer leaves the last picture."""
        try:
            endpoint = self._kube.get(KIND, self._endpoint.name, self._endpoint.namespace)
            status = endpoint.get("status") or {}
            told = stages(status.get("conditions") or [])
            digest = pinned_digest(told, self._caches())
            found = bars(self._kube.list("NodeCache").items, digest) if digest else []
        except KubeError:
            return
        # Until the run has put its stages back to unknown, they are those of the run before.
        self._before = told if self._before is None else self._before
        self._began = self._began or told != self._before
        if not self._began:
            told, found = [], []
        if self._live:
            self._live.update(picture(run_state, status, told, found))
        else:
            self._write(told, found)

    def _caches(self) -> list[Object]:
        labels = f"{ENDPOINT_LABEL}={self._endpoint.name}"
        return self._kube.list("ModelDataCacheConfig", self._endpoint.namespace, labels=labels).items

    def _write(self, told: list[tuple[str, str, str]], found: list[Bar]) -> None:
        for kind, status, message in told:
            if status != "Unknown":
                self._once(f"  {MARKS[status][0]} {kind}: {message}")
        for bar in found:
            # A quarter at a time: enough to see that it goes, not a line for every look.
            quarter = int(bar.share * 4) * 25
            rate = f" {size(bar.bytes_per_s)}/s" if bar.bytes_per_s and bar.state != "Ready" else ""
            self._once(f"    {bar.node} {bar.state} {quarter} %{rate} {bar.reason}".rstrip())

    def _once(self, line: str) -> None:
        key = line.split(" %")[0]
        if key not in self._told:
            self._told.add(key)
            self._out.print(line, highlight=False, markup=False, soft_wrap=True)


def picture(run_state: str, status: Object, told: list[tuple[str, str, str]], found: list[Bar]) -> RenderableType:
    """Stages on top, nodes below."""
    lines = [Text(f"run {run_state} · endpoint {status.get('state', 'Pending')}", style="bold")]
    for kind, state, message in told:
        mark, style = MARKS[state]
        lines.append(Text.assemble(("  " + mark, style), f" {kind:<14} ", (message, "dim")))
    return Group(*lines, node_table(found)) if found else Group(*lines)


def node_table(found: list[Bar]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    for bar in found[:SHOWN_NODES]:
        moving = bar.state == "Downloading"
        table.add_row(
            f"    {bar.node}",
            ProgressBar(total=1.0, completed=bar.share, width=30),
            f"{bar.share:4.0%}",
            f"{size(bar.done_bytes if moving else bar.size_bytes)} of {size(bar.size_bytes)}",
            f"{size(bar.bytes_per_s)}/s" if moving and bar.bytes_per_s else "",
            f"ETA {duration(bar.eta_s)}" if moving and bar.eta_s else bar.state,
        )
    if len(found) > SHOWN_NODES:
        table.add_row(f"    and {len(found) - SHOWN_NODES} more nodes")
    return table
