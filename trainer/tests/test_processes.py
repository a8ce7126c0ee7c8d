"""What happens to processes: killed workers, Ctrl-C, forks, workers of this machine and their ranks."""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest
import urllib.error
from typing import Any
from unittest import mock

import feedmill
from feedmill import ConfigError, ForkError, WorkerRefused, WorkersFailed, WorkersUnreachable
from support import FleetCase, _direct, fleet, hashes, pipeline, until

RANK = """
import logging, sys, feedmill
logging.getLogger("feedmill").setLevel(logging.ERROR)
path, rank, size, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
loader = feedmill.Loader(path, dp_rank=rank, dp_size=size, global_batch=8, micro_batch=2, max_steps=steps, run=sys.argv[5])
for batch in loader:
    arrays = batch.numpy()
    for row, position in enumerate(range(*batch.range)):
        print(position, arrays["sample_hash"][row].tobytes().hex(), flush=True)
print("end", *loader._node.addresses, flush=True)
sys.stdin.read()
"""


def setUpModule() -> None:
    logging.getLogger("feedmill").setLevel(logging.ERROR)


def is_up(address: str) -> bool:
    try:
        with _direct.open(f"{address}/livez", timeout=5):
            return True
    except (OSError, urllib.error.URLError):
        return False


class Workers(unittest.TestCase):
    def test_killing_workers_changes_no_byte(self) -> None:
        with fleet(3) as workers:
            settings: dict[str, Any] = {"dp_rank": 0, "dp_size": 1, "global_batch": 8, "micro_batch": 4, "max_steps": 10}
            source = [worker.url for worker in workers]
            whole = hashes(feedmill.Loader(source, run="whole", **settings))
            made: dict[int, bytes] = {}
            for number, batch in enumerate(feedmill.Loader(source, run="killed", **settings)):
                if number in (3, 9):
                    workers[(number - 3) // 6].kill()
                made |= hashes([batch])
            self.assertEqual(made, whole)

    def test_no_worker_is_a_typed_error_that_names_everything(self) -> None:
        with fleet(1) as workers:
            source = [workers[0].url]
            settings: dict[str, Any] = {"dp_rank": 0, "dp_size": 1, "global_batch": 8, "micro_batch": 4}
            # Until it has read its manifests.
            next(feedmill.Loader(source, run="ready", **settings))
            loader = feedmill.Loader(source, timeout=1.0, window=1, run="lost", **settings)
            next(loader)
            with self.assertRaisesRegex(ConfigError, 'no stream "absent"'):
                feedmill.Loader(source, stream="absent", run="absent", **settings).wait_ready()
            with self.assertRaises(WorkerRefused) as refused:
                next(feedmill.Loader(source, run="large", **settings | {"global_batch": 1000, "micro_batch": 1000}))
            self.assertIn("413", str(refused.exception))
            self.assertEqual((refused.exception.range, refused.exception.worker), ("0-1000", source[0]))
            workers[0].kill()
            with self.assertRaises(WorkersUnreachable) as caught:
                list(itertools.islice(loader, 3))
            error = caught.exception
            self.assertEqual((error.rank, error.stream, error.worker), (0, "train", source[0]))
            self.assertRegex(error.range or "", r"^\d+-\d+$")
            self.assertIn("rank 0", str(error))
            self.assertTrue(error.reason)
            with self.assertRaises(WorkersUnreachable):
                feedmill.Loader(source, timeout=0.5, run="gone", **settings).wait_ready()


class Signals(unittest.TestCase):
    def test_ctrl_c_ends_the_waiting(self) -> None:
        # Accepts connections and never answers.
        import socket

        with socket.create_server(("127.0.0.1", 0)) as silent:
            address = f"http://127.0.0.1:{silent.getsockname()[1]}"
            code = f"""
            import feedmill
            loader = feedmill.Loader("{address}", dp_rank=0, dp_size=1, global_batch=1, micro_batch=1, run="t")
            print("waiting", flush=True)
            try:
                next(loader)
            except KeyboardInterrupt:
                print("interrupted", flush=True)
            """
            with subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True) as rank:
                assert rank.stdout is not None
                self.assertEqual(rank.stdout.readline(), "waiting\n")
                silent.accept()[0].close()
                begun = time.monotonic()
                rank.send_signal(signal.SIGINT)
                self.assertEqual(rank.stdout.readline(), "interrupted\n")
                took = time.monotonic() - begun
                self.assertEqual(rank.wait(), 0)
            # Not a claim on speed: without looking for signals it would take the whole timeout of 300 s.
            self.assertLess(took, 60)


