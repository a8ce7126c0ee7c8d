"""Takes image files, gives what images.json and photos.json say about them: RGB by the decode policy, then Hugging Face's patches."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from transformers import Qwen2VLImageProcessor

Json = dict[str, Any]
ORIENTATION = 0x0112


class PictureError(Exception):
    """A file that is no picture, with the class of the fault."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind, self.detail = kind, detail


def sha256(data: bytes) -> str:
    """Hexadecimal SHA-256."""
    return hashlib.sha256(data).hexdigest()


def open_picture(data: bytes) -> Image.Image:
    """The decoded first frame. Pillow's own limit, 178,956,970 pixels, is the policy's."""
    if not data:
        raise PictureError("empty", "zero bytes")
    try:
        image = Image.open(io.BytesIO(data), formats=["JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF"])
        image.load()
    except Image.DecompressionBombError as error:
        raise PictureError("too_large", type(error).__name__) from error
    except UnidentifiedImageError as error:
        raise PictureError("unsupported", type(error).__name__) from error
    except OSError as error:
        truncated = str(error).startswith("image file is truncated")
        raise PictureError("corrupt", f"OSError: {error}" if truncated else "OSError") from error
    return image


def to_rgb(image: Image.Image) -> np.ndarray:
    """The policy's RGB [H, W, 3]: EXIF applied, alpha on white, 16 bit by its high byte, CMYK as Pillow has it, profiles ignored."""
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16"):
        gray = (np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8)
        return np.repeat(gray[:, :, None], 3, axis=2)
    if image.mode in ("LA", "RGBA", "PA") or "transparency" in image.info:
        pixels = np.asarray(image.convert("RGBA")).astype(np.uint32)
        color, alpha = pixels[:, :, :3], pixels[:, :, 3:]
        # 255 is odd, so nothing lies half-way and adding 127 rounds.
        return ((color * alpha + 255 * (255 - alpha) + 127) // 255).astype(np.uint8)
    return np.asarray(image.convert("RGB"))


def reference(data: bytes, image: Image.Image) -> Json:
    """What Pillow says of the file as it is stored."""
    stored = Image.open(io.BytesIO(data))
    said: Json = {"outcome": "ok", "format": stored.format, "mode": stored.mode, "width": stored.width, "height": stored.height}
    if stored.format == "MPO":
        said["format"] = "JPEG"
    elif getattr(image, "n_frames", 1) > 1:
        said["frames"] = image.n_frames
    orientation = stored.getexif().get(ORIENTATION)
    return said if orientation is None else {**said, "orientation": orientation}


def processor(config: Json) -> Qwen2VLImageProcessor:
    """Hugging Face's image processor (torchvision backend) with a setting of images.json."""
    return Qwen2VLImageProcessor(**config)


def lookup_table(config: Json) -> tuple[np.ndarray, np.ndarray]:
    """What the processor makes of every byte, per channel: f32 [3, 256] and bf16 bits u16 [3, 256]."""
    made = processor(config)
    every_byte = torch.arange(256, dtype=torch.uint8).expand(1, 3, 1, 256)
    values = made.rescale_and_normalize(every_byte, True, made.rescale_factor, True, tuple(made.image_mean), tuple(made.image_std))[0, :, 0]
    return values.numpy(), values.to(torch.bfloat16).view(torch.uint16).numpy()


def patches(made: Qwen2VLImageProcessor, rgb: list[np.ndarray]) -> tuple[Json, np.ndarray, list[list[int]]]:
    """Hashes of the processor's pixel_values for some pictures, the u8 patches [rows, 3*p*p] behind them, and their grids."""
    pictures = [Image.fromarray(picture) for picture in rgb]
    batch = made(pictures, return_tensors="pt")
    plain = made(pictures, return_tensors="pt", do_rescale=False, do_normalize=False)["pixel_values"].to(torch.uint8)
    slots = plain.view(plain.shape[0], 3, made.temporal_patch_size, made.patch_size**2)
    assert torch.equal(slots[:, :, 0], slots[:, :, 1]), "the temporal slots of a still picture differ"
    values = batch["pixel_values"]
    bits = values.to(torch.bfloat16).view(torch.int16).numpy()
    hashes = {"fp32_sha256": sha256(values.numpy().tobytes()), "bf16_sha256": sha256(bits.tobytes())}
    return hashes, slots[:, :, 0].reshape(plain.shape[0], -1).numpy(), batch["image_grid_thw"].tolist()


def table_agrees(config: Json, u8: np.ndarray, hashes: Json) -> bool:
    """Whether the lookup table rebuilds exactly the processor's fp32 from the u8 patches."""
    table, _ = lookup_table(config)
    channels = u8.reshape(len(u8), 3, 1, -1)
    rebuilt = np.stack([table[channel][channels[:, channel]] for channel in range(3)], axis=1)
    return sha256(np.repeat(rebuilt, 2, axis=2).tobytes()) == hashes["fp32_sha256"]


def configuration_entry(config: Json, rgb: np.ndarray) -> tuple[Json, np.ndarray | None]:
    """The entry of one picture under one setting, and its u8 patches."""
    made = processor(config)
    try:
        hashes, u8, grids = patches(made, [rgb])
    except ValueError as error:
        assert "aspect ratio" in str(error)
        return {"outcome": "error", "class": "aspect_ratio"}, None
    assert table_agrees(config, u8, hashes), "the lookup table does not give the processor's values"
    grid = grids[0]
    resized = [grid[1] * made.patch_size, grid[2] * made.patch_size]
    entry = {"outcome": "ok", "grid_thw": grid, "resized": resized, "tokens": grid[1] * grid[2] // made.merge_size**2, **hashes}
    return {**entry, "rows": len(u8), "u8_sha256": sha256(u8.tobytes())}, u8


def entry(root: Path, committed: Json, configs: Json, tensors: dict[str, np.ndarray]) -> Json:
    """A file's entry made anew; its name, kind and accepted outcomes are taken from the committed one. Arrays are added to `tensors`."""
    data = (root / committed["file"]).read_bytes()
    made: Json = {"file": committed["file"], "kind": committed["kind"], "bytes": len(data), "sha256": sha256(data), "accept": committed["accept"]}
    try:
        image = open_picture(data)
    except PictureError as error:
        return {**made, "reference": {"outcome": "error", "class": error.kind, "detail": error.detail}}
    rgb = to_rgb(image)
    tensors[f"rgb/{committed['file']}"] = rgb
    mean = [round(float(rgb[:, :, channel].mean()), 3) for channel in range(3)]
    made |= {"reference": reference(data, image), "rgb": {"height": rgb.shape[0], "width": rgb.shape[1], "sha256": sha256(rgb.tobytes()), "mean": mean}}
    made["configs"] = {}
    for name in committed["configs"]:
        made["configs"][name], u8 = configuration_entry(configs[name], rgb)
        if u8 is not None:
            tensors[f"{name}/{committed['file']}"] = u8
    return made
