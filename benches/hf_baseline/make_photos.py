"""Makes a data set for speed measurements: about 0.9 megapixel photographs of about 150 KiB, one conversation each, laid out as a bucket.

`python make_photos.py OUT [--count 256]` writes OUT/images/NNNN.jpg, OUT/data/photos.jsonl, OUT/processor and OUT/pipeline.yaml (for a bucket named `photos`). Needs Pillow; one
version of Pillow gives the same bytes each time.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import random
import shutil
from pathlib import Path

from PIL import Image, ImageChops

GOLDEN = Path(__file__).resolve().parent.parent.parent / "tests" / "golden"
SIZES = [(1164, 776), (776, 1164), (1100, 822), (952, 950), (1268, 713)]
TARGET_BYTES = 150 * 1024
# The photographs are smaller than what is made of them. Grain gives back the fine detail that a photograph of this size has, so that the JPEG's cost is real.
GRAIN = 0.10

OPENINGS = ["The picture shows", "In the foreground there is", "Behind it one can see", "On the left stands", "Near the edge lies", "The light falls on"]
THINGS = ["a wooden table", "a tall tower", "a quiet lake", "a row of lamps", "a white helmet", "an animal with green eyes", "a field of small lights", "a red cup"]
ENDINGS = ["and its surface is worn.", "which takes up most of the frame.", "partly hidden by a shadow.", "with a clear sky above it.", "and nobody is near it.", "in warm colours."]

PIPELINE = """\
apiVersion: feedmill.dev/v1alpha1
kind: DataPipeline
metadata:
  name: photos
spec:
  s3: {{region: us-east-1, forcePathStyle: true}}
  streams:
    - name: train
      seed: 42
      shuffle: true
      badSamples: Fail
      datasets:
        - {{name: photos, uri: "s3://photos/data/photos.jsonl", imageBaseUri: "s3://photos/images/", recordFormat: Auto, percent: 100}}
  processor:
    uri: "s3://photos/processor/"
    minPixels: 65536
    maxPixels: {max_pixels}
    maxTokens: 4096
    tooLong: ShrinkImages
  cache: {{sharedMemory: 2Gi}}
"""


def photograph(draw: random.Random, sources: list[Image.Image], number: int) -> Image.Image:
    """A drawn crop of one of the photographs in one of the sizes, with grain."""
    width, height = SIZES[number % len(SIZES)]
    source = sources[number % len(sources)]
    ratio = width / height
    share = draw.uniform(0.7, 1.0)
    crop_width = share * min(source.width, source.height * ratio)
    crop_height = crop_width / ratio
    left, top = draw.uniform(0, source.width - crop_width), draw.uniform(0, source.height - crop_height)
    box = (left, top, left + crop_width, top + crop_height)
    picture = source.resize((width, height), Image.Resampling.BICUBIC, box=box)
    grain = Image.frombytes("L", (width, height), draw.randbytes(width * height)).point([round(128 + (value - 128) * GRAIN) for value in range(256)])
    return ImageChops.add(picture, Image.merge("RGB", [grain] * 3), scale=1, offset=-128)


def encode(picture: Image.Image) -> bytes:
    """The JPEG (4:2:0, baseline) of the quality whose size comes nearest to the target."""
    best = b""
    low, high = 30, 97
    while low <= high:
        quality = (low + high) // 2
        buffer = io.BytesIO()
        picture.save(buffer, "JPEG", quality=quality)
        data = buffer.getvalue()
        if abs(len(data) - TARGET_BYTES) < abs(len(best) - TARGET_BYTES):
            best = data
        low, high = (quality + 1, high) if len(data) < TARGET_BYTES else (low, quality - 1)
    return best


def prose(draw: random.Random, sentences: int) -> str:
    """Some sentences of a description."""
    return " ".join(f"{draw.choice(OPENINGS)} {draw.choice(THINGS)}, {draw.choice(ENDINGS)}" for _ in range(sentences))


def record(draw: random.Random, number: int) -> dict[str, object]:
    """A conversation of two turns, about 1,000 bytes, on one photograph."""
    turns = [
        ("human", f"<image>\nDescribe photograph {number} in detail."),
        ("gpt", prose(draw, 9)),
        ("human", "What else is there?"),
        ("gpt", prose(draw, 4)),
    ]
    return {"id": f"photo-{number:04}", "image": f"{number:04}.jpg", "conversations": [{"from": who, "value": text} for who, text in turns]}


def main() -> None:
    """Writes the data set."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, default=256)
    parser.add_argument("--max-pixels", type=int, default=602112, help="written to pipeline.yaml")
    arguments = parser.parse_args()
    out: Path = arguments.out
    for name in ("images", "data", "processor"):
        (out / name).mkdir(parents=True, exist_ok=True)
    sources = [Image.open(path).convert("RGB") for path in sorted((GOLDEN / "photos").iterdir())]
    draw = random.Random(9)
    total = 0
    with open(out / "data" / "photos.jsonl", "w", encoding="utf-8", newline="\n") as manifest:
        for number in range(arguments.count):
            data = encode(photograph(draw, sources, number))
            total += len(data)
            (out / "images" / f"{number:04}.jpg").write_bytes(data)
            manifest.write(json.dumps(record(draw, number)) + "\n")
    for name in ("tokenizer_config.json", "preprocessor_config.json", "chat_template.jinja"):
        shutil.copyfile(GOLDEN / "tokenizer" / name, out / "processor" / name)
    (out / "processor" / "tokenizer.json").write_bytes(gzip.decompress((GOLDEN / "tokenizer" / "tokenizer.json.gz").read_bytes()))
    (out / "pipeline.yaml").write_text(PIPELINE.format(max_pixels=arguments.max_pixels))
    print(f"{arguments.count} photographs, {total / arguments.count / 1024:.0f} KiB each on average, in {out}")


if __name__ == "__main__":
    main()
