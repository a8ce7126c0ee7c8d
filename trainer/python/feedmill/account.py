"""Takes each batch that came, gives what a rank has received: counts, a log's numbers, the ledger's lines, too many bad rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .bad_rows import BadRows
from .batch import Batch
from .ledger import Ledger
from .totals import Totals, ratio

if TYPE_CHECKING:
    from .loader import Loader


class Account:
    """What a loader keeps books of."""

    def __init__(self, rank: int, stream: str, ledger: Ledger | None, pipeline: str | None) -> None:
        self._totals = Totals()
        #: The totals of the last call of ``log``.
        self._logged = Totals()
        self._bad_rows = BadRows(rank, stream, pipeline)
        self._ledger = ledger

    def tick(self, asked: float) -> None:
        """A batch was asked for then, and came."""
        self._totals.tick(asked)

    def add(self, loader: Loader, batch: Batch, waited: float) -> None:
        """One batch more, before it is handed out."""
        self._totals.add(batch)
        self._bad_rows.log(batch)
        if self._ledger is not None:
            self._ledger.add(loader, batch, waited)

    def check(self, max_bad: float, on_bad: str) -> None:
        """See :meth:`BadRows.check`."""
        self._bad_rows.check(self._totals, max_bad, on_bad)

    def finish_step(self) -> None:
        """The last batch of a step was handed out."""
        if self._ledger is not None:
            self._ledger.finish_step()

    def leave_step(self) -> None:
        """The rank goes on elsewhere; a step that it stood within is not written."""
        if self._ledger is not None:
            self._ledger.leave_step()

    def close(self) -> None:
        """Nothing comes any more."""
        if self._ledger is not None:
            self._ledger.close()

    def stats(self, names: Sequence[str], waited: float) -> dict[str, Any]:
        """The counts, with the share of time that was waited."""
        return self._totals.described(names) | {
            "wait_ratio": ratio(waited, self._totals.clock),
            "ledger_lost": self._ledger.lost if self._ledger is not None else 0,
        }

    def log(self, names: Sequence[str], waited: float, consumed: int) -> dict[str, float]:
        """Numbers for a training's log, since the last call."""
        now, then = self._totals.copy(), self._logged
        now.waited = waited
        self._logged = now
        return now.since(then).logged(names, consumed)
