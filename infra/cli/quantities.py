"""Sizes, rates and ages as people read them."""

from __future__ import annotations

from datetime import UTC, datetime


def size(size_bytes: float | None) -> str:
    """Decimal units, as disks and networks are sold: 1.0 GB is 10^9 bytes."""
    if size_bytes is None:
        return "?"
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size_bytes) < 1000:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.1f} TB"


def duration(seconds: float) -> str:
    """The two largest units: 42s, 3m10s, 5h02m, 3d04h."""
    whole = max(0, int(seconds))
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days}d{hours:02d}h"
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{whole % 60:02d}s" if minutes else f"{whole}s"


def age(timestamp: str, now: datetime | None = None) -> str:
    """How long ago an RFC 3339 `timestamp` was; "" for none."""
    if not timestamp:
        return ""
    return duration(((now or datetime.now(UTC)) - parse_time(timestamp)).total_seconds())


def parse_time(timestamp: str) -> datetime:
    return datetime.fromisoformat(timestamp)
