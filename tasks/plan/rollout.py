"""The plan of one rollout: what will be fetched where, what not and why, and the steps to the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from tasks.plan.capacity import Admission, admit, largest_bytes
from tasks.plan.figures import bytes_text, count_text, reasons_text
from tasks.plan.gate import needed_nodes
from tasks.plan.objects import cache_name
from tasks.plan.resources import Endpoint
from tasks.plan.retention import Cache
from tasks.plan.targets import choose_targets
from tasks.plan.types import Manifest, Node

Row = dict[str, str]


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """fill: admissions of the nodes to fill now; warm: those that hold the revision already; excluded: node → why not.

    refused: why nothing can be done, with what to do; "" when the rollout may go on.
    notes: what the user should know although the rollout goes on.
    """

    endpoint: str
    cache: str
    digest: str
    revision: str
    size_bytes: int
    files: int
    adopts: bool
    fill: tuple[Admission, ...]
    warm: tuple[Admission, ...]
    excluded: dict[str, str] = field(default_factory=dict)
    old_caches: tuple[str, ...] = ()
    replicas: int = 1
    refused: str = ""
    notes: tuple[str, ...] = ()

    @property
    def targets(self) -> tuple[str, ...]:
        """Nodes that the gate counts, by name."""
        return tuple(sorted(admission.node for admission in (*self.fill, *self.warm)))

    @property
    def fetch_bytes(self) -> int:
        return sum(admission.fetch_bytes for admission in self.fill)

    def rows(self) -> list[Row]:
        """One row per node, for tables."""
        filled = [_row(admission, "resume" if admission.resumes else "fill") for admission in self.fill]
        warm = [_row(admission, "is warm") for admission in self.warm]
        left_out = [
            {"node": node, "action": "leave out", "fetch": "-", "reuse": "-", "free": "-", "why": why}
            for node, why in self.excluded.items()
        ]
        return [*filled, *warm, *left_out]

    def steps(self) -> list[str]:
        """What will happen, in order, a sentence each."""
        if self.refused:
            return [f"Nothing: {self.refused}"]
        if not self.cache:
            return [f"Roll {self.endpoint} to revision {self.revision}, {_replicas(self)} from the source"]
        verb = "Adopt" if self.adopts else "Create"
        steps = [
            f"{verb} cache {self.cache}: {count_text(self.files, 'file')}, {bytes_text(self.size_bytes)}",
            self._filling(),
            f"Roll {self.endpoint} to revision {self.revision}, {_replicas(self)} on warm nodes first",
        ]
        return steps + [f"Delete cache {name} once no pod uses it" for name in self.old_caches]

    def _filling(self) -> str:
        warm = f"; {len(self.warm)} warm already" if self.warm else ""
        if not self.fill:
            return f"Fill no node{warm}"
        return f"Fill {count_text(len(self.fill), 'node')}, fetching {bytes_text(self.fetch_bytes)}{warm}"


def plan_rollout(
    endpoint: Endpoint,
    manifest: Manifest,
    nodes: Iterable[Node],
    caches: Iterable[Cache],
    *,
    known: Mapping[str, Manifest],
    replicas: int | None = None,
) -> RolloutPlan:
    """Plan `endpoint` onto `manifest`.

    caches: all of this endpoint. known: manifests by digest, for what nodes can reuse.
    replicas: that run now, so that an autoscaler's number is kept; None takes the endpoint's.
    """
    name = cache_name(endpoint.name, manifest.digest)
    fleet = tuple(nodes)
    own = [cache for cache in caches if cache.endpoint == endpoint.name]
    targets = choose_targets(endpoint, fleet)
    admissions = [admit(manifest, node, known) for node in targets.nodes] if endpoint.weights_cache else []
    fill = tuple(a for a in admissions if not a.holds_it and not a.reason)
    warm = tuple(a for a in admissions if a.holds_it)
    excluded = dict(sorted((targets.excluded | {a.node: a.reason for a in admissions if a.reason}).items()))
    plan = RolloutPlan(
        endpoint=endpoint.name,
        cache=name if endpoint.weights_cache else "",
        digest=manifest.digest,
        revision=manifest.revision,
        size_bytes=manifest.size_bytes,
        files=len(manifest.files),
        adopts=any(cache.name == name for cache in own),
        fill=fill,
        warm=warm,
        excluded=excluded,
        old_caches=tuple(sorted(cache.name for cache in own if cache.name != name)),
        replicas=endpoint.replicas if replicas is None else replicas,
        refused=_why_refused(endpoint, manifest, targets.nodes, excluded, len(fill) + len(warm)),
    )
    return plan if plan.refused else replace(plan, notes=_notes(endpoint, plan, len(targets.nodes)))


def _why_refused(
    endpoint: Endpoint, manifest: Manifest, targets: tuple[Node, ...], excluded: Mapping[str, str], usable: int
) -> str:
    """Why the rollout cannot begin; "" when it can."""
    if not endpoint.weights_cache or usable:
        return ""
    if not targets:
        return (
            f"no node is a target of {endpoint.name}: {reasons_text(excluded) or 'the cluster has no node'}. "
            "Add nodes of its instance type, or change spec.instanceType, spec.nodeAffinity or cachePolicy.tolerations"
        )
    if all(node.capacity_bytes is not None for node in targets) and largest_bytes(targets) < manifest.size_bytes:
        largest = max(targets, key=lambda node: node.capacity_bytes or 0)
        return (
            f"the model has {bytes_text(manifest.size_bytes)} and is larger than every target node's NVMe "
            f"(the largest is {largest.name} with {bytes_text(largest.capacity_bytes or 0)}). "
            "Use nodes with larger disks, or set modelCacheConfig.weightsCache.enabled: false"
        )
    return (
        f"no target node has room: {reasons_text(excluded)}. "
        "Free space (warmpath get nodes shows who holds what) or add nodes, then roll again"
    )


def _notes(endpoint: Endpoint, plan: RolloutPlan, targets: int) -> tuple[str, ...]:
    gate = check_gate_can_open(endpoint, plan, targets) if endpoint.weights_cache else ""
    ignored = (f"spec.{name} is accepted and has no effect here" for name in endpoint.ignored)
    return tuple(note for note in (gate, *ignored) if note)


def check_gate_can_open(endpoint: Endpoint, plan: RolloutPlan, targets: int) -> str:
    """A warning when nodes left out for space mean that fewer copies are made than the gate counts; "" otherwise."""
    needed = needed_nodes(endpoint.gate, targets, targets)
    have = len(plan.fill) + len(plan.warm)
    return f"the gate needs {needed} warm nodes and {have} can hold the model" if have < needed else ""


def _row(admission: Admission, action: str) -> Row:
    free = "?" if admission.free_bytes is None else bytes_text(admission.free_bytes)
    fetch, reuse = bytes_text(admission.fetch_bytes), bytes_text(admission.reuse_bytes)
    return {"node": admission.node, "action": action, "fetch": fetch, "reuse": reuse, "free": free, "why": ""}


def _replicas(plan: RolloutPlan) -> str:
    return count_text(plan.replicas, "replica")
