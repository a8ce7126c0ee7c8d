"""Takes a set of workers of this machine, gives back those of them that die: started again, told of, and not for ever at once."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any

from .errors import FeedmillError

if TYPE_CHECKING:
    from .nodes import WorkerSet

_log = logging.getLogger("feedmill")

#: Seconds between two looks. A look costs one system call or two for each worker.
LOOK = 0.5

#: Seconds before a worker that died is started again: none after the first death; then twice as long each time, from the shortest
#: to the longest. So a record that kills workers is soon asked for of a third one, which hears of two deaths and makes it in a child.
SHORTEST, LONGEST = 1.0, 30.0

#: A worker that lived for so long has not died before.
LIVED = 300.0


class Watch:
    """Looks after a set for as long as its holder holds it. All holders look; who sees a death first has the set's lock first,
    and starts the worker again; the others find it alive."""

    def __init__(self, of: WorkerSet) -> None:
        self._of = of
        self._stop = threading.Event()
        # A daemon: it must not keep a rank from ending.
        threading.Thread(target=self._run, name="feedmill-watch", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(LOOK):
            try:
                self.look()
            except OSError as error:
                # The folder is gone, the disk is full: the next look may do better.
                _log.debug("workers of this machine cannot be looked after: %s", error)

    def look(self) -> None:
        """Starts again what died and has waited."""
        for index, worker in enumerate(self._of.record()):
            if _is_due(worker) and not self._of.is_alive(index):
                self._again(index)

    def _again(self, index: int) -> None:
        with self._of.locked():
            worker = self._of.record()[index]
            if self._stop.is_set() or not _is_due(worker) or self._of.is_alive(index):
                return
            lately = time.time() - worker["died"] < LIVED
            wait = min(max(SHORTEST, 2 * worker["wait"]), LONGEST) if lately else SHORTEST
            try:
                said = self._of.restart(index, wait)
            except FeedmillError as error:
                _log.warning("worker %d of this machine ended and does not start again: %s", index, error)
            else:
                _log.warning("worker %d of this machine ended and was started again; its log said last: %s", index, said)


def _is_due(worker: dict[str, Any]) -> bool:
    """Whether a worker may be started if it is dead; also when the clock was set back."""
    return not 0 <= time.time() - worker["died"] < worker["wait"]
