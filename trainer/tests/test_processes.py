"""What happens to processes: killed workers, Ctrl-C, forks, workers of this machine and their ranks."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import json
import logging
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest
import urllib.error
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import feedmill
from feedmill import ConfigError, ForkError, WorkerRefused, WorkersFailed, WorkersUnreachable, _feedmill, cpus, folders, nodes, ready
from feedmill.nodes import NodeWorkers as WorkersOfANode
from feedmill.nodes import WorkerSet, worker_program
from support import BUCKET, FleetCase, _direct, fleet, hashes, pipeline, until

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


TWICE = """
import logging, sys, time, feedmill
logging.getLogger("feedmill").setLevel(logging.ERROR)
loader = feedmill.Loader(sys.argv[1], dp_rank=0, dp_size=2, global_batch=4, micro_batch=2, run="twice")
try:
    for batch in loader:
        time.sleep(0.02)
except feedmill.RunMismatch as error:
    print(error)
"""


class Twice(unittest.TestCase):
    def test_two_nodes_that_gave_their_local_rank_as_dp_rank_both_read_the_same_half(self) -> None:
        with fleet(1) as workers, contextlib.ExitStack() as stack:
            command = [sys.executable, "-c", TWICE, workers[0].url]
            ranks = [stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True)) for _ in range(2)]
            numbers = "|".join(str(rank.pid) for rank in ranks)
            said = [rank.communicate(timeout=120)[0] for rank in ranks]
        for text in said:
            self.assertRegex(text, f"rank 0 of 2.* is there twice.*/({numbers})/.*/({numbers})/.*model_parallel_size")

    def test_ranks_that_share_a_model_are_the_same_one(self) -> None:
        with fleet(1) as workers:
            settings: dict[str, Any] = {"dp_rank": 0, "global_batch": 4, "micro_batch": 2}
            for run, ranks in (("sole", {"dp_size": 2}), ("shared", {"dp_size": 2, "model_parallel_size": 2}), ("alone", {"dp_size": 1})):
                loader = feedmill.Loader(workers[0].url, run=run, **settings, **ranks)
                self.addCleanup(loader.close)
                next(loader)
            reports = json.loads(workers[0].get("/v1/status"))["reports"]
        self.assertEqual({report["run"]: "process" in report for report in reports}, {"sole": True, "shared": False, "alone": False})


class Closed(unittest.TestCase):
    def test_a_call_that_waits_ends_when_another_thread_closes_the_loader(self) -> None:
        with fleet(1) as workers:
            loader = feedmill.Loader(workers[0].url, dp_rank=0, dp_size=1, global_batch=1, micro_batch=1, window=0, run="closed")
            self.addCleanup(loader.close)
            next(loader)
            workers[0].process.send_signal(signal.SIGSTOP)
            self.closed_while_it_waits(loader, lambda: until("a call that waits", lambda: loader.stats()["waiting"] > 0))
            with self.assertRaisesRegex(feedmill.FeedmillError, "the loader is closed"):
                next(loader)

    def test_a_call_that_waits_for_the_plan_ends_too(self) -> None:
        # Accepts connections and never answers.
        with socket.create_server(("127.0.0.1", 0)) as silent:
            address = f"http://127.0.0.1:{silent.getsockname()[1]}"
            loader = feedmill.Loader(address, dp_rank=0, dp_size=1, global_batch=1, micro_batch=1, run="closed-early")
            self.closed_while_it_waits(loader, lambda: silent.accept()[0].close())

    def test_closing_it_while_local_workers_start_warns_of_no_list(self) -> None:
        # "list of workers was not read ... No such file": the list goes with the workers.
        with tempfile.TemporaryDirectory() as folder:
            code = f"""
            import threading, feedmill
            from feedmill import nodes
            starts, closed = threading.Event(), threading.Event()
            def await_one(self, seconds):
                starts.set()
                closed.wait()
            nodes.NodeWorkers.await_one = await_one
            loader = feedmill.Loader({pipeline(folder)!r}, dp_rank=0, dp_size=1, global_batch=1, micro_batch=1, run="starts", threads=1)
            def read():
                try:
                    next(loader)
                except feedmill.FeedmillError as error:
                    print(error)
            reader = threading.Thread(target=read)
            reader.start()
            starts.wait()
            loader.close()
            closed.set()
            reader.join()
            """
            said = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120)
        self.assertEqual((said.stdout, said.stderr), ("the loader is closed\n", ""))

    def closed_while_it_waits(self, loader: feedmill.Loader, until_it_waits: Callable[[], None]) -> None:
        said: list[BaseException] = []

        def read() -> None:
            try:
                next(loader)
            except feedmill.FeedmillError as error:
                said.append(error)

        reader = threading.Thread(target=read)
        reader.start()
        until_it_waits()
        loader.close()
        reader.join(timeout=60)
        self.assertRegex(str(said), "the loader is closed")


class Signals(unittest.TestCase):
    def test_ctrl_c_ends_the_waiting(self) -> None:
        # Accepts connections and never answers.
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

    def test_a_thread_that_comes_while_another_one_is_handed_a_batch_gets_none(self) -> None:
        # Between the batch's coming and its being counted: a second one got the first one's place, or a row twice.
        loader = self.loader(max_steps=4)
        loader.wait_ready()
        came, goes_on = threading.Event(), threading.Event()
        counts = loader._account.tick
        ranges: list[tuple[int, int]] = []

        def halts(asked: float) -> None:
            counts(asked)
            # The first one alone.
            if not came.is_set():
                came.set()
                goes_on.wait(60)

        with mock.patch.object(loader._account, "tick", halts):
            reader = threading.Thread(target=lambda: ranges.append(next(loader).range))
            reader.start()
            self.assertTrue(came.wait(60))
            calls: list[Callable[[], object]] = [
                lambda: next(loader),
                loader.wait_ready,
                lambda: loader.seek(0),
                lambda: loader.load_state_dict({"version": 1, "stream": "train", "consumed": 0}),
                lambda: loader.set_global_batch(16),
            ]
            try:
                for call in calls:
                    with self.assertRaisesRegex(ConfigError, "two threads use one loader at once"):
                        call()
                # Whoever only looks may.
                self.assertEqual((loader.state_dict()["consumed"], loader.stats()["consumed"], len(loader)), (0, 0, 8))
            finally:
                goes_on.set()
                reader.join()
        ranges += [batch.range for batch in loader]
        self.assertEqual(ranges, [(start, start + 4) for start in range(0, 32, 4)])

    def test_a_loader_is_closed_while_another_thread_is_handed_a_batch(self) -> None:
        loader = self.loader()
        loader.wait_ready()
        with mock.patch.object(loader._account, "tick", lambda asked: loader.close()):
            self.assertEqual(next(loader).range, (0, 4))
        with self.assertRaisesRegex(feedmill.FeedmillError, "the loader is closed"):
            next(loader)

    def test_a_turn_that_was_interrupted_is_over(self) -> None:
        # Ctrl-C between taking a turn and the statement that would end it.
        turns = _feedmill.Turns()
        turn = turns.take()
        with self.assertRaises(ConfigError):
            turns.take()
        del turn
        with turns.take() as _, self.assertRaises(ConfigError):
            turns.take()
        with self.assertRaises(KeyError), turns.take():
            raise KeyError
        turns.take()

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
        runtime, self.temporary = (os.path.join(self.folder.name, name) for name in ("runtime", "temporary"))
        for folder in (runtime, self.temporary):
            os.mkdir(folder, 0o700)
        for patch in (
            mock.patch.dict(os.environ, {"XDG_RUNTIME_DIR": runtime, "TMPDIR": self.temporary}),
            mock.patch.object(tempfile, "tempdir", self.temporary),
        ):
            patch.start()
            self.addCleanup(patch.stop)

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

    def test_a_worker_that_is_killed_is_started_again_and_no_byte_changes(self) -> None:
        # It was only reaped: 300 s, then WorkersUnreachable for ever.
        settings: dict[str, Any] = {"dp_rank": 0, "dp_size": 1, "global_batch": 8, "micro_batch": 4, "max_steps": 8, "window": 1}
        with feedmill.Loader(self.path, run="again", timeout=120.0, **settings) as loader:
            made = hashes(itertools.islice(loader, 3))
            assert loader._node is not None
            killed, first = loader._node.pids, loader._node.addresses
            with self.assertLogs("feedmill", "WARNING") as logs:
                os.kill(killed[0], signal.SIGKILL)
                made |= hashes(loader)
            self.assertIn("worker 0 of this machine ended and was started again", logs.output[0])
            self.assertNotEqual((loader._node.pids, loader._node.addresses), (killed, first))
        with fleet(1) as workers:
            served = hashes(feedmill.Loader([workers[0].url], run="fleet", **settings))
        self.assertEqual(made, served)

    def test_workers_that_listen_and_then_die_end_the_waiting(self) -> None:
        # What a pipeline names is read after the worker listens: 300 s of silence, then WorkersUnreachable.
        empty = os.path.join(self.folder.name, "empty.jsonl")
        with open(empty, "wb"):
            pass
        settings: dict[str, Any] = {"dp_rank": 0, "dp_size": 1, "global_batch": 8, "micro_batch": 4}
        for name, text, by, words in [
            ("missing", "captions.jsonl", "absent.jsonl", "absent.jsonl does not exist"),
            ("empty", f"file://{BUCKET}/data/captions.jsonl", f"file://{empty}", "has no records"),
            ("processor", "/processor/", "/no-processor/", "processor.*cannot be read"),
        ]:
            path = pipeline(self.folder.name, **{text: by})
            begun = time.monotonic()
            with self.subTest(name), feedmill.Loader(path, run=name, workers=2, threads=1, **settings) as loader:
                with self.assertRaisesRegex(WorkersFailed, f"rank 0.*before they were ready(.|\n)*{words}") as caught:
                    next(loader)
                self.assertEqual((caught.exception.rank, caught.exception.stream), (0, "train"))
                self.assertIsNone(loader._node, "the next call starts them anew")
                # Not a claim on speed: it was the whole timeout of 300 s.
                self.assertLess(time.monotonic() - begun, 60)

    def test_what_workers_wait_for_is_said_at_the_end_of_the_timeout(self) -> None:
        # A server that is not there is waited for, and nothing was said.
        endpoint = {f"file://{BUCKET}/processor/": "s3://absent/processor/", "region: us-east-1": "region: us-east-1\n    endpoint: http://127.0.0.1:1"}
        path = pipeline(self.folder.name, **endpoint)
        keys = {"AWS_ACCESS_KEY_ID": "absent", "AWS_SECRET_ACCESS_KEY": "absent"}
        settings: dict[str, Any] = {"dp_rank": 0, "dp_size": 1, "global_batch": 8, "micro_batch": 4, "timeout": 3.0}
        with mock.patch.dict(os.environ, keys), mock.patch.object(ready, "SILENT", 0.0):
            with feedmill.Loader(path, run="absent", **settings) as loader, self.assertLogs("feedmill", "WARNING") as logs:
                with self.assertRaisesRegex(WorkersFailed, "no worker of this machine was ready within 3 s; worker 0: "):
                    next(loader)
        self.assertIn("no worker of this machine is ready", logs.output[0])

    def test_a_set_that_was_ready_is_not_given_up_for_its_deaths(self) -> None:
        workers = WorkersOfANode(self.path, run="was-ready")
        self.addCleanup(workers.close)
        self.assertIsNone(workers.await_one(60.0))
        for _ in range(ready.LOST):
            killed = workers.pids
            os.kill(killed[0], signal.SIGKILL)
            until("another worker", lambda: workers.pids != killed)
        self.assertIsNone(workers.await_one(60.0))

    def test_any_rank_starts_a_dead_worker_again(self) -> None:
        ranks = [self.rank(rank, 2, 4) for rank in range(2)]
        (first, _), (second, _) = (self.read(rank) for rank in ranks)
        self.assertEqual(sorted(first | second), list(range(32)))
        workers = WorkersOfANode(self.path, run="node")
        self.addCleanup(workers.close)
        # Those that started it, whichever it was, are gone.
        for rank in ranks:
            rank.kill()
            rank.wait()
        killed = workers.pids
        os.kill(killed[0], signal.SIGKILL)
        until("another worker", lambda: workers.pids != killed and is_up(workers.addresses[0]))

    def test_a_worker_that_does_not_start_again_is_said_with_its_log(self) -> None:
        # A program that starts once.
        program = os.path.join(self.folder.name, "once")
        with open(program, "w", encoding="utf-8") as file:
            file.write(f'#!/bin/sh\nmkdir "$0.started" 2>/dev/null || {{ echo "it is out of luck" >&2; exit 1; }}\nexec {worker_program()} "$@"\n')
        os.chmod(program, 0o755)
        settings: dict[str, Any] = {"dp_rank": 0, "dp_size": 1, "global_batch": 8, "micro_batch": 4, "window": 0}
        with mock.patch.dict(os.environ, {"FEEDMILL_WORKER": program}):
            with feedmill.Loader(self.path, run="once", timeout=5.0, **settings) as loader:
                next(loader)
                assert loader._node is not None
                os.kill(loader._node.pids[0], signal.SIGKILL)
                with self.assertRaisesRegex(WorkersFailed, "worker 0 of this machine ended.*it is out of luck") as caught:
                    list(itertools.islice(loader, 8))
                self.assertIsInstance(caught.exception.__cause__, WorkersUnreachable)
            # And one that never starts is no matter of the timeout.
            with self.assertRaisesRegex(WorkersFailed, "does not start: it is out of luck"):
                next(feedmill.Loader(self.path, run="never", **settings))

    def test_a_worker_for_which_there_is_no_process_is_told_of(self) -> None:
        # It was said at debug level, and what was quoted was the dead worker's log.
        workers = WorkersOfANode(self.path, run="no-process")
        self.addCleanup(workers.close)
        killed = workers.pids
        with self.assertLogs("feedmill", "WARNING") as logs:
            with mock.patch.object(subprocess, "Popen", side_effect=BlockingIOError(errno.EAGAIN, "no process to be had")):
                os.kill(killed[0], signal.SIGKILL)
                said: list[str] = []
                until("what is said", lambda: said.extend(filter(None, [workers.trouble(60)])) or said)
            self.assertRegex(said[0], "worker 0 of this machine ended, 1 times in all; .*no process to be had")
            until("another worker", lambda: workers.pids != killed)
        self.assertRegex(logs.output[0], "worker 0 of this machine ended and does not start again: .*no process to be had")

    def test_a_worker_that_does_not_say_where_it_listens_is_not_waited_for(self) -> None:
        # All ranks of the machine waited for it, without end.
        program = os.path.join(self.folder.name, "mute")
        with mock.patch.dict(os.environ, {"FEEDMILL_WORKER": program}):
            late = "it did not say within 5 s where it listens"
            for says, seconds, reason in [("", 5.0, late), ("printf 'password: '; ", 5.0, late), ("echo one moment; ", 60.0, "it has a name")]:
                with open(program, "w", encoding="utf-8") as file:
                    file.write(f'#!/bin/sh\necho "it has a name" >&2\necho $$ >"$0.pid"\n{says}exec tail -f /dev/null\n')
                os.chmod(program, 0o755)
                with self.subTest(says), mock.patch.object(nodes, "SPEAKS_WITHIN", seconds):
                    with self.assertRaisesRegex(WorkersFailed, f"does not start: {reason}"):
                        WorkersOfANode(self.path, run="mute")
                with open(f"{program}.pid", encoding="utf-8") as file, self.assertRaises(ProcessLookupError):
                    os.kill(int(file.read()), 0)

    def test_loaders_of_a_process_share_workers_without_a_launchers_id(self) -> None:
        # Each loader made up a run of its own, and with it a set of workers.
        settings: dict[str, Any] = {"dp_rank": 0, "dp_size": 1, "global_batch": 8, "micro_batch": 4, "max_steps": 1}
        with mock.patch.dict(os.environ):
            for name in ("FEEDMILL_RUN", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"):
                os.environ.pop(name, None)
            with feedmill.Loader(self.path, **settings) as train, feedmill.Loader(self.path, **settings) as evaluation:
                self.assertEqual(hashes(train), hashes(evaluation))
                assert train._node is not None and evaluation._node is not None
                self.assertEqual(train._node.pids, evaluation._node.pids)
                # Evaluation's end is not training's.
                evaluation.close()
                self.assertTrue(is_up(train._node.addresses[0]))

    def test_a_fork_while_a_lock_is_held_does_not_keep_it(self) -> None:
        # Closing leaves a lock to a fork that has the file too: no rank could join, and no worker was started again.
        cache = os.path.join(self.folder.name, "one", "cache")
        workers = WorkerSet("", os.path.join(self.folder.name, "set", "one"), cache, None)

        def lock() -> None:
            with workers.locked(make=True):
                pass

        def sweep() -> None:
            # A set that is held, and a folder of copies that cannot be taken away.
            with open(workers.path("held"), "wb") as held, mock.patch.object(folders.shutil, "rmtree"):
                fcntl.flock(held.fileno(), fcntl.LOCK_SH)
                folders.sweep(os.path.join(self.folder.name, "set"), self.folder.name)

        lock()
        os.makedirs(cache)
        for name in ("held", "alive-0"):
            with open(workers.path(name), "wb"):
                pass
        for path, locks in [
            (workers.path("lock"), lock),
            (workers.path("lock"), sweep),
            (cache, sweep),
            (workers.path("held"), lambda: self.assertFalse(folders.is_held(os.path.dirname(workers.path("held"))))),
            (workers.path("alive-0"), lambda: self.assertFalse(workers.is_alive(0))),
        ]:
            with self.subTest(path=path, by=locks.__name__), _forking_at_locks_of(path) as forks:
                locks()
                self.assertEqual(len(forks), 1)
                file = os.open(path, os.O_RDONLY)
                try:
                    # BlockingIOError while the fork has the lock.
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                finally:
                    os.close(file)

    def test_a_set_that_starts_anew_waits_for_no_worker_that_drains(self) -> None:
        # The new worker's lock was the old one's, which drains for seconds; the set's lock was held meanwhile.
        rank = self.rank(0, 1, 1, "drains")
        self.read(rank)
        runtime = os.path.join(self.folder.name, "runtime", "feedmill")
        (folder,) = os.listdir(runtime)
        with open(os.path.join(runtime, folder, "workers.json"), encoding="utf-8") as file:
            (worker,) = json.load(file)["workers"]
        os.kill(worker["pid"], signal.SIGSTOP)
        rank.kill()
        rank.wait()
        # Or the test would hang as the set did.
        end = threading.Timer(30, os.kill, (worker["pid"], signal.SIGKILL))
        end.start()
        try:
            workers = WorkersOfANode(self.path, run="drains")
            self.addCleanup(workers.close)
            self.assertTrue(end.is_alive(), "it waited for the old worker's end")
        finally:
            end.cancel()
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker["pid"], signal.SIGKILL)
        self.assertTrue(is_up(workers.addresses[0]))

    def test_folders_go_with_the_set_and_copies_lie_on_disk(self) -> None:
        # Copies of manifests filled XDG_RUNTIME_DIR, which is memory, and tokens and logs stayed for ever.
        runtime = os.path.join(self.folder.name, "runtime", "feedmill")
        one, two = WorkersOfANode(self.path, run="folders", count=2, threads=1), WorkersOfANode(self.path, run="folders")
        (folder,) = (os.path.join(runtime, name) for name in os.listdir(runtime))
        (cache,) = (os.path.join(base, name) for base, names, _ in os.walk(self.temporary) for name in names if name == "cache")
        for pid in one.pids:
            with open(f"/proc/{pid}/cmdline", encoding="utf-8") as file:
                arguments = file.read().split("\0")
            self.assertEqual(arguments[arguments.index("--cache-dir") + 1], cache, "one for the set")
        one.close()
        self.assertTrue(os.path.exists(os.path.join(folder, "token")), "the other holder's")
        two.close()
        self.assertFalse(os.path.exists(folder))
        self.assertFalse(os.path.exists(cache))
        # A killed holder removes nothing; the next one who starts workers does.
        killed = self.rank(0, 1, 1, "killed")
        self.read(killed)
        (folder,) = (os.path.join(runtime, name) for name in os.listdir(runtime))
        killed.kill()
        killed.wait()
        self.assertTrue(os.path.exists(folder))
        # And folders of copies without anything that says whose they were.
        os.makedirs(os.path.join(os.path.dirname(os.path.dirname(cache)), "forgotten", "cache"))
        WorkersOfANode(self.path, run="next").close()
        self.assertEqual(os.listdir(runtime), [])
        self.assertEqual(os.listdir(os.path.dirname(os.path.dirname(cache))), [])

    def test_threads_are_the_workers_own_affair_unless_they_share_the_quota(self) -> None:
        # The affinity of a pod with 8 CPUs on a machine of 128 made 128 threads.
        def threads(**settings: Any) -> list[str | None]:
            node = WorkersOfANode(self.path, run=f"threads-{len(settings)}", **settings)
            self.addCleanup(node.close)
            found = []
            for pid in node.pids:
                with open(f"/proc/{pid}/cmdline", encoding="utf-8") as file:
                    arguments = file.read().split("\0")
                found.append(arguments[arguments.index("--threads") + 1] if "--threads" in arguments else None)
            return found

        self.assertEqual(threads(), [None])
        with mock.patch.object(cpus, "usable", return_value=6):
            self.assertEqual(threads(count=2), ["3", "3"])
        self.assertEqual(threads(count=1, threads=2), ["2"])

    def test_quotas_of_cgroups_are_seen(self) -> None:
        def machine(name: str, groups: str, **files: str) -> int:
            root = os.path.join(self.folder.name, name)
            for path, text in {"proc/self/cgroup": groups, **{key: value for key, value in files.items()}}.items():
                path = os.path.join(root, path)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "w", encoding="ascii") as file:
                    file.write(text)
            with mock.patch.object(os, "sched_getaffinity", return_value=set(range(128))):
                return cpus.usable(root)

        self.assertEqual(machine("none", ""), 128)
        self.assertEqual(machine("two", "0::/pod/one\n", **{"sys/fs/cgroup/pod/one/cpu.max": "max 100000", "sys/fs/cgroup/pod/cpu.max": "800000 100000"}), 8)
        self.assertEqual(machine("small", "0::/\n", **{"sys/fs/cgroup/cpu.max": "50000 100000"}), 1)
        first = {"sys/fs/cgroup/cpu,cpuacct/pod/cpu.cfs_quota_us": "400000", "sys/fs/cgroup/cpu,cpuacct/pod/cpu.cfs_period_us": "100000"}
        self.assertEqual(machine("one", "4:cpu,cpuacct:/pod\n5:memory:/pod\n", **first), 4)
        self.assertEqual(machine("endless", "4:cpu,cpuacct:/pod\n", **{**first, "sys/fs/cgroup/cpu,cpuacct/pod/cpu.cfs_quota_us": "-1"}), 128)

    def test_a_folder_that_others_may_write_into_is_refused(self) -> None:
        os.makedirs(os.path.join(self.folder.name, "runtime", "feedmill"), mode=0o777)
        os.chmod(os.path.join(self.folder.name, "runtime", "feedmill"), 0o777)
        settings: dict[str, Any] = {"dp_rank": 0, "dp_size": 1, "global_batch": 8, "micro_batch": 4}
        with self.assertRaisesRegex(ConfigError, "others may write"):
            next(feedmill.Loader(self.path, run="wrong", **settings))


@contextlib.contextmanager
def _forking_at_locks_of(path: str) -> Iterator[list[int]]:
    """Forks once a lock of the file is taken; forks live to the end of this. Their process ids."""
    forks: list[int] = []
    flock = fcntl.flock

    def locked(file: int, kind: int) -> None:
        flock(file, kind)
        if not forks and not kind & fcntl.LOCK_UN and os.path.samestat(os.fstat(file), os.stat(path)):
            pid = os.fork()
            if pid == 0:
                signal.pause()
                os._exit(0)
            forks.append(pid)

    try:
        with mock.patch.object(fcntl, "flock", locked):
            yield forks
    finally:
        for pid in forks:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _ended(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        pipe.close()


if __name__ == "__main__":
    unittest.main()
