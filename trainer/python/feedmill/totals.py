"""What a rank has received: counts that stats, logs and the watch over bad rows read."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from .batch import Batch


class Totals:
    """What this rank has received since its start."""

    def __init__(self) -> None:
        self.rows = self.tokens = self.cells = self.supervised = self.filler = self.bad = self.bytes = 0
        self.datasets: list[int] = []
        self.waited = 0.0
        #: Seconds since the first batch was asked for.
        self.clock = 0.0
        self._began: float | None = None

    def tick(self, asked: float) -> None:
        if self._began is None:
            self._began = asked
        self.clock = time.monotonic() - self._began

    def add(self, batch: Batch) -> None:
        rows, tokens, longest, supervised, filler, bad = batch._counts
        self.rows += rows
        self.tokens += tokens
        self.cells += rows * longest
        self.supervised += supervised
        self.filler += filler
        self.bad += bad
        self.bytes += batch.nbytes
        self.datasets = [a + b for a, b in zip(self.datasets or [0] * len(batch.dataset_rows), batch.dataset_rows)]

    def copy(self) -> Totals:
        other = Totals()
        other.__dict__.update(self.__dict__)
        other.datasets = list(self.datasets)
        return other

    def since(self, then: Totals) -> Totals:
        now = self.copy()
        for name in ("rows", "tokens", "cells", "supervised", "filler", "bad", "bytes", "waited", "clock"):
            setattr(now, name, getattr(self, name) - getattr(then, name))
        old = then.datasets or [0] * len(self.datasets)
        now.datasets = [a - b for a, b in zip(self.datasets, old)]
        return now

    def described(self, names: Sequence[str]) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "tokens": self.tokens,
            "supervised": self.supervised,
            "filler": self.filler,
            "bad": self.bad,
            "bytes": self.bytes,
            "padding": ratio(self.cells - self.tokens, self.cells),
            "rows_per_dataset": dict(zip(names, self.datasets or [0] * len(names))),
        }

    def logged(self, names: Sequence[str], consumed: int) -> dict[str, float]:
        """Numbers for a training's log."""
        keys: dict[str, float] = {
            "wait_pct": 100 * ratio(self.waited, self.clock),
            "bad_rows": self.bad,
            "padding_pct": 100 * ratio(self.cells - self.tokens, self.cells),
            "supervised_pct": 100 * ratio(self.supervised, self.tokens),
            "consumed": consumed,
        }
        for name, rows in zip(names, self.datasets):
            keys[f"rows/{name}"] = rows
        return keys


def ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
