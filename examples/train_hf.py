"""Hugging Face's Trainer over Feedmill: a Qwen3-VL of random weights, small enough for a CPU, on the quickstart's data. Needs torch,
transformers and accelerate.

    python examples/train_hf.py pipeline.yaml --out /tmp/hf --steps 6
    torchrun --nproc-per-node 2 --rdzv-id tiny examples/train_hf.py http://127.0.0.1:8470 --out /tmp/hf --steps 6
    ... --resume           # goes on at the last checkpoint in --out
"""

from __future__ import annotations

import argparse
import os

import torch
import transformers

import feedmill.hf


class Trainer(feedmill.hf.TrainerMixin, transformers.Trainer):
    pass


def tiny_model(facts: dict[str, int], vocabulary: int) -> torch.nn.Module:
    """Its shape is Qwen3-VL's, its size is not."""
    hidden, depth = 64, 2
    config = transformers.Qwen3VLConfig(
        text_config={
            "vocab_size": vocabulary,
            "hidden_size": hidden,
            "intermediate_size": 2 * hidden,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "pad_token_id": facts["pad_id"],
            "rope_parameters": {"rope_type": "default", "mrope_section": [4, 2, 2], "mrope_interleaved": True, "rope_theta": 5e6},
        },
        vision_config={
            "depth": depth,
            "hidden_size": hidden,
            "intermediate_size": 2 * hidden,
            "num_heads": 4,
            "out_hidden_size": hidden,
            "patch_size": facts["patch"],
            "temporal_patch_size": facts["temporal"],
            "spatial_merge_size": facts["merge"],
            "deepstack_visual_indexes": [0],
        },
        image_token_id=facts["image_pad_id"],
        vision_start_token_id=facts["vision_start_id"],
        vision_end_token_id=facts["vision_end_id"],
    )
    torch.manual_seed(0)
    return transformers.Qwen3VLForConditionalGeneration(config)


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains a tiny Qwen3-VL with Hugging Face's Trainer.")
    parser.add_argument("source", help="http://HOST:PORT of workers, or a pipeline's file")
    parser.add_argument("--out", required=True, help="a folder for checkpoints")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--save-steps", type=int, default=2)
    parser.add_argument("--vocabulary", type=int, default=2_304)
    parser.add_argument("--eval-samples", type=int, default=0, help="samples of the same stream that are evaluated every --save-steps")
    parser.add_argument("--resume", action="store_true")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    args = transformers.TrainingArguments(
        output_dir=arguments.out,
        per_device_train_batch_size=2,
        per_device_eval_batch_size=2,
        gradient_accumulation_steps=2,
        max_steps=arguments.steps,
        learning_rate=2e-3,
        lr_scheduler_type="constant",
        logging_steps=1,
        save_steps=arguments.save_steps,
        eval_strategy="steps" if arguments.eval_samples else "no",
        eval_steps=arguments.save_steps,
        report_to=[],
        use_cpu=True,
        seed=0,
        disable_tqdm=True,
        ddp_backend="gloo" if "WORLD_SIZE" in os.environ else None,
        ddp_find_unused_parameters=False,
    )
    # Only to see what the model's processor is like; another run than the training's.
    look = feedmill.Loader(
        arguments.source, dp_rank=0, dp_size=1, global_batch=1, micro_batch=1, model_parallel_size=args.world_size, run="look"
    )
    with look:
        facts = look.model
    evaluation = {"samples": arguments.eval_samples} if arguments.eval_samples else None
    trainer = Trainer(
        model=tiny_model(facts, arguments.vocabulary),
        args=args,
        feedmill={"source": arguments.source, "ensure_image": True},
        feedmill_eval=evaluation,
        # The model's own is a mean of means, and knows nothing of the other ranks' tokens.
        compute_loss_func=feedmill.hf.token_loss,
    )
    trainer.train(resume_from_checkpoint=arguments.resume)


if __name__ == "__main__":
    main()
