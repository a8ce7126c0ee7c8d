"""One micro batch, and the tensors made of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from . import _feedmill
from .errors import ConfigError

if TYPE_CHECKING:
    import torch


#: Tensors that ``tensors=`` chooses among.
SELECTABLE = frozenset(
    (
        "input_ids",
        "attention_mask",
        "labels",
        "shifted_labels",
        "mm_token_type_ids",
        "position_ids",
        "pixel_values",
        "image_grid_thw",
    )
)

#: Where segments end, and how long the longest is: always there, in numpy's names and in transformers'.
ENDS = frozenset(
    ("cu_seqlens", "cu_seqlens_padded", "max_seqlen", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
)


class Batch:
    """The micro batch of one rank: ``micro_batch`` samples that follow each other in the stream.

    B rows, T tokens of all rows, n images, P patches of all images, p the side of a patch.
    """

    def __init__(
        self,
        frame: _feedmill.Frame,
        *,
        model: _feedmill.Model | None,
        datasets: list[str],
        step_consumed: int,
        global_batch: int,
        index_in_step: int,
        ensure_image: bool,
        tensors: frozenset[str] | None,
    ) -> None:
        self._frame = frame
        self._model = model
        self._datasets = datasets
        self._ensure_image = ensure_image
        self._tensors = tensors
        #: Samples consumed before the optimizer step that this batch belongs to.
        self.step_consumed = step_consumed
        #: Samples of that step over all ranks.
        self.global_batch = global_batch
        #: Which micro batch of the step this is on this rank, from 0.
        self.index_in_step = index_in_step
        self._counts, self.dataset_rows = frame.counts(len(datasets))

    @property
    def range(self) -> tuple[int, int]:
        """First position, and one past the last."""
        return self._frame.range

    @property
    def plan(self) -> str:
        """Digest of the plan that it was made by."""
        return self._frame.plan

    @property
    def worker(self) -> str:
        """The worker that made it."""
        return self._frame.worker

    @property
    def nbytes(self) -> int:
        """Bytes that came over the wire."""
        return self._frame.bytes

    @property
    def num_rows(self) -> int:
        """B, filler rows included, without the row that ``ensure_image`` adds."""
        return self._counts[0]

    @property
    def num_tokens(self) -> int:
        """T."""
        return self._counts[1]

    @property
    def num_supervised(self) -> int:
        """Tokens whose prediction is learnt. Summed over all micro batches and ranks of a step, what the step's loss is
        divided by; 0 in a batch of filler rows."""
        return self._counts[3]

    @property
    def num_filler(self) -> int:
        """Rows past the trainer's end."""
        return self._counts[4]

    @property
    def num_bad(self) -> int:
        """Rows in which the record that the order assigned could not be used."""
        return self._counts[5]

    @property
    def padding(self) -> float:
        """Share of the padded layout's cells that are padding, 0..1."""
        cells = self._counts[0] * self._counts[2]
        return 1 - self._counts[1] / cells if cells else 0.0

    @property
    def info(self) -> list[dict[str, Any]]:
        """One dict a row: position, dataset, dataset_index, record (0-based over the data set's non-blank lines; -1 for
        filler), sample (epoch-space index; -1 for filler), status ("ok", "substituted", "zero_loss", "filler"), fault
        (None or the class), tokens, supervised, images, hash."""
        return self._frame.info(self._datasets)

    def numpy(self) -> dict[str, np.ndarray]:
        """The tensors as they came, views without a copy, read-only; they keep the batch's memory.

        patches u8 [P, 3*p*p] (one temporal slot), image_grid_thw i32 [n, 3], tokens i32 [T], loss_mask u8 [T],
        cu_seqlens i32 [B+1], images_per_sample i32 [B], sample_index i64 [B], record_index i64 [B], dataset_index i32 [B],
        status u8 [B], sample_hash u8 [B, 16].
        """
        return {name: np.asarray(array) for name, array in self._frame.arrays().items()}

    def hf(self) -> dict[str, np.ndarray]:
        """What the model's own processor returns, padded on the right, bit for bit, and labels.

        input_ids, attention_mask, mm_token_type_ids, labels (-100 where nothing is learnt; not shifted) i64 [B, L];
        pixel_values f32 [P, 3*T*p*p] (T temporal slots) and image_grid_thw i64 [n, 3] where there is an image.
        """
        tensors = self._padded(1)
        del tensors["position_ids"]
        if tensors["image_grid_thw"].shape[0] == 0:
            del tensors["image_grid_thw"]
        elif self._has("pixel_values"):
            tensors["pixel_values"] = self.pixel_values()
        return self._selected(tensors)

    def padded(self, pad_to_multiple_of: int = 1) -> dict[str, np.ndarray]:
        """Rows side by side, filled up on the right.

        input_ids, attention_mask, labels, mm_token_type_ids i64 [B, L]; position_ids i64 [3, B, L] (time, height, width, 0
        on padding); image_grid_thw i64 [n, 3].
        """
        return self._selected(self._padded(pad_to_multiple_of))

    def packed(self, pad_to_multiple_of: int = 1, per_segment_multiple: int = 1) -> dict[str, Any]:
        """Rows one after another in one row of L tokens; each row is a segment, rounded up to ``per_segment_multiple``.

        input_ids, labels, shifted_labels, mm_token_type_ids i64 [1, L]; position_ids i64 [4, 1, L] (place in the segment,
        time, height, width; every segment begins at 0); cu_seqlens i32 [B+1] (as if nothing were padded),
        cu_seqlens_padded i32 [B+1] (where segments stand in the row), max_seqlen (an int); image_grid_thw i64 [n, 3].
        What ``pad_to_multiple_of`` adds belongs to the last segment.
        """
        return self._selected(self._packed(pad_to_multiple_of, per_segment_multiple))

    def pixel_values(self) -> np.ndarray:
        """f32 [P, 3*T*p*p]: what the model sees, bit for bit what its processor gives."""
        return np.asarray(self._frame.pixel_values(self._facts(), self._ensure_image))

    def torch(
        self,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        layout: str = "padded",
        pad_to_multiple_of: int = 1,
        per_segment_multiple: int = 1,
    ) -> dict[str, Any]:
        """Tensors on a device, for ``model(**batch.torch(...))``.

        Pixels go to the device as u8 and are normalised there, in f32, then cast to ``dtype`` (default float32): what the
        processor gives and the model casts, bit for bit.

        layout="padded": input_ids, attention_mask, labels, mm_token_type_ids [B, L], position_ids [3, B, L], pixel_values
        [P, 3*T*p*p], image_grid_thw [n, 3] (both only where there is an image).

        layout="packed": input_ids, labels, mm_token_type_ids [1, L], position_ids [4, 1, L], cu_seq_lens_q and cu_seq_lens_k
        i32 [B+1], max_length_q and max_length_k (ints): transformers' names for flash attention, made of
        cu_seqlens_padded and max_seqlen of :meth:`packed`. Needs an attention that knows segments.
        """
        import torch

        if layout == "padded":
            arrays = self.padded(pad_to_multiple_of)
        elif layout == "packed":
            arrays = self.packed(pad_to_multiple_of, per_segment_multiple)
            ends, longest = arrays.pop("cu_seqlens_padded"), arrays.pop("max_seqlen")
            del arrays["cu_seqlens"]
            arrays.pop("shifted_labels", None)
            arrays |= {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": longest, "max_length_k": longest}
        else:
            raise ConfigError(f'layout {layout!r} must be "padded" or "packed"')
        grids = arrays.pop("image_grid_thw", None)
        tensors = {
            name: value if isinstance(value, int) else _to(torch, torch.from_numpy(value), device)
            for name, value in arrays.items()
        }
        if grids is not None and grids.shape[0]:
            tensors["image_grid_thw"] = _to(torch, torch.from_numpy(grids), device)
        if self._has("pixel_values"):
            pixels = self._torch_pixels(torch, device, dtype)
            if pixels.shape[0]:
                tensors["pixel_values"] = pixels
        return tensors

    def _torch_pixels(self, torch: Any, device: Any, dtype: Any) -> Any:
        model = self._facts()
        patches = np.asarray(self._frame.arrays()["patches"])
        if self._ensure_image and patches.shape[0] == 0:
            patches = np.asarray(self._frame.extra_patches(model, True))
        # The copy is what a device reads from; torch has no tensors over memory that may not be written.
        host = torch.empty(patches.shape, dtype=torch.uint8, pin_memory=_is_cuda(torch, device))
        host.numpy()[...] = patches
        on_device = _to(torch, host, device)
        # Named in full: of a batch without an image nothing could be derived.
        channels = on_device.view(on_device.shape[0], 3, patches.shape[1] // 3).to(torch.float32)
        mean = torch.tensor(model.means, dtype=torch.float32, device=channels.device).view(1, 3, 1)
        std = torch.tensor(model.stds, dtype=torch.float32, device=channels.device).view(1, 3, 1)
        values = ((channels - mean) / std).to(dtype or torch.float32)
        slots = values.unsqueeze(2).expand(-1, -1, model.temporal, -1)
        return slots.reshape(values.shape[0], 3 * model.temporal * values.shape[2])

    def _padded(self, pad_to_multiple_of: int) -> dict[str, np.ndarray]:
        made = self._frame.padded(self._facts(), self._ensure_image, pad_to_multiple_of)
        return {name: np.asarray(array) for name, array in made.items()}

    def _packed(self, pad_to_multiple_of: int, per_segment_multiple: int) -> dict[str, Any]:
        made = self._frame.packed(self._facts(), self._ensure_image, pad_to_multiple_of, per_segment_multiple)
        return {key: value if isinstance(value, int) else np.asarray(value) for key, value in made.items()}

    def _facts(self) -> _feedmill.Model:
        return known_model(self._model)

    def _has(self, name: str) -> bool:
        return self._tensors is None or name in self._tensors

    def _selected(self, tensors: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in tensors.items() if name in ENDS or self._has(name)}

    def __repr__(self) -> str:
        start, end = self.range
        return f"<feedmill.Batch {start}-{end}: {self.num_rows} rows, {self.num_tokens} tokens>"


def known_model(model: _feedmill.Model | None) -> _feedmill.Model:
    """What the model's processor is like; ConfigError where workers do not say."""
    if model is None:
        raise ConfigError("the workers do not say what their model's processor is like: they are older than this package")
    return model


def _is_cuda(torch: Any, device: Any) -> bool:
    return device is not None and torch.device(device).type == "cuda"


def _to(torch: Any, tensor: Any, device: Any) -> Any:
    if device is None:
        return tensor
    if _is_cuda(torch, device) and not tensor.is_pinned():
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
