"""Takes a set of workers of this machine, waits until one has read its data, or says why none will: a worker listens before that."""

from __future__ import annotations

import http.client
import json
import logging
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from .nodes import WorkerSet

_log = logging.getLogger("feedmill")

#: Seconds between two looks. A worker that has its data is seen so much later at most.
LOOK = 0.1

#: A worker that died so many times before any of its set was ready dies of what its pipeline names: another start reads the same.
#: Twice and not once, because the machine, too, may have killed it.
LOST = 2

#: Seconds before what workers wait for is said. A processor and manifests of usual size are read sooner.
SILENT = 10.0

#: What has been said already is said again after so many seconds, then after twice as many each time, up to the longest time.
SHORTEST, LONGEST = 10.0, 320.0

#: So many different texts are said as soon as they come: one that has a number in it may be another one each time.
MOST_TEXTS = 8

#: Seconds that a worker of this machine may take to say whether it is ready.
ANSWER = 2.0


def await_one(of: WorkerSet, seconds: float) -> str | None:
    """None when one is ready or has been; else why none is: each of them died again and again, or ``seconds`` are over."""
    begun = time.monotonic()
    waiting = Waiting()
    while not of.was_ready():
        record = of.record()
        waits = []
        for worker in record:
            reason = waits_for(worker["address"])
            if reason is None:
                of.note_ready()
                return None
            waits.append(reason)
        if not record:
            # The folder was taken away: whoever asks the workers hears of it.
            return None
        if all(worker["deaths"] >= LOST for worker in record):
            worker = record[0]
            return f"workers of this machine ended {worker['deaths']} times before they were ready; the log said last: {worker['said']}"
        took = time.monotonic() - begun
        if took >= seconds:
            return f"no worker of this machine was ready within {seconds:g} s; worker 0: {waits[0]}; its log said last: {of.said(0)}"
        if took >= SILENT and waits[0] and waiting.is_due(waits[0], took):
            _log.warning("no worker of this machine is ready after %.0f s; worker 0: %s", took, waits[0])
        time.sleep(min(LOOK, seconds - took))
    return None


class Waiting:
    """When what workers wait for is said: each new text at once, what was said already ever more seldom. Two texts that take turns were
    said each time."""

    def __init__(self) -> None:
        self._texts: set[str] = set()
        self._wait = SHORTEST
        self._due = 0.0

    def is_due(self, text: str, now: float) -> bool:
        """Whether it is to be said now, in seconds; it counts as said then."""
        is_new = text not in self._texts and len(self._texts) < MOST_TEXTS
        if not is_new and now < self._due:
            return False
        if is_new:
            self._texts.add(text)
        self._due = now + self._wait
        self._wait = min(2 * self._wait, LONGEST)
        return True


def waits_for(address: str) -> str | None:
    """What a worker waits for, in its own words; None when it is ready."""
    # Not through a proxy: it is this machine's.
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=ANSWER)
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace").strip()
    except (OSError, http.client.HTTPException) as error:
        return f"it does not answer: {error}"
    finally:
        connection.close()
    if answer.status == http.client.OK:
        return None
    try:
        return str(json.loads(text)["detail"])
    except (ValueError, KeyError, TypeError):
        return text
