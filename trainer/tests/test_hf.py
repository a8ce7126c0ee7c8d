"""The Trainer's adapter, against a Trainer that does what the real one does where the two meet; real workers, no torch and no
transformers. tools/python-tests.sh test_torch with FEEDMILL_TEST_PYTHON has the real ones."""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
import tempfile
import types
import unittest
from typing import Any
from unittest import mock

import feedmill
from feedmill import ConfigError, StateError
from support import SAMPLES_PER_EPOCH, FleetCase, hashes, pipeline


def setUpModule() -> None:
    logging.getLogger("feedmill").setLevel(logging.ERROR)


class Arguments(types.SimpleNamespace):
    def __init__(self, folder: str, **changes: Any) -> None:
        settings: dict[str, Any] = {
            "output_dir": folder,
            "world_size": 1,
            "process_index": 0,
            "per_device_train_batch_size": 4,
            "per_device_eval_batch_size": 4,
            "gradient_accumulation_steps": 2,
            "max_steps": -1,
            "num_train_epochs": 1,
            "eval_strategy": "no",
            "save_strategy": "steps",
            "logging_strategy": "steps",
            "average_tokens_across_devices": False,
        }
        super().__init__(**(settings | changes))


class TrainerOfTheirs:
    """Where transformers.Trainer asks, and in which order."""

    model_accepts_loss_kwargs = True
    compute_loss_func = None

    def __init__(self, args: Arguments, eval_dataset: Any = None, stop_after: int | None = None) -> None:
        self.args, self.eval_dataset, self._stop_after = args, eval_dataset, stop_after
        self.callbacks: list[Any] = []
        self.state = types.SimpleNamespace()
        #: What the schedule of learning rates is made for.
        self.scheduled_steps = 0
        self.read: list[Any] = []

    def add_callback(self, callback: Any) -> None:
        self.callbacks.append(callback)

    def train(self, resume_from_checkpoint: Any = None) -> None:
        args = self.args
        batches = self.get_train_dataloader()  # type: ignore[attr-defined]
        self.scheduled_steps = max_steps = args.max_steps
        assert max_steps > 0 and not hasattr(batches, "__len__")
        self.state = types.SimpleNamespace(global_step=0, stateful_callbacks={}, is_world_process_zero=True, epoch=0.0)
        if resume_from_checkpoint:
            with open(os.path.join(resume_from_checkpoint, "trainer_state.json"), encoding="utf-8") as file:
                self.state.__dict__.update(json.load(file))
        (callback,) = self.callbacks
        callback.on_train_begin(args, self.state, None)
        iterator = iter(batches)
        while self.state.global_step < max_steps and self.state.global_step != self._stop_after:
            samples = [batch for _, batch in zip(range(args.gradient_accumulation_steps), iterator)]
            if not samples:
                # "There seems not to be a single sample in your epoch_iterator".
                break
            self.read += samples
            self.state.global_step += 1
            callback.on_step_end(args, self.state, None)
        folder = os.path.join(args.output_dir, f"checkpoint-{self.state.global_step}")
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "trainer_state.json"), "w", encoding="utf-8") as file:
            kept = {"global_step": self.state.global_step, "stateful_callbacks": {"FeedmillCallback": callback.state()}}
            json.dump(kept, file)
        callback.on_save(args, self.state, None)
        callback.on_train_end(args, self.state, None)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        return "theirs", self.eval_dataset if eval_dataset is None else eval_dataset


def last_checkpoint(folder: str) -> str | None:
    names = sorted(os.listdir(folder), key=lambda name: int(name.rsplit("-", 1)[1]))
    return os.path.join(folder, names[-1]) if names else None


