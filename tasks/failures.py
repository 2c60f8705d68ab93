"""How runs fail: what may be tried again, what a failure means, in one word and one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tasks.kube import Conflict, KubeError, Unavailable
from tasks.stop import Stopped

if TYPE_CHECKING:
    from prefect import State, Task
    from prefect.client.schemas.objects import TaskRun

AGAIN = "Run again to go on: what is proven is kept."


class RolloutFailed(Exception):
    """An expected failure: `reason` is one word for machines, the message says what to do."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason, self.message = reason, message

    def __reduce__(self) -> tuple[type[RolloutFailed], tuple[str, str]]:
        return type(self), (self.reason, self.message)


class RolloutHeld(RolloutFailed):
    """Not done, and not given up: another run goes on from here."""


def explain(error: BaseException) -> tuple[str, str]:
    """(reason, sentence) of what ended a run. Refusals of our own carry a `reason`, and a `hint` of what to do."""
    reason = getattr(error, "reason", None)
    if isinstance(error, Exception) and isinstance(reason, str):
        said = getattr(error, "message", str(error))
        return reason, f"{said} {getattr(error, 'hint', '')}".strip()
    match error:
        case KubeError():
            return "ClusterError", f"{error}. Run again when the cluster answers; what is proven is kept."
        case ValueError() if hasattr(error, "problems"):
            return "InvalidResource", str(error)
        case Stopped():
            return "Stopped", f"{error}. {AGAIN}"
        case Exception():
            return "InternalError", f"{type(error).__name__}: {error}. {AGAIN}"
    return "Cancelled", f"The run was cancelled. {AGAIN}"


def is_transient(_task: Task[..., Any], _run: TaskRun, state: State[Any]) -> bool:
    """Retry condition of tasks: the cluster did not answer, or somebody else was faster. All else is told at once."""
    try:
        state.result(raise_on_failure=True)
    except (Unavailable, Conflict):
        return True
    except BaseException:  # noqa: BLE001 - a stop, a refusal or a bug: trying again would not help
        return False
    return False


RETRY: dict[str, Any] = {"retries": 3, "retry_delay_seconds": [1, 5, 20], "retry_condition_fn": is_transient}
