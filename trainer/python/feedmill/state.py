"""Takes what a checkpoint holds, gives where a loader goes on, or says what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import _feedmill
from .errors import ConfigError, PlanChanged, StateError
from .kinds import whole
from .settings import checked_skips, merged_skips

#: Version of what state_dict returns.
STATE_VERSION = 1


@dataclass(frozen=True)
class Resumed:
    """Where a checkpoint stands, with the skips of both; no plan where it names none."""

    consumed: int
    steps: int | None
    skips: list[tuple[int, int]]
    plan: str | None


def written(stream: str, consumed: int, steps: int | None, skips: list[tuple[int, int]], plan: str) -> dict[str, Any]:
    """What a checkpoint holds."""
    return {
        "version": STATE_VERSION,
        "stream": stream,
        "consumed": consumed,
        "steps": steps,
        "skips": [list(skip) for skip in skips],
        "plan": plan,
    }


def resumed(state: Mapping[str, Any], stream: str, own_skips: list[tuple[int, int]], max_steps: int | None) -> Resumed:
    """The state, checked; StateError for what is no state of this stream, and where ``max_steps`` has nothing to count on."""
    if not isinstance(state, Mapping):
        raise StateError(f"state is a {type(state).__name__}, and no dict that state_dict() returned")
    version = state.get("version")
    if version != STATE_VERSION:
        raise StateError(f"state has version {version!r}, this package reads version {STATE_VERSION}")
    if state.get("stream") != stream:
        raise StateError(f"state is of stream {state.get('stream')!r}, this loader reads {stream!r}")
    consumed, plan = whole(state.get("consumed")), state.get("plan")
    if consumed is None or consumed < 0:
        raise StateError(f"state has consumed {state.get('consumed')!r}, which is no number of samples")
    steps = whole(state.get("steps"))
    if state.get("steps") is not None and (steps is None or steps < 0 or steps > consumed):
        raise StateError(f"state has steps {state.get('steps')!r} and consumed {consumed}, which do not go together")
    if steps is None:
        steps = 0 if consumed == 0 else None
        if max_steps is not None and steps is None:
            raise StateError(
                f"state has no steps, which max_steps {max_steps} counts; say how many were taken: state | {{'steps': N}}"
            )
    if plan is not None and not isinstance(plan, str):
        raise StateError(f"state has plan {plan!r}, which is no digest")
    try:
        before = checked_skips(state.get("skips", ()))
        position = _feedmill.position_of(consumed, before)
    except (ConfigError, TypeError, OverflowError) as error:
        raise StateError(f"state has consumed {consumed!r} and skips {state.get('skips')!r}: {error}") from error
    return Resumed(consumed, steps, merged_skips(before, own_skips, position), plan)


def check_plan(here: str, expected: str | None, accepted: str | None, rank: int, stream: str) -> None:
    """PlanChanged where the workers' plan is neither the checkpoint's nor the one that is accepted in its stead."""
    if expected is None or here in (expected, accepted):
        return
    raise PlanChanged(
        f"rank {rank}: the checkpoint was written with plan {expected} of stream {stream!r}, the workers have "
        f"{here}; `feedmill diff` of the checkpoint's plan.json says what differs. To go on deliberately: "
        f"accept_plan={here!r}",
        rank=rank,
        stream=stream,
        reason=f"plan {here} instead of {expected}",
    )
