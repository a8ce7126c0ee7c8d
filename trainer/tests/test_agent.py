"""A loader that an agent lends its batches to."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import tempfile
import unittest
from typing import Any
from unittest import mock

import numpy as np

import feedmill
from feedmill import AgentUnreachable, WorkersUnreachable
from support import Agent, FleetCase, hashes, pipeline, until

#: Reads one batch, forks, and stays: both processes have the socket then.
FORKED = """
import os, sys, feedmill
loader = feedmill.Loader("http://127.0.0.1:1", dp_rank=0, dp_size=1, global_batch=4, micro_batch=4, max_steps=4, run="forked")
kept = next(loader).numpy()
child = os.fork()
if child == 0:
    del kept
    os.close(1)
    sys.stdin.read()
    os._exit(0)
print(child, flush=True)
sys.stdin.read()
"""

#: Waits for its first batch.
WAITING = """
import feedmill
next(feedmill.Loader("http://127.0.0.1:1", dp_rank=0, dp_size=1, global_batch=1, micro_batch=1, run="waiting"))
"""


class AgentCase(FleetCase):
    """Tests with an agent before the first worker."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.socket = os.path.join(folder.name, "agent.sock")
        environment = mock.patch.dict(os.environ, FEEDMILL_AGENT=self.socket)
        environment.start()
        self.addCleanup(environment.stop)

    def agent(self, *arguments: str) -> Agent:
        agent = Agent(self.workers[0], self.socket, *arguments)
        self.addCleanup(agent.close)
        return agent

    def through_agent(self, **settings: Any) -> feedmill.Loader:
        # Nobody listens at the address: everything comes from the agent.
        return self.loader(source="http://127.0.0.1:1", **settings)


class ThroughAgent(AgentCase):
    def test_batches_are_those_of_the_workers(self) -> None:
        agent = self.agent()
        here = hashes(self.through_agent(max_steps=6))
        self.assertEqual(len(here), 48)
        fetched = agent.status()["fetched"]
        # A second rank of the same model reads the same, and nothing is fetched again.
        self.assertEqual(hashes(self.through_agent(max_steps=6)), here)
        self.assertEqual(agent.status()["fetched"], fetched)
        with mock.patch.dict(os.environ, FEEDMILL_AGENT=""):
            self.assertEqual(hashes(self.loader(max_steps=6)), here)

    def test_views_are_the_agents_memory_until_the_last_one_is_gone(self) -> None:
        agent = self.agent()
        loader = self.through_agent(max_steps=1, window=1)
        views = [batch.numpy()["tokens"] for batch in loader]
        copies = [view.copy() for view in views]
        held = agent.status()["lent_bytes"]
        self.assertGreater(held, 0)
        self.assertEqual(loader.stats()["lent_bytes"], held)
        with open("/proc/self/maps") as maps:
            slabs = [line.split()[:2] for line in maps if "memfd:feedmill-slab" in line]
        spans = [(tuple(int(side, 16) for side in span.split("-")), mode) for span, mode in slabs]
        for view in views:
            address = view.__array_interface__["data"][0]
            self.assertTrue(any(begin <= address < end and mode == "r--s" for (begin, end), mode in spans), spans)
            with self.assertRaises(ValueError):
                view[0] = 1
        slices = [view[1:] for view in views]
        del view, views
        gc.collect()
        self.assertEqual(agent.status()["lent_bytes"], held)
        for part, copy in zip(slices, copies):
            np.testing.assert_array_equal(part, copy[1:])
        del part, slices
        gc.collect()
        until("the release of the last view", lambda: agent.status()["lent_bytes"] == 0)
        # Closing a loader takes nothing away from who still reads.
        again = self.through_agent(max_steps=1)
        kept = next(again).numpy()["tokens"]
        again.close()
        del again
        gc.collect()
        np.testing.assert_array_equal(kept, copies[0])
        self.assertGreater(agent.status()["lent_bytes"], 0)

    def test_an_agent_that_is_killed_is_an_error_and_the_next_one_goes_on(self) -> None:
        first = self.agent()
        loader = self.through_agent(max_steps=8, window=1)
        before = [next(loader)]
        first.kill()
        with self.assertRaises(AgentUnreachable) as raised:
            for _ in range(3):
                before.append(next(loader))
        self.assertIsInstance(raised.exception, WorkersUnreachable)
        self.assertIn(self.socket, str(raised.exception))
        self.agent()
        with mock.patch.dict(os.environ, FEEDMILL_AGENT=""):
            direct = hashes(self.loader(max_steps=8))
        self.assertEqual(hashes(before + list(loader)), direct)

    def test_an_agent_that_is_not_there_is_no_reason_to_ask_workers(self) -> None:
        with self.assertRaises(AgentUnreachable) as raised:
            next(self.loader(max_steps=1, timeout=2.0))
        self.assertIn("No such file", str(raised.exception))

    def test_a_rank_that_is_killed_gives_everything_back_though_its_child_lives(self) -> None:
        agent = self.agent()
        rank = subprocess.Popen([sys.executable, "-c", FORKED], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert rank.stdout is not None and rank.stdin is not None
        try:
            child = int(rank.stdout.readline())
            self.assertGreater(agent.status()["lent_bytes"], 0)
            rank.kill()
            rank.wait()
            until("what the rank held", lambda: agent.status()["lent_bytes"] == 0 and agent.status()["readers"] == 0)
            os.kill(child, 0)
        finally:
            rank.stdin.close()
            rank.stdout.close()

    def test_ctrl_c_ends_the_waiting(self) -> None:
        agent = self.agent()
        # It answers nobody while it is stopped.
        agent.process.send_signal(signal.SIGSTOP)
        self.addCleanup(agent.process.send_signal, signal.SIGCONT)
        rank = subprocess.Popen([sys.executable, "-c", WAITING], stderr=subprocess.PIPE)
        assert rank.stderr is not None

        def connected() -> bool:
            with open("/proc/net/unix") as sockets:
                return sum(line.rstrip().endswith(self.socket) for line in sockets) > 1

        until("the connection", connected)
        rank.send_signal(signal.SIGINT)
        self.assertIn(b"KeyboardInterrupt", rank.stderr.read())
        self.assertEqual(rank.wait(), -signal.SIGINT)
        rank.stderr.close()

    def test_a_pipelines_file_has_workers_of_its_own(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            loader = self.loader(source=pipeline(folder), max_steps=1, workers=1, threads=1)
            self.assertEqual(len(hashes(loader)), 8)


if __name__ == "__main__":
    unittest.main()
