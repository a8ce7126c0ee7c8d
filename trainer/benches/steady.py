"""What a trainer waits for, in one run: how long from the first request until fresh workers are ready and the first batch is there, and
which share of its time a trainer with steps of half a second waits when the fleet makes 1.3 times what it needs. Ends with one line of
JSON.

    tools/python-bench.sh steady          # builds what it needs
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import feedmill

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from support import Worker, pipeline  # noqa: E402

#: How much more the fleet makes than the trainer takes.
ROOM = 1.3


def loader(source: Any, micro_batch: int, global_batch: int, **settings: Any) -> feedmill.Loader:
    return feedmill.Loader(
        source,
        dp_rank=0,
        dp_size=1,
        global_batch=global_batch,
        micro_batch=micro_batch,
        on_bad="warn",
        run=f"bench-{os.getpid()}-{time.monotonic_ns()}",
        **settings,
    )


def cold_starts(path: str, count: int) -> dict[str, Any]:
    """Seconds from the first request until the plan is there, and until the first batch is: of a worker that was started at the same
    moment, and of a loader that starts its own."""
    ready, first, own = [], [], []
    for _ in range(count):
        begun = time.monotonic()
        worker = Worker(path)
        try:
            with loader([worker.url], 4, 8) as made:
                made.wait_ready()
                ready.append(time.monotonic() - begun)
                next(made)
                first.append(time.monotonic() - begun)
        finally:
            worker.close()
        begun = time.monotonic()
        with loader(path, 4, 8, threads=1) as made:
            next(made)
            own.append(time.monotonic() - begun)
    return {
        "ready_s": round(statistics.median(ready), 2),
        "ready_s_worst": round(max(ready), 2),
        "first_batch_s": round(statistics.median(first), 2),
        "own_workers_first_batch_s": round(statistics.median(own), 2),
        "starts": count,
    }


def capacity(source: list[str], micro_batch: int, begin: int, seconds: float) -> tuple[float, int]:
    """Samples a second that the fleet makes of positions that nobody has asked for yet, and where it ended."""
    with loader(source, micro_batch, micro_batch, consumed=begin, window=16) as made:
        next(made)
        begun, samples = time.monotonic(), 0
        while (took := time.monotonic() - begun) < seconds:
            next(made)
            samples += micro_batch
        # What is asked for ahead is made for nobody.
        return samples / took, begin + samples + 64 * micro_batch


def kept_from_a_core() -> float:
    """Seconds that this thread could have run and had no core."""
    with open("/proc/thread-self/schedstat") as file:
        return int(file.read().split()[1]) / 1e9


def steady(source: list[str], micro_batch: int, global_batch: int, begin: int, steps: int, step_seconds: float) -> dict[str, Any]:
    """A trainer that computes (sleeps) for its step, in equal parts for each micro batch. Where trainer, fleet and others share the
    cores, it also waits for a core with its batch in hand: that time is counted apart."""
    parts = global_batch // micro_batch
    waits, without_core, least = [], [], []
    begin -= begin % global_batch
    with loader(source, micro_batch, global_batch, consumed=begin, window=2 * parts) as made:
        for _ in range(steps):
            waited, kept, ready = 0.0, 0.0, 2 * parts
            for _ in range(parts):
                ready = min(ready, made.stats().get("ready", 0))
                # Looking costs some of what is measured, so it stands outside.
                kept_before = kept_from_a_core()
                asked = time.monotonic()
                next(made)
                waited += time.monotonic() - asked
                kept += kept_from_a_core() - kept_before
                time.sleep(step_seconds / parts)
            waits.append(waited - kept)
            without_core.append(kept)
            least.append(ready)
    after = waits[1:]
    computed = len(after) * step_seconds

    def percent(waited: float) -> float:
        return round(100 * waited / (waited + computed), 2)

    return {
        "first_step_wait_s": round(waits[0], 3),
        "wait_percent": percent(sum(after)),
        "wait_percent_with_waiting_for_a_core": percent(sum(after) + sum(without_core[1:])),
        "worst_step_wait_ms": round(1e3 * max(after), 1),
        "least_ready_of": [min(least[1:]), 2 * parts],
        "steps": len(after),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--step-seconds", type=float, default=0.5)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=8.0, help="how long the fleet's capacity is measured")
    parser.add_argument("--starts", type=int, default=5)
    arguments = parser.parse_args()
    logging.getLogger("feedmill").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        path = pipeline(folder)
        before = os.getloadavg()[0]
        result: dict[str, Any] = {"cold_start": cold_starts(path, arguments.starts)}
        print(result, flush=True)
        workers = [Worker(path) for _ in range(arguments.workers)]
        try:
            source = [worker.url for worker in workers]
            rates, at = [], 0
            for _ in range(3):
                rate, at = capacity(source, arguments.micro_batch, at, arguments.seconds / 3)
                rates.append(rate)
            rate = statistics.median(rates)
            wanted = rate / ROOM * arguments.step_seconds
            global_batch = max(int(wanted) // arguments.micro_batch, 1) * arguments.micro_batch
            print(f"the fleet makes {rate:.0f} samples/s; a step takes {global_batch}", flush=True)
            result["capacity_samples_per_s"] = [round(rate, 1) for rate in rates]
            result["demand_samples_per_s"] = round(global_batch / arguments.step_seconds, 1)
            result["room"] = round(rate * arguments.step_seconds / global_batch, 2)
            result |= steady(source, arguments.micro_batch, global_batch, at, arguments.steps, arguments.step_seconds)
            again, _ = capacity(source, arguments.micro_batch, 10 * at, arguments.seconds / 3)
            # Whether the machine still gave the fleet what it gave it before.
            result["capacity_afterwards"] = round(again, 1)
            result["load"] = [round(before, 1), round(os.getloadavg()[0], 1)]
            print(json.dumps(result))
        finally:
            for worker in workers:
                worker.close()


if __name__ == "__main__":
    main()
