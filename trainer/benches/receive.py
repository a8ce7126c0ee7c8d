"""What receiving costs a trainer, in one run, in turns: CPU seconds of this process for each GB (10^9 bytes) that is in numpy arrays, by
the loader, by httpx over HTTP/2 where that is installed, and by the least that Python can do (one kept HTTP/1.1 connection, read into one
kept buffer, nothing checked); and how many loops a spinning Python thread loses to a loader in its process, against the same loader in a
process of its own. Ends with one line of JSON.

Loops are counted for each second in which the thread was not kept from a core: on a machine with other work its share of the cores
would otherwise drown what Python's lock takes.

    tools/python-bench.sh          # builds what it needs
"""

from __future__ import annotations

import argparse
import http.client
import json
import logging
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import feedmill

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from support import Worker, pipeline  # noqa: E402


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def loader(source: str, samples: int, micro_batch: int) -> feedmill.Loader:
    return feedmill.Loader(
        [source],
        dp_rank=0,
        dp_size=1,
        global_batch=micro_batch,
        micro_batch=micro_batch,
        max_samples=samples,
        on_bad="warn",
        run=f"bench-{os.getpid()}",
    )


def by_loader(made: feedmill.Loader) -> tuple[int, float, float]:
    """Bytes, CPU seconds, seconds."""
    made.seek(0)
    begun, used, total = time.monotonic(), cpu(), 0
    for batch in made:
        arrays = batch.numpy()
        total += batch.nbytes
        assert arrays["patches"].shape[0]
    return total, cpu() - used, time.monotonic() - begun


def by_httpx(client: Any, source: str, samples: int, micro_batch: int) -> tuple[int, float, float]:
    begun, used, total = time.monotonic(), cpu(), 0
    for start in range(0, samples, micro_batch):
        answer = client.get(f"{source}/v1/streams/train/batches/{start}-{start + micro_batch}")
        array = np.frombuffer(answer.content, np.uint8)
        total += array.nbytes
    return total, cpu() - used, time.monotonic() - begun


def by_readinto(source: str, samples: int, micro_batch: int, into: bytearray) -> tuple[int, float, float]:
    connection = http.client.HTTPConnection(source.removeprefix("http://"))
    begun, used, total = time.monotonic(), cpu(), 0
    for start in range(0, samples, micro_batch):
        connection.request("GET", f"/v1/streams/train/batches/{start}-{start + micro_batch}")
        answer = connection.getresponse()
        view, length = memoryview(into), 0
        while count := answer.readinto(view[length:]):
            length += count
        total += np.frombuffer(into, np.uint8, length).nbytes
    connection.close()
    return total, cpu() - used, time.monotonic() - begun


def kept_from_a_core() -> float:
    """Seconds that this thread could have run and had no core."""
    with open("/proc/thread-self/schedstat") as file:
        return int(file.read().split()[1]) / 1e9


class Spinner:
    """Counts loops of plain Python for as long as it is asked to."""

    def __init__(self) -> None:
        self._stop = False
        self._thread = threading.Thread(target=self._spin)

    def _spin(self) -> None:
        loops, begun, kept = 0, time.monotonic(), kept_from_a_core()
        while not self._stop:
            for _ in range(1000):
                pass
            loops += 1
        self.rate = loops / (time.monotonic() - begun - kept_from_a_core() + kept)

    def __enter__(self) -> Spinner:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop = True
        self._thread.join()


def warm(made: feedmill.Loader) -> None:
    """Stands before the second batch, with more of them under way."""
    made.seek(0)
    next(made)


def paced(made: feedmill.Loader | None, count: int, batches_per_second: float) -> float:
    """Reads so many batches at so many a second, as a trainer does; without a loader it only wakes as often. Gives the CPU seconds of this thread: it cannot have held Python's
    lock for longer than that and the time for which it held the lock without a core."""
    begun, used = time.monotonic(), time.thread_time()
    for number in range(count):
        time.sleep(max(begun + number / batches_per_second - time.monotonic(), 0))
        if made is not None:
            next(made)
    return time.thread_time() - used


