"""Batches through real workers: order, resume, ends, what is made of them."""

from __future__ import annotations

import itertools
import json
import logging
import os
import random
import struct
import tempfile
import unittest
from typing import Any

import numpy as np

import feedmill
from feedmill import BadSamples, ConfigError, PlanChanged, RunMismatch
from support import SAMPLES_PER_EPOCH, FleetCase, address, fleet, hashes, until


def setUpModule() -> None:
    logging.getLogger("feedmill").setLevel(logging.ERROR)


class Batches(FleetCase):
    def test_arrays_share_the_memory_of_the_batch(self) -> None:
        batch = next(self.loader())
        first, second = batch.numpy(), batch.numpy()
        for name, array in first.items():
            self.assertFalse(array.flags.owndata, name)
            self.assertFalse(array.flags.writeable, name)
            self.assertEqual(address(array), address(second[name]), name)
        base, length = address(first["patches"]), batch.nbytes
        for name, array in first.items():
            self.assertTrue(base <= address(array) < base + length, f"{name} lies in the frame")
        patches = first["patches"]
        total = int(patches.sum(dtype=np.int64))
        del batch, first, second, array
        self.assertEqual(int(patches.sum(dtype=np.int64)), total, "the array keeps the memory")

    def test_hf_is_what_the_worker_expands(self) -> None:
        for batch in itertools.islice(self.loader(), 4):
            start, end = batch.range
            raw = self.workers[0].get(f"/v1/streams/train/batches/{start}-{end}?layout=hf")
            (size,) = struct.unpack_from("<Q", raw)
            header = json.loads(raw[8 : 8 + size])
            made = batch.hf()
            kinds = {"F32": np.float32, "I64": np.int64}
            for name, tensor in header.items():
                if name == "__metadata__":
                    continue
                begin, stop = tensor["data_offsets"]
                theirs = np.frombuffer(raw[8 + size + begin : 8 + size + stop], kinds[tensor["dtype"]])
                np.testing.assert_array_equal(made.pop(name), theirs.reshape(tensor["shape"]), name)
            self.assertEqual(made, {}, "nothing else")

    def test_what_is_said_of_rows_is_what_is_in_them(self) -> None:
        supervised = 0
        for batch in itertools.islice(self.loader(), 8):
            arrays, info = batch.numpy(), batch.info
            ends = arrays["cu_seqlens"]
            self.assertEqual([row["position"] for row in info], list(range(*batch.range)))
            self.assertEqual([row["tokens"] for row in info], np.diff(ends).tolist())
            self.assertEqual([row["images"] for row in info], arrays["images_per_sample"].tolist())
            self.assertEqual([row["record"] for row in info], arrays["record_index"].tolist())
            masks = [arrays["loss_mask"][a + 1 : b].sum() for a, b in zip(ends, ends[1:])]
            self.assertEqual([row["supervised"] for row in info], masks)
            self.assertEqual(batch.num_supervised, sum(masks))
            self.assertEqual(batch.num_supervised, int((batch.padded()["labels"][:, 1:] != -100).sum()))
            self.assertEqual(batch.num_supervised, int((batch.packed()["shifted_labels"] != -100).sum()))
            self.assertEqual(batch.num_bad, sum(row["fault"] is not None for row in info))
            self.assertTrue({row["dataset"] for row in info} <= {"captions", "chat"})
            supervised += batch.num_supervised
        self.assertGreater(supervised, 0)

    def test_layouts_hold_the_same_tokens(self) -> None:
        for batch in itertools.islice(self.loader(), 4):
            ragged = batch.numpy()
            padded, packed = batch.padded(pad_to_multiple_of=32), batch.packed(64, per_segment_multiple=8)
            self.assertEqual(padded["input_ids"].shape[1] % 32, 0)
            self.assertEqual(packed["input_ids"].shape[1] % 64, 0)
            starts, places = ragged["cu_seqlens"], packed["cu_seqlens_padded"]
            for row, (start, end) in enumerate(zip(starts, starts[1:])):
                length, place = end - start, places[row]
                self.assertEqual(place % 8, 0)
                tokens = ragged["tokens"][start:end]
                np.testing.assert_array_equal(padded["input_ids"][row, :length], tokens)
                np.testing.assert_array_equal(packed["input_ids"][0, place : place + length], tokens)
                np.testing.assert_array_equal(
                    packed["position_ids"][1:, 0, place : place + length], padded["position_ids"][:, row, :length]
                )
            self.assertEqual(packed["max_seqlen"], np.diff(places).max())

    def test_only_the_tensors_asked_for_are_made(self) -> None:
        batch = next(self.loader(tensors=["labels", "attention_mask"]))
        self.assertEqual(sorted(batch.hf()), ["attention_mask", "labels"])
        self.assertEqual(sorted(batch.packed()), ["cu_seqlens", "cu_seqlens_padded", "labels", "max_seqlen"])

    def test_a_batch_without_an_image_gets_a_masked_one(self) -> None:
        with_image = without = 0
        for batch in itertools.islice(self.loader(micro_batch=1, ensure_image=True), 64):
            has_image = sum(row["images"] for row in batch.info) > 0
            made = batch.hf()
            self.assertGreaterEqual(made["image_grid_thw"].shape[0], 1)
            self.assertEqual(made["pixel_values"].shape[0], int(made["image_grid_thw"].prod(axis=1).sum()))
            rows = made["input_ids"].shape[0]
            self.assertEqual(rows, 1 if has_image else 2)
            if not has_image:
                self.assertTrue((made["labels"][-1] == -100).all())
                self.assertEqual(made["attention_mask"][-1].sum(), 3)
                self.assertEqual(made["image_grid_thw"].tolist(), [[1, 2, 2]])
            with_image, without = with_image + has_image, without + (not has_image)
        self.assertTrue(with_image and without, "both kinds came")

    def test_a_list_of_all_batches_is_no_problem(self) -> None:
        loader = self.loader(max_samples=SAMPLES_PER_EPOCH, micro_batch=2, global_batch=2)
        batches = list(loader)
        self.assertEqual(len(batches), 301)
        self.assertEqual(sorted(hashes(batches)), list(range(SAMPLES_PER_EPOCH)))
        self.assertEqual(loader.stats()["copied_out"], 0)


