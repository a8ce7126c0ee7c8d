"""How near a real fleet comes to its ideal: workers that make as much each as one has a core for a part of the time, ranks in step that take
nine tenths of what the fleet makes, every rank waiting for all others after each micro batch. Once with workers that are alike, once with
one of them five times slower. Stands beside `cargo bench -p feedmill-client --bench placement`, which simulates large fleets with the same
decisions. Ends with one line of JSON.

    tools/python-bench.sh fleet           # builds what it needs
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import feedmill

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from support import Worker, pipeline  # noqa: E402

MICRO_BATCH = 4

#: The part of what the fleet makes that ranks take; as in the simulation.
LOAD = 0.9

#: How many times as long the slow one takes.
SLOWER = 5

#: Seconds that a worker has a core for, one after another: short against what a batch takes, long against what a timer is late.
RUNS = 0.012


class Turns(threading.Thread):
    """Lets workers run one after another, so that a core never has two of them and each makes the same, whatever the others need. A slow
    one has only every fifth of its turns; nobody else runs meanwhile."""

    def __init__(self, pids: list[int], slow: set[int]) -> None:
        super().__init__(daemon=True)
        self._pids, self._slow = pids, slow
        self._over = threading.Event()

    def run(self) -> None:
        for pid in self._pids:
            os.kill(pid, signal.SIGSTOP)
        turn = 0
        while not self._over.is_set():
            for index, pid in enumerate(self._pids):
                if index in self._slow and turn % SLOWER:
                    time.sleep(RUNS)
                    continue
                os.kill(pid, signal.SIGCONT)
                time.sleep(RUNS)
                os.kill(pid, signal.SIGSTOP)
            turn += 1
        for pid in self._pids:
            os.kill(pid, signal.SIGCONT)

    def end(self) -> None:
        self._over.set()
        self.join()


def each(ranks: int, what: Callable[[int], None]) -> None:
    """Does it in a thread for each rank."""
    errors: list[BaseException] = []

    def one(rank: int) -> None:
        try:
            what(rank)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def reading(source: list[str], name: str, rank: int, ranks: int, begin: int) -> feedmill.Loader:
    size = ranks * MICRO_BATCH
    return feedmill.Loader(
        source,
        dp_rank=rank,
        dp_size=ranks,
        global_batch=size,
        micro_batch=MICRO_BATCH,
        consumed=begin // size * size,
        on_bad="warn",
        run=f"{name}-{os.getpid()}",
    )


def capacity(source: list[str], name: str, ranks: int, begin: int, warm: float, seconds: float) -> float:
    """Samples a second of ranks that wait for nobody and compute nothing."""
    made = [0] * ranks

    def rank(number: int) -> None:
        with reading(source, name, number, ranks, begin) as loader:
            begun = time.monotonic()
            while (now := time.monotonic() - begun) < warm + seconds:
                next(loader)
                made[number] += MICRO_BATCH if now >= warm else 0

    each(ranks, rank)
    return sum(made) / seconds


def in_step(source: list[str], name: str, ranks: int, begin: int, own: float, warm: float, seconds: float) -> float:
    """Which part of the time ranks compute, of those that wait for each other after each micro batch and compute for so long."""
    together = threading.Barrier(ranks)
    clock = [0.0, 0.0]
    waves = [0, 0]
    over = threading.Event()

    def rank(number: int) -> None:
        try:
            with reading(source, name, number, ranks, begin) as loader:
                begun = time.monotonic()
                wave = 0
                while not over.is_set():
                    next(loader)
                    time.sleep(own)
                    wave += 1
                    # All stop after the same wave: it is decided before the ranks meet, by one of them.
                    if number == 0:
                        now = time.monotonic()
                        if clock[0] == 0.0 and now - begun >= warm:
                            clock[0], waves[0] = now, wave
                        if clock[0] and now - clock[0] >= seconds:
                            clock[1], waves[1] = now, wave
                            over.set()
                    together.wait()
        except BaseException:
            together.abort()
            raise

    each(ranks, rank)
    return (waves[1] - waves[0]) * own / (clock[1] - clock[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--warm", type=float, default=10.0, help="seconds before anything is measured")
    parser.add_argument("--seconds", type=float, default=20.0)
    arguments = parser.parse_args()
    logging.getLogger("feedmill").setLevel(logging.ERROR)
    load = os.getloadavg()[0]
    result: dict[str, Any] = {"bench": "fleet", "workers": arguments.workers, "ranks": arguments.ranks}
    with tempfile.TemporaryDirectory() as folder:
        path = pipeline(folder)
        for kind, slow in (("even", set[int]()), ("one_slow", {1})):
            workers = [Worker(path) for _ in range(arguments.workers)]
            turns = Turns([worker.process.pid for worker in workers], slow)
            try:
                source = [worker.url for worker in workers]
                with reading(source, f"{kind}-first", 0, 1, 0) as loader:
                    loader.wait_ready()
                turns.start()
                rate = capacity(source, f"{kind}-free", arguments.ranks, 1 << 20, arguments.warm, arguments.seconds)
                own = arguments.ranks * MICRO_BATCH / (LOAD * rate)
                part = in_step(source, f"{kind}-step", arguments.ranks, 1 << 30, own, arguments.warm, arguments.seconds)
            finally:
                if turns.is_alive():
                    turns.end()
                for worker in workers:
                    worker.close()
            result[kind] = {"samples_per_s": round(rate, 1), "own_ms": round(1e3 * own, 1), "percent_of_ideal": round(100 * part, 1)}
            print(kind, result[kind], flush=True)
    result["load"] = [round(load, 1), round(os.getloadavg()[0], 1)]
    print(json.dumps(result))


if __name__ == "__main__":
    main()
