"""Watches over rows that stand in for records that cannot be used."""

from __future__ import annotations

import logging
import shlex
from typing import Any

from .batch import Batch
from .errors import BadSamples
from .totals import Totals

_log = logging.getLogger("feedmill")

#: A share of bad rows means nothing before so many rows, and so many bad ones, have been seen.
BAD_AFTER_ROWS = 1_000
BAD_AFTER_BAD = 20

#: Rank 0 logs so many bad rows.
BAD_ROWS_LOGGED = 10


class BadRows:
    """Logs the first bad rows, and says when there are too many."""

    def __init__(self, rank: int, stream: str, pipeline: str | None) -> None:
        self._rank, self._stream = rank, stream
        #: What shows a position, and who lists bad records. Workers of a pipeline's file end with the loader, and want a token of their own.
        self._file = "FILE" if pipeline is None else shlex.quote(pipeline)
        self._lists = "the workers' /v1/bad" if pipeline is None else f"`feedmill check {self._file} --images`"
        self._logged = 0
        self._warned = False

    def log(self, batch: Batch) -> None:
        """Logs a batch's bad rows, the first ones of a run alone and on rank 0 alone."""
        if self._rank or not batch.num_bad or self._logged >= BAD_ROWS_LOGGED:
            return
        for row in batch.info:
            if row["fault"] is not None and self._logged < BAD_ROWS_LOGGED:
                self._logged += 1
                _log.warning("%s", self._said(row))

    def _said(self, row: dict[str, Any]) -> str:
        where, record = f"position {row['position']} of {self._stream}", f"record {row['record']} of {row['dataset']}"
        if row["status"] != "substituted":
            return (
                f"{where}: {record} cannot be used ({row['fault']}); a row without loss stands there. "
                f"`feedmill show {self._file} {row['position']}` says more"
            )
        # A batch has the record that was read, and not the one that could not be.
        return (
            f"{where}: a record cannot be used ({row['fault']}), which another one, {record}, stands in for. Which one cannot is "
            f"said by {self._lists}, or `feedmill show {self._file} {row['position']}`"
        )

    def check(self, totals: Totals, max_bad: float, on_bad: str) -> None:
        """BadSamples, or a warning once, when more rows are bad than ``max_bad`` allows."""
        rows = totals.rows - totals.filler
        if rows < BAD_AFTER_ROWS or totals.bad < BAD_AFTER_BAD or totals.bad <= max_bad * rows:
            return
        share = f"{totals.bad} of {rows} rows ({100 * totals.bad / rows:.2f} %)"
        message = (
            f"rank {self._rank}: {share} of stream {self._stream!r} stand in for records that cannot be used, more than "
            f"max_bad={max_bad}; {self._lists} lists them with their faults"
        )
        if on_bad == "raise":
            raise BadSamples(message, rank=self._rank, stream=self._stream, reason=share)
        if not self._warned:
            self._warned = True
            _log.warning("%s", message)
