"""What a loader is given, checked: numbers, ranks, skips, and what its source is."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from . import _feedmill
from .errors import ConfigError, StateError
from .kinds import at_least


def is_fleet(source: str | list[str]) -> bool:
    """Whether workers are named, and not a pipeline's file."""
    return isinstance(source, list) or "://" in source or source.startswith("file:")


#: What looks like a worker's address whose scheme was left out.
_BARE_ADDRESS = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}/?")


def check_file(source: str) -> None:
    """ConfigError for a worker's address without its scheme, which would be taken for a pipeline's file."""
    first = source.split(",")[0].strip()
    if _BARE_ADDRESS.fullmatch(first) and not os.path.exists(source):
        raise ConfigError(f"{source} is no pipeline's file; workers' addresses begin with http:// or https://: http://{first}?")


def check_access(source: str | list[str], token: str | None, token_file: str | None) -> None:
    """ConfigError for a source that is none, and for a token that does not go with it."""
    if token is not None and token_file is not None:
        raise ConfigError("token and token_file are two ways to say the same; give one of them")
    if isinstance(source, list) or is_fleet(source):
        return
    check_file(source)
    if token is not None or token_file is not None:
        raise ConfigError("token goes with workers' addresses; workers of a pipeline's file get one of their own")


def check_own_workers(source: str | list[str], workers: int, threads: int | None) -> None:
    """ConfigError for settings of this machine's workers where others are named."""
    for name, given in (("workers", workers != 1), ("threads", threads is not None)):
        if given and is_fleet(source):
            raise ConfigError(f"{name} goes with a pipeline's file, for which workers are started here; {source!r} names workers that run")


def check_ranks(dp_rank: int, dp_size: int, model_parallel_size: int) -> None:
    """ConfigError for a rank that is none of the size, and for global ones, as far as the launcher's WORLD_SIZE shows them."""
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


def checked_tensors(names: Collection[str] | None, known: Collection[str]) -> frozenset[str] | None:
    """Names of tensors; ConfigError for those that no batch has."""
    if names is None:
        return None
    unknown = [name for name in names if not isinstance(name, str) or name not in known]
    if unknown:
        raise ConfigError(f"tensors {', '.join(map(repr, unknown))}: there is no such tensor; there are {', '.join(sorted(known))}")
    return frozenset(names)


def checked_skips(stretches: Iterable[Sequence[int]]) -> list[tuple[int, int]]:
    """Stretches (start, end) of positions, sorted; ConfigError for what is none, and for overlaps."""
    made = []
    for stretch in stretches:
        # What else has a length of 2, a text, has no whole numbers in it.
        if not isinstance(stretch, Sequence | np.ndarray) or len(stretch) != 2:
            raise ConfigError(f"skip {stretch!r} must be a pair (start, end) of positions")
        start, end = at_least("skip's start", stretch[0], 0), at_least("skip's end", stretch[1], 0)
        if end <= start:
            raise ConfigError(f"skip {start}-{end}: its end must lie after its start; the end itself is not left out")
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
