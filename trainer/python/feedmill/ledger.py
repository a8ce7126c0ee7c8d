"""A file with one line of JSON a step: what was trained on, and how long it was waited for."""

from __future__ import annotations

import json
import logging
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .batch import Batch
    from .loader import Loader

_log = logging.getLogger("feedmill")


class Ledger:
    """Appends lines. A disk that is full, or gone, never stops a training: it is said once, and lost lines are
    counted."""

    def __init__(self, path: str) -> None:
        self.path = path
        #: Lines that could not be written.
        self.lost = 0
        self._file: int | None = None
        #: The line of the step that the rank is within.
        self._step: dict[str, Any] | None = None

    def add(self, loader: Loader, batch: Batch, waited: float) -> None:
        """One micro batch, before it is handed out."""
        if self._step is None:
            self._step = new_step(loader, batch)
        add(self._step, batch, waited)

    def finish_step(self) -> None:
        """Writes the step's line."""
        if self._step is not None:
            self.write(self._step)
        self._step = None

    def leave_step(self) -> None:
        """Forgets a step that the rank goes away from."""
        self._step = None

    def write(self, line: dict[str, Any]) -> None:
        data = (json.dumps(line) + "\n").encode()
        try:
            if self._file is None:
                os.makedirs(os.path.dirname(os.path.abspath(self.path)), exist_ok=True)
                self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            written = os.write(self._file, data)
            if written != len(data):
                # The rest of a cut line: the next one must not be glued to it.
                os.write(self._file, b"\n")
                raise OSError(f"only {written} of {len(data)} bytes were taken")
        except OSError as error:
            self.lost += 1
            if self.lost == 1:
                _log.warning("ledger %s cannot be written, training goes on without: %s", self.path, error)

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            try:
                os.close(file)
            except OSError as error:
                # Some disks say only now that they are full.
                _log.warning("the last lines of ledger %s may be lost: %s", self.path, error)


def open_ledger(path: str | None, dp_rank: int) -> Ledger | None:
    """The ledger of this rank: rank 0's, or every rank's own where the path has ``{rank}``."""
    if path is None:
        return None
    if "{rank}" in path:
        return Ledger(path.replace("{rank}", str(dp_rank)))
    return Ledger(path) if dp_rank == 0 else None


def new_step(loader: Loader, batch: Batch) -> dict[str, Any]:
    """A step's line before its first micro batch. ``position`` to ``position + global_batch`` is what all ranks
    read in it; the counts are this rank's."""
    consumed = batch.step_consumed
    return {
        "run": loader.run,
        "stream": loader.stream,
        "plan": batch.plan,
        "rank": loader.dp_rank,
        # As trainers log it: the first is 1.
        "step": None if loader.steps is None else loader.steps + 1,
        "consumed": consumed,
        "position": batch.range[0] - (batch.index_in_step * loader.dp_size + loader.dp_rank) * loader.micro_batch,
        "global_batch": batch.global_batch,
        "micro_batches": 0,
        "rows": 0,
        "tokens": 0,
        "supervised": 0,
        "filler": 0,
        "bad": [],
        "wait_s": 0.0,
    }


def add(step: dict[str, Any], batch: Batch, waited: float) -> None:
    """One micro batch more."""
    step["micro_batches"] += 1
    step["rows"] += batch.num_rows
    step["tokens"] += batch.num_tokens
    step["supervised"] += batch.num_supervised
    step["filler"] += batch.num_filler
    step["wait_s"] = round(step["wait_s"] + waited, 6)
    if batch.num_bad:
        step["bad"] += [[row["position"], row["fault"]] for row in batch.info if row["fault"] is not None]
