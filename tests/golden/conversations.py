"""Takes the records of manifests/openai.jsonl, gives what text.json and the batches say about them: ids, labels and positions.

Hugging Face's processor is asked wherever it has an answer. It has none for labels of samples with escaped text (its options exclude each other) and for Feedmill's
default policy; there the same pieces are encoded here, and the ids are compared with those of its `encode_marked_chat`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import AutoTokenizer, Qwen2VLImageProcessor, Qwen3VLConfig, Qwen3VLModel, Qwen3VLProcessor, Qwen3VLVideoProcessor
from transformers.utils import chat_template_utils as templates

Json = dict[str, Any]
PAD = "<|image_pad|>"
OPEN, CLOSE = templates._CONTROL_TOKEN_START, templates._CONTROL_TOKEN_END


class Reference:
    """The real processor, tokenizer and model, built from local files without weights."""

    def __init__(self, folder: Path, config: Json) -> None:
        self.template = (folder / "chat_template.jinja").read_text(encoding="utf-8")
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.images = Qwen2VLImageProcessor(**config)
        self.processor = Qwen3VLProcessor(self.images, self.tokenizer, Qwen3VLVideoProcessor(), chat_template=self.template)
        self.merge = config["merge_size"]
        small = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 32, "head_dim": 16, "vocab_size": 64}
        vision = {"hidden_size": 32, "depth": 1, "num_heads": 2, "intermediate_size": 32, "out_hidden_size": 32, "deepstack_visual_indexes": []}
        with torch.device("meta"):
            self.model = Qwen3VLModel(Qwen3VLConfig(text_config=small, vision_config={**vision, "spatial_merge_size": self.merge}))

    def positions(self, ids: torch.Tensor, types: torch.Tensor, grids: list[list[int]], attention: torch.Tensor | None = None) -> torch.Tensor:
        """`get_rope_index`: [3, B, L]."""
        image_grid_thw = torch.tensor(grids) if grids else None
        return self.model.get_rope_index(ids, types, image_grid_thw=image_grid_thw, attention_mask=attention)[0]

    def control_tokens(self) -> list[str]:
        """The tokens that `sanitize_control_tokens` takes as control tokens."""
        return sorted(self.tokenizer._get_control_tokens(self.template))


def training_template(template: str) -> str:
    """The template with marks round what is supervised: content, tool calls, `<|im_end|>` and the newline of assistant turns."""
    start = "{{- '<|im_start|>assistant\\n' + parts(m.content, false) -}}"
    end = "{{- '<|im_end|>\\n' -}}\n  {%- elif m.role == 'tool' -%}"
    assert template.count(start) == 1 and template.count(end) == 1
    template = template.replace(start, "{{- '<|im_start|>assistant\\n' -}}{%- generation -%}{{- parts(m.content, false) -}}")
    return template.replace(end, end.replace("-}}\n", "-}}{%- endgeneration -%}\n"))


def chat(record: Json, pictures: dict[str, np.ndarray]) -> tuple[list[Json], list[str]]:
    """The messages as the processor takes them, with pictures in place, and the pictures' names in order."""
    messages, names = [], []
    for message in record["messages"]:
        content = message.get("content")
        if isinstance(content, list):
            parts = []
            for part in content:
                if part["type"] == "text":
                    parts.append(part)
                    continue
                url = part["image_url"]
                names.append(url if isinstance(url, str) else url["url"])
                parts.append({"type": "image", "image": Image.fromarray(pictures[names[-1]])})
            content = parts
        messages.append({**message, "content": content})
    return messages, names


def without_pictures(messages: list[Json]) -> list[Json]:
    """The same messages with bare image parts, for rendering."""
    bare = []
    for message in messages:
        content = message["content"]
        if isinstance(content, list):
            content = [{"type": "image"} if part["type"] == "image" else part for part in content]
        bare.append({**message, "content": content})
    return bare


