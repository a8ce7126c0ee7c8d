"""What can go wrong, one class for each thing that a trainer may do about it.

Every error carries, where it applies: ``rank`` (data-parallel rank), ``stream``, ``range`` ("start-end"), ``worker`` and
``reason``. They are in the message too.
"""

from __future__ import annotations


class FeedmillError(Exception):
    """Anything that feedmill gives up with."""

    def __init__(
        self,
        message: str,
        *,
        rank: int | None = None,
        stream: str | None = None,
        range: str | None = None,
        worker: str | None = None,
        reason: str | None = None,
    ) -> None:
        super().__init__(message)
        self.rank = rank
        self.stream = stream
        self.range = range
        self.worker = worker
        self.reason = reason


class ConfigError(FeedmillError, ValueError):
    """A setting makes no sense, or two of them contradict each other; nothing was read."""


class StateError(FeedmillError, ValueError):
    """A checkpoint's state cannot be resumed from here: another stream, a version that is not known, a position within
    a step."""


class PlanChanged(FeedmillError):
    """The workers have other data or settings than the checkpoint, which ``accept_plan=`` goes on with deliberately; or they changed under
    this training, which goes on when the old ones are back."""


class RunMismatch(FeedmillError):
    """The ranks of one run do not agree on stream, plan, global batch, micro batch, size, samples consumed, skips or end; or one is there
    twice."""


class WorkersUnreachable(FeedmillError, TimeoutError):
    """No worker made a batch, or answered at all, within ``timeout``."""


class AgentUnreachable(WorkersUnreachable):
    """FEEDMILL_AGENT names an agent that is not there. Workers are not asked in its stead; the next call finds one that was
    started since, and loses nothing."""


class WorkerRefused(FeedmillError):
    """A worker said no, and every other one would too: access denied, a range that is too large, another version."""


class AccessDenied(WorkerRefused):
    """No worker admits this client, or its certificate proves nothing: a token or a certificate must be changed. The batch
    that was asked for is not lost; the next call asks for it again."""


class BadSamples(FeedmillError):
    """More rows than ``max_bad`` could not be made from the records that the order assigned."""


class WorkersFailed(FeedmillError):
    """Worker processes of this machine cannot be started, ended again and again before they had read their data, or so that no
    batch came within ``timeout``."""


class ForkError(FeedmillError):
    """A loader is used in another process than the one that made it."""


__all__ = [
    "AccessDenied",
    "AgentUnreachable",
    "BadSamples",
    "ConfigError",
    "FeedmillError",
    "ForkError",
    "PlanChanged",
    "RunMismatch",
    "StateError",
    "WorkerRefused",
    "WorkersFailed",
    "WorkersUnreachable",
]
