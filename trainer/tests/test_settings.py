"""What is refused before anything is asked, and what follows from names and numbers alone."""

from __future__ import annotations

import inspect
import logging
import multiprocessing
import os
import pathlib
import pickle
import sys
import tempfile
import types
import unittest
from typing import Any
from unittest import mock

import numpy as np

import feedmill
from feedmill import ConfigError, StateError, ready
from feedmill.bad_rows import BadRows
from feedmill.nodes import last_lines
from feedmill.runs import run_name

#: Nobody listens there; nothing here may ask.
NOBODY = "http://127.0.0.1:1"


def loader(source: object = NOBODY, **settings: object) -> feedmill.Loader:
    given = {"dp_rank": 0, "dp_size": 1, "global_batch": 8, "micro_batch": 4, "run": "test"} | settings
    return feedmill.Loader(source, **given)  # type: ignore[arg-type]


class Settings(unittest.TestCase):
    def setUp(self) -> None:
        kept = mock.patch.dict(os.environ)
        kept.start()
        self.addCleanup(kept.stop)
        for name in ("WORLD_SIZE", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "FEEDMILL_RUN"):
            os.environ.pop(name, None)

    def refused(self, *words: str, error: type[Exception] = ConfigError, **settings: object) -> None:
        with self.assertRaises(error) as caught:
            loader(**settings)
        for word in words:
            self.assertIn(word, str(caught.exception))

    def test_arithmetic_that_does_not_divide_names_its_neighbours(self) -> None:
        self.refused("4 or 8", "global batch 6", global_batch=6)
        self.refused("micro batch", micro_batch=3)
        self.refused("6 is not a multiple", global_batch=lambda consumed: 6)

    def test_nonsense_is_named(self) -> None:
        self.refused("micro_batch", micro_batch=0)
        self.refused("micro_batch", micro_batch=1.5)
        for size in (0, -8, 8.0, True, lambda consumed: -8):
            self.refused("global batch", "whole number", global_batch=size)
        self.refused("dp_size", dp_size=0)
        self.refused("dp_rank", dp_rank=-1)
        self.refused("last_step", last_step="keep")
        self.refused("on_bad", on_bad="ignore")
        self.refused("max_bad", max_bad=1.5)
        self.refused("epochs", epochs=0)
        self.refused("max_steps", max_steps=0)
        self.refused("consumed", consumed=-1)
        self.refused("window", window=-1)
        self.refused("pair", skips=[(1, 2, 3)])
        self.refused("overlap", skips=[(0, 8), (4, 12)])
        self.refused("run", run="two words")
        self.refused("positions end", consumed=2**60)

    def test_every_wrong_type_is_refused_where_the_loader_is_made(self) -> None:
        # TypeError or OverflowError, or nothing until next().
        endless, huge = float("inf"), 2**70
        wrong: dict[str, list[Any]] = {
            "source": [None, 5, b"", set(), "", " ", [], [""], [5]],
            "stream": [None, 5, ""],
            "epochs": ["1", endless, float("nan"), 1e30, 10**400, True],
            "last_step": [5, []],
            "ensure_image": ["yes", None, 2],
            "verify": ["yes", None],
            "skips": [5, None, "ab", [5], ["ab"], [(0.5, 8)], np.int64(5), np.array(5)],
            "tensors": [5, [5], "labels", [[]]],
            "token": [5, "", b"secret"],
            "token_file": [5, ""],
            "ca_file": [5, b"x"],
            "max_bad": ["a", float("nan"), None],
            "on_bad": [[]],
            "ledger": [5, ""],
            "run": [5, ""],
            "accept_plan": [5, ""],
            "timeout": ["a", 0, -1, None, endless, float("nan"), 1e30],
            "window": [2**40],
        }
        for name in ("dp_rank", "dp_size", "global_batch", "micro_batch", "consumed", "max_steps", "max_samples", "model_parallel_size"):
            wrong[name] = [huge, 2**60, "8", 8.0, endless]
        for name in ("window", "window_bytes", "workers", "threads"):
            wrong.setdefault(name, []).extend([huge, 2**60, "8", -1])
        from feedmill.kinds import KINDS

        self.assertEqual(set(wrong), set(KINDS), "a setting that is not tried")
        for name, values in wrong.items():
            for value in values:
                with self.subTest(name, value=value), self.assertRaises(ConfigError) as caught:
                    loader(**{name: value})
                self.assertNotIn("secret", str(caught.exception))
        self.refused("global batch", "2**53", global_batch=lambda consumed: huge)

    def test_a_timeout_that_is_too_long_is_not_told_to_be_above_0(self) -> None:
        for value in (1e30, float("inf")):
            self.refused("timeout", "above 0 and at most 1e9", timeout=value)

    def test_the_table_of_kinds_has_every_setting(self) -> None:
        from feedmill.kinds import KINDS

        self.assertEqual(set(KINDS), set(inspect.signature(feedmill.Loader).parameters))

    def test_other_spellings_of_good_settings_are_taken(self) -> None:
        made = loader(
            epochs=np.float32(1.5), ensure_image=np.bool_(True), timeout=5, max_bad=0, tensors={"labels"}, skips=np.array([[8, 16]]), window=0
        )
        self.assertEqual((made.ensure_image, made._skips), (True, [(8, 16)]))
        loader(pathlib.Path("pipeline.yaml"), workers=np.int64(2), threads=1)

    def test_workers_and_threads_go_with_a_pipelines_file(self) -> None:
        # They were taken and forgotten.
        for name in ("workers", "threads"):
            self.refused(name, "pipeline's file", NOBODY, **{name: 2})
        self.refused("threads", threads=0)
        self.refused("workers", workers=0)

    def test_an_end_of_training_beyond_all_positions_is_that_of_positions(self) -> None:
        for made in (loader(max_steps=2**52), loader(max_samples=2**53)):
            self.assertEqual(made._stop(0, 0), 2**53)

    def test_a_skip_that_is_empty_or_backwards_is_said_so(self) -> None:
        # "skips 8 must be a whole number of at least 9".
        for skip in ((8, 8), (8, 0)):
            self.refused(f"{skip[0]}-{skip[1]}", "its end must lie after its start", skips=[skip])

    def test_what_is_no_state_at_all_is_a_state_error(self) -> None:
        for state in (None, 5, []):
            with self.assertRaisesRegex(StateError, type(state).__name__):
                loader().load_state_dict(state)  # type: ignore[arg-type]
        good = {"version": 1, "stream": "train", "consumed": 16, "skips": [], "plan": None}
        for change in ({"consumed": 2**70}, {"skips": [[0, 2**70]]}, {"skips": 5}):
            with self.assertRaises(StateError):
                loader().load_state_dict(good | change)

    def test_ranks_are_keywords(self) -> None:
        with self.assertRaises(TypeError):
            feedmill.Loader(NOBODY, 0, 1, 8, 4)  # type: ignore[misc,call-arg]

    def test_a_global_rank_is_recognised(self) -> None:
        self.refused("global rank", dp_rank=2, dp_size=2)
        os.environ["WORLD_SIZE"] = "8"
        self.refused("WORLD_SIZE 8", "model_parallel_size", dp_size=2)
        self.refused("WORLD_SIZE 8", dp_size=8, model_parallel_size=2)
        loader(dp_size=2, model_parallel_size=4)

    def test_a_skip_begins_where_a_step_begins(self) -> None:
        self.refused("10-20", "8", "16", skips=[(10, 20)])
        loader(skips=[(8, 20), (28, 30)])

    def test_a_refused_state_or_batch_size_leaves_everything_as_it_was(self) -> None:
        made = loader(skips=[(8, 16)])
        for skips in ([5], [[9, 3]], [[0, 8], [4, 12]], 7):
            with self.assertRaisesRegex(StateError, "skips"):
                made.load_state_dict({"version": 1, "stream": "train", "consumed": 0, "skips": skips, "plan": "sha256:1"})
        for size in (-8, 6):
            with self.assertRaises(ConfigError):
                made.set_global_batch(size)
        self.assertEqual((made._skips, made._expected_plan, made._global_batch), ([(8, 16)], None, 8))

    def test_a_loader_is_true_and_asks_nobody(self) -> None:
        # `if val_loader:` took the length: TypeError without an end, a question to the workers with one.
        self.assertTrue(loader())
        self.assertTrue(loader(max_steps=1))

    def test_a_tensor_that_is_none_is_named(self) -> None:
        # "pixel_value" dropped all images, silently.
        self.refused("'pixel_value'", "pixel_values", "input_ids", tensors=["input_ids", "pixel_value"])
        self.refused("list", tensors="labels")
        loader(tensors=["input_ids", "shifted_labels", "cu_seqlens_padded"])

    def test_an_address_without_its_scheme_is_no_file(self) -> None:
        for source in ("workers.data.svc:8470", "10.0.0.1:8470,10.0.0.2:8470", "[::1]:8470"):
            with self.assertRaises(ConfigError) as caught:
                loader(source)
            self.assertIn(f"http://{source.split(',')[0]}?", str(caught.exception))

    def test_numpys_integers_are_integers(self) -> None:
        made = loader(
            dp_rank=np.int64(0), dp_size=np.int32(2), global_batch=np.int64(8), micro_batch=np.uint8(4), consumed=np.int64(16), max_steps=np.int64(4)
        )
        self.assertEqual((made.consumed, made.steps, made.dp_size), (16, 2, 2))
        for value in (made.consumed, made.steps, made.dp_rank, made.dp_size, made.micro_batch, made._size_at(0)):
            self.assertIs(type(value), int, "what is written into JSON")
        made.seek(np.int64(8))
        made.load_state_dict({"version": 1, "stream": "train", "consumed": np.int64(16), "steps": np.int64(2), "skips": [], "plan": None})
        self.assertIs(type(made.consumed), int)
        self.refused("micro_batch", micro_batch=np.float64(4.0))

    def test_steps_are_counted_over_another_global_batch(self) -> None:
        state = {"version": 1, "stream": "train", "consumed": 80, "steps": 5, "skips": [], "plan": None}
        made = loader(max_steps=10, global_batch=8)
        made.load_state_dict(state)
        self.assertEqual(made.steps, 5)
        self.assertEqual(made._stop(80, made.steps), 80 + 5 * 8)
        made = loader(max_steps=4, global_batch=8)
        made.load_state_dict(state)
        self.assertEqual(made._stop(80, made.steps), 80, "all steps were taken")

    def test_steps_that_nobody_counted_are_no_silent_end(self) -> None:
        state = {"version": 1, "stream": "train", "consumed": 80, "skips": [], "plan": None}
        made = loader(max_steps=10)
        with self.assertRaisesRegex(StateError, "no steps.*max_steps 10"):
            made.load_state_dict(state)
        with self.assertRaisesRegex(StateError, "do not go together"):
            made.load_state_dict(state | {"steps": 81})
        with self.assertRaisesRegex(StateError, "do not go together"):
            made.load_state_dict(state | {"steps": "5"})
        self.assertEqual((made.consumed, made.steps), (0, 0))
        with self.assertRaisesRegex(StateError, "no whole number of steps.*steps=N"):
            made.seek(81)
        made.seek(81, steps=7)
        self.assertEqual((made.steps, made._stop(81, 7)), (7, 81 + 3 * 8))
        with self.assertRaises(StateError):
            loader(max_steps=10, consumed=81)
        # Without max_steps nobody needs them.
        made = loader(consumed=81)
        self.assertIsNone(made.steps)
        made.load_state_dict(state)
        self.assertIsNone(made.steps)
        made = loader(global_batch=lambda consumed: 4 if consumed < 8 else 8, max_steps=10, consumed=24)
        self.assertEqual((made.steps, made._stop(24, made.steps)), (4, 72))

    def test_an_address_that_is_none_is_named(self) -> None:
        for source in ("ftp://worker", ["worker:8470"], "http://worker/path"):
            with self.assertRaisesRegex(ConfigError, "worker address"):
                loader(source).wait_ready()
        with self.assertRaisesRegex(ConfigError, "absent.yaml"):
            loader("absent.yaml").wait_ready()
        for source in ("localhost:8470", "localhost:8470/", "10.0.0.1:8470/,10.0.0.2:8470/"):
            with self.subTest(source), self.assertRaisesRegex(ConfigError, "begin with http://"):
                loader(source).wait_ready()

    def test_a_mesh_gives_ranks(self) -> None:
        class Mesh:
            mesh_dim_names = ("pp", "dp_replicate", "dp_shard", "tp")
            sizes = (2, 3, 4, 5)
            ranks = {"pp": 1, "dp_replicate": 2, "dp_shard": 3, "tp": 4}

            def size(self, index: int) -> int:
                return self.sizes[index]

            def get_local_rank(self, name: str) -> int:
                return self.ranks[name]

        settings = {"global_batch": 48, "micro_batch": 4, "run": "test"}
        os.environ["WORLD_SIZE"] = "120"
        made = feedmill.Loader.from_device_mesh(NOBODY, Mesh(), dp=("dp_replicate", "dp_shard"), **settings)
        self.assertEqual((made.dp_rank, made.dp_size), (11, 12))
        with self.assertRaisesRegex(ConfigError, "no dimension 'data'"):
            feedmill.Loader.from_device_mesh(NOBODY, Mesh(), dp="data", **settings)

    def test_megatron_gives_ranks_and_what_was_consumed(self) -> None:
        state = types.SimpleNamespace(get_data_parallel_rank=lambda: 1, get_data_parallel_world_size=lambda: 2)
        core = types.ModuleType("megatron.core")
        core.parallel_state = state  # type: ignore[attr-defined]
        modules = {"megatron": types.ModuleType("megatron"), "megatron.core": core, "megatron.core.parallel_state": state}
        args = types.SimpleNamespace(
            global_batch_size=16, micro_batch_size=2, consumed_train_samples=48, world_size=4, rampup_batch_size=None, train_iters=9
        )
        with mock.patch.dict(sys.modules, modules):  # type: ignore[arg-type]
            made = feedmill.Loader.from_megatron(NOBODY, args=args, run="test")
        self.assertEqual((made.dp_rank, made.dp_size, made.micro_batch, made.consumed), (1, 2, 2, 48))
        ramp = types.SimpleNamespace(**{**vars(args), "rampup_batch_size": ["8", "4", "64"], "consumed_train_samples": 0})
        with mock.patch.dict(sys.modules, modules):  # type: ignore[arg-type]
            made = feedmill.Loader.from_megatron(NOBODY, args=ramp, run="test")
        sizes = [made._size_at(consumed) for consumed in (0, 31, 32, 63, 64, 1000)]
        self.assertEqual(sizes, [8, 8, 12, 12, 16, 16])

    def megatron(self, **changes: Any) -> tuple[dict[str, Any], types.SimpleNamespace]:
        state = types.SimpleNamespace(get_data_parallel_rank=lambda: 1, get_data_parallel_world_size=lambda: 2)
        core = types.ModuleType("megatron.core")
        core.parallel_state = state  # type: ignore[attr-defined]
        modules = {"megatron": types.ModuleType("megatron"), "megatron.core": core, "megatron.core.parallel_state": state}
        args: dict[str, Any] = {"global_batch_size": 16, "micro_batch_size": 2, "consumed_train_samples": 48, "world_size": 4}
        return modules, types.SimpleNamespace(**{**args, "rampup_batch_size": None, **changes})

    def test_megatrons_evaluation_does_not_begin_where_training_stands(self) -> None:
        modules, args = self.megatron(consumed_valid_samples=32, rampup_batch_size=["8", "4", "64"], consumed_train_samples=24)
        with mock.patch.dict(sys.modules, modules):
            made = feedmill.Loader.from_megatron(NOBODY, args=args, run="test", stream="eval")
            self.assertEqual((made.consumed, made._size_at(32)), (32, 16))
            self.assertEqual(feedmill.Loader.from_megatron(NOBODY, args=args, run="test", stream="validation", consumed=0).consumed, 0)
            with self.assertRaisesRegex(ConfigError, "consumed_valid_samples"):
                feedmill.Loader.from_megatron(NOBODY, args=args, run="test", stream="other")
            self.assertEqual(feedmill.Loader.from_megatron(NOBODY, args=args, run="test", stream="pretrain").consumed, 24)

    def test_states_that_are_none_are_refused(self) -> None:
        good = {"version": 1, "stream": "train", "consumed": 16, "skips": [], "plan": None}
        made = loader()
        made.load_state_dict(good)
        self.assertEqual(made.consumed, 16)
        for change, word in [
            ({"version": 2}, "version 2"),
            ({"stream": "eval"}, "'eval'"),
            ({"consumed": -1}, "consumed"),
            ({"consumed": "16"}, "consumed"),
            ({"plan": 7}, "plan"),
        ]:
            with self.assertRaisesRegex(StateError, word):
                made.load_state_dict(good | change)
        self.assertEqual(made.consumed, 16)

    def test_skips_of_the_checkpoint_stay_and_new_ones_come_after_it(self) -> None:
        state = {"version": 1, "stream": "train", "consumed": 16, "skips": [[8, 16]], "plan": None}
        made = loader()
        made.load_state_dict(state)
        self.assertEqual((made.consumed, made.position), (16, 24))
        made = loader(skips=[(8, 16), (32, 40)])
        made.load_state_dict(state)
        self.assertEqual((made.consumed, made.position), (16, 24))
        # At its very position: the cure for a loss spike.
        made = loader(skips=[(24, 40)])
        made.load_state_dict(state)
        self.assertEqual((made.consumed, made.position), (16, 40))
        with self.assertRaisesRegex(StateError, "begins before position 24"):
            loader(skips=[(0, 8)]).load_state_dict(state)

    def test_a_loader_is_not_pickled(self) -> None:
        with self.assertRaisesRegex(TypeError, "IterableDataset"):
            pickle.dumps(loader())