class HuggingFace(FleetCase):
    def setUp(self) -> None:
        callbacks = types.ModuleType("transformers.trainer_callback")
        callbacks.ExportableState = object  # type: ignore[attr-defined]
        utilities = types.ModuleType("transformers.trainer_utils")
        utilities.get_last_checkpoint = last_checkpoint  # type: ignore[attr-defined]
        transformers = types.ModuleType("transformers")
        transformers.TrainerCallback = type("TrainerCallback", (), {})  # type: ignore[attr-defined]
        modules = {"transformers": transformers, "transformers.trainer_callback": callbacks, "transformers.trainer_utils": utilities}
        for patch in (
            mock.patch.dict(sys.modules, modules),
            mock.patch.dict(os.environ),
            # What torch makes of it is not the question here.
            mock.patch.object(feedmill.Batch, "torch", lambda batch, **_: batch),
        ):
            patch.start()
            self.addCleanup(patch.stop)
        os.environ.pop("WORLD_SIZE", None)
        sys.modules.pop("feedmill.hf", None)
        hf = importlib.import_module("feedmill.hf")
        self.addCleanup(sys.modules.pop, "feedmill.hf", None)
        self.Trainer: Any = type("Trainer", (hf.TrainerMixin, TrainerOfTheirs), {})
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def trainer(self, stop_after: int | None = None, feedmill: dict[str, Any] | None = None, **changes: Any) -> Any:
        evaluation = changes.pop("feedmill_eval", None)
        others = {name: changes.pop(name) for name in ("eval_dataset",) if name in changes}
        settings = {"source": self.source, "run": "hf", "timeout": 60.0} | (feedmill or {})
        args = Arguments(self.folder, **changes)
        made = self.Trainer(args, feedmill=settings, feedmill_eval=evaluation, stop_after=stop_after, **others)
        self.addCleanup(lambda: made.feedmill_loader and made.feedmill_loader.close())
        return made

    def test_steps_are_all_taken_when_a_run_goes_on_with_half_the_batch(self) -> None:
        # The end was max_steps times the batch of now: 10 x 8 = 80 samples were consumed, so there was "not a single sample".
        first = self.trainer(stop_after=5, max_steps=10, gradient_accumulation_steps=4)
        first.train()
        second = self.trainer(max_steps=10, gradient_accumulation_steps=2)
        second.train(resume_from_checkpoint=True)
        self.assertEqual((second.state.global_step, second.scheduled_steps), (10, 10))
        self.assertEqual(sorted(hashes(first.read)), list(range(80)))
        self.assertEqual(sorted(hashes(second.read)), list(range(80, 120)))

    def test_an_epoch_is_read_to_its_end_when_a_run_goes_on_with_twice_the_batch(self) -> None:
        # 601 samples, 38 steps of 8 and then of 16: max_steps became 38, and half the epoch was not read.
        first = self.trainer(stop_after=38)
        first.train()
        self.assertEqual(first.scheduled_steps, 76)
        second = self.trainer(gradient_accumulation_steps=4)
        second.train(resume_from_checkpoint=os.path.join(self.folder, "checkpoint-38"))
        self.assertEqual((second.scheduled_steps, second.state.global_step), (57, 57))
        self.assertEqual(sorted(hashes(first.read + second.read)), list(range(SAMPLES_PER_EPOCH)))
        # The steps that epochs were made into are not the user's max_steps: the same Trainer goes on to a second epoch.
        second.args.num_train_epochs = 2
        second.read = []
        second.train(resume_from_checkpoint=last_checkpoint(self.folder))
        # 38 steps of 8 and 19 of 16: what filled the last one is the next epoch's no more.
        self.assertEqual(sorted(hashes(second.read)), list(range(38 * 8 + 19 * 16, 2 * SAMPLES_PER_EPOCH)))

    def test_a_training_that_is_through_stays_so(self) -> None:
        self.trainer(max_steps=3).train()
        again = self.trainer(max_steps=3)
        again.train(resume_from_checkpoint=True)
        self.assertEqual((again.read, again.state.global_step), ([], 3))

    def test_a_checkpoint_of_another_data_pipeline_counts_by_its_steps(self) -> None:
        folder = os.path.join(self.folder, "checkpoint-2")
        os.mkdir(folder)
        with open(os.path.join(folder, "trainer_state.json"), "w", encoding="utf-8") as file:
            json.dump({"global_step": 2, "stateful_callbacks": {}}, file)
        trainer = self.trainer(max_steps=4)
        trainer.train(resume_from_checkpoint=folder)
        self.assertEqual(sorted(hashes(trainer.read)), list(range(16, 32)))
        with self.assertRaisesRegex(StateError, "checkpoint-9"):
            trainer.train(resume_from_checkpoint=os.path.join(self.folder, "checkpoint-9"))

    def test_a_training_may_begin_within_the_stream(self) -> None:
        trainer = self.trainer(max_steps=2, feedmill={"consumed": 20})
        trainer.train()
        self.assertEqual(sorted(hashes(trainer.read)), list(range(20, 36)))

    def test_evaluation_of_another_data_set_is_not_ours(self) -> None:
        # It gave feedmill_eval's loss, silently; without feedmill_eval it was a ConfigError.
        ours = self.trainer(feedmill_eval={"samples": 12, "stream": "train"})
        self.assertEqual(len(hashes(ours.get_eval_dataloader())), 12)
        self.assertEqual(len(hashes(ours.get_eval_dataloader(ours.eval_dataset))), 12)
        self.assertEqual(ours.get_eval_dataloader(["other"]), ("theirs", ["other"]))
        self.assertEqual(self.trainer(eval_dataset=["own"]).get_eval_dataloader(), ("theirs", ["own"]))
        with self.assertRaisesRegex(ConfigError, "both"):
            self.trainer(feedmill_eval={"samples": 12}, eval_dataset=["own"])

    def test_filler_rows_make_no_loss_of_nan(self) -> None:
        trainer = self.trainer()
        self.assertTrue(trainer.args.average_tokens_across_devices)
        with mock.patch.object(self.Trainer, "model_accepts_loss_kwargs", False):
            with self.assertRaisesRegex(ConfigError, "NaN.*token_loss.*last_step"):
                self.trainer().get_train_dataloader()
            # No filler can come here.
            self.trainer(feedmill={"last_step": "drop"}).get_train_dataloader()
            self.trainer(max_steps=3).get_train_dataloader()
            with mock.patch.object(self.Trainer, "compute_loss_func", print):
                self.trainer().get_train_dataloader()
            two: dict[str, Any] = {"world_size": 2, "max_steps": 3}
            with self.assertRaisesRegex(ConfigError, "12 samples of feedmill_eval are no multiple of 8.*16 samples"):
                self.trainer(feedmill_eval={"samples": 12}, **two).get_eval_dataloader()
            self.trainer(feedmill_eval={"samples": 13}, **two).get_eval_dataloader()

    def test_workers_of_this_machine_stay_between_evaluations(self) -> None:
        # A set was started for every evaluate().
        with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, {"XDG_RUNTIME_DIR": folder}), mock.patch.object(tempfile, "tempdir", folder):
            trainer = self.trainer(feedmill={"source": pipeline(folder), "threads": 1, "run": "kept"}, feedmill_eval={"samples": 4})
            first = hashes(trainer.get_eval_dataloader())
            pids = trainer._feedmill_workers.pids
            self.assertEqual(hashes(trainer.get_eval_dataloader()), first)
            self.assertEqual(trainer._feedmill_workers.pids, pids)
            trainer._feedmill_workers.close()


if __name__ == "__main__":
    unittest.main()
