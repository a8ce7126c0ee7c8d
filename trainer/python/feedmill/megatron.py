"""For Megatron-LM: ranks and counts from its own state, and what its attention takes. Imports it when it is called."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from .batch import Batch, _to
from .errors import ConfigError

#: What streams for evaluation are called.
EVALUATION = re.compile(r"(eval|val|test|dev|held)", re.IGNORECASE)


def loader(cls: Any, source: Any, *, args: Any = None, **settings: Any) -> Any:
    """See :meth:`feedmill.Loader.from_megatron`."""
    from megatron.core import parallel_state

    if args is None:
        from megatron.training import get_args

        args = get_args()
    dp_size = parallel_state.get_data_parallel_world_size()
    defaults: dict[str, Any] = {
        "dp_rank": parallel_state.get_data_parallel_rank(),
        "dp_size": dp_size,
        "micro_batch": args.micro_batch_size,
        "model_parallel_size": max(1, args.world_size // dp_size),
    }
    defaults |= _counts(args, settings)
    return cls(source, **(defaults | settings))


def _counts(args: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Global batch and samples consumed: Megatron counts training and validation apart, and only training's batches ramp up."""
    stream = settings.get("stream", "train")
    if EVALUATION.match(stream):
        return {"global_batch": args.global_batch_size, "consumed": getattr(args, "consumed_valid_samples", None) or 0}
    if "train" not in stream and "consumed" not in settings:
        # The wrong count would read samples twice, or leave them out, without a word.
        raise ConfigError(
            f"is stream {stream!r} for training or for evaluation? Say consumed=args.consumed_train_samples or "
            "consumed=args.consumed_valid_samples"
        )
    return {"global_batch": global_batch(args), "consumed": args.consumed_train_samples}


def global_batch(args: Any) -> Any:
    """Megatron's global batch: a number, or with --rampup-batch-size START INCREMENT SAMPLES the schedule that Megatron
    follows."""
    whole: int = args.global_batch_size
    if args.rampup_batch_size is None:
        return whole
    start, increment, samples = (int(value) for value in args.rampup_batch_size)
    increments = (whole - start) // increment
    each = samples / increments if increments else 0

    def at(consumed: int) -> int:
        if not increments or consumed > samples:
            return whole
        return min(start + int(consumed / each) * increment, whole)

    return at


def packed_batch(batch: Batch, device: Any = "cuda", *, per_segment_multiple: int = 1, dtype: Any = None) -> dict[str, Any]:
    """A packed micro batch in Megatron's names: tokens, labels (shifted by one), position_ids [4, 1, L], loss_mask f32
    [1, L], packed_seq_params (megatron.core.packed_seq_params.PackedSeqParams, with padded ends), pixel_values and
    image_grid_thw (both only where there is an image). With context parallelism give ``per_segment_multiple=2 * cp``.

    A stage that chose with ``tensors=`` gets what belongs to them (labels and loss_mask to "labels"), and packed_seq_params.
    """
    import torch
    from megatron.core.packed_seq_params import PackedSeqParams

    arrays = batch._packed(1, per_segment_multiple)
    wanted = {"input_ids": "tokens", "position_ids": "position_ids", "image_grid_thw": "image_grid_thw"}
    if arrays["image_grid_thw"].shape[0] == 0:
        del wanted["image_grid_thw"]
    made = {new: _to(torch, torch.from_numpy(arrays[name]), device) for name, new in wanted.items() if batch._has(name)}
    if batch._has("labels") or batch._has("shifted_labels"):
        made["labels"] = _to(torch, torch.from_numpy(arrays["shifted_labels"]), device)
        made["loss_mask"] = (made["labels"] != -100).to(torch.float32)
    ends, padded = (_to(torch, torch.from_numpy(arrays[name]), device) for name in ("cu_seqlens", "cu_seqlens_padded"))
    made["packed_seq_params"] = PackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=ends,
        cu_seqlens_kv=ends,
        cu_seqlens_q_padded=padded,
        cu_seqlens_kv_padded=padded,
        max_seqlen_q=arrays["max_seqlen"],
        max_seqlen_kv=arrays["max_seqlen"],
    )
    if "image_grid_thw" in wanted and batch._has("pixel_values"):
        made["pixel_values"] = batch._torch_pixels(torch, device, dtype)
    return made
