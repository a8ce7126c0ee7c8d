"""Makes the expected outputs again with the real Hugging Face packages, from the inputs in this folder.

`--check` prints what differs and exits with 1 if anything does. `--write` rewrites the files whose content differs. `--tensors DIR` also stores the arrays whose hashes are
kept: rgb.safetensors and patches.safetensors.

Made anew: images.json, photos.json, lut.safetensors, text.json, batches.json, batch-N.safetensors, versions.json and the results in smart_resize.csv. bad.json and forms.json were
written by hand with the manifests they belong to.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import os
import shutil
import sys
import tempfile
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any, Iterator

# Local files only; a name that is not there must fail, not be looked up.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
import torchvision
from PIL import Image, features
from safetensors.numpy import load_file, save_file
from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

import conversations as texts
import pictures

ROOT = Path(__file__).resolve().parent
EXPECTED = ROOT / "expected"
Json = dict[str, Any]
Tensors = dict[str, np.ndarray]


def committed(name: str) -> Any:
    """A file of expected/ as it stands."""
    path = EXPECTED / name
    return load_file(path) if name.endswith(".safetensors") else json.loads(path.read_text(encoding="utf-8"))


def versions() -> Json:
    """The packages in use, and what is known of the inputs."""
    libraries = {"libjpeg_turbo": features.version("libjpeg_turbo"), "libwebp": features.version("webp"), "libtiff": features.version("libtiff")}
    packages = {"transformers": version("transformers"), "torch": str(torch.__version__), "torchvision": str(torchvision.__version__), "tokenizers": version("tokenizers")}
    rest = {key: value for key, value in committed("versions.json").items() if key in ("tokenizer", "seed")}
    tokenizer = pictures.sha256(gzip.decompress((ROOT / "tokenizer" / "tokenizer.json.gz").read_bytes()))
    return {**packages, "pillow": version("pillow"), **libraries, "numpy": np.__version__, **rest, "tokenizer_json_sha256": tokenizer}


def image_files(name: str, tensors: Tensors) -> Json:
    """images.json or photos.json."""
    old = committed(name)
    used = {key: value for key, value in versions().items() if key in old["versions"]}
    return {"configs": old["configs"], "versions": used, "images": [pictures.entry(ROOT, entry, old["configs"], tensors) for entry in old["images"]]}


def lookup_tables() -> Tensors:
    """lut.safetensors."""
    configs = committed("images.json")["configs"]
    made: Tensors = {}
    for name in ("q3-small", "q25-small"):
        made[f"{name}/f32"], made[f"{name}/bf16_bits"] = pictures.lookup_table(configs[name])
    return made


def resized_sizes() -> str:
    """smart_resize.csv with the results made anew."""
    out = io.StringIO()
    rows = list(csv.DictReader((ROOT / "smart_resize.csv").open(newline="")))
    writer = csv.DictWriter(out, rows[0].keys(), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        height, width, patch, merge, least, most = (int(row[key]) for key in ("height", "width", "patch_size", "merge_size", "min_pixels", "max_pixels"))
        result = {"outcome": "aspect_ratio", "resized_height": "", "resized_width": "", "image_tokens": ""}
        try:
            high, wide = smart_resize(height, width, patch * merge, least, most)
            result = {"outcome": "ok", "resized_height": high, "resized_width": wide, "image_tokens": high * wide // (patch * merge) ** 2}
        except ValueError:
            pass
        writer.writerow({**row, **result})
    return out.getvalue()


def reference(folder: Path, config: Json) -> texts.Reference:
    """The processor, from a folder with the unpacked tokenizer."""
    for name in ("tokenizer_config.json", "chat_template.jinja", "preprocessor_config.json"):
        shutil.copyfile(ROOT / "tokenizer" / name, folder / name)
    (folder / "tokenizer.json").write_bytes(gzip.decompress((ROOT / "tokenizer" / "tokenizer.json.gz").read_bytes()))
    return texts.Reference(folder, config)


def batches(hf: texts.Reference, samples: dict[str, Json], rgb: Tensors, chats: dict[str, list[Json]]) -> Iterator[tuple[str, Any]]:
    """The batch files and, last, batches.json."""
    old = committed("batches.json")
    entries = []
    for entry in old["batches"]:
        rows = [samples[name] for name in entry["samples"]]
        names = [image["file"] for row in rows for image in row["images"]]
        tensors = texts.batch_tensors(hf, rows)
        made: Json = {"file": entry["file"], "samples": entry["samples"], "lengths": [len(row["input_ids"]) for row in rows], "images": names}
        answer = texts.ask(hf, [chats[row["id"]] for row in rows], None, sanitize_control_tokens=True, return_tensors="pt", processor_kwargs={"padding": True})
        for key in ("input_ids", "attention_mask", "mm_token_type_ids"):
            assert np.array_equal(answer[key].numpy(), tensors[f"padded.{key}"]), f"the processor's {key} of {entry['file']}"
        if names:
            hashes, u8, _ = pictures.patches(hf.images, [rgb[name] for name in names])
            assert pictures.sha256(answer["pixel_values"].numpy().tobytes()) == hashes["fp32_sha256"]
            made["pixel_values_shape"] = list(answer["pixel_values"].shape)
            made |= {f"pixel_values_{key}": value for key, value in hashes.items()}
            made |= {"patches_shape": list(u8.shape), "patches_u8_sha256": pictures.sha256(u8.tobytes())}
        entries.append(made)
        yield entry["file"], tensors
        if any("keep_content" in row for row in rows):
            kept = texts.batch_tensors(hf, [{**row, **row.get("keep_content", {})} for row in rows])
            same = ("ragged.images_per_sample", "ragged.image_grid_thw")
            yield entry["file"].replace(".", "-keep_content."), {key: value for key, value in kept.items() if key not in same}
    yield "batches.json", {"config": old["config"], "batches": entries}


def text_and_batches() -> Iterator[tuple[str, Any]]:
    """text.json and everything about the batches."""
    old = committed("text.json")
    records = [json.loads(line) for line in (ROOT / "manifests" / "openai.jsonl").read_text(encoding="utf-8").split("\n") if line]
    rgb: Tensors = {}
    for path in sorted((ROOT / "images").iterdir()):
        try:
            rgb[f"images/{path.name}"] = pictures.to_rgb(pictures.open_picture(path.read_bytes()))
        except pictures.PictureError:
            continue
    with tempfile.TemporaryDirectory() as folder:
        hf = reference(Path(folder), committed("images.json")["configs"][old["config"]])
    samples, chats = {}, {}
    for entry in old["samples"]:
        record = records[entry["manifests"]["openai"] - 1]
        samples[entry["id"]] = texts.sample(hf, entry, record, rgb, old["turn_tokens"])
        chats[entry["id"]] = texts.chat(record, rgb)[0]
    yield "text.json", {**old, "control_tokens": hf.control_tokens(), "samples": list(samples.values())}
    yield from batches(hf, samples, rgb, chats)


def differences(old: Any, new: Any, path: str) -> Iterator[str]:
    """Where two values differ, named by path."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            if key not in old or key not in new:
                yield f"{path}/{key}: only in the {'new' if key in new else 'committed'}"
            else:
                yield from differences(old[key], new[key], f"{path}/{key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, pair in enumerate(zip(old, new)):
            name = pair[0].get("file") or pair[0].get("id") or index if isinstance(pair[0], dict) else index
            yield from differences(*pair, f"{path}/{name}")
    elif isinstance(old, np.ndarray) and isinstance(new, np.ndarray):
        if old.dtype != new.dtype or old.shape != new.shape or old.tobytes() != new.tobytes():
            yield f"{path}: {old.dtype}{list(old.shape)} is {new.dtype}{list(new.shape)} with other values"
    elif isinstance(old, str) and isinstance(new, str) and old.count("\n") == new.count("\n") > 1:
        yield from differences(old.split("\n"), new.split("\n"), path)
    elif type(old) is not type(new) or old != new:
        yield f"{path}: {str(old)[:100]} is {str(new)[:100]}"


def write(path: Path, value: Any) -> None:
    """Writes a file in the form in which it is committed."""
    if path.suffix == ".safetensors":
        save_file({key: np.ascontiguousarray(tensor) for key, tensor in value.items()}, path)
    elif path.suffix == ".csv":
        path.write_text(value, encoding="utf-8")
    else:
        form: Json = {"separators": (",", ":")} if path.name == "text.json" else {"indent": 1}
        path.write_text(json.dumps(value, ensure_ascii=False, **form) + "\n", encoding="utf-8")


def made_files(tensors: Tensors) -> Iterator[tuple[Path, Any, Any]]:
    """Every file: its path, its committed content and its content made anew."""
    yield EXPECTED / "versions.json", committed("versions.json"), versions()
    yield ROOT / "smart_resize.csv", (ROOT / "smart_resize.csv").read_text(encoding="utf-8"), resized_sizes()
    yield EXPECTED / "lut.safetensors", committed("lut.safetensors"), lookup_tables()
    for name in ("photos.json", "images.json"):
        yield EXPECTED / name, committed(name), image_files(name, tensors)
    for name, value in text_and_batches():
        yield EXPECTED / name, committed(name), value


def main() -> int:
    """Checks or writes; gives the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--check", action="store_true", help="compare and report")
    mode.add_argument("--write", action="store_true", help="rewrite what differs")
    parser.add_argument("--tensors", type=Path, help="folder for the arrays behind the hashes")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", Image.DecompressionBombWarning)
    tensors: Tensors = {}
    count = 0
    for path, old, new in made_files(tensors):
        found = list(differences(old, new, path.name))
        count += len(found)
        print(f"{path.name}: {len(found)} differences", *found[:10], sep="\n  ", flush=True)
        if found and arguments.write:
            write(path, new)
    if arguments.tensors:
        arguments.tensors.mkdir(parents=True, exist_ok=True)
        for name, is_rgb in (("rgb", True), ("patches", False)):
            save_file({key: np.ascontiguousarray(value) for key, value in tensors.items() if key.startswith("rgb/") == is_rgb}, arguments.tensors / f"{name}.safetensors")
    return 1 if count and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
