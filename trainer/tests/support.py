"""What the tests share: a pipeline over the quickstart's files, worker processes, loaders over them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import time
import unittest
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import feedmill
from feedmill.nodes import worker_program

ROOT = Path(__file__).resolve().parents[2]
BUCKET = ROOT / "examples" / "quickstart" / "bucket"

#: Positions of one epoch of the quickstart's stream.
SAMPLES_PER_EPOCH = 601

_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def pipeline(folder: str, **changes: str) -> str:
    """The quickstart's pipeline over files, with texts replaced, in a folder."""
    text = (ROOT / "examples" / "quickstart" / "pipeline.yaml").read_text()
    text = text.replace("s3://quickstart/", f"file://{BUCKET}/")
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    path = Path(folder) / "pipeline.yaml"
    path.write_text(text)
    return str(path)


class Worker:
    """A worker process that ends with this one."""

    def __init__(self, path: str, *arguments: str) -> None:
        command = [worker_program(), "--pipeline", path, "--listen", "127.0.0.1:0", "--exit-with-stdin", "--threads", "1"]
        command += arguments
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
        assert self.process.stdout is not None
        self.url = "http://" + json.loads(self.process.stdout.readline())["listening"]

    def get(self, path: str) -> bytes:
        with _direct.open(self.url + path, timeout=60) as answer:
            return answer.read()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


class Agent(Worker):
    """An agent before a worker; ends with this process."""

    def __init__(self, upstream: Worker, socket: str, *arguments: str) -> None:
        command = [worker_program(), "agent", "--upstream", upstream.url, "--socket", socket]
        command += ["--listen", "127.0.0.1:0", "--exit-with-stdin", *arguments]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
        assert self.process.stdout is not None
        self.url = "http://" + json.loads(self.process.stdout.readline())["listening"]

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = json.loads(self.get("/v1/status"))["agent"]
        return status


@contextlib.contextmanager
def fleet(count: int = 2, **changes: str) -> Iterator[list[Worker]]:
    """Workers over the quickstart's data."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        path = pipeline(folder, **changes)
        workers = [Worker(path) for _ in range(count)]
        for worker in workers:
            stack.callback(worker.close)
        yield workers


class FleetCase(unittest.TestCase):
    """Tests that share two workers, and leave them as they are."""

    workers: list[Worker]
    source: list[str]

    @classmethod
    def setUpClass(cls) -> None:
        # What unittest has for it is not in Python 3.10.
        context = fleet()
        cls.workers = context.__enter__()
        cls.addClassCleanup(context.__exit__, None, None, None)
        cls.source = [worker.url for worker in cls.workers]

    def loader(self, **settings: Any) -> feedmill.Loader:
        settings = {"dp_rank": 0, "dp_size": 1, "global_batch": 8, "micro_batch": 4, "timeout": 60.0, "run": "test"} | settings
        loader = feedmill.Loader(settings.pop("source", self.source), **settings)
        self.addCleanup(loader.close)
        return loader


def until(what: str, holds: Callable[[], object], seconds: float = 30) -> None:
    """Looks again and again whether something that other processes do has come."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come within {seconds} s")
        time.sleep(0.01)


def hashes(batches: Any) -> dict[int, bytes]:
    """{position: sample hash} of batches, filler left out; a position that comes twice is a failure."""
    made: dict[int, bytes] = {}
    for batch in batches:
        arrays = batch.numpy()
        for row, position in enumerate(range(*batch.range)):
            if arrays["sample_index"][row] == -1:
                continue
            assert position not in made, f"position {position} came twice"
            made[position] = arrays["sample_hash"][row].tobytes()
    return made


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]
