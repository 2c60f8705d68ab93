"""The gate: may the rollout proceed? Counted over target nodes that are still there and schedulable.

NotReady, cordoned and deleting nodes leave the count, so that one dead node does not block a fleet; when that leaves
none at all, the gate waits: nobody warm is no proof.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from tasks.plan.figures import count_text, reasons_text
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
    present = [node for node in targets if not node.deleting]
    counted = [node.name for node in present if node.ready and node.schedulable]
    warm = sum(name in ready for name in counted)
    lost = [name for name in counted if name in failed and name not in ready]
    needed = needed_nodes(policy, len(counted), len(present))
    told = f"{warm} of {count_text(len(counted), 'schedulable node')} warm, {needed} needed"
    if opened:
        return Verdict(GateState.OPEN, warm, needed, len(counted), f"opened before for this revision; {told}")
    if warm >= needed and (counted or not present):
        return Verdict(GateState.OPEN, warm, needed, len(counted), told)
    hopeless = bool(lost) and _possible(policy, len(counted), len(present)) - len(lost) < needed
    if not hopeless and elapsed_s < policy.deadline_s:
        waited = f"{elapsed_s:.0f} s of {policy.deadline_s:.0f} s"
        return Verdict(GateState.WAITING, warm, needed, len(counted), f"{told}; waited {waited}")
    why = (
        f"{told}; {reasons_text({name: failed[name] for name in lost})}"
        if hopeless
        else f"{told} after the deadline of {policy.deadline_s:.0f} s"
    )
    state = {
        OnDeadline.OPEN_WITH_FALLBACK: GateState.OPEN,
        OnDeadline.HOLD: GateState.HELD,
        OnDeadline.FAIL: GateState.FAILED,
    }[policy.on_deadline]
    return Verdict(state, warm, needed, len(counted), f"{why}; onDeadline is {policy.on_deadline}")


def needed_nodes(policy: GatePolicy, counted: int, present: int) -> int:
    """How many of `counted` schedulable nodes must be warm, of `present` targets that are there.

    A Count is of copies, so nodes that are away for a while do not lower it; above `present` it means all of them.
    """
    match policy.mode:
        case GateMode.COUNT:
            return min(policy.value, present)
        case GateMode.PERCENTAGE:
            return math.ceil(counted * policy.value / 100)
        case GateMode.ALL:
            return counted


def _possible(policy: GatePolicy, counted: int, present: int) -> int:
    """Nodes that may still become warm and count: for a Count also those that are away now."""
    return present if policy.mode is GateMode.COUNT else counted
