"""What a frozen worker costs: one of four workers is stopped (SIGSTOP, its sockets stay open) while ranks read, and stays so. Each rank may
wait for it once, for at most a second or twice the usual time of a batch from the request to its last byte, whichever is more. The same
without a frozen worker stands beside it: what the machine costs. Ends with one line of JSON.

    tools/python-bench.sh frozen          # builds what it needs
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import feedmill

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from support import Worker, pipeline  # noqa: E402

MICRO_BATCH = 4

#: What a rank waits longer than this is a cost; below it a machine that others use too shows.
NOTICED = 0.1


def loader(source: list[str], run: str, rank: int, ranks: int, **settings: Any) -> feedmill.Loader:
    size = ranks * MICRO_BATCH
    return feedmill.Loader(
        source, dp_rank=rank, dp_size=ranks, global_batch=size, micro_batch=MICRO_BATCH, on_bad="warn", run=run, **settings
    )


def usual(source: list[str], count: int) -> float:
    """The median of the seconds from a request to the last byte of its batch, nothing asked ahead, of positions that nobody asked for."""
    times = []
    with loader(source, f"usual-{os.getpid()}", 0, 1, window=0, consumed=1 << 20) as made:
        next(made)
        for _ in range(count):
            asked = time.monotonic()
            next(made)
            times.append(time.monotonic() - asked)
    return statistics.median(times)


def waits_after(
    path: str, ranks: int, step: float, window: int | None, before: int, after: int, *, freezes: bool
) -> dict[str, Any]:
    """The waits of each rank from the moment on in which a worker was frozen, or was not."""
    workers = [Worker(path) for _ in range(4)]
    try:
        source = [worker.url for worker in workers]
        median = usual(source, 24)
        begun = threading.Barrier(ranks + 1)
        frozen = threading.Event()
        waits: list[list[float]] = [[] for _ in range(ranks)]
        errors: list[BaseException] = []

        def rank(number: int) -> None:
            try:
                with loader(source, f"frozen-{window}-{freezes}-{os.getpid()}", number, ranks, window=window) as made:
                    for batch in range(before + after):
                        if batch == before:
                            begun.wait()
                            frozen.wait()
                        asked = time.monotonic()
                        next(made)
                        if batch >= before:
                            waits[number].append(time.monotonic() - asked)
                        time.sleep(step)
            except BaseException as error:
                errors.append(error)
                begun.abort()

        threads = [threading.Thread(target=rank, args=(number,)) for number in range(ranks)]
        for thread in threads:
            thread.start()
        begun.wait()
        if freezes:
            os.kill(workers[0].process.pid, signal.SIGSTOP)
        frozen.set()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
    finally:
        for worker in workers:
            worker.close()
    limit = max(1.0, 2 * median)
    return {
        "usual_ms": round(1e3 * median, 1),
        "worst_wait_ms": round(1e3 * max(max(rank) for rank in waits), 1),
        "worst_wait_of_each_rank_ms": [round(1e3 * max(rank)) for rank in waits],
        "most_noticed_waits_of_a_rank": max(sum(wait > NOTICED for wait in rank) for rank in waits),
        "limit_ms": round(1e3 * limit),
        "held": all(max(rank) <= limit and sum(wait > NOTICED for wait in rank) <= 1 for rank in waits),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--step-seconds", type=float, default=0.2)
    parser.add_argument("--before", type=int, default=20, help="batches of each rank before the worker is frozen")
    parser.add_argument("--after", type=int, default=40, help="and after it")
    arguments = parser.parse_args()
    logging.getLogger("feedmill").setLevel(logging.ERROR)
    load = os.getloadavg()[0]
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = pipeline(folder)
        # With the window that a loader finds by itself, and with so small a one that nothing hides the freeze.
        for name, window in (("own_window", None), ("window_2", 2)):
            for kind, freezes in (("nobody_frozen", False), ("frozen", True)):
                found = waits_after(
                    path,
                    arguments.ranks,
                    arguments.step_seconds,
                    window,
                    arguments.before,
                    arguments.after,
                    freezes=freezes,
                )
                result.setdefault(name, {})[kind] = found
                print(name, kind, found, flush=True)
    result["load"] = [round(load, 1), round(os.getloadavg()[0], 1)]
    print(json.dumps({"bench": "frozen"} | result))


if __name__ == "__main__":
    main()
