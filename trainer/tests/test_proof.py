"""The promise, held against real workers: whatever happens to workers, ranks and their number, every position comes once, with the same
bytes. A run is compared by the chain of its sample hashes in the order of positions with that of a worker that nobody disturbs.

FEEDMILL_PROOF_EVENTS and FEEDMILL_PROOF_SEED make the disturbed run longer, or the same again; `make soak` does.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import random
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
from collections.abc import Iterable
from typing import Any

import feedmill
from disturbance import EVENTS, Disturbance, Net, Slot, no_networks
from support import ROOT, SAMPLES_PER_EPOCH, FleetCase, Worker, fleet, hashes, pipeline

#: In `make test`. Every kind of event has come by then, with nearly every seed.
SHORT = 16

#: A second stream over the same data, for evaluation beside the training.
EVAL = """    - name: eval
      seed: 7
      datasets:
        - name: chat
          uri: "s3://quickstart/data/chat.jsonl.gz"
          imageBaseUri: "s3://quickstart/images/"
processor:
""".replace("processor", "  processor")


def setUpModule() -> None:
    logging.getLogger("feedmill").setLevel(logging.ERROR)


def with_eval(folder: str) -> str:
    return pipeline(folder, **{"  processor:\n": EVAL.replace("s3://quickstart/", f"file://{ROOT}/examples/quickstart/bucket/")})


def chain(made: dict[int, bytes]) -> str:
    """One number for what stands at which positions."""
    whole = hashlib.sha256()
    for position in sorted(made):
        whole.update(position.to_bytes(8, "little") + made[position])
    return whole.hexdigest()


class Ranks:
    """All ranks of a training in this process, in lock step; what they read counts when its step is whole."""

    def __init__(self, source: Any, size: int, **settings: Any) -> None:
        self.loaders = [feedmill.Loader(source, dp_rank=rank, dp_size=size, timeout=120.0, **settings) for rank in range(size)]

    def step(self, most: int | None = None) -> dict[int, bytes] | None:
        """The step's samples; None at the end. With `most` no more than so many micro batches of each rank: a step that is broken off
        by that gives nothing, whatever was read of it."""
        made: dict[int, bytes] = {}
        for loader in self.loaders:
            taken = 0
            while most is None or taken < most:
                batch = next(loader, None)
                if batch is None:
                    return None
                read = hashes([batch])
                assert not made.keys() & read.keys(), f"positions of two ranks: {made.keys() & read.keys()}"
                made |= read
                taken += 1
                if loader.at_step_boundary:
                    break
        return made if self.loaders[0].at_step_boundary else {}

    def state(self) -> dict[str, Any]:
        states = [json.loads(json.dumps(loader.state_dict())) for loader in self.loaders]
        assert all(state == states[0] for state in states), states
        return states[0]

    def load(self, state: dict[str, Any]) -> None:
        for loader in self.loaders:
            loader.load_state_dict(state)

    def close(self) -> None:
        for loader in self.loaders:
            loader.close()


class Resume(FleetCase):
    """Stops and goes on, in courses that are drawn: ranks, micro batches, windows, batch sizes, skips."""

    #: Ranks, micro batch, window (None finds its size by itself); every pair divides every global batch of the schedule.
    SHAPES = [(4, 2, 0), (2, 4, 16), (8, 1, 1), (1, 8, None), (2, 2, 16), (8, 2, 0)]

    @staticmethod
    def schedule(consumed: int) -> int:
        """A batch ramp."""
        return 16 if consumed < 64 else 32

    def whole(self, skips: list[tuple[int, int]], steps: int) -> dict[int, bytes]:
        loader = self.loader(global_batch=self.schedule, micro_batch=16, window=4, skips=skips, max_steps=steps)
        made = hashes(loader)
        loader.close()
        return made

    def run_in_parts(self, parts: Iterable[tuple[int, int | None]], steps: int, skips: list[tuple[int, int]], begin: int = 0) -> dict[int, bytes]:
        """(whole steps, then so many micro batches of a step that is broken off) one after another, each with another shape."""
        made: dict[int, bytes] = {}
        state: dict[str, Any] | None = None
        for number, (whole, broken) in enumerate(parts):
            size, micro_batch, window = self.SHAPES[(begin + number) % len(self.SHAPES)]
            settings: dict[str, Any] = {"global_batch": self.schedule, "micro_batch": micro_batch, "window": window}
            ranks = Ranks(self.source, size, skips=skips, max_steps=steps, run=f"part-{number}", **settings)
            self.addCleanup(ranks.close)
            if state is not None:
                ranks.load(state)
            for _ in range(whole):
                step = ranks.step()
                if step is None:
                    break
                self.assertFalse(made.keys() & step.keys(), "a position came twice")
                made |= step
            if broken is not None:
                made |= ranks.step(broken) or {}
            state = ranks.state()
            ranks.close()
        return made

    def test_stopping_at_the_first_the_last_and_within_a_step_and_twice(self) -> None:
        skips = [(32, 45), (109, 590)]
        steps = 10
        whole = self.whole(skips, steps)
        self.assertGreater(max(whole), SAMPLES_PER_EPOCH, "it goes over an epoch's end")
        cases: dict[str, list[tuple[int, int | None]]] = {
            "before the first batch": [(0, None), (steps, None)],
            "within the first step": [(0, 1), (steps, None)],
            "after the first step": [(1, None), (steps, None)],
            "twice in an epoch": [(3, None), (4, None), (steps, None)],
            "within steps, again and again": [(2, 1), (0, 1), (3, 1), (1, 1), (1, 1), (steps, None)],
            "before the last step": [(steps - 1, None), (1, None)],
            "within the last step": [(steps - 1, 1), (1, None)],
            "at the end": [(steps, None), (1, None)],
        }
        for number, (what, parts) in enumerate(cases.items()):
            with self.subTest(what):
                made = self.run_in_parts(parts, steps, skips, begin=number)
                self.assertEqual(sorted(made), sorted(whole))
                self.assertEqual(chain(made), chain(whole))

    def test_two_jobs_and_an_evaluation_on_one_fleet(self) -> None:
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            path = with_eval(folder)
            workers = [Worker(path) for _ in range(2)]
            for worker in workers:
                stack.callback(worker.close)
            source = [worker.url for worker in workers]
            one = Ranks(source, 2, global_batch=8, micro_batch=4, max_steps=8, run="one")
            two = Ranks(source, 4, global_batch=16, micro_batch=2, max_steps=4, run="two")
            evaluation = Ranks(source, 1, stream="eval", global_batch=4, micro_batch=4, max_steps=8, run="one")
            made: list[dict[int, bytes]] = [{}, {}, {}]
            for number in range(8):
                for ranks, into in ((one, made[0]), (evaluation, made[2]), *([(two, made[1])] if number % 2 else [])):
                    step = ranks.step()
                    assert step is not None
                    into |= step
            for ranks in (one, two, evaluation):
                ranks.close()
            quiet = [Worker(path)]
            stack.callback(quiet[0].close)
            settings: dict[str, Any] = {"dp_rank": 0, "dp_size": 1, "global_batch": 16, "micro_batch": 16, "run": "quiet"}
            train = hashes(feedmill.Loader([quiet[0].url], max_steps=4, **settings))
            held_out = hashes(feedmill.Loader([quiet[0].url], stream="eval", max_steps=2, **settings))
            self.assertEqual((chain(made[0]), chain(made[1])), (chain(train), chain(train)))
            self.assertEqual(chain(made[2]), chain(held_out))
            self.assertNotEqual(chain(train), chain(held_out))


class Disturbed(unittest.TestCase):
    """Events without end: the ranks must not notice."""

    #: Ranks and micro batch after each new start.
    SHAPES = [(4, 2), (2, 4), (8, 1), (1, 8), (2, 2), (4, 1)]

    def test_whatever_happens_the_chain_is_the_same(self) -> None:
        events = int(os.environ.get("FEEDMILL_PROOF_EVENTS", SHORT))
        seed = int(os.environ.get("FEEDMILL_PROOF_SEED", random.SystemRandom().randrange(1 << 32)))
        reason = no_networks()
        print(f"\n{events} events, seed {seed}" + (f"; no worker is cut off: {reason}" if reason else ""), flush=True)
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            path = with_eval(folder)
            slots = []
            for number in range(4):
                net = Net() if reason is None and number < 2 else None
                slots.append(Slot(path, f"worker-{number}", net))
                stack.callback(slots[-1].close)
            # The other two are added by events.
            slots[0].start()
            slots[2].start()
            listed = os.path.join(folder, "workers")
            disturbance = Disturbance(slots, seed, listed, "resume")
            try:
                made, held_out, steps = self.drive(disturbance, f"file:{listed}", events)
            except BaseException as error:
                raise AssertionError(f"{type(error).__name__}: {error}\n{disturbance}") from error
            quiet = Worker(path)
            stack.callback(quiet.close)
            settings: dict[str, Any] = {"dp_rank": 0, "dp_size": 1, "micro_batch": 8, "global_batch": 8, "run": "quiet"}
            whole = hashes(feedmill.Loader([quiet.url], max_steps=steps, **settings))
            self.assertEqual(sorted(made), list(range(8 * steps)), f"each position once\n{disturbance}")
            self.assertEqual(chain(made), chain(whole), str(disturbance))
            evaluated = hashes(feedmill.Loader([quiet.url], stream="eval", max_samples=len(held_out), **settings))
            self.assertEqual(chain(held_out), chain(evaluated), str(disturbance))
        kinds = disturbance.kinds()
        self.assertEqual(kinds.total(), events)
        print(f"{steps} steps, chain {chain(made)[:16]}; " + ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items())), flush=True)
        if events >= 50:
            expected = {kind for all_of in EVENTS.values() for kind in all_of} | {"resume"}
            expected -= {"cut", "mend"} if reason else set()
            self.assertGreaterEqual(len(set(kinds)), len(expected) - 2, "nearly every kind came")

    def drive(self, disturbance: Disturbance, source: str, events: int) -> tuple[dict[int, bytes], dict[int, bytes], int]:
        """Two steps after each event; a resume comes within a step, with other ranks."""
        made: dict[int, bytes] = {}
        held_out: dict[int, bytes] = {}

        def begin(state: dict[str, Any] | None) -> Ranks:
            size, micro_batch = disturbance.choice(self.SHAPES)
            window = disturbance.choice((0, 1, 16, None))
            ranks = Ranks(source, size, global_batch=8, micro_batch=micro_batch, window=window, run=f"disturbed-{len(disturbance.happened)}")
            if state is not None:
                ranks.load(state)
            return ranks

        ranks = begin(None)
        evaluation = Ranks(source, 1, stream="eval", global_batch=2, micro_batch=2, window=2, run="disturbed")
        steps = 0
        try:
            for _ in range(events):
                if disturbance.next() == "resume":
                    broken = ranks.step(1)
                    assert broken is not None
                    steps += bool(broken)
                    made |= broken
                    state = ranks.state()
                    ranks.close()
                    ranks = begin(state)
                for _ in range(2):
                    step = ranks.step()
                    assert step is not None and not made.keys() & step.keys()
                    made |= step
                    steps += 1
                step = evaluation.step()
                assert step is not None
                held_out |= step
        finally:
            ranks.close()
            evaluation.close()
        return made, held_out, steps


class Killed(unittest.TestCase):
    """The trainer itself is killed: examples/train_sim.py, as a person would run it."""

    def simulate(self, source: str, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(ROOT / "examples" / "train_sim.py"), source, "--steps", "9", "--global-batch", "8", *arguments]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(_ended, process)
        return process

    def test_a_killed_trainer_goes_on_to_the_same_chain(self) -> None:
        with tempfile.TemporaryDirectory() as folder, fleet(1) as workers:
            path = pipeline(folder)
            runtime = os.path.join(folder, "runtime")
            os.mkdir(runtime, 0o700)
            with unittest.mock.patch.dict(os.environ, {"XDG_RUNTIME_DIR": runtime, "TMPDIR": folder}):
                undisturbed = self.simulate(workers[0].url, "--step-seconds", "0")
                chains = [_chain(undisturbed)]
                by_file = self.simulate(path, "--step-seconds", "0")
                chains.append(_chain(by_file))
                checkpoint = os.path.join(folder, "checkpoint")
                killed = self.simulate(path, "--step-seconds", "0.2", "--checkpoint", checkpoint, "--every", "2")
                assert killed.stdout is not None
                self.assertIn("checkpoint", killed.stdout.readline())
                killed.kill()
                killed.wait()
                again = self.simulate(workers[0].url, "--step-seconds", "0", "--checkpoint", checkpoint)
                assert again.stdout is not None
                said = again.stdout.readline()
                self.assertIn("goes on after", said)
                chains.append(_chain(again))
            self.assertEqual(len(set(chains)), 1, chains)


def _chain(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, out + err
    return out.strip().rsplit(" ", 1)[1]


def _ended(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


if __name__ == "__main__":
    unittest.main()
