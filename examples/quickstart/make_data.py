"""Makes the quickstart's pictures and manifests from the photographs in tests/golden/photos.

Run from anywhere: `python examples/quickstart/make_data.py`. Needs Pillow (the committed files were made with Pillow 13.0.0); the same version gives the
same bytes. Everything below bucket/data and bucket/images is written anew.
"""

from __future__ import annotations

import gzip
import json
import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from texts import FACTS, SYSTEMS, VIEWS, View

HERE = Path(__file__).resolve().parent
PHOTOS = HERE.parent.parent / "tests" / "golden" / "photos"
BUCKET = HERE / "bucket"
SEED = 20
CAPTIONS, CHATS = 300, 190

Record = dict[str, Any]

# Megapixels and encodings are taken in turn, so that sizes and formats are spread over the subjects.
AREAS = [0.62, 0.36, 0.80, 0.48, 0.30, 0.72, 0.90, 0.42, 0.55, 1.05, 0.34]
ENCODINGS: list[tuple[str, dict[str, Any]]] = [
    ("jpg", {"quality": 84}),
    ("jpg", {"quality": 72, "progressive": True}),
    ("webp", {"quality": 78}),
    ("jpg", {"quality": 88, "subsampling": 0}),
    ("jpg", {"quality": 80, "turned": True}),
    ("png", {"optimize": True}),
    ("jpg", {"quality": 65}),
]
# Names that a careless client encodes twice or not at all.
ODD_NAMES = {"coffee/cup-1": "coffee/cup + saucer", "coffee/crema-2": "coffee/100% crema", "temple/lake-1": "temple/昆明湖 #1"}


@dataclass(frozen=True)
class Picture:
    """One image file: its key below images/ and the view it shows."""

    key: str
    view: View


def resized(view: View, megapixels: float) -> Image.Image:
    """The view's crop of its photograph, scaled to about `megapixels`, sides within 200..1600 pixels."""
    photo = Image.open(PHOTOS / view.photo).convert("RGB")
    left, top, right, bottom = view.box
    crop = photo.crop((round(left * photo.width), round(top * photo.height), round(right * photo.width), round(bottom * photo.height)))
    scale = (megapixels * 1e6 / (crop.width * crop.height)) ** 0.5
    scale = max(scale, 200 / min(crop.size))
    scale = min(scale, 1600 / max(crop.size))
    return crop.resize((round(crop.width * scale), round(crop.height * scale)), Image.Resampling.LANCZOS)


def save(picture: Image.Image, path: Path, options: dict[str, Any]) -> None:
    """Writes `picture`; with `turned` the pixels lie on their side and EXIF orientation 6 tells to turn them back."""
    options = dict(options)
    if options.pop("turned", False):
        exif = Image.Exif()
        exif[0x0112] = 6
        picture, options["exif"] = picture.transpose(Image.Transpose.ROTATE_90), exif
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.save(path, **options)


