"""Conditions of a resource's status, as Kubernetes has them: one per type, its time moves only when its status does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Condition = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Finding:
    """What a run found out about one aspect. ok: None while it is not known yet."""

    type: str
    ok: bool | None
    reason: str
    message: str = ""


def with_findings(
    conditions: Sequence[Condition], findings: Sequence[Finding], *, at: str, generation: int
) -> list[Condition]:
    """`conditions` with each finding in its type's place; `at` is the RFC 3339 time of a change."""
    merged = {old["type"]: old for old in conditions}
    for finding in findings:
        status = {True: "True", False: "False", None: "Unknown"}[finding.ok]
        old = merged.get(finding.type, {})
        merged[finding.type] = {
            "type": finding.type,
            "status": status,
            "reason": finding.reason,
            "message": finding.message,
            "observedGeneration": generation,
            "lastTransitionTime": old["lastTransitionTime"] if old.get("status") == status else at,
        }
    return list(merged.values())


def condition(found: Mapping[str, Any], kind: str) -> Condition | None:
    """The condition `kind` of an object; None when it has none, or one that is not true."""
    conditions: Sequence[Condition] = (found.get("status") or {}).get("conditions") or []
    return next((c for c in conditions if c["type"] == kind and c["status"] == "True"), None)