def mark(messages: list[Json], tools: Any, everywhere: list[str], in_answers: list[str]) -> tuple[list[Json], Any]:
    """Messages and tools with control tokens marked; in the `content` of assistant messages only those of `in_answers`."""
    general, answers = (templates._get_control_token_patterns(tuple(tokens))[0] for tokens in (everywhere, in_answers))
    marked = []
    for message in messages:
        content_pattern = answers if message["role"] == "assistant" else general
        others = templates.mark_control_tokens({key: value for key, value in message.items() if key != "content"}, general)
        marked.append({**others, "content": templates.mark_control_tokens(message["content"], content_pattern)})
    return marked, templates.mark_control_tokens(tools, general)


def render(hf: Reference, messages: list[Json], tools: Any) -> tuple[str, list[list[int]]]:
    """The text of a conversation and the supervised spans in it, by transformers' own renderer."""
    texts, spans = templates.render_jinja_template([messages], tools=tools, chat_template=training_template(hf.template), return_assistant_tokens_mask=True)
    return texts[0], [list(span) for span in spans[0]]


def encode(hf: Reference, marked: str, spans: list[list[int]], grids: list[list[int]]) -> tuple[list[int], list[int], Json]:
    """Ids and labels of a rendered text with marks, pads expanded, and `rendered`, `escaped` without the marks."""
    counts = iter(grid[1] * grid[2] // hf.merge**2 for grid in grids)
    pad = hf.tokenizer.convert_tokens_to_ids(PAD)
    ids, labels, rendered, escaped = [], [], "", []
    position = 0
    for piece in re.split(f"({OPEN}[^{CLOSE}]*{CLOSE})", marked):
        is_marked = piece.startswith(OPEN)
        text, offset = (piece[1:-1], position + 1) if is_marked else (piece, position)
        if is_marked:
            escaped.append([len(rendered), len(rendered) + len(text), text])
            # A marked token lies wholly inside a supervised span or wholly outside, so its pieces need no extents of their own.
            tokens = [(token, 0, len(text)) for token in hf.tokenizer._encode_without_added_tokens(text)]
        else:
            encoded = hf.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
            tokens = [(token, *extent) for token, extent in zip(encoded["input_ids"], encoded["offset_mapping"])]
        for token, start, end in tokens:
            supervised = any(start + offset < to and end + offset > begin for begin, to in spans)
            for _ in range(next(counts) if token == pad else 1):
                ids.append(token)
                labels.append(token if supervised else -100)
        rendered, position = rendered + text, position + len(piece)
    assert next(counts, None) is None
    return ids, labels, {"rendered": rendered, "escaped": escaped}


def marked_ids(hf: Reference, marked: str, grids: list[list[int]]) -> list[int]:
    """The ids that transformers gives for a rendered text with marks."""
    counts = iter(grid[1] * grid[2] // hf.merge**2 for grid in grids)
    expanded = re.sub(f"(?<!{OPEN}){re.escape(PAD)}", lambda _: PAD * next(counts), marked)
    return templates.encode_marked_chat(hf.tokenizer, expanded)


def variant(hf: Reference, messages: list[Json], tools: Any, grids: list[list[int]], everywhere: list[str], in_answers: list[str]) -> Json:
    """All fields of a sample under one policy of control tokens."""
    marked, spans = render(hf, *mark(without_pictures(messages), tools, everywhere, in_answers))
    ids, labels, text = encode(hf, marked, spans, grids)
    assert ids == marked_ids(hf, marked, grids), "the pieces give other ids than transformers"
    types = [int(token == hf.tokenizer.convert_tokens_to_ids(PAD)) for token in ids]
    positions = hf.positions(torch.tensor([ids]), torch.tensor([types]), grids)[:, 0].tolist()
    return {**text, "input_ids": ids, "labels": labels, "mm_token_type_ids": types, "position_ids": positions}


def ask(hf: Reference, conversations: list[list[Json]], tools: Any, **options: Any) -> Json:
    """`Qwen3VLProcessor.apply_chat_template` on whole conversations."""
    return hf.processor.apply_chat_template(conversations, tools=tools, tokenize=True, return_dict=True, **options)


def sample(hf: Reference, committed: Json, record: Json, pictures: dict[str, np.ndarray], turn_tokens: list[str]) -> Json:
    """The entry of one conversation, made anew; id, kind and line numbers are taken from the committed one."""
    messages, names = chat(record, pictures)
    tools = record.get("tools")
    grids = [hf.images([Image.fromarray(pictures[name])])["image_grid_thw"][0].tolist() for name in names]
    control = hf.control_tokens()
    main = variant(hf, messages, tools, grids, control, control)
    made: Json = {key: committed[key] for key in ("id", "kind", "manifests")}
    made["images"] = [{"file": name, "grid_thw": grid} for name, grid in zip(names, grids)]
    made |= main
    made["supervised_tokens"] = sum(label != -100 for label in main["labels"])
    sanitized = ask(hf, [messages], tools, sanitize_control_tokens=True)
    agrees = sanitized["input_ids"][0] == main["input_ids"] and sanitized["mm_token_type_ids"][0] == main["mm_token_type_ids"]
    plain_answer = None
    if main["escaped"]:
        try:
            plain_answer = ask(hf, [messages], tools)["input_ids"][0]
        except ValueError:
            pass  # Without the option a written image pad is one picture too few.
    else:
        answer = ask(hf, [messages], tools, chat_template=training_template(hf.template), return_assistant_tokens_mask=True)
        mask = answer["assistant_masks"][0]
        agrees &= main["labels"] == [token if keep else -100 for token, keep in zip(answer["input_ids"][0], mask)]
    keep = variant(hf, messages, tools, grids, control, turn_tokens)
    if keep["input_ids"] != main["input_ids"]:
        fields = ("input_ids", "labels", "mm_token_type_ids", "position_ids")
        made["keep_content"] = {**{key: keep[key] for key in fields}, "supervised_tokens": sum(label != -100 for label in keep["labels"])}
    every = list(hf.tokenizer.added_tokens_encoder)
    plain = variant(hf, messages, tools, grids, every, every)
    if plain["input_ids"] != main["input_ids"]:
        made["all_plain"] = {key: plain[key] for key in ("escaped", "input_ids", "labels", "mm_token_type_ids", "position_ids")}
    made["hf_agrees"] = agrees
    if plain_answer is not None:
        made["hf_default_input_ids"] = plain_answer
    return made


def batch_tensors(hf: Reference, rows: list[Json]) -> dict[str, np.ndarray]:
    """The ragged and the padded tensors of some rows (entries, or their `keep_content` laid over them)."""

    def flat(key: str) -> list[int]:
        return [value for row in rows for value in row[key]]

    grids = [image["grid_thw"] for row in rows for image in row["images"]]
    lengths = [len(row["input_ids"]) for row in rows]
    labels = np.array(flat("labels"), np.int32)
    made = {
        "ragged.tokens": np.array(flat("input_ids"), np.int32),
        "ragged.labels": labels,
        "ragged.loss_mask": (labels != -100).astype(np.uint8),
        "ragged.mm_token_type_ids": np.array(flat("mm_token_type_ids"), np.uint8),
        "ragged.position_ids": np.concatenate([np.array(row["position_ids"], np.int32) for row in rows], axis=1),
        "ragged.cu_seqlens": np.cumsum([0, *lengths]).astype(np.int32),
        "ragged.images_per_sample": np.array([len(row["images"]) for row in rows], np.int32),
    }
    if grids:
        made["ragged.image_grid_thw"] = np.array(grids, np.int32)
    padded = hf.tokenizer.pad({"input_ids": [row["input_ids"] for row in rows]}, padding_side="right", return_tensors="pt")
    ids, attention = padded["input_ids"], padded["attention_mask"]
    types = (ids == hf.tokenizer.convert_tokens_to_ids(PAD)).long()
    width = ids.shape[1]
    made |= {
        "padded.input_ids": ids.numpy(),
        "padded.attention_mask": attention.numpy(),
        "padded.mm_token_type_ids": types.numpy(),
        "padded.labels": np.array([row["labels"] + [-100] * (width - len(row["labels"])) for row in rows], np.int64),
        "padded.position_ids": hf.positions(ids, types, grids, attention).numpy(),
    }
    return made
