"""Keeps GPUs fed: batches of exactly the tensors that the model's own processor would make.

>>> loader = feedmill.Loader("http://workers:8470", dp_rank=0, dp_size=1, global_batch=32, micro_batch=4, max_steps=100)
>>> for batch in loader: ...
"""

from __future__ import annotations

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
