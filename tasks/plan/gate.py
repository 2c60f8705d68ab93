"""The gate: may the rollout proceed? Counted over target nodes that are still there and schedulable.

NotReady, cordoned and deleting nodes leave the count, so that one dead node does not block a fleet.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from tasks.plan.types import GateMode, GatePolicy, Node, OnDeadline


class GateState(StrEnum):
    OPEN = "Open"
    WAITING = "Waiting"
    HELD = "Held"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class Verdict:
    """needed, ready: of `counted` nodes. The reason is a sentence for humans."""

    state: GateState
    ready: int
    needed: int
    counted: int
    reason: str


def evaluate_gate(
    policy: GatePolicy,
    targets: Iterable[Node],
    ready: Collection[str],
    failed: Mapping[str, str],
    elapsed_s: float,
    *,
    opened: bool = False,
) -> Verdict:
    """Judge by names: `ready` nodes are proven warm, `failed` ones will not become so in this run (with the reason).

    opened: it opened for this revision before, and stays so: a later loss of copies stops no rollout.
    A gate that can no longer open is decided at once instead of at its deadline.
    """
    counted = [node.name for node in targets if node.ready and node.schedulable and not node.deleting]
    warm = sum(name in ready for name in counted)
    lost = [name for name in counted if name in failed and name not in ready]
    needed = needed_nodes(policy, len(counted))
    told = f"{warm} of {len(counted)} nodes are warm, {needed} needed"
    if opened:
        return Verdict(GateState.OPEN, warm, needed, len(counted), f"opened before for this revision; {told}")
    if warm >= needed:
        return Verdict(GateState.OPEN, warm, needed, len(counted), told)
    hopeless = len(counted) - len(lost) < needed
    if not hopeless and elapsed_s < policy.deadline_s:
        return Verdict(
            GateState.WAITING, warm, needed, len(counted), f"{told}; {elapsed_s:.0f} s of {policy.deadline_s:.0f} s"
        )
    why = f"{told}; {_told(lost, failed)}" if hopeless else f"{told} after the deadline of {policy.deadline_s:.0f} s"
    state = {
        OnDeadline.OPEN_WITH_FALLBACK: GateState.OPEN,
        OnDeadline.HOLD: GateState.HELD,
        OnDeadline.FAIL: GateState.FAILED,
    }[policy.on_deadline]
    return Verdict(state, warm, needed, len(counted), f"{why}; onDeadline is {policy.on_deadline}")


def needed_nodes(policy: GatePolicy, counted: int) -> int:
    """How many of `counted` nodes must be warm. A Count above the fleet's size means all of it."""
    if policy.mode is GateMode.COUNT:
        return min(policy.value, counted)
    if policy.mode is GateMode.PERCENTAGE:
        return math.ceil(counted * policy.value / 100)
    return counted


def _told(lost: list[str], failed: Mapping[str, str]) -> str:
    shown = "; ".join(f"{name}: {failed[name]}" for name in lost[:3])
    return shown + (f"; and {len(lost) - 3} more" if len(lost) > 3 else "")
