"""A tiny vision-language model that learns, on a CPU, in a few minutes: what a training script looks like, and that one which was
stopped goes on to the same losses. Needs torch.

    python examples/train_tiny.py pipeline.yaml --steps 60 --checkpoint /tmp/tiny --stop-after 40
    python examples/train_tiny.py pipeline.yaml --steps 60 --checkpoint /tmp/tiny          # goes on after step 40
    python examples/train_tiny.py pipeline.yaml --steps 60                                 # the same losses, never stopped
"""

from __future__ import annotations

import argparse
import math
import os

import torch
from torch import nn
from torch.nn import functional

import feedmill


class TinyModel(nn.Module):
    """Patches become image tokens by one linear map and a mean over each merged block; then a causal transformer."""

    def __init__(self, vocabulary: int, patch_values: int, merge: int, width: int = 96, layers: int = 2) -> None:
        super().__init__()
        self.merged = merge * merge
        self.words = nn.Embedding(vocabulary, width)
        self.patches = nn.Linear(patch_values, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, vocabulary)
        self.width = width

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        mm_token_type_ids: torch.Tensor,
        position_ids: torch.Tensor,
        labels: torch.Tensor,
        pixel_values: torch.Tensor | None = None,
        image_grid_thw: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The sum of the losses of all tokens that are learnt: a mean over the micro batch would weigh tokens by where they stand."""
        hidden = self.words(input_ids)
        if pixel_values is not None:
            images = self.patches(pixel_values).view(-1, self.merged, self.width).mean(1)
            hidden = hidden.masked_scatter((mm_token_type_ids == 1).unsqueeze(-1), images)
        hidden = hidden + sum(self.positions(axis) for axis in position_ids)
        length = input_ids.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool).triu(1)
        hidden = self.layers(hidden, mask=causal, src_key_padding_mask=attention_mask == 0, is_causal=True)
        logits = self.out(hidden[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), reduction="sum", ignore_index=-100)

    def positions(self, positions: torch.Tensor) -> torch.Tensor:
        rates = torch.exp(torch.arange(0, self.width, 2) * (-math.log(10_000) / self.width))
        angles = positions.unsqueeze(-1) * rates
        return torch.cat([angles.sin(), angles.cos()], -1)


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains a tiny model on a CPU.")
    parser.add_argument("source", help="http://HOST:PORT of workers, or a pipeline's file")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--global-batch", type=int, default=8)
    parser.add_argument("--micro-batch", type=int, default=2)
    parser.add_argument("--vocabulary", type=int, default=2_304, help="tokens of the model; the quickstart has few, Qwen3 151,936")
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--checkpoint", help="a folder; resumed from when it has a checkpoint")
    parser.add_argument("--every", type=int, default=10, help="steps between checkpoints")
    parser.add_argument("--stop-after", type=int, help="ends after this step, as if it had been stopped")
    arguments = parser.parse_args()

    # Sums come out the same only in the same order.
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    loader = feedmill.Loader(
        arguments.source,
        dp_rank=0,
        dp_size=1,
        global_batch=arguments.global_batch,
        micro_batch=arguments.micro_batch,
        max_steps=arguments.steps,
    )
    facts = loader.model
    model = TinyModel(arguments.vocabulary, 3 * facts["temporal"] * facts["patch"] ** 2, facts["merge"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.rate)
    path = arguments.checkpoint and os.path.join(arguments.checkpoint, "checkpoint.pt")
    if path and os.path.exists(path):
        saved = torch.load(path, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        print(f"goes on after {loader.consumed} samples", flush=True)

    loss, supervised = 0.0, 0
    for batch in loader:
        summed = model(**batch.torch())
        summed.backward()
        loss, supervised = loss + summed.item(), supervised + batch.num_supervised
        if not loader.at_step_boundary:
            continue
        # What the step's loss is divided by is known now; with several ranks it is summed over them first.
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad /= max(supervised, 1)
        optimizer.step()
        optimizer.zero_grad()
        step = loader.consumed // arguments.global_batch
        print(f"step {step}: loss {loss / max(supervised, 1):.6f} over {supervised} tokens", flush=True)
        loss, supervised = 0.0, 0
        if path and step % arguments.every == 0:
            os.makedirs(arguments.checkpoint, exist_ok=True)
            torch.save(
                {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}, f"{path}.tmp"
            )
            os.replace(f"{path}.tmp", path)
            loader.save_plan(arguments.checkpoint)
        if step == arguments.stop_after:
            break
    loader.close()


if __name__ == "__main__":
    main()
