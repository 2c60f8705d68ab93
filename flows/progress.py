"""What a run shows of itself: one progress bar, and tables, as Prefect artifacts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, cast
from uuid import UUID

from prefect.artifacts import create_progress_artifact, create_table_artifact, update_progress_artifact
from prefect.client.orchestration import get_client
from prefect.runtime import flow_run

WRITE_EVERY_S = 2.0


def tag_run(*tags: str) -> None:
    """Tag the flow run, so that the UI finds all runs of an endpoint."""
    with get_client(sync_client=True) as client:
        client.update_flow_run(UUID(flow_run.id), tags={*flow_run.tags, *tags})


class Progress:
    """One progress artifact with one writer; a write for every node would cost more than the work."""

    def __init__(self, key: str, description: str) -> None:
        self._artifact = cast(UUID, create_progress_artifact(0.0, key=key, description=description))
        self._written, self._written_at = 0.0, time.monotonic()

    def show(self, share: float) -> None:
        """`share` of the work is done (0 to 1); written every other second and at the end."""
        percent = round(100 * min(max(share, 0.0), 1.0), 1)
        due = time.monotonic() - self._written_at >= WRITE_EVERY_S
        if percent != self._written and (due or percent == 100.0):
            update_progress_artifact(self._artifact, progress=percent)
            self._written, self._written_at = percent, time.monotonic()


def show_table(key: str, rows: Sequence[dict[str, Any]], description: str) -> None:
    """A table artifact; the first 200 rows of a large fleet."""
    shown = list(rows[:200])
    more = f" (first {len(shown)} of {len(rows)} rows)" if len(rows) > len(shown) else ""
    create_table_artifact(table=shown, key=key, description=description + more)
