"""What torch gets. Skipped where it is not installed; tools/python-tests.sh takes another Python with torch in it from
FEEDMILL_TEST_PYTHON."""

from __future__ import annotations

import importlib.util
import itertools
import logging
import unittest

import numpy as np

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
