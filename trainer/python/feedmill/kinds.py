"""Takes each of a loader's settings, gives it as Python's own, or says what it must be: one table, a kind for each setting."""

from __future__ import annotations

import contextlib
import math
import numbers
import operator
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from .errors import ConfigError

#: Positions end before it, as everywhere in feedmill: JSON has no larger whole numbers. So nothing that is counted is larger.
POSITION_END = 2**53

#: Micro batches in hand; more than any trainer has memory for, and few enough to be asked for.
MOST_WINDOW = 1 << 16

#: Worker processes on a machine, and threads in each.
MOST_WORKERS = 1024

#: Seconds, thirty years: what clocks can add.
MOST_SECONDS = 1e9

#: A setting's name and value to what is used; ConfigError for a value that is none of the kind.
Kind = Callable[[str, Any], Any]


def whole(value: object) -> int | None:
    """A whole number as Python's own, numpy's integers too; None for what is none."""
    try:
        return None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def at_least(name: str, value: Any, least: int, most: int = POSITION_END) -> int:
    """The setting as Python's own number; ConfigError unless it is a whole one from ``least`` to ``most``."""
    number = whole(value)
    if number is None or number < least:
        raise ConfigError(f"{name} {value!r} must be a whole number of at least {least}")
    if number > most:
        end = "2**53, where positions end" if most == POSITION_END else most
        raise ConfigError(f"{name} {value!r} must be a whole number of at most {end}")
    return number


def count(least: int, most: int = POSITION_END) -> Kind:
    return lambda name, value: at_least(name, value, least, most)


def optional(kind: Kind) -> Kind:
    return lambda name, value: None if value is None else kind(name, value)


def number(holds: Callable[[float], bool], what: str) -> Kind:
    def check(name: str, value: Any) -> float:
        try:
            real = float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else math.nan
        except OverflowError:
            real = math.inf
        if not holds(real):
            raise ConfigError(f"{name} {value!r} must be {what}")
        return real

    return check


def flag(name: str, value: Any) -> bool:
    if isinstance(value, (bool, np.bool_)) or whole(value) in (0, 1):
        return bool(value)
    raise ConfigError(f"{name} {value!r} must be True or False")


def text(name: str, value: Any) -> str:
    if isinstance(value, str) and value:
        return value
    raise ConfigError(f"{name} {value!r} must be a text that is not empty")


def secret(name: str, value: Any) -> str:
    if isinstance(value, str) and value:
        return value
    # Not what it is: it would stand in a log.
    what = "is empty" if value == "" else f"is of type {type(value).__name__}"
    raise ConfigError(f"{name} {what}; a text that is not empty is wanted, and this is no {name}")


def path(name: str, value: Any) -> str:
    if isinstance(value, (str, os.PathLike)):
        made = os.fspath(value)
        if isinstance(made, str) and made:
            return made
    raise ConfigError(f"{name} {value!r} must be a path")


def choice(*words: str) -> Kind:
    listed = " or ".join(f'"{word}"' for word in words)

    def check(name: str, value: Any) -> str:
        if isinstance(value, str) and value in words:
            return value
        raise ConfigError(f"{name} {value!r} must be {listed}")

    return check


def sizes(name: str, value: Any) -> Any:
    """A global batch or a schedule of it; what a schedule says is checked where it is asked."""
    return value if callable(value) else at_least("global batch", value, 1)


def several(name: str, value: Any) -> list[Any]:
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping)):
        # numpy's arrays of no dimension say that they can be iterated, and cannot.
        with contextlib.suppress(TypeError):
            return list(value)
    raise ConfigError(f"{name} {value!r} must be a list")


def source(name: str, value: Any) -> str | list[str]:
    if isinstance(value, (list, tuple)) and value and all(isinstance(one, str) and one.strip() for one in value):
        return list(value)
    if isinstance(value, (str, os.PathLike)):
        made = os.fspath(value)
        if isinstance(made, str) and made.strip():
            return made
    raise ConfigError(f"{name} {value!r} must be a worker's address, a list of addresses, or the path of a pipeline's file")


#: What each setting of a loader is.
KINDS: dict[str, Kind] = {
    "source": source,
    "stream": text,
    "dp_rank": count(0),
    "dp_size": count(1),
    "global_batch": sizes,
    "micro_batch": count(1),
    "epochs": optional(number(lambda value: 0 < value < POSITION_END, "a number above 0 and below 2**53, or None for no end")),
    "max_steps": optional(count(1)),
    "max_samples": optional(count(1)),
    "last_step": choice("pad", "drop"),
    "ensure_image": flag,
    "skips": several,
    "token": optional(secret),
    "token_file": optional(path),
    "ca_file": optional(path),
    "max_bad": number(lambda value: 0 <= value <= 1, "a share, 0 to 1"),
    "on_bad": choice("raise", "warn"),
    "ledger": optional(path),
    "run": optional(text),
    "accept_plan": optional(text),
    "consumed": count(0),
    "model_parallel_size": count(1),
    "tensors": optional(several),
    "window": optional(count(0, MOST_WINDOW)),
    "window_bytes": count(1),
    "timeout": number(lambda value: 0 < value <= MOST_SECONDS, "a number of seconds above 0 and at most 1e9"),
    "verify": flag,
    "workers": count(1, MOST_WORKERS),
    "threads": optional(count(1, MOST_WORKERS)),
}


def checked(given: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of a loader, each as its kind has it."""
    return {name: kind(name, given[name]) for name, kind in KINDS.items()}
