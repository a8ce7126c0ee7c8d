"""A training without a model: numpy only. It reads batches as a trainer does, takes a step's time, writes checkpoints, and says how
long it waited. Killed and started again it goes on from its last checkpoint, and its chain of sample hashes is the same as if nothing
had happened.

    python examples/train_sim.py pipeline.yaml                   # workers are started on this machine
    feedmill local pipeline.yaml --serve                         # in another terminal: workers that go on, and where they are
    python examples/train_sim.py http://127.0.0.1:8470           # those: the same chain
    feedmill local examples/quickstart/pipeline.yaml --embedded-s3 quickstart=examples/quickstart/bucket --serve    # without data of your own
    torchrun --nproc-per-node 4 examples/train_sim.py ...        # ranks from RANK and WORLD_SIZE
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time

import numpy as np

import feedmill


def main() -> None:
    parser = argparse.ArgumentParser(description="A training without a model.")
    parser.add_argument("source", help="http://HOST:PORT of workers, file:LIST of them, or a pipeline's file")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--global-batch", type=int, default=16)
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--step-seconds", type=float, default=0.2, help="how long a step computes")
    parser.add_argument("--checkpoint", help="a folder; resumed from when it has a checkpoint")
    parser.add_argument("--every", type=int, default=5, help="steps between checkpoints")
    arguments = parser.parse_args()

    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    loader = feedmill.Loader(
        arguments.source,
        dp_rank=rank,
        dp_size=size,
        global_batch=arguments.global_batch,
        micro_batch=arguments.micro_batch,
        max_steps=arguments.steps,
    )
    per_step = arguments.global_batch // (size * arguments.micro_batch)
    chain = b""
    path = arguments.checkpoint and os.path.join(arguments.checkpoint, f"rank-{rank}.json")
    if path and os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            saved = json.load(file)
        loader.load_state_dict(saved["loader"])
        chain = bytes.fromhex(saved["chain"])
        print(f"rank {rank}: goes on after {loader.consumed} samples", flush=True)

    supervised = 0
    for batch in loader:
        arrays = batch.numpy()
        # What a model would do with it.
        checksum = int(arrays["patches"].sum(dtype=np.int64)) + int(arrays["tokens"].sum())
        chain = hashlib.sha256(chain + arrays["sample_hash"].tobytes() + checksum.to_bytes(8, "little")).digest()
        supervised += batch.num_supervised
        time.sleep(arguments.step_seconds / per_step)
        if path and loader.at_step_boundary and (loader.steps or 0) % arguments.every == 0:
            os.makedirs(arguments.checkpoint, exist_ok=True)
            with open(f"{path}.tmp", "w", encoding="utf-8") as file:
                json.dump({"loader": loader.state_dict(), "chain": chain.hex()}, file)
            os.replace(f"{path}.tmp", path)
            if rank == 0:
                loader.save_plan(arguments.checkpoint)
                print(f"rank 0: checkpoint after {loader.consumed} samples", flush=True)

    stats = loader.stats()
    print(
        f"rank {rank}: {stats['consumed']} samples in {arguments.steps} steps, {supervised} supervised tokens, waited "
        f"{stats['waited']:.2f} s ({100 * stats['wait_ratio']:.1f} %), chain {chain.hex()[:16]}",
        flush=True,
    )
    loader.close()


if __name__ == "__main__":
    main()
