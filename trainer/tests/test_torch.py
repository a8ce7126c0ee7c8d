"""What torch gets. Skipped where it is not installed; tools/python-tests.sh takes another Python with torch in it from
FEEDMILL_TEST_PYTHON."""

from __future__ import annotations

import importlib.util
import itertools
import logging
import sys
import types
import unittest
from unittest import mock

import numpy as np

from feedmill.runs import STORE_KEY, run_name
from support import FleetCase, hashes


def setUpModule() -> None:
    logging.getLogger("feedmill").setLevel(logging.ERROR)


@unittest.skipUnless(importlib.util.find_spec("torch"), "torch is not installed")
class Torch(FleetCase):
    def test_tensors_are_the_processors_bit_for_bit(self) -> None:
        import torch

        with_image = without = 0
        for batch in itertools.islice(self.loader(micro_batch=1), 48):
            expected, made = batch.hf(), batch.torch()
            position_ids = made.pop("position_ids")
            self.assertEqual(tuple(position_ids.shape), (3, *expected["input_ids"].shape))
            self.assertEqual(made.keys(), expected.keys())
            for name, tensor in made.items():
                np.testing.assert_array_equal(tensor.numpy(), expected[name], name)
            if "pixel_values" in made:
                half = batch.torch(dtype=torch.bfloat16)["pixel_values"]
                self.assertTrue(torch.equal(half, made["pixel_values"].to(torch.bfloat16)))
            with_image, without = with_image + ("pixel_values" in made), without + ("pixel_values" not in made)
        self.assertTrue(with_image and without, "both kinds came")

    def test_a_batch_without_an_image_has_no_pixels_and_is_no_error(self) -> None:
        batch = next(b for b in self.loader(micro_batch=1) if not any(row["images"] for row in b.info))
        for layout in ("padded", "packed"):
            made = batch.torch(layout=layout)
            self.assertNotIn("pixel_values", made)
            self.assertNotIn("image_grid_thw", made)

    def test_an_image_that_was_added_is_there(self) -> None:
        batch = next(b for b in self.loader(micro_batch=1, ensure_image=True) if not any(row["images"] for row in b.info))
        expected, made = batch.hf(), batch.torch()
        np.testing.assert_array_equal(made["pixel_values"].numpy(), expected["pixel_values"])

    def test_megatrons_batch_has_the_processors_pixels(self) -> None:
        import feedmill.megatron

        parameters = types.ModuleType("megatron.core.packed_seq_params")
        parameters.PackedSeqParams = types.SimpleNamespace  # type: ignore[attr-defined]
        modules = {name: types.ModuleType(name) for name in ("megatron", "megatron.core")}
        batch = next(b for b in self.loader() if any(row["images"] for row in b.info))
        with mock.patch.dict(sys.modules, {**modules, "megatron.core.packed_seq_params": parameters}):
            made = feedmill.megatron.packed_batch(batch, "cpu", per_segment_multiple=8)
        arrays = batch.packed(per_segment_multiple=8)
        np.testing.assert_array_equal(made["labels"].numpy(), arrays["shifted_labels"])
        np.testing.assert_array_equal(made["loss_mask"].numpy(), (arrays["shifted_labels"] != -100).astype(np.float32))
        np.testing.assert_array_equal(made["pixel_values"].numpy(), batch.pixel_values())
        self.assertEqual(int(made["loss_mask"].sum()), batch.num_supervised)

    def test_a_rank_of_torch_distributed_waits_for_nobody(self) -> None:
        import torch
        import torch.testing._internal.distributed.fake_pg  # noqa: F401

        store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        # Rank 0 of two, and the other one is not there: what is collective would wait for it.
        torch.distributed.init_process_group("fake", store=store, rank=0, world_size=2)
        self.addCleanup(torch.distributed.destroy_process_group)
        name = run_name(None, 1, {})
        self.assertEqual((run_name(None, 2, {}), run_name(None, 1, {"TORCHELASTIC_RUN_ID": "none"})), (name, name))
        self.assertEqual(torch.distributed.distributed_c10d._get_default_store().get(STORE_KEY), name.encode())

    @unittest.skipUnless(importlib.util.find_spec("transformers"), "transformers is not installed")
    def test_the_loss_of_filler_rows_is_0_and_of_others_the_models(self) -> None:
        import torch
        from transformers.loss.loss_utils import ForCausalLMLoss

        import feedmill.hf

        logits = torch.randn(2, 5, 7, requires_grad=True)
        labels = torch.tensor([[1, 2, -100, 3, 4], [-100, 5, 6, -100, -100]])
        for count in (None, torch.tensor(9)):
            theirs = ForCausalLMLoss(logits, labels, 7, num_items_in_batch=count)
            torch.testing.assert_close(feedmill.hf.token_loss({"logits": logits}, labels, count), theirs)
        for count in (None, torch.tensor(9), torch.tensor(0), 0):
            loss = feedmill.hf.token_loss((logits,), torch.full_like(labels, -100), count)
            (gradient,) = torch.autograd.grad(loss, logits)
            self.assertEqual((float(loss), float(gradient.abs().sum())), (0.0, 0.0))

    def test_a_data_set_goes_on_where_its_state_was_taken(self) -> None:
        import feedmill.torch
        from torch.utils.data import DataLoader

        settings = {"dp_rank": 0, "dp_size": 1, "global_batch": 8, "micro_batch": 4, "max_steps": 4, "run": "torch"}
        whole = hashes(self.loader(max_steps=4))
        first = feedmill.torch.IterableDataset(self.source, transform=lambda batch: batch, **settings)
        seen = hashes(itertools.islice(DataLoader(first, batch_size=None), 4))
        state = first.state_dict()
        self.assertEqual(state["consumed"], 16)
        second = feedmill.torch.IterableDataset(self.source, transform=lambda batch: batch, **settings)
        second.load_state_dict(state)
        self.assertEqual(len(second), 4)
        self.assertEqual(seen | hashes(DataLoader(second, batch_size=None)), whole)
        tensors = next(iter(DataLoader(feedmill.torch.IterableDataset(self.source, **settings), batch_size=None, num_workers=1)))
        self.assertEqual(tensors["input_ids"].shape[0], 4)
        for dataset in (first, second):
            dataset.loader.close()


if __name__ == "__main__":
    unittest.main()