class BadRowsMessage(unittest.TestCase):
    def test_it_names_the_stream_and_does_not_take_the_stand_in_for_the_bad_record(self) -> None:
        # "record 7 of captions" was the good one.
        rows = [
            {"position": 4, "record": 7, "dataset": "captions", "status": "substituted", "fault": "image-missing"},
            {"position": 5, "record": 8, "dataset": "captions", "status": "zero_loss", "fault": "image-missing"},
        ]
        with self.assertLogs("feedmill", logging.WARNING) as logs:
            BadRows(0, "train", None).log(types.SimpleNamespace(num_bad=2, info=rows))  # type: ignore[arg-type]
        stands_in, is_bad = logs.output
        self.assertIn("position 4 of train: a record cannot be used (image-missing), which another one, record 7 of captions", stands_in)
        self.assertIn("/v1/bad", stands_in)
        self.assertIn("feedmill show FILE 4", stands_in)
        self.assertIn("position 5 of train: record 8 of captions cannot be used", is_bad)

    def test_workers_that_end_with_the_loader_are_not_named_as_those_who_list_bad_records(self) -> None:
        # Their port is any, and their token gone with them: nobody could ask.
        row = {"position": 4, "record": 7, "dataset": "captions", "status": "substituted", "fault": "image-missing"}
        bad_rows = BadRows(0, "train", "my data.yaml")
        with self.assertLogs("feedmill", logging.WARNING) as logs:
            bad_rows.log(types.SimpleNamespace(num_bad=1, info=[row]))  # type: ignore[arg-type]
        with self.assertRaises(feedmill.BadSamples) as caught:
            bad_rows.check(types.SimpleNamespace(rows=2000, filler=0, bad=40), 0.01, "raise")  # type: ignore[arg-type]
        self.assertIn("`feedmill show 'my data.yaml' 4`", logs.output[0])
        for text in (logs.output[0], str(caught.exception)):
            self.assertIn("`feedmill check 'my data.yaml' --images`", text)
            self.assertNotIn("/v1/bad", text)


