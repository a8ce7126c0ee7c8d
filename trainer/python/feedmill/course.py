"""Takes a course, which is the ranges that a rank reads, gives its steps their sizes, and says how far the rank is on it."""

from __future__ import annotations

from . import _feedmill
from .steps import MOST_COUNTED_STEPS, GlobalBatch, size_at, steps_between

#: Micro batches whose steps are known ahead, when the global batch follows a schedule: as many as a window that finds
#: its size by itself may have.
KNOWN_AHEAD = 1024


def with_steps(course: _feedmill.Course, global_batch: GlobalBatch, consumed: int) -> _feedmill.Course:
    """A fresh course with its first step, or all of them where they are alike; ConfigError where it does not divide."""
    if callable(global_batch):
        # The first step says whether the schedule divides.
        course.add_step(size_at(global_batch, consumed))
    else:
        course.go_on(size_at(global_batch, consumed))
    return course


def counted_batches(fresh: _feedmill.Course, global_batch: GlobalBatch) -> int:
    """Micro batches that a schedule makes of a fresh course with an end."""
    for _ in range(MOST_COUNTED_STEPS):
        if not fresh.add_step(size_at(global_batch, fresh.known_until())):
            break
    else:
        raise TypeError(f"the schedule has more than {MOST_COUNTED_STEPS:,} steps to the end; they are not counted")
    return fresh.known_batches() or 0


class Progress:
    """How far a rank is on its course."""

    def __init__(self, course: _feedmill.Course, begin: int, begin_steps: int | None) -> None:
        self.course = course
        #: Samples consumed and steps taken before the course; steps are None where nobody knows them.
        self.begin, self.begin_steps = begin, begin_steps
        #: Micro batches of the course that were handed out, and whole steps of them: one value, since other threads look at both.
        self._done = (0, 0)

    @property
    def taken(self) -> int:
        """Micro batches of the course that were handed out."""
        return self._done[0]

    def take(self, ends_step: bool) -> None:
        """One more micro batch is handed out."""
        taken, stepped = self._done
        self._done = (taken + 1, stepped + ends_step)

    @property
    def stands(self) -> tuple[int, int | None]:
        """Samples consumed by whole steps, within a step those of its begin; and steps of the whole training so far, where that is
        known."""
        taken, stepped = self._done
        return self.course.consumed_after(taken), None if self.begin_steps is None else self.begin_steps + stepped

    @property
    def consumed(self) -> int:
        """Samples consumed by whole steps; within a step that of its begin."""
        return self.stands[0]

    @property
    def steps(self) -> int | None:
        """Steps of the whole training so far, where that is known."""
        return self.stands[1]

    def steps_at(self, global_batch: GlobalBatch, consumed: int) -> int | None:
        """Steps taken when so many samples are consumed."""
        here, steps = self.stands
        if consumed == here:
            return steps
        since = steps_between(global_batch, self.begin, consumed)
        return None if since is None or self.begin_steps is None else self.begin_steps + since

    def next_place(self) -> tuple[int, int, int, int, int] | None:
        """The micro batch that is handed out next: its range, its step's consumed and global batch, and its index in that."""
        return self.course.batch(self.taken)

    def know_ahead(self, puller: _feedmill.Puller, global_batch: GlobalBatch, window: int | None) -> None:
        """Asks the schedule for the steps that the window will need."""
        if not callable(global_batch):
            return
        needed = self.taken + max(KNOWN_AHEAD, window or 0) + 1
        while (known := self.course.known_batches()) is not None and known < needed:
            size = size_at(global_batch, self.course.known_until())
            if not self.course.add_step(size):
                return
            puller.add_step(size)
