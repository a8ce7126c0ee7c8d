"""What a loader is given, checked: numbers, ranks, skips, and what its source is."""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from . import _feedmill
from .errors import ConfigError, StateError


def is_fleet(source: Any) -> bool:
    """Whether workers are named, and not a pipeline's file."""
    if isinstance(source, (list, tuple)):
        return True
    text = os.fspath(source)
    return "://" in text or text.startswith("file:")


#: What looks like a worker's address whose scheme was left out.
_BARE_ADDRESS = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}")


def check_file(source: Any) -> None:
    """ConfigError for a worker's address without its scheme, which would be taken for a pipeline's file."""
    text = os.fspath(source)
    first = text.split(",")[0].strip() if isinstance(text, str) else ""
    if _BARE_ADDRESS.fullmatch(first) and not os.path.exists(text):
        raise ConfigError(f"{text} is no pipeline's file; workers' addresses begin with http:// or https://: http://{first}?")


def whole(value: object) -> int | None:
    """A whole number as Python's own, numpy's integers too; None for what is none."""
    try:
        return None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def at_least(name: str, value: int, least: int) -> int:
    """The setting as Python's own number; ConfigError unless it is a whole one of at least ``least``."""
    number = whole(value)
    if number is None or number < least:
        raise ConfigError(f"{name} {value!r} must be a whole number of at least {least}")
    return number


def at_least_if_given(name: str, value: int | None, least: int) -> int | None:
    """The same of a setting that may be None."""
    return None if value is None else at_least(name, value, least)


def check_choices(epochs: float | None, last_step: str, on_bad: str, max_bad: float) -> None:
    """ConfigError for what is none of the values that these may have."""
    if epochs is not None and not 0 < epochs < 2**53:
        raise ConfigError(f"epochs {epochs!r} must be above 0")
    if last_step not in ("pad", "drop"):
        raise ConfigError(f'last_step {last_step!r} must be "pad" or "drop"')
    if on_bad not in ("raise", "warn"):
        raise ConfigError(f'on_bad {on_bad!r} must be "raise" or "warn"')
    if not 0 <= max_bad <= 1:
        raise ConfigError(f"max_bad {max_bad!r} is a share, 0 to 1")


def check_access(source: Any, token: str | None, token_file: str | os.PathLike[str] | None) -> None:
    """ConfigError for a source that is none, and for a token that does not go with it."""
    if token is not None and token_file is not None:
        raise ConfigError("token and token_file are two ways to say the same; give one of them")
    if not is_fleet(source):
        check_file(source)
    if (token is not None or token_file is not None) and not is_fleet(source):
        raise ConfigError("token goes with workers' addresses; workers of a pipeline's file get one of their own")


def check_ranks(dp_rank: int, dp_size: int, model_parallel_size: int) -> tuple[int, int]:
    """Rank and size; ConfigError for ranks that are none, and for global ones, as far as the launcher's WORLD_SIZE shows
    them."""
    dp_size = at_least("dp_size", dp_size, 1)
    dp_rank = at_least("dp_rank", dp_rank, 0)
    model_parallel_size = at_least("model_parallel_size", model_parallel_size, 1)
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
    return dp_rank, dp_size


def checked_tensors(names: Collection[str] | None, known: Collection[str]) -> tuple[str, ...] | None:
    """Names of tensors; ConfigError for those that no batch has."""
    if names is None:
        return None
    if isinstance(names, str):
        raise ConfigError(f"tensors {names!r} must be a list of names")
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ConfigError(f"tensors {', '.join(map(repr, unknown))}: there is no such tensor; there are {', '.join(sorted(known))}")
    return tuple(names)


def checked_skips(stretches: Iterable[Sequence[int]]) -> list[tuple[int, int]]:
    """Stretches (start, end) of positions, sorted; ConfigError for what is none, and for overlaps."""
    made = []
    for stretch in stretches:
        if len(stretch) != 2:
            raise ConfigError(f"skip {stretch!r} must be a pair (start, end) of positions")
        start = at_least("skips", stretch[0], 0)
        end = at_least("skips", stretch[1], start + 1)
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