class WaitingForWorkers(unittest.TestCase):
    def test_two_texts_that_take_turns_are_not_said_each_time(self) -> None:
        # A line every 1.5 s for each rank, for as long as a server was away.
        waiting, texts = ready.Waiting(), ["cannot read the data yet", "reading the processor"]
        said = [now for now in range(10, 3610) if waiting.is_due(texts[now // 2 % 2], now)]
        self.assertEqual(said[:2], [10, 12], "each new text at once")
        self.assertLess(len(said), 20)
        self.assertGreater(said[-1], 3600 - ready.LONGEST, "and it is said to the end")

    def test_texts_that_are_never_the_same_are_bounded_too(self) -> None:
        waiting = ready.Waiting()
        self.assertLess(sum(waiting.is_due(f"attempt {now}", now) for now in range(3600)), 30)


class WorkersLogs(unittest.TestCase):
    def said(self, *lines: str) -> str:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8") as file:
            file.write("".join(f"{line}\n" for line in lines))
            file.flush()
            return last_lines(file.name)

    def test_an_error_is_quoted_with_its_first_line(self) -> None:
        # Of a misspelled field only the lines round it were shown, and not which file was meant, nor what was wrong.
        before = [f"2026-11-30T23:47:3{second}Z  WARN feedmill_worker: before" for second in range(5)]
        error = ["2026-11-30T23:47:35.09Z ERROR feedmill_worker::run: typo.yaml is no DataPipeline: error: line 11 column 3"]
        error += [" --> <input>:11:3"] + [f"{line} |" for line in range(7)]
        self.assertEqual(self.said(*before, *error), "\n".join(error))
        self.assertEqual(self.said(*error, *before * 5), "\n".join(before), "long ago")
        self.assertEqual(self.said("error: no such option"), "error: no such option")
        self.assertEqual(self.said(), "it says nothing")


class Runs(unittest.TestCase):
    def test_names_come_from_whoever_knows_the_start(self) -> None:
        slurm = {"SLURM_JOB_ID": "42", "SLURM_STEP_ID": "0", "SLURM_PROCID": "3"}
        cases: list[tuple[dict[str, str], str]] = [
            ({"FEEDMILL_RUN": "mine"}, "mine"),
            ({"TORCHELASTIC_RUN_ID": "job", "TORCHELASTIC_RESTART_COUNT": "2"}, "job-2"),
            (slurm, "slurm-42.0-0"),
            (slurm | {"SLURM_RESTART_COUNT": "1"}, "slurm-42.0-1"),
            (slurm | {"TORCHELASTIC_RUN_ID": "none"}, "slurm-42.0-0"),
        ]
        for environment, name in cases:
            self.assertEqual(run_name(None, 8, environment), name)
        self.assertEqual(run_name("given", 8, slurm), "given")

    def test_torch_distributed_gives_a_name_without_waiting_for_anybody(self) -> None:
        # A broadcast: a loader that is made on rank 0 alone, for evaluation, waited for the others for ever.
        stored: dict[str, bytes] = {}

        def compare_set(key: str, expected: str, wanted: str) -> bytes:
            assert expected == ""
            return stored.setdefault(key, wanted.encode())

        def refuse(*_: object, **__: object) -> None:
            raise AssertionError("nobody else is here")

        def torch(store: object) -> types.SimpleNamespace:
            c10d = types.SimpleNamespace(_get_default_store=lambda: store)
            return types.SimpleNamespace(
                distributed=types.SimpleNamespace(
                    is_available=lambda: True,
                    is_initialized=lambda: True,
                    get_rank=refuse,
                    broadcast_object_list=refuse,
                    distributed_c10d=c10d,
                )
            )

        with mock.patch.dict(sys.modules, torch=torch(types.SimpleNamespace(compare_set=compare_set))):  # type: ignore[arg-type]
            name = run_name(None, 8, {"TORCHELASTIC_RUN_ID": "none"})
            self.assertEqual(run_name(None, 1, {}), name)
            stored.update({key: b"another-ranks" for key in stored})
            self.assertEqual((run_name(None, 8, {}), run_name(None, 1, {})), ("another-ranks",) * 2)
        # Where there is no store a name must be given, unless there is nobody else.
        with mock.patch.dict(sys.modules, torch=torch(None)):  # type: ignore[arg-type]
            with self.assertRaisesRegex(ConfigError, "one name in common"):
                run_name(None, 2, {})
            self.assertNotEqual(run_name(None, 1, {}), "another-ranks")

    def test_ranks_without_a_name_in_common_are_refused(self) -> None:
        with self.assertRaisesRegex(ConfigError, "one name in common"):
            run_name(None, 2, {"SLURM_JOB_ID": "42"})

    def test_a_process_has_one_name_so_that_its_loaders_share_workers(self) -> None:
        # Each loader had a name of its own: training and evaluation started a set of workers each, and every evaluation another one.
        name = run_name(None, 1, {})
        self.assertEqual(run_name(None, 1, {}), name)
        with multiprocessing.get_context("fork").Pool(1) as pool:
            self.assertNotEqual(pool.apply(run_name, (None, 1, {})), name, "a fork is another process")


if __name__ == "__main__":
    unittest.main()
