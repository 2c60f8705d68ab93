"""Figures and reasons as a plan's sentences show them."""

from __future__ import annotations

from collections.abc import Mapping

SHOWN_REASONS = 3


def bytes_text(size_bytes: float) -> str:
    """Decimal units, as disks and networks are sold; three digits, so that a shortage is visible."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size_bytes) < 999.5:
            return f"{size_bytes:.3g} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.3g} TB" if abs(size_bytes) < 999.5 else f"{size_bytes:.0f} TB"


def count_text(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def reasons_text(reasons: Mapping[str, str]) -> str:
    """name → why, the first few of them: a large fleet would bury the sentence."""
    shown = "; ".join(f"{name}: {why}" for name, why in list(reasons.items())[:SHOWN_REASONS])
    left = len(reasons) - SHOWN_REASONS
    return f"{shown}; and {left} more" if left > 0 else shown