def other_process(arguments: argparse.Namespace, source: str) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--receive", source, "--samples", str(arguments.samples)]
    command += ["--micro-batch", str(arguments.micro_batch), "--pace", str(arguments.pace)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def receive(arguments: argparse.Namespace) -> None:
    """The other process: reads whenever it is told to."""
    logging.getLogger("feedmill").setLevel(logging.ERROR)
    made = loader(arguments.receive, arguments.samples, arguments.micro_batch)
    made.wait_ready()
    for _ in sys.stdin:
        warm(made)
        print("warm", flush=True)
        sys.stdin.readline()
        paced(made, arguments.samples // arguments.micro_batch - 1, arguments.pace)
        print("done", flush=True)


def lock_loss(arguments: argparse.Namespace, source: str) -> dict[str, Any]:
    mine = loader(source, arguments.samples, arguments.micro_batch)
    mine.wait_ready()
    losses, rates, reading, noise = [], [], [], []
    count = arguments.samples // arguments.micro_batch - 1
    with other_process(arguments, source) as other:
        assert other.stdin is not None and other.stdout is not None

        def beside() -> float:
            other.stdin.write("go\n")
            other.stdin.flush()
            assert other.stdout.readline() == "warm\n"
            with Spinner() as spinner:
                other.stdin.write("go\n")
                other.stdin.flush()
                paced(None, count, arguments.pace)
                assert other.stdout.readline() == "done\n"
            return spinner.rate

        for _ in range(arguments.rounds):
            rates.append(beside())
            warm(mine)
            with Spinner() as within:
                reading.append(paced(mine, count, arguments.pace) / count)
            losses.append(1 - within.rate / rates[-1])
            # The same thing twice: what the machine's other work does to the figure.
            noise.append(abs(1 - beside() / rates[-1]))
        other.stdin.close()
    mine.close()
    return {
        "loss_percent_median": round(100 * statistics.median(losses), 2),
        "same_thing_twice_differs_percent": round(100 * statistics.median(noise), 2),
        "loss_percent_each": [round(100 * loss, 2) for loss in losses],
        "reading_thread_cpu_ms_per_batch": round(1e3 * statistics.median(reading), 3),
        "reading_thread_busy_percent": round(100 * statistics.median(reading) * arguments.pace, 2),
        "batches_per_second": arguments.pace,
        "loops_per_second": round(statistics.median(rates)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--micro-batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--pace", type=float, default=20.0, help="batches a second beside the spinning thread")
    parser.add_argument("--receive", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.receive:
        receive(arguments)
        return
    try:
        import httpx

        client: Any = httpx.Client(http1=False, http2=True, timeout=60)
    except ImportError:
        client = None
    logging.getLogger("feedmill").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        worker = Worker(pipeline(folder))
        try:
            made = loader(worker.url, arguments.samples, arguments.micro_batch)
            # Makes every sample, once; from here on the worker only sends.
            total, _, _ = by_loader(made)
            print(f"{total / 1e6:.0f} MB in {arguments.samples // arguments.micro_batch} batches")
            ours, theirs, least = [], [], []
            buffer = bytearray(total)
            for _ in range(arguments.rounds):
                ours.append(by_loader(made))
                least.append(by_readinto(worker.url, arguments.samples, arguments.micro_batch, buffer))
                if client is not None:
                    theirs.append(by_httpx(client, worker.url, arguments.samples, arguments.micro_batch))
            made.close()
            result: dict[str, Any] = {"megabytes": round(total / 1e6), "load": os.getloadavg()[0]}
            for name, rounds in (("feedmill", ours), ("httpx", theirs), ("readinto", least)):
                if rounds:
                    costs = [used / (size / 1e9) for size, used, _ in rounds]
                    rates = [size / 1e9 / seconds for size, _, seconds in rounds]
                    result[f"{name}_cpu_s_per_gb"] = round(statistics.median(costs), 3)
                    result[f"{name}_gb_per_s"] = round(statistics.median(rates), 2)
            result["times_readinto"] = round(result["feedmill_cpu_s_per_gb"] / result["readinto_cpu_s_per_gb"], 2)
            if theirs:
                result["cheaper_than_httpx"] = round(result["httpx_cpu_s_per_gb"] / result["feedmill_cpu_s_per_gb"], 1)
            result["spinning_thread"] = lock_loss(arguments, worker.url)
            print(json.dumps(result))
        finally:
            worker.close()


if __name__ == "__main__":
    main()
