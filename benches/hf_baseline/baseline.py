"""Measures what people do without Feedmill: torch's DataLoader with Hugging Face's Qwen3-VL processor on a JSONL manifest and its images.

`python baseline.py FOLDER` reads a folder that make_photos.py made; with `--endpoint URL --bucket NAME` the manifest and the images come from that S3 server instead
(keys from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY). Prints one line per round and ends with one JSON line, the best round.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import resource
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

# Local files only; a name that is not there must fail, not be looked up.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from transformers import AutoTokenizer, Qwen2VLImageProcessor, Qwen3VLProcessor, Qwen3VLVideoProcessor

HERE = Path(__file__).resolve().parent
PACKAGES = ["torch", "torchvision", "transformers", "tokenizers", "pillow", "numpy", "boto3"]
ROLES = {"human": "user", "gpt": "assistant", "system": "system"}


class Store:
    """Reads objects from a folder or from a bucket; the S3 client is made in each process when first used."""

    def __init__(self, folder: Path, endpoint: str | None, bucket: str) -> None:
        self.folder, self.endpoint, self.bucket = folder, endpoint, bucket
        self.client: Any = None

    def get(self, key: str) -> bytes:
        """The bytes under `key`."""
        if self.endpoint is None:
            return (self.folder / key).read_bytes()
        if self.client is None:
            import boto3
            from botocore.config import Config

            settings = Config(s3={"addressing_style": "path"}, max_pool_connections=4)
            self.client = boto3.client("s3", endpoint_url=self.endpoint, region_name="us-east-1", config=settings)
        return self.client.get_object(Bucket=self.bucket, Key=key)["Body"].read()


def conversation(record: dict[str, Any], image: Image.Image) -> list[dict[str, Any]]:
    """A record with one `<image>` placeholder as the messages that the processor takes."""
    messages = []
    for turn in record["conversations"]:
        content: Any = turn["value"]
        if "<image>" in content and turn["from"] == "human":
            before, after = content.split("<image>", 1)
            content = [{"type": "image", "image": image}, {"type": "text", "text": after}]
            content = ([{"type": "text", "text": before}] if before else []) + content
        messages.append({"role": ROLES[turn["from"]], "content": content})
    return messages


class Records(Dataset):
    """The manifest's records with their decoded image."""

    def __init__(self, store: Store, manifest: str) -> None:
        self.store = store
        self.records = [json.loads(line) for line in store.get(manifest).decode("utf-8-sig").split("\n") if line.strip()]
        store.client = None

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> list[dict[str, Any]]:
        record = self.records[index]
        image = Image.open(io.BytesIO(self.store.get(f"images/{record['image']}"))).convert("RGB")
        return conversation(record, image)


class Collate:
    """Conversations to the model's tensors: fp32 pixel_values, image_grid_thw, input_ids, attention_mask, labels."""

    def __init__(self, folder: Path, max_pixels: int) -> None:
        images = Qwen2VLImageProcessor.from_pretrained(folder, size={"shortest_edge": 65536, "longest_edge": max_pixels})
        template = (HERE / "training_template.jinja").read_text(encoding="utf-8")
        self.processor = Qwen3VLProcessor(images, AutoTokenizer.from_pretrained(folder), Qwen3VLVideoProcessor(), chat_template=template)

    def __call__(self, conversations: list[list[dict[str, Any]]]) -> dict[str, torch.Tensor]:
        batch = self.processor.apply_chat_template(
            conversations, tokenize=True, return_dict=True, return_assistant_tokens_mask=True, return_tensors="pt", processor_kwargs={"padding": True}
        )
        mask = torch.as_tensor(batch.pop("assistant_masks")).bool()
        return {**batch, "labels": torch.where(mask, batch["input_ids"], -100)}


def cpu_seconds(workers: list[int]) -> float:
    """CPU time of this process and of the loader's workers so far."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    ticks = 0
    for pid in workers:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return own.ru_utime + own.ru_stime + ticks / os.sysconf("SC_CLK_TCK")


def measure(loader: DataLoader, limit: int) -> dict[str, float]:
    """One pass of about `limit` samples; the clock starts with the first batch, after workers have started and imported."""
    batches = iter(loader)
    next(batches)
    workers = [worker.pid for worker in batches._workers]
    cpu, start = cpu_seconds(workers), time.perf_counter()
    samples = tensor_bytes = supervised = tokens = 0
    for batch in batches:
        samples += batch["input_ids"].shape[0]
        tensor_bytes += sum(tensor.nbytes for tensor in batch.values())
        tokens += int(batch["attention_mask"].sum())
        supervised += int((batch["labels"] != -100).sum())
        if samples >= limit:
            break
    seconds, cpu = time.perf_counter() - start, cpu_seconds(workers) - cpu
    return {
        "samples": samples,
        "seconds": round(seconds, 3),
        "samples_per_second": round(samples / seconds, 2),
        "cpu_seconds_per_sample": round(cpu / samples, 5),
        "bytes_per_sample": round(tensor_bytes / samples),
        "tokens_per_sample": round(tokens / samples, 1),
        "supervised_per_sample": round(supervised / samples, 1),
    }


def main() -> None:
    """Runs the rounds and prints the best."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder laid out as a bucket; the processor's files are always read from here")
    parser.add_argument("--endpoint", help="S3 endpoint; without it images are read from the folder")
    parser.add_argument("--bucket", default="photos")
    parser.add_argument("--manifest", default="data/photos.jsonl")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--samples", type=int, default=256, help="samples of one round, at most the manifest's")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-pixels", type=int, default=602112)
    arguments = parser.parse_args()
    records = Records(Store(arguments.folder, arguments.endpoint, arguments.bucket), arguments.manifest)
    collate = Collate(arguments.folder / "processor", arguments.max_pixels)
    order = torch.Generator().manual_seed(1)
    loader = DataLoader(records, arguments.batch, shuffle=True, num_workers=arguments.workers, collate_fn=collate, generator=order, persistent_workers=True)
    rounds = []
    for _ in range(arguments.rounds):
        rounds.append(measure(loader, arguments.samples))
        print(json.dumps(rounds[-1]), flush=True)
    best = max(rounds, key=lambda result: result["samples_per_second"])
    settings = {"batch": arguments.batch, "workers": arguments.workers, "max_pixels": arguments.max_pixels, "source": "s3" if arguments.endpoint else "folder"}
    versions = {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}
    print(json.dumps({"bench": "hf_baseline", **best, "best_of": len(rounds), "cores": os.cpu_count(), "load": os.getloadavg()[0], **settings, "versions": versions}))


if __name__ == "__main__":
    main()
