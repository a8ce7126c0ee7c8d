"""Makes the quickstart's tokenizer: Qwen's layout with a small vocabulary.

Run after make_data.py: `python examples/quickstart/make_tokenizer.py`. Needs only the standard library, and the same texts give the same bytes.

The layout is that of Qwen3's tokenizer.json: NFC, the same split pattern, byte-level BPE, and the same added tokens with the same flags. Only the merges are
fewer, learned from the quickstart's own texts and the licence, so ids are small and differ from Qwen's.
"""

from __future__ import annotations

import gzip
import json
import re
import unicodedata
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, Iterator

HERE = Path(__file__).resolve().parent
DATA = HERE / "bucket" / "data"
PROCESSOR = HERE / "bucket" / "processor"
MERGES = 2000

# Qwen's own pattern, as it stands in tokenizer.json.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# The same for `re`, which has no \p{..}. It may split a rare word otherwise; that changes which merges are learned, never how they are applied.
TRAINING_SPLIT = re.compile(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|(?:(?![\r\n])[\W_])?[^\W\d_]+|\d| ?(?:(?!\s)[\W_])+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
SPECIAL += [f"<|{name}_{side}|>" for name in ("object_ref", "box", "quad", "vision") for side in ("start", "end")]
SPECIAL += ["<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"]
PLAIN = ["<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"]
PLAIN += ["<tool_response>", "</tool_response>", "<think>", "</think>"]


def byte_letters() -> list[str]:
    """The letter that stands for each byte in a byte-level vocabulary: itself where it prints, else one from U+0100 on."""
    printing = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printing else chr(next(others)) for byte in range(256)]


def strings(value: Any) -> Iterator[str]:
    """All strings inside a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from strings(item)


def corpus() -> Iterator[str]:
    """The texts to learn from: the manifests' conversations and the licence."""
    yield (HERE.parent.parent / "LICENSE").read_text(encoding="utf-8")
    manifests = [(DATA / "captions.jsonl").read_bytes(), gzip.decompress((DATA / "chat.jsonl.gz").read_bytes())]
    for raw in b"\n".join(manifests).decode("utf-8-sig").split("\n"):
        try:
            record = json.loads(raw)
        except ValueError:
            continue
        yield from strings(record.get("conversations") or record.get("messages"))


def learn(words: Counter[str], count: int) -> list[tuple[str, str]]:
    """The `count` merges of byte-pair encoding over `words`; of equally frequent pairs the first in code point order."""
    letters = byte_letters()
    pieces = [[letters[byte] for byte in word.encode()] for word in words]
    weights = list(words.values())
    pairs: Counter[tuple[str, str]] = Counter()
    where: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    for index, piece in enumerate(pieces):
        for pair in zip(piece, piece[1:]):
            pairs[pair] += weights[index]
            where[pair].add(index)
    merges = []
    while len(merges) < count:
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        for index in where.pop(best):
            piece = pieces[index]
            for pair in zip(piece, piece[1:]):
                pairs[pair] -= weights[index]
            pieces[index] = piece = merged(piece, best)
            for pair in zip(piece, piece[1:]):
                pairs[pair] += weights[index]
                where[pair].add(index)
        del pairs[best]
    return merges


def merged(piece: list[str], pair: tuple[str, str]) -> list[str]:
    """`piece` with every occurrence of `pair`, from the left, made one."""
    result: list[str] = []
    position = 0
    while position < len(piece):
        length = 2 if tuple(piece[position : position + 2]) == pair else 1
        result.append("".join(piece[position : position + length]))
        position += length
    return result


def tokenizer(merges: list[tuple[str, str]]) -> dict[str, Any]:
    """The tokenizer.json of `merges`."""
    vocabulary = {token: number for number, token in enumerate(sorted(byte_letters()) + ["".join(pair) for pair in merges])}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": False}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": number, **token} for number, token in added_tokens(len(vocabulary)).items()],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {**model, "byte_fallback": False, "ignore_merges": False, "vocab": vocabulary, "merges": [list(pair) for pair in merges]},
    }


def added_tokens(first: int) -> dict[int, dict[str, Any]]:
    """Qwen's added tokens with ids from `first` on."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {first + index: {"content": token, **flags, "special": token in SPECIAL} for index, token in enumerate(SPECIAL + PLAIN)}


def tokenizer_config(first: int) -> dict[str, Any]:
    """The tokenizer_config.json that belongs to it."""
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": {str(number): token for number, token in added_tokens(first).items()},
        "additional_special_tokens": SPECIAL[1:],
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 262144,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }


def preprocessor_config() -> dict[str, Any]:
    """The numbers of Qwen3-VL's image processor."""
    return {
        "size": {"shortest_edge": 65536, "longest_edge": 16777216},
        "patch_size": 16,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "processor_class": "Qwen3VLProcessor",
        "image_processor_type": "Qwen2VLImageProcessorFast",
    }


def main() -> None:
    """Writes bucket/processor, but for the chat template, which is written by hand."""
    words = Counter(word for text in corpus() for word in TRAINING_SPLIT.findall(unicodedata.normalize("NFC", text)))
    made = tokenizer(learn(words, MERGES))
    outputs = {
        "tokenizer.json": made,
        "tokenizer_config.json": tokenizer_config(len(made["model"]["vocab"])),
        "preprocessor_config.json": preprocessor_config(),
    }
    PROCESSOR.mkdir(parents=True, exist_ok=True)
    for name, value in outputs.items():
        (PROCESSOR / name).write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
