"""For Megatron-LM: ranks and counts from its own state, and what its attention takes. Imports it when it is called."""

from __future__ import annotations

from typing import Any

from .batch import Batch


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
        "global_batch": global_batch(args),
        "micro_batch": args.micro_batch_size,
        "consumed": args.consumed_train_samples,
        "model_parallel_size": max(1, args.world_size // dp_size),
    }
    return cls(source, **(defaults | settings))


def global_batch(args: Any) -> Any:
    """Megatron's global batch: a number, or with --rampup-batch-size START INCREMENT SAMPLES the schedule that Megatron
    follows."""
    if args.rampup_batch_size is None:
        return args.global_batch_size
    start, increment, samples = (int(value) for value in args.rampup_batch_size)
    whole = args.global_batch_size
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
    image_grid_thw. With context parallelism give ``per_segment_multiple=2 * cp``.
    """
    import torch
    from megatron.core.packed_seq_params import PackedSeqParams

    arrays = batch.packed(per_segment_multiple=per_segment_multiple)
    tensors = {name: torch.from_numpy(value).to(device) for name, value in arrays.items() if name != "max_seqlen"}
    ends, padded = tensors["cu_seqlens"], tensors["cu_seqlens_padded"]
    made = {
        "tokens": tensors["input_ids"],
        "labels": tensors["shifted_labels"],
        "loss_mask": (tensors["shifted_labels"] != -100).to(torch.float32),
        "position_ids": tensors["position_ids"],
        "packed_seq_params": PackedSeqParams(
            qkv_format="thd",
            cu_seqlens_q=ends,
            cu_seqlens_kv=ends,
            cu_seqlens_q_padded=padded,
            cu_seqlens_kv_padded=padded,
            max_seqlen_q=arrays["max_seqlen"],
            max_seqlen_kv=arrays["max_seqlen"],
        ),
    }
    pixels = batch.torch(device, dtype)
    return made | {name: pixels[name] for name in ("pixel_values", "image_grid_thw") if name in pixels}
