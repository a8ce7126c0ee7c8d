"""Packed batches in Megatron's names, with a torch and a Megatron that only note what is done; tools/python-tests.sh test_torch has the
real torch."""

from __future__ import annotations

import logging
import sys
import types
import unittest
from typing import Any
from unittest import mock

import numpy as np

import feedmill
import feedmill.megatron
from support import FleetCase


def setUpModule() -> None:
    logging.getLogger("feedmill").setLevel(logging.ERROR)


class Device:
    """Stands for a torch tensor, and knows what went to the device."""

    moved: list[str] = []

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def to(self, where: Any, non_blocking: bool = False) -> Device:
        if where != "f32":
            Device.moved.append(str(self.array.dtype))
        return Device(self.array.astype(np.float32) if where == "f32" else self.array)

    def __ne__(self, other: object) -> Device:  # type: ignore[override]
        return Device(self.array != other)


class Packed(FleetCase):
    def setUp(self) -> None:
        torch = types.ModuleType("torch")
        torch.from_numpy, torch.float32 = Device, "f32"  # type: ignore[attr-defined]
        torch.device = lambda name: types.SimpleNamespace(type=name)  # type: ignore[attr-defined]
        parameters = types.ModuleType("megatron.core.packed_seq_params")
        parameters.PackedSeqParams = types.SimpleNamespace  # type: ignore[attr-defined]
        modules = {"torch": torch, "megatron.core.packed_seq_params": parameters}
        modules |= {name: types.ModuleType(name) for name in ("megatron", "megatron.core")}
        for patch in (
            mock.patch.dict(sys.modules, modules),
            mock.patch.object(feedmill.Batch, "_torch_pixels", lambda batch, torch, device, dtype: ("pixels", device, dtype)),
        ):
            patch.start()
            self.addCleanup(patch.stop)
        Device.moved = []

    def batch(self, **settings: Any) -> feedmill.Batch:
        return next(batch for batch in self.loader(**settings) if any(row["images"] for row in batch.info))

    def test_megatrons_batch_is_the_packed_one_and_goes_to_the_device_once(self) -> None:
        batch = self.batch()
        made = feedmill.megatron.packed_batch(batch, "gpu", per_segment_multiple=8, dtype="bf16")
        arrays = batch.packed(per_segment_multiple=8)
        for ours, theirs in (("input_ids", "tokens"), ("shifted_labels", "labels"), ("position_ids", "position_ids"), ("image_grid_thw",) * 2):
            np.testing.assert_array_equal(made[theirs].array, arrays[ours])
        np.testing.assert_array_equal(made["loss_mask"].array, (arrays["shifted_labels"] != -100).astype(np.float32))
        parameters = made["packed_seq_params"]
        np.testing.assert_array_equal(parameters.cu_seqlens_q_padded.array, arrays["cu_seqlens_padded"])
        np.testing.assert_array_equal(parameters.cu_seqlens_kv.array, arrays["cu_seqlens"])
        self.assertEqual((parameters.qkv_format, parameters.max_seqlen_q), ("thd", arrays["max_seqlen"]))
        self.assertEqual(made["pixel_values"], ("pixels", "gpu", "bf16"))
        # The padded layout was made, and moved, for the sake of the pixels.
        self.assertEqual(sorted(Device.moved), ["int32"] * 2 + ["int64"] * 4)

    def test_a_stage_that_chooses_tensors_gets_those(self) -> None:
        # KeyError 'shifted_labels'.
        made = feedmill.megatron.packed_batch(self.batch(tensors=["input_ids", "attention_mask", "position_ids"]), "gpu")
        self.assertEqual(sorted(made), ["packed_seq_params", "position_ids", "tokens"])
        made = feedmill.megatron.packed_batch(self.batch(tensors=["labels"]), "gpu")
        self.assertEqual(sorted(made), ["labels", "loss_mask", "packed_seq_params"])


if __name__ == "__main__":
    unittest.main()