class Order(FleetCase):
    def whole(self, **settings: Any) -> dict[int, bytes]:
        """What all ranks read together."""
        made: dict[int, bytes] = {}
        for rank in range(settings.get("dp_size", 1)):
            read = hashes(self.loader(**settings | {"dp_rank": rank}))
            self.assertFalse(made.keys() & read.keys())
            made |= read
        return made

    def test_every_position_comes_once_whatever_the_ranks(self) -> None:
        alone = self.whole(max_steps=4)
        self.assertEqual(sorted(alone), list(range(32)))
        self.assertEqual(self.whole(max_steps=4, dp_size=2, micro_batch=2), alone)
        self.assertEqual(self.whole(max_steps=4, dp_size=4, micro_batch=1), alone)
        self.assertEqual(self.whole(max_steps=2, dp_size=2, global_batch=16, micro_batch=4, window=1), alone)

    def test_resuming_anywhere_in_a_step_gives_the_rest(self) -> None:
        whole = hashes(self.loader(max_steps=6, micro_batch=2))
        for taken in (0, 1, 3, 4, 5, 23, 24):
            first = self.loader(max_steps=6, micro_batch=2)
            seen = hashes(itertools.islice(first, taken))
            state = json.loads(json.dumps(first.state_dict()))
            self.assertEqual(state["consumed"], taken // 4 * 8)
            self.assertEqual((state["version"], state["stream"], state["skips"]), (1, "train", []))
            for settings in ({"micro_batch": 2}, {"micro_batch": 4, "window": 1}, {"micro_batch": 1, "window": 32}):
                second = self.loader(max_steps=6, **settings)
                second.load_state_dict(state)
                rest = hashes(second)
                self.assertEqual(sorted(rest), list(range(state["consumed"], 48)))
                self.assertEqual({p: h for p, h in (seen | rest).items()}, whole)

    def test_world_sizes_change_on_the_way(self) -> None:
        whole = self.whole(max_steps=9)
        state, made = None, {}
        for dp_size, steps in ((4, 3), (2, 6), (8, 9)):
            for rank in range(dp_size):
                loader = self.loader(dp_rank=rank, dp_size=dp_size, micro_batch=1, max_steps=steps)
                if state is not None:
                    loader.load_state_dict(state)
                read = hashes(loader)
                self.assertFalse(made.keys() & read.keys())
                made |= read
            state = loader.state_dict()
            self.assertEqual(state["consumed"], steps * 8)
        self.assertEqual(made, whole)

    def test_seeking_back_and_forth_gives_the_same_bytes(self) -> None:
        whole = hashes(self.loader(max_steps=10))
        loader = self.loader(max_steps=10)
        draw = random.Random(7)
        for _ in range(12):
            step = draw.randrange(10)
            loader.seek(step * 8)
            self.assertTrue(loader.at_step_boundary)
            for position, value in hashes(itertools.islice(loader, draw.randrange(1, 4))).items():
                self.assertEqual(value, whole[position])
                self.assertGreaterEqual(position, step * 8)

    def test_a_skip_leaves_out_exactly_its_positions(self) -> None:
        whole = hashes(self.loader(max_samples=80))
        for dp_size, micro_batch in ((1, 4), (2, 2)):
            settings = {"dp_size": dp_size, "micro_batch": micro_batch, "max_samples": 40, "skips": [(16, 33), (41, 64)]}
            made = self.whole(**settings)
            expected = {p: h for p, h in whole.items() if not (16 <= p < 33 or 41 <= p < 64)}
            self.assertEqual(made, {p: expected[p] for p in sorted(expected)[:40]})

    def test_a_skip_added_at_a_checkpoint_is_in_the_next_one(self) -> None:
        first = self.loader()
        hashes(itertools.islice(first, 4))
        state = first.state_dict()
        second = self.loader(skips=[(16, 48)], max_steps=4)
        second.load_state_dict(state)
        self.assertEqual(sorted(hashes(second)), list(range(48, 64)))
        state = second.state_dict()
        self.assertEqual((state["consumed"], state["skips"]), (32, [[16, 48]]))
        third = self.loader(max_steps=5)
        third.load_state_dict(state)
        self.assertEqual(sorted(hashes(third)), list(range(64, 72)))

    def test_the_global_batch_follows_a_schedule(self) -> None:
        def schedule(consumed: int) -> int:
            return 4 if consumed < 8 else 8 if consumed < 32 else 16

        made = self.whole(global_batch=schedule, micro_batch=2, dp_size=2, max_steps=7)
        self.assertEqual(sorted(made), list(range(2 * 4 + 3 * 8 + 2 * 16)))
        loader = self.loader(global_batch=schedule, max_steps=7)
        self.assertEqual(len(loader), 16)
        self.assertEqual([batch.global_batch for batch in loader], [4] * 2 + [8] * 6 + [16] * 8)
        resumed = self.loader(global_batch=schedule, max_steps=7, consumed=8)
        self.assertEqual(sorted(hashes(resumed)), list(range(8, 64)))

    def test_the_global_batch_changes_between_steps_only(self) -> None:
        loader = self.loader(micro_batch=2)
        next(loader)
        with self.assertRaisesRegex(ConfigError, "between steps"):
            loader.set_global_batch(4)
        seen = hashes(itertools.islice(loader, 3))
        loader.set_global_batch(4)
        batch = next(loader)
        self.assertEqual((batch.range, batch.step_consumed, batch.global_batch), ((8, 10), 8, 4))
        self.assertEqual(sorted(seen), list(range(2, 8)))
        with self.assertRaisesRegex(ConfigError, "between steps"):
            loader.set_global_batch(8)
        next(loader)
        with self.assertRaisesRegex(ConfigError, "multiple"):
            loader.set_global_batch(7)
        self.assertEqual(next(loader).range, (12, 14))


class Ends(FleetCase):
    def test_the_last_step_is_filled_on_all_ranks(self) -> None:
        fillers = supervised = 0
        for rank in range(4):
            loader = self.loader(dp_rank=rank, dp_size=4, micro_batch=2, global_batch=16, max_samples=20)
            self.assertEqual(len(loader), 4)
            batches = list(loader)
            self.assertEqual(len(batches), 4)
            self.assertEqual(loader.consumed, 32)
            for batch in batches:
                fillers += batch.num_filler
                rows = [row for row in batch.info if row["status"] == "filler"]
                self.assertEqual(len(rows), batch.num_filler)
                self.assertTrue(all(row["position"] >= 20 and row["supervised"] == 0 and row["record"] == -1 for row in rows))
            if rank >= 2:
                self.assertEqual(batches[2].num_filler, 2, "a rank whose rows are all filler")
                self.assertEqual(batches[2].num_supervised, 0)
                self.assertEqual(batches[2].hf()["input_ids"].shape[0], 2)
            supervised += batches[-1].num_supervised
        self.assertEqual(fillers, 12)
        self.assertEqual(supervised, 0)

    def test_or_it_is_left_out(self) -> None:
        loader = self.loader(max_samples=20, last_step="drop")
        self.assertEqual(len(loader), 4)
        self.assertEqual(sorted(hashes(loader)), list(range(16)))

    def test_epochs_end_where_the_data_does(self) -> None:
        loader = self.loader(epochs=0.125, global_batch=16)
        self.assertEqual(loader.samples_per_epoch, SAMPLES_PER_EPOCH)
        self.assertEqual(len(loader), 20)
        batches = list(loader)
        self.assertEqual((len(batches), batches[-1].num_filler, batches[-2].num_filler), (20, 4, 1))
        self.assertEqual(len(loader), 0)
        self.assertRaises(StopIteration, next, loader)

    def test_a_second_loop_over_a_loader_at_its_end_is_told_of(self) -> None:
        # `for epoch in range(3): for batch in loader` with epochs=1: two empty epochs, without a word.
        loader = self.loader(max_steps=2)
        self.assertEqual(len(list(loader)), 4)
        with self.assertLogs("feedmill", "WARNING") as logs:
            self.assertEqual([list(loader) for _ in range(2)], [[], []])
        self.assertEqual(len(logs.output), 1, "once")
        self.assertIn("epochs=N", logs.output[0])
        loader.seek(8)
        self.assertEqual(len(list(loader)), 2)
        with self.assertLogs("feedmill", "WARNING") as logs:
            self.assertEqual(list(self.loader(max_steps=2, consumed=16)), [])
        self.assertIn("nothing to read", logs.output[0])

    def test_steps_go_on_over_another_global_batch(self) -> None:
        first = self.loader(max_steps=4, global_batch=16)
        seen = hashes(itertools.islice(first, 8))
        self.assertEqual((first.steps, first.consumed), (2, 32))
        state = json.loads(json.dumps(first.state_dict()))
        second = self.loader(max_steps=4, global_batch=8)
        second.load_state_dict(state)
        self.assertEqual(len(second), 4)
        self.assertEqual(sorted(seen | hashes(second)), list(range(48)))
        self.assertEqual((second.steps, second.state_dict()["steps"], second.state_dict(consumed=40)["steps"]), (4, 4, 3))

    def test_without_an_end_there_is_no_length(self) -> None:
        with self.assertRaisesRegex(TypeError, "epochs"):
            len(self.loader())


class Seen(FleetCase):
    def test_numbers_of_the_queue_and_of_the_rows(self) -> None:
        loader = self.loader()
        before = loader.log()
        self.assertEqual(before["feedmill/bad_rows"], 0)
        batches = list(itertools.islice(loader, 6))
        stats = loader.stats()
        self.assertEqual((stats["batches"], stats["rows"], stats["consumed"]), (6, 24, 24))
        self.assertEqual(stats["tokens"], sum(batch.num_tokens for batch in batches))
        self.assertEqual(stats["bad"], sum(batch.num_bad for batch in batches))
        self.assertEqual(sum(stats["rows_per_dataset"].values()), 24)
        self.assertTrue(0 < stats["padding"] < 1 and 0 <= stats["wait_ratio"] <= 1)
        keys = loader.log(prefix="data/")
        self.assertEqual(keys["data/bad_rows"], stats["bad"])
        self.assertEqual(keys["data/rows/chat"] + keys["data/rows/captions"], 24)
        self.assertEqual(loader.log()["feedmill/rows/chat"], 0, "since the last call")

    def test_waiting_for_the_first_batch_is_waiting(self) -> None:
        # Workers that are still making the first batch: what is counted is what a rank lost, not what it did in wait_ready.
        with self.loader() as loader:
            next(loader)
            stats = loader.stats()
        self.assertGreater(stats["waited"], 0)
        self.assertGreater(stats["wait_ratio"], 0)
        with self.loader() as loader:
            loader.wait_ready()
            self.assertEqual(loader.stats()["waited"], 0)

    def test_ranks_that_go_on_elsewhere_are_held_against_each_other(self) -> None:
        ranks = [self.loader(run="elsewhere", dp_size=2, dp_rank=rank) for rank in range(2)]
        for loader in ranks:
            loader.wait_ready()
        for loader, consumed in zip(ranks, (16, 24)):
            loader.seek(consumed)
        ranks[0].wait_ready()
        with self.assertRaises(RunMismatch):
            ranks[1].wait_ready()
        ranks[1].seek(16)
        ranks[1].wait_ready()
        self.assertEqual([next(loader).range[0] for loader in ranks], [16, 20])

    def test_reports_reach_a_worker(self) -> None:
        loader = self.loader(run="reported", dp_size=2, dp_rank=1)
        next(loader)
        reports: list[str] = []

        def came() -> bool:
            said = [json.loads(worker.get("/v1/status")) for worker in self.workers]
            reports.extend(json.dumps(report) for status in said for report in status["reports"] if report["run"] == "reported")
            return bool(reports)

        until("a report", came)
        self.assertIn('"rank": 1', reports[0])

    def test_an_end_is_the_same_whether_a_state_with_skips_comes_early_or_late(self) -> None:
        state = {"version": 1, "stream": "train", "consumed": 32, "steps": 4, "skips": [[16, 48]], "plan": None}
        early, late = self.loader(max_steps=5, run="early"), self.loader(max_steps=5, run="late")
        early.load_state_dict(state)
        self.assertGreater(late.samples_per_epoch, 0)
        late.load_state_dict(state)
        self.assertEqual((len(early), len(late)), (2, 2))
        self.assertEqual([batch.range for batch in late], [batch.range for batch in early])

    def test_an_end_is_the_same_whether_another_global_batch_comes_early_or_late(self) -> None:
        early, late = self.loader(max_steps=5, run="batch-early"), self.loader(max_steps=5, run="batch-late")
        early.set_global_batch(16)
        self.assertGreater(late.samples_per_epoch, 0)
        late.set_global_batch(16)
        self.assertEqual((len(early), len(late)), (20, 20))
        ends = [list(loader)[-1].range[1] for loader in (early, late)]
        self.assertEqual(ends, [80, 80], "five steps, of the size that they have")

    def test_a_state_with_numbers_that_cannot_be_is_refused_as_one(self) -> None:
        for consumed, skips in ((2**64, []), (0, [[0, 2**64]])):
            loader = self.loader(run="numbers")
            state = {"version": 1, "stream": "train", "consumed": consumed, "skips": skips, "plan": None}
            with self.assertRaises(feedmill.StateError):
                loader.load_state_dict(state)

    def test_the_model_is_known_before_a_state_is_loaded(self) -> None:
        loader = self.loader(run="model")
        self.assertGreater(loader.model["patch"], 0)
        self.assertEqual(loader.stats()["requests"], 0, "nothing of the stream was asked for")

    def test_a_ledger_has_one_line_a_step(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "deep", "ledger-{rank}.jsonl")
            loader = self.loader(ledger=path, micro_batch=2, dp_size=2, dp_rank=1, max_steps=3, run="ledger")
            batches = list(loader)
            with open(path.replace("{rank}", "1")) as file:
                lines = [json.loads(line) for line in file]
            self.assertEqual([line["position"] for line in lines], [0, 8, 16])
            self.assertEqual([line["consumed"] for line in lines], [0, 8, 16])
            self.assertTrue(all(line["micro_batches"] == 2 and line["rows"] == 4 and line["rank"] == 1 for line in lines))
            self.assertEqual(sum(line["supervised"] for line in lines), sum(batch.num_supervised for batch in batches))
            self.assertEqual({line["plan"] for line in lines}, {batches[0].plan})
            # Rank 0 alone writes where the path is the same for all.
            hashes(self.loader(ledger=os.path.join(folder, "one"), dp_size=2, dp_rank=1, max_steps=1))
            self.assertFalse(os.path.exists(os.path.join(folder, "one")))

    def test_steps_before_a_change_or_a_break_are_in_the_ledger(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "ledger")
            loader = self.loader(ledger=path)

            def lines() -> list[tuple[int, int]]:
                with open(path) as file:
                    return [(line["consumed"], line["global_batch"]) for line in map(json.loads, file)]

            list(itertools.islice(loader, 2))
            self.assertEqual(lines(), [(0, 8)], "as soon as it is whole")
            loader.set_global_batch(16)
            list(itertools.islice(loader, 4))
            loader.seek(48)
            list(itertools.islice(loader, 4 + 1))
            loader.close()
            self.assertEqual(lines(), [(0, 8), (8, 16), (48, 16)], "and no broken one")

    @unittest.skipUnless(os.path.exists("/dev/full"), "there is no /dev/full")
    def test_a_full_disk_stops_no_training(self) -> None:
        loader = self.loader(ledger="/dev/full", max_steps=3)
        with self.assertLogs("feedmill", "WARNING") as logs:
            self.assertEqual(len(list(loader)), 6)
        self.assertEqual(len([line for line in logs.output if "ledger" in line]), 1, "it is said once")
        self.assertEqual(loader.stats()["ledger_lost"], 3)

    def test_the_first_bad_rows_are_logged_by_rank_0(self) -> None:
        for rank, expected in ((0, True), (1, False)):
            loader = self.loader(dp_rank=rank, dp_size=2, max_steps=12)
            with self.assertLogs("feedmill", "WARNING") as logs:
                logging.getLogger("feedmill").warning("so that there is one")
                bad = sum(batch.num_bad for batch in loader)
            self.assertGreater(bad, 0)
            said = [line for line in logs.output if "cannot be used" in line]
            self.assertEqual(len(said), min(bad, 10) if expected else 0)

    def test_too_many_bad_rows_are_an_error_that_loses_nothing(self) -> None:
        loader = self.loader(max_bad=0.0001, micro_batch=8, max_samples=1200)
        made: dict[int, bytes] = {}
        with self.assertRaises(BadSamples) as caught:
            for batch in loader:
                made |= hashes([batch])
        self.assertGreaterEqual(len(made), 992)
        self.assertIn("rows", str(caught.exception))
        self.assertEqual((caught.exception.rank, caught.exception.stream), (0, "train"))
        with self.assertRaises(BadSamples):
            next(loader)
        loader.on_bad = "warn"
        with self.assertLogs("feedmill", "WARNING") as logs:
            made |= hashes(loader)
        self.assertEqual(sorted(made), list(range(1200)))
        self.assertEqual(len([line for line in logs.output if "max_bad" in line]), 1)

    def test_the_plan_is_written_beside_checkpoints(self) -> None:
        loader = self.loader()
        with tempfile.TemporaryDirectory() as folder:
            path = loader.save_plan(folder)
            self.assertEqual(os.listdir(folder), ["plan.json"])
            with open(path) as file:
                plan = json.load(file)
        self.assertEqual(plan, loader.plan())
        self.assertEqual(plan["plan"], loader.state_dict()["plan"])
        self.assertEqual(plan["facts"]["stream.seed"], 42)
        self.assertEqual((plan["samples_per_epoch"], plan["datasets"]), (SAMPLES_PER_EPOCH, ["captions", "chat"]))

    def test_the_plans_folder_is_made_and_one_that_cannot_be_is_named(self) -> None:
        # FileNotFoundError of a temporary name.
        loader = self.loader()
        with tempfile.TemporaryDirectory() as folder:
            new = os.path.join(folder, "new", "checkpoint-8")
            self.assertEqual(loader.save_plan(new), os.path.join(new, "plan.json"))
            file = os.path.join(folder, "file")
            with open(file, "wb"):
                pass
            with self.assertRaisesRegex(feedmill.FeedmillError, f"folder {file}: "):
                loader.save_plan(file)


class Plans(FleetCase):
    def test_another_plan_is_refused_unless_it_is_accepted(self) -> None:
        state = self.loader().state_dict()
        with fleet(1, **{"seed: 42": "seed: 43"}) as others:
            source = [others[0].url]
            loader = self.loader(source=source)
            loader.load_state_dict(state)
            with self.assertRaises(PlanChanged) as caught:
                next(loader)
            self.assertIn("accept_plan", str(caught.exception))
            self.assertIn(state["plan"], str(caught.exception))
            theirs = self.loader(source=source).state_dict()["plan"]
            accepting = self.loader(source=source, accept_plan=theirs)
            accepting.load_state_dict(state)
            self.assertEqual(next(accepting).plan, theirs)
            self.assertEqual(accepting.state_dict()["plan"], theirs)

    def test_a_worker_with_another_plan_is_left_out(self) -> None:
        with fleet(1, **{"seed: 42": "seed: 43"}) as others:
            loader = self.loader(source=[self.source[0], others[0].url])
            plans = {batch.plan for batch in itertools.islice(loader, 8)}
            self.assertEqual(len(plans), 1)


if __name__ == "__main__":
    unittest.main()