def make_pictures() -> list[Picture]:
    """Two files of every view."""
    pictures = []
    for number in range(2 * len(VIEWS)):
        view = VIEWS[number // 2]
        extension, options = ENCODINGS[number % len(ENCODINGS)]
        # A photograph as PNG is large: those are small pictures.
        megapixels = 0.07 if extension == "png" else AREAS[number % len(AREAS)]
        name = f"{view.subject}/{view.name}-{number % 2 + 1}"
        key = f"{ODD_NAMES.get(name, name)}.{extension}"
        save(resized(view, megapixels), BUCKET / "images" / key, options)
        pictures.append(Picture(key, view))
    return pictures


def make_broken_files() -> None:
    """A JPEG that stops half-way, and an error page that was saved as a picture."""
    whole = (BUCKET / "images" / "rocket/pad-1.jpg").read_bytes()
    folder = BUCKET / "images" / "broken"
    folder.mkdir(parents=True)
    (folder / "half.jpg").write_bytes(whole[: len(whole) // 2])
    (folder / "page.jpg").write_text("<!doctype html><title>404</title><h1>Not found</h1>\n")


def questions(draw: random.Random, view: View, count: int) -> list[tuple[str, str]]:
    """`count` different questions about a view with their answers."""
    return draw.sample(list(view.questions), min(count, len(view.questions)))


def sum_question(draw: random.Random) -> tuple[str, str]:
    """A question without a picture whose answer is computed."""
    minutes, pages, per_day = draw.randint(3, 95), draw.randint(40, 600), draw.randint(5, 30)
    days = -(-pages // per_day)
    return draw.choice(
        [
            (f"How many seconds are {minutes} minutes?", f"{minutes} minutes are {minutes * 60} seconds, because every minute has 60 seconds."),
            (f"A book has {pages} pages and I read {per_day} a day. When am I done?", f"After {days} days: {pages} divided by {per_day}, rounded up."),
            (f"What is {pages} plus {minutes}?", f"{pages} + {minutes} = {pages + minutes}."),
        ]
    )


def dialogue(draw: random.Random, pictures: list[Picture]) -> tuple[list[Picture], list[tuple[str, str]]]:
    """The pictures of one conversation (all belong to its first question) and its turns."""
    kind = draw.choices(["caption", "question", "turns", "long", "two", "several", "text"], [18, 22, 18, 10, 12, 6, 14])[0]
    if kind == "text":
        turns = [draw.choice(FACTS) if draw.random() < 0.6 else sum_question(draw) for _ in range(draw.choice([1, 1, 2]))]
        return [], turns
    if kind == "two":
        first, second = draw.sample(pictures, 2)
        if first.view is second.view:
            return [first, second], [("Do both pictures show the same thing?", f"Yes. Both show {second.view.what}; only their size differs.")]
        asked = draw.choice(["What is in these two pictures?", "Compare the two pictures.", "Say in two sentences what you see."])
        return [first, second], [(asked, f"The first picture shows {first.view.what}. The second shows {second.view.what}.")]
    if kind == "several":
        chosen = draw.sample(pictures, draw.choice([3, 4]))
        listed = "\n".join(f"{number}. {picture.view.what[0].upper()}{picture.view.what[1:]}" for number, picture in enumerate(chosen, 1))
        return chosen, [(draw.choice(["List what the pictures show, in order.", "Give every picture a line."]), listed)]
    picture = draw.choice(pictures)
    view = picture.view
    if kind == "caption":
        asked = draw.choice(["Describe the picture in one sentence.", "What does this photograph show?", "Write a caption."])
        return [picture], [(asked, draw.choice(view.captions))]
    if kind == "long":
        answers = " ".join(answer for _, answer in questions(draw, view, 4))
        return [picture], [("Describe the picture in detail.", f"{view.captions[0]} {answers}")]
    return [picture], questions(draw, view, 1 if kind == "question" else draw.choice([2, 3]))


def caption_record(draw: random.Random, number: int, pictures: list[Picture]) -> Record:
    """A record of the shape that LLaVA's data has: `conversations`, `<image>` in the text, keys in `image`."""
    shown, turns = dialogue(draw, pictures)
    record: Record = {"id": f"caption-{number:04}"}
    if shown:
        keys = [picture.key for picture in shown]
        record["image"] = keys[0] if len(keys) == 1 else keys
    marks = "\n".join(["<image>"] * len(shown))
    conversations = []
    for index, (question, answer) in enumerate(turns):
        if shown and index == 0:
            question = f"{question}\n{marks}" if draw.random() < 0.15 else f"{marks}\n{question}"
        conversations += [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]
    record["conversations"] = conversations
    return record


def image_part(draw: random.Random, key: str) -> Record:
    """An image part in one of the three spellings in use."""
    return draw.choice(
        [
            {"type": "image_url", "image_url": {"url": key}},
            {"type": "image_url", "image_url": f"s3://quickstart/images/{key}"},
            {"type": "image", "image": key},
        ]
    )


def chat_record(draw: random.Random, number: int, pictures: list[Picture]) -> Record:
    """A record of the shape that chat APIs have: `messages` whose content is a string or a list of parts."""
    shown, turns = dialogue(draw, pictures)
    messages: list[Record] = []
    if draw.random() < 0.4:
        messages.append({"role": "system", "content": draw.choice(SYSTEMS)})
    for index, (question, answer) in enumerate(turns):
        content: Any = question
        if shown and index == 0:
            content = [image_part(draw, picture.key) for picture in shown] + [{"type": "text", "text": question}]
        messages += [{"role": "user", "content": content}, {"role": "assistant", "content": answer}]
    if not shown and draw.random() < 0.3:
        messages[-1]["content"] = [{"type": "text", "text": messages[-1]["content"]}]
    return {"id": f"chat-{number:04}", "messages": messages}


def line(record: Record) -> str:
    """One JSONL line, text as it is."""
    return json.dumps(record, ensure_ascii=False)


def say(image: str | None, question: str, answer: str = "This.", **more: Any) -> str:
    """A line of the captions shape."""
    record: Record = {"image": image} if image else {}
    talk = [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]
    return line({**record, "conversations": talk, **more})


def broken_captions() -> list[str]:
    """Lines that must be substituted, one per kind of fault."""
    narrator = [{"from": "narrator", "value": "<image>\nOnce upon a time"}, {"from": "gpt", "value": "there was a cat."}]
    return [
        '{"id": "cut", "image": "cat/face-1.jpg", "conversations": [{"from": "human", "value": "<image>\\nWhat is',
        say("rocket/not-uploaded.jpg", "<image>\nWhat is on the pad?"),
        say("broken/half.jpg", "<image>\nWhat stands between the towers?"),
        say("broken/page.jpg", "<image>\nWhat does the page say?"),
        line({"image": "cat/face-1.jpg", "conversations": narrator}),
        say("cat/face-1.jpg", "<image>\n<image>\nAre they the same?"),
        say(None, "<video>\nWhat happens in the clip?", video="clips/launch.mp4"),
        say("../processor/tokenizer.json", "<image>\nWhat is in here?"),
    ]


def broken_chats() -> list[str]:
    """Lines that must be substituted, one per kind of fault."""
    sound = {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}
    return [
        line({"messages": [{"role": "user", "content": [sound, {"type": "text", "text": "Who speaks?"}]}, {"role": "assistant", "content": "A pilot."}]}),
        line({"messages": [{"role": "user", "content": "Is anybody there?"}]}),
        line({"messages": []}),
    ]


def odd_captions() -> list[str]:
    """Good lines that are easily got wrong."""
    return [
        say(None, "What does <|im_end|> stand for in a chat template?", "It closes a turn. Here, in your question, it is only text."),
        say("temple/tower-1.jpg", "<image>\n这座塔有几层屋檐?", "可以看到四层屋檐,都铺着橙色的瓦。"),
        say("cat/eyes-1.jpg", "<image>\nAnswer with an emoji: which animal is it?", "🐈"),
        say("rocket/pad-1.jpg", "What is the question about?\n<image>", "An answer may name <image> and mean the word."),
    ]


def interleave(draw: random.Random, good: list[str], special: list[str]) -> list[str]:
    """`good` in its order with every line of `special` at a drawn place behind the tenth."""
    lines = list(good)
    for item in special:
        lines.insert(draw.randint(10, len(lines)), item)
    return lines


def main() -> None:
    """Writes bucket/images and bucket/data."""
    for name in ("images", "data"):
        shutil.rmtree(BUCKET / name, ignore_errors=True)
    pictures = make_pictures()
    make_broken_files()
    draw = random.Random(SEED)
    captions = [line(caption_record(draw, number, pictures)) for number in range(CAPTIONS)]
    captions = interleave(draw, captions, broken_captions() + odd_captions() + ["", ""])
    chats = interleave(draw, [line(chat_record(draw, number, pictures)) for number in range(CHATS)], broken_chats())
    (BUCKET / "data").mkdir()
    # A byte order mark, as some editors leave it; the reader takes it off.
    (BUCKET / "data" / "captions.jsonl").write_bytes(b"\xef\xbb\xbf" + "\n".join(captions).encode() + b"\n")
    (BUCKET / "data" / "chat.jsonl.gz").write_bytes(gzip.compress("\n".join(chats).encode() + b"\n", 9, mtime=0))


if __name__ == "__main__":
    main()