class Forks(FleetCase):
    def test_a_fork_is_refused_clearly_and_does_not_hurt_the_parent(self) -> None:
        loader = self.loader()
        next(loader)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            said = "nothing"
            try:
                next(loader)
            except ForkError as error:
                said = f"refused: {error}"
            except BaseException as error:
                said = repr(error)
            del loader
            os.write(writing, said.encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            said = pipe.read()
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertIn("refused", said)
        self.assertIn("before a fork", said)
        self.assertEqual(next(loader).range, (4, 8))

    def test_a_loader_made_in_a_fork_works(self) -> None:
        next(self.loader())
        context = multiprocessing.get_context("fork")
        queue = context.SimpleQueue()
        process = context.Process(target=_read_one, args=(self.source, queue))
        process.start()
        self.assertEqual(queue.get(), (0, 4))
        process.join()

    def test_two_threads_at_once_are_refused_and_one_after_another_are_not(self) -> None:
        loader = self.loader(max_steps=8)
        ranges: list[tuple[int, int]] = []

        def read() -> None:
            ranges.extend(batch.range for batch in itertools.islice(loader, 4))

        for _ in range(4):
            thread = threading.Thread(target=read)
            thread.start()
            thread.join()
        self.assertEqual(ranges, [(start, start + 4) for start in range(0, 64, 4)])


def _read_one(source: list[str], queue: Any) -> None:
    loader = feedmill.Loader(source, dp_rank=0, dp_size=1, global_batch=8, micro_batch=4, run="child")
    queue.put(next(loader).range)


class NodeWorkers(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = pipeline(self.folder.name)
        runtime = os.path.join(self.folder.name, "runtime")
        os.mkdir(runtime, 0o700)
        environment = mock.patch.dict(os.environ, {"XDG_RUNTIME_DIR": runtime})
        environment.start()
        self.addCleanup(environment.stop)

    def rank(self, rank: int, size: int, steps: int, run: str = "node") -> subprocess.Popen[str]:
        command = [sys.executable, "-c", RANK, self.path, str(rank), str(size), str(steps), run]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(_ended, process)
        return process

    def read(self, process: subprocess.Popen[str]) -> tuple[dict[int, str], str]:
        assert process.stdout is not None
        made = {}
        for line in process.stdout:
            word, value = line.split()
            if word == "end":
                return made, value
            made[int(word)] = value
        raise AssertionError("the rank ended")

    def test_ranks_share_workers_which_end_with_the_last_of_them(self) -> None:
        ranks = [self.rank(rank, 2, 4) for rank in range(2)]
        (first, address), (second, other) = (self.read(rank) for rank in ranks)
        self.assertEqual(address, other, "one set for the node")
        self.assertEqual(sorted(first | second), list(range(32)))
        with fleet(1) as workers:
            settings: dict[str, Any] = {"dp_rank": 0, "dp_size": 1, "global_batch": 8, "micro_batch": 2, "max_steps": 4}
            served = hashes(feedmill.Loader([workers[0].url], run="fleet", **settings))
        self.assertEqual({p: h.hex() for p, h in served.items()}, first | second, "the same bytes as a fleet's")
        ranks[0].kill()
        ranks[0].wait()
        self.assertTrue(is_up(address), "the other rank still holds them")
        ranks[1].kill()
        until("the workers' end", lambda: not is_up(address))

    def test_a_run_that_starts_again_gets_workers_again(self) -> None:
        first = self.rank(0, 1, 1)
        _, address = self.read(first)
        first.kill()
        first.wait()
        made, again = self.read(self.rank(0, 1, 2))
        self.assertEqual(sorted(made), list(range(16)))
        until("the first workers' end", lambda: address == again or not is_up(address))

    def test_two_runs_have_workers_of_their_own(self) -> None:
        _, one = self.read(self.rank(0, 1, 1, "one"))
        _, two = self.read(self.rank(0, 1, 1, "two"))
        self.assertNotEqual(one, two)

    def test_a_closed_loader_lets_go(self) -> None:
        settings: dict[str, Any] = {"dp_rank": 0, "dp_size": 1, "global_batch": 8, "micro_batch": 4}
        with feedmill.Loader(self.path, run="closed", workers=2, threads=1, **settings) as loader:
            next(loader)
            assert loader._node is not None
            addresses = loader._node.addresses
            self.assertEqual(len(addresses), 2)
        until("the workers' end", lambda: not any(map(is_up, addresses)))
        with self.assertRaisesRegex(feedmill.FeedmillError, "closed"):
            next(loader)

    def test_a_pipeline_that_contradicts_itself_says_so(self) -> None:
        path = pipeline(self.folder.name, **{"percent: 150": "percent: -1"})
        settings: dict[str, Any] = {"dp_rank": 0, "dp_size": 1, "global_batch": 8, "micro_batch": 4}
        with self.assertRaisesRegex(WorkersFailed, "percent"):
            next(feedmill.Loader(path, run="wrong", **settings))

    def test_a_folder_that_others_may_write_into_is_refused(self) -> None:
        os.makedirs(os.path.join(self.folder.name, "runtime", "feedmill"), mode=0o777)
        os.chmod(os.path.join(self.folder.name, "runtime", "feedmill"), 0o777)
        settings: dict[str, Any] = {"dp_rank": 0, "dp_size": 1, "global_batch": 8, "micro_batch": 4}
        with self.assertRaisesRegex(ConfigError, "others may write"):
            next(feedmill.Loader(self.path, run="wrong", **settings))


def _ended(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        pipe.close()


if __name__ == "__main__":
    unittest.main()
