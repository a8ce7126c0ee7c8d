"""What goes wrong between a trainer and its workers, and what the trainer is told."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import socket
import tempfile
import threading
import unittest
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import feedmill
from feedmill import ConfigError, RunMismatch, WorkersUnreachable
from support import FleetCase, hashes


def setUpModule() -> None:
    logging.getLogger("feedmill").setLevel(logging.ERROR)


@contextlib.contextmanager
def in_between(worker: str, change: Callable[[int, bytes], bytes | None]) -> Iterator[str]:
    """The address of a worker whose answers go through ``change``: how many bytes of the connection came before, and these.
    None ends the connection."""
    host, port = worker.removeprefix("http://").split(":")
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                asking, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=one, args=(asking,), daemon=True).start()

    def one(asking: socket.socket) -> None:
        with asking, contextlib.suppress(OSError), socket.create_connection((host, int(port))) as answering:
            threading.Thread(target=forward, args=(asking, answering), daemon=True).start()
            came = 0
            while data := answering.recv(65536):
                passed = change(came, data)
                if passed is None:
                    break
                asking.sendall(passed)
                came += len(data)
            asking.shutdown(socket.SHUT_RDWR)

    def forward(asking: socket.socket, answering: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := asking.recv(65536):
                answering.sendall(data)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        # Closing alone does not wake who waits in accept.
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def cut_short(worker: str, most: int) -> contextlib.AbstractContextManager[str]:
    """The address of a worker whose answers end after so many bytes of a connection."""
    return in_between(worker, lambda came, data: data[: max(most - came, 0)] or None)


class Faults(FleetCase):
    def test_answers_that_end_early_are_asked_for_elsewhere(self) -> None:
        whole = hashes(self.loader(max_steps=4))
        with cut_short(self.source[0], 200_000) as short:
            made = hashes(self.loader(source=[short, self.source[1]], max_steps=4))
        self.assertEqual(made, whole)

    def test_answers_that_always_end_early_are_a_typed_error_with_the_reason(self) -> None:
        with cut_short(self.source[0], 20_000) as short:
            loader = self.loader(source=[short], timeout=2.0)
            loader.plan()
            with self.assertRaises(WorkersUnreachable) as caught:
                next(loader)
            loader.close()
        error = caught.exception
        self.assertEqual((error.rank, error.stream, error.range, error.worker), (0, "train", "0-4", short))
        self.assertTrue(error.reason)
        self.assertIn(short, str(error))

    def test_a_byte_that_changes_on_the_way_is_seen_where_hashes_are_verified(self) -> None:
        def pixels(**settings: Any) -> list[bytes]:
            with self.loader(max_steps=1, **settings) as loader:
                return [batch.numpy()["patches"].tobytes() for batch in loader]

        whole = pixels()
        for verify in (False, True):
            changed: list[int] = []

            def change(came: int, data: bytes) -> bytes:
                # Well within the pictures of the first batch that comes, once.
                if changed or came < 200_000:
                    return data
                changed.append(came)
                return data[:1000] + bytes([data[1000] ^ 1]) + data[1001:]

            with in_between(self.source[0], change) as between:
                got = pixels(source=[between], verify=verify)
            self.assertEqual((len(changed), got == whole), (1, verify))

    def test_a_name_that_nobody_knows_is_said(self) -> None:
        # A label of 64 letters: refused by the resolver before anybody is asked.
        name = "w" * 64 + ".invalid"
        with self.assertRaises(WorkersUnreachable) as caught:
            self.loader(source=f"http://{name}:8470", timeout=1.0).wait_ready()
        self.assertIn(name, str(caught.exception))

    def test_nobody_listening_is_said_with_the_address(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as gone:
            address = f"http://127.0.0.1:{gone.getsockname()[1]}"
        with self.assertRaisesRegex(WorkersUnreachable, address):
            next(self.loader(source=[address], timeout=1.0))

    def test_one_unknown_name_among_workers_is_no_fault(self) -> None:
        settings: dict[str, Any] = {"max_steps": 3}
        whole = hashes(self.loader(**settings))
        source = [f"http://{'w' * 64}.invalid:8470", *self.source]
        self.assertEqual(hashes(self.loader(source=source, **settings)), whole)

    def test_ranks_that_do_not_begin_alike_are_refused_before_the_first_step(self) -> None:
        settings: dict[str, Any] = {"dp_size": 2, "global_batch": 16, "micro_batch": 4}
        for number, (change, words) in enumerate(
            [
                ({"global_batch": 32}, "global batch 32"),
                ({"micro_batch": 2}, "micro batch 2"),
                ({"consumed": 16}, "from 16 samples"),
                ({"dp_size": 4}, "of 4"),
            ]
        ):
            run = f"mismatch-{number}"
            self.loader(dp_rank=0, run=run, **settings).wait_ready()
            with self.assertRaises(RunMismatch) as caught:
                self.loader(dp_rank=1, run=run, **settings | change).wait_ready()
            self.assertIn(words, str(caught.exception))
            self.assertIn("global batch 16 and micro batch 4 from 0 samples", str(caught.exception), "what the other rank says")
            self.loader(dp_rank=1, run=run, **settings).wait_ready()

    def test_ranks_that_skip_or_end_otherwise_are_refused_before_the_first_step(self) -> None:
        # Positions were read by nobody, or the others waited in a collective for the one that had ended.
        settings: dict[str, Any] = {"dp_size": 2, "global_batch": 8, "micro_batch": 4}
        skips, end, there = {"skips": [(8, 16)]}, {"max_steps": 4}, {"consumed": 8}
        for number, (one, other, words) in enumerate(
            [
                ({}, skips, ("leaving positions 8-16 out", "leaving no position out")),
                ({}, end, ("to position 32, the last step made full", "without an end")),
                (end, {"max_samples": 24}, ("to position 24", "to position 32")),
                (end, end | {"last_step": "drop"}, ("not full left out", "the last step made full")),
                # It has nothing to read at all.
                (there, there | {"max_steps": 1}, ("to position 8", "without an end")),
                (there, there | {"max_samples": 8, "global_batch": lambda consumed: 8}, ("to position 8", "without an end")),
            ]
        ):
            with self.subTest(str(other)):
                run = f"torn-{number}"
                self.loader(dp_rank=0, run=run, **settings | one).wait_ready()
                with self.assertRaises(RunMismatch) as caught:
                    self.loader(dp_rank=1, run=run, **settings | other).wait_ready()
                for text in words:
                    self.assertIn(text, str(caught.exception))
                self.loader(dp_rank=1, run=run, **settings | one).wait_ready()

    def test_ranks_with_other_plans_are_refused_where_they_share_a_worker(self) -> None:
        # As while a fleet takes another pipeline: one rank began before, the other after that.
        settings: dict[str, Any] = {"dp_size": 2, "run": "plans", "global_batch": 8, "micro_batch": 4}
        loader = self.loader(dp_rank=0, **settings)
        loader.wait_ready()
        other = "sha256:" + "0" * 64
        begin = {"global_batch": 8, "micro_batch": 4, "consumed": 0}
        report = {"run": "plans", "stream": "train", "plan": other, "rank": 1, "size": 2, "begin": begin, "sequence": 1}
        report |= dict.fromkeys(("ready", "target", "waiting_ms", "wait_ms", "step_ms", "consumed"), 0)
        answers = []
        for worker in self.workers:
            request = urllib.request.Request(f"{worker.url}/v1/reports", json.dumps(report).encode(), method="POST")
            try:
                with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
                    answers.append((answer.status, ""))
            except urllib.error.HTTPError as error:
                with error:
                    answers.append((error.code, json.loads(error.read())["detail"]))
        # The run's home, which is one of them, has both.
        self.assertEqual(sorted(code < 300 for code, _ in answers), [False, True], answers)
        refused = max(answers)[1]
        self.assertIn(f"by plan {other}", refused)
        self.assertIn(f"by plan {loader.plan()['plan']}", refused)

    def test_workers_are_listed_in_a_file(self) -> None:
        settings: dict[str, Any] = {"max_steps": 12, "window": 2}
        whole = hashes(self.loader(**settings))
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "workers")
            with self.assertRaises(WorkersUnreachable) as caught:
                self.loader(source=f"file:{path}", timeout=1.0).wait_ready()
            self.assertIn(path, str(caught.exception))
            Path(path).write_text(f"# the first one\n{self.source[0]}\n")
            loader = self.loader(source=f"file:{path}", **settings)
            made = hashes(itertools.islice(loader, 6))
            Path(path).write_text(f"{self.source[1]}\n")
            self.assertEqual(made | hashes(loader), whole)

    def test_workers_older_than_the_package_give_batches_but_no_model_tensors(self) -> None:
        loader = self.loader()
        loader.wait_ready()
        assert loader._plan is not None
        loader._plan["model"] = None
        batch = next(loader)
        self.assertEqual(batch.numpy()["tokens"].shape, (batch.num_tokens,))
        for asked in (batch.hf, batch.padded, batch.packed, batch.pixel_values, lambda: loader.model):
            with self.assertRaisesRegex(ConfigError, "older than this package"):
                asked()

    def test_the_model_is_described(self) -> None:
        model = self.loader().model
        self.assertEqual((model["merge"], model["temporal"]), (2, 2))
        batch = next(self.loader())
        self.assertEqual(batch.numpy()["patches"].shape[1], 3 * model["patch"] ** 2)


if __name__ == "__main__":
    unittest.main()
