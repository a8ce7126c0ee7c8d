"""What a loader is given, checked: numbers, ranks, skips, and what its source is."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

from . import _feedmill
from .errors import ConfigError, StateError


def is_fleet(source: Any) -> bool:
    """Whether workers are named, and not a pipeline's file."""
    if isinstance(source, (list, tuple)):
        return True
    text = os.fspath(source)
    return "://" in text or text.startswith("file:")


def at_least(name: str, value: int, least: int) -> None:
    """ConfigError unless a setting is a whole number of at least ``least``."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name} {value!r} must be a whole number of at least {least}")


def check_ranks(dp_rank: int, dp_size: int, model_parallel_size: int) -> None:
    """ConfigError for ranks that are none, and for global ones, as far as the launcher's WORLD_SIZE shows them."""
    at_least("dp_size", dp_size, 1)
    at_least("dp_rank", dp_rank, 0)
    at_least("model_parallel_size", model_parallel_size, 1)
    if dp_rank >= dp_size:
        raise ConfigError(
            f"dp_rank {dp_rank} is not below dp_size {dp_size}; is it the global rank? Ranks that share a model share a dp_rank"
        )
    world = os.environ.get("WORLD_SIZE", "")
    if world.isdigit() and int(world) != dp_size * model_parallel_size:
        raise ConfigError(
            f"dp_size {dp_size} x model_parallel_size {model_parallel_size} is not WORLD_SIZE {world}; dp_size counts "
            "data-parallel ranks only, and model_parallel_size the ranks that share one (tensor x pipeline x context parallel)"
        )


def checked_skips(stretches: Iterable[Sequence[int]]) -> list[tuple[int, int]]:
    """Stretches (start, end) of positions, sorted; ConfigError for what is none, and for overlaps."""
    made = []
    for stretch in stretches:
        if len(stretch) != 2:
            raise ConfigError(f"skip {stretch!r} must be a pair (start, end) of positions")
        start, end = stretch
        at_least("skips", start, 0)
        at_least("skips", end, start + 1)
        made.append((start, end))
    made.sort()
    # Overlaps are refused where the arithmetic is.
    _feedmill.position_of(0, made)
    return made


def merged_skips(
    checkpoint: list[tuple[int, int]], own: list[tuple[int, int]], position: int
) -> list[tuple[int, int]]:
    """The checkpoint's skips and those of this loader that are new."""
    merged = list(checkpoint)
    for skip in own:
        if skip in checkpoint:
            continue
        if skip[0] < position and not any(start <= skip[0] and skip[1] <= end for start, end in checkpoint):
            raise StateError(
                f"skip {skip[0]}-{skip[1]} begins before position {position}, where the checkpoint stands, and is not one of its "
                "skips: what was consumed would be counted anew. Resume from a checkpoint before it"
            )
        if skip[0] >= position:
            merged.append(skip)
    return checked_skips(merged)
