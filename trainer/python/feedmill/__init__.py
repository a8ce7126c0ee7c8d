"""Keeps GPUs fed: batches of exactly the tensors that the model's own processor would make.

>>> loader = feedmill.Loader("http://workers:8470", dp_rank=0, dp_size=1, global_batch=32, micro_batch=4, max_steps=100)
>>> for batch in loader: ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .batch import Batch
from .errors import (
    AccessDenied,
    AgentUnreachable,
    BadSamples,
    ConfigError,
    FeedmillError,
    ForkError,
    PlanChanged,
    RunMismatch,
    StateError,
    WorkerRefused,
    WorkersFailed,
    WorkersUnreachable,
)
from .loader import Loader

if TYPE_CHECKING:
    from . import hf, megatron, torch

    __version__: str
else:

    def __getattr__(name):
        # What is for one framework is imported when it is first asked for, and with it, may be, that framework.
        import importlib

        if name in ("hf", "megatron", "torch"):
            return importlib.import_module(f".{name}", __name__)
        if name == "__version__":
            return _version()
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _version() -> str:
    """The installed package's; "unknown" where it is not installed, but lies in a folder of PYTHONPATH."""
    from importlib import metadata

    try:
        return metadata.version(__name__)
    except metadata.PackageNotFoundError:
        return "unknown"


def __dir__() -> list[str]:
    return sorted({*globals(), "__version__", "hf", "megatron", "torch"})


__all__ = [
    "AccessDenied",
    "AgentUnreachable",
    "BadSamples",
    "Batch",
    "ConfigError",
    "FeedmillError",
    "ForkError",
    "Loader",
    "PlanChanged",
    "RunMismatch",
    "StateError",
    "WorkerRefused",
    "WorkersFailed",
    "WorkersUnreachable",
]
