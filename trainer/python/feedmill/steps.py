"""Takes a global batch, or a schedule of it, gives the steps it makes of samples, and the position where training ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import _feedmill
from .errors import ConfigError, StateError
from .kinds import POSITION_END, whole

#: A schedule that takes more steps than this to come to the end is not counted through.
MOST_COUNTED_STEPS = 10_000_000

#: Samples of one optimizer step over all ranks; or a function that says them of the samples consumed.
GlobalBatch = int | Callable[[int], int]


def size_at(global_batch: GlobalBatch, consumed: int | None) -> int:
    """Samples of the step that begins when so many are consumed; ConfigError for what is no number of samples."""
    assert consumed is not None
    size, where = global_batch, ""
    if callable(size):
        size, where = size(consumed), f" at consumed {consumed}"
    number = whole(size)
    if number is None or not 1 <= number <= POSITION_END:
        raise ConfigError(f"global batch {size!r}{where} must be a whole number of at least 1 and at most 2**53, in samples")
    return number


def steps_between(global_batch: GlobalBatch, begin: int, consumed: int) -> int | None:
    """Steps that the global batch makes of the samples from ``begin`` to ``consumed``; None when they are no whole number."""
    if consumed < begin:
        return None
    if not callable(global_batch):
        steps, rest = divmod(consumed - begin, size_at(global_batch, begin))
        return None if rest else steps
    steps = 0
    while begin < consumed and steps < MOST_COUNTED_STEPS:
        begin += size_at(global_batch, begin)
        steps += 1
    return steps if begin == consumed else None


def samples_after(global_batch: GlobalBatch, steps: int, consumed: int) -> int:
    """Samples consumed when so many steps more have been taken."""
    if not callable(global_batch):
        return consumed + steps * size_at(global_batch, consumed)
    for _ in range(steps):
        consumed += size_at(global_batch, consumed)
    return consumed


@dataclass(frozen=True)
class Limits:
    """Where training ends, counted from its very begin; None = never. The smallest counts."""

    epochs: float | None
    max_steps: int | None
    max_samples: int | None

    def known_steps(self, steps: int | None, consumed: int) -> int | None:
        """The steps; StateError where they are not known and ``max_steps`` counts them."""
        if steps is None and self.max_steps is not None:
            raise StateError(
                f"{consumed} samples are no whole number of steps of this loader's global batch, so max_steps {self.max_steps} says "
                "no end; resume with load_state_dict, or seek(consumed, steps=N)"
            )
        return steps

    def stop(
        self,
        global_batch: GlobalBatch,
        skips: list[tuple[int, int]],
        samples_per_epoch: int | None,
        consumed: int,
        steps: int | None,
    ) -> int | None:
        """The position at which training ends, with the skips and the global batch of now, when so many samples are consumed
        and steps taken."""
        ends, most = [], [] if self.max_samples is None else [self.max_samples]
        if self.max_steps is not None and steps is not None:
            most.append(samples_after(global_batch, max(self.max_steps - steps, 0), consumed))
        if self.epochs is not None:
            assert samples_per_epoch is not None
            ends.append(min(round(self.epochs * samples_per_epoch), POSITION_END))
        for samples in (min(samples, POSITION_END) for samples in most):
            ends.append(_feedmill.position_of(samples - 1, skips) + 1 if samples else 0)
        return min(ends, default=None)
