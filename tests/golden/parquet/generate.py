"""Writes the Parquet files beside it, with pyarrow 26, in the column layouts of data sets that people train on.

Run in this folder: python generate.py. Each data set has a twin in JSON lines that names the pictures as files of ../images; a row is
the same record in both. The files differ in what writers differ in: compression, dictionaries, row groups, page index, page version.
"""

import datetime
import decimal
import json
import pathlib

import pyarrow as pa
import pyarrow.parquet as pq

HERE = pathlib.Path(__file__).parent
IMAGES = HERE.parent / "images"
# As `datasets.Image` stores it.
IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
PICTURES = [
    "geo_chart_17x230.png", "geo_edges_33x31.png", "geo_doc_210x16.png", "jpeg_gray.jpg", "png_p8.png",
    "jpeg_odd_33x7.jpg", "geo_edges_48x48.png", "jpeg_odd_17x15.jpg",
]


def picture(number):
    return PICTURES[number % len(PICTURES)]


def stored(name):
    return None if name is None else {"bytes": (IMAGES / name).read_bytes(), "path": name}


def referred(name):
    return None if name is None else "images/" + name


def words(number, count):
    return " ".join(f"word{(number * 31 + i * 7) % 97}" for i in range(count))


def write(name, schema, rows, **options):
    """Rows as dicts; HF's note about the features goes into the metadata as `datasets` writes it."""
    table = pa.Table.from_pylist(rows, schema=schema)
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": {}}})})
    path = HERE / name
    path.parent.mkdir(exist_ok=True)
    pq.write_table(table, path, **options)


def twin(name, records):
    (HERE / name).write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))


def llava_onevision():
    """Two shards, row groups of three, snappy and dictionaries, no page index; some rows have no picture."""
    schema = pa.schema([
        ("id", pa.string()), ("image", IMAGE),
        ("conversations", pa.list_(pa.struct([("from", pa.string()), ("value", pa.string())]))),
        ("data_source", pa.string()),
    ])
    rows, records = [], []
    for n in range(11):
        name = None if n % 4 == 3 else picture(n)
        turns = []
        for turn in range(1 + n % 3):
            question = words(n + turn, 4) + " é日本?"
            turns.append({"from": "human", "value": ("<image>\n" if turn == 0 and name else "") + question})
            turns.append({"from": "gpt", "value": words(n * 3 + turn, 9)})
        base = {"id": f"onevision-{n}", "conversations": turns, "data_source": "synthetic"}
        rows.append({**base, "image": stored(name)})
        records.append({**base, "image": referred(name)})
    options = dict(row_group_size=3, compression="snappy")
    write("llava_onevision/train-00000-of-00002.parquet", schema, rows[:7], **options)
    write("llava_onevision/train-00001-of-00002.parquet", schema, rows[7:], **options)
    # What is left of a shard when a filter took all of it.
    write("llava_no_rows.parquet", schema, [], **options)
    twin("llava_onevision.jsonl", records)


def texts_pairs(n, count, source):
    return [{"user": words(n + i, 5) + "?", "assistant": words(n * 5 + i, 6) + ".", **source} for i in range(count)]


def the_cauldron():
    """Lists of pictures, zstd, page index and small pages; one row in a list of none."""
    schema = pa.schema([
        ("images", pa.list_(IMAGE)),
        ("texts", pa.list_(pa.struct([("user", pa.string()), ("assistant", pa.string()), ("source", pa.string())]))),
    ])
    rows, records = [], []
    for n in range(9):
        names = [picture(n + i) for i in range([1, 2, 0, 3][n % 4])]
        texts = texts_pairs(n, 1 + n % 3, {"source": "AI2D"})
        rows.append({"images": [stored(name) for name in names], "texts": texts})
        records.append({"images": [referred(name) for name in names], "texts": texts})
    write("the_cauldron.parquet", schema, rows, row_group_size=5, compression="zstd", write_page_index=True,
          data_page_size=256, write_batch_size=1)
    twin("the_cauldron.jsonl", records)


def finevision():
    """Ratings beside texts, data pages of version 2, page index, delta encodings, no dictionary, checksums."""
    schema = pa.schema([
        ("images", pa.list_(IMAGE)),
        ("texts", pa.list_(pa.struct([("user", pa.large_string()), ("assistant", pa.large_string())]))),
        ("source", pa.string()),
        ("relevance_ratings", pa.list_(pa.int64())), ("relevance_min", pa.float32()),
    ])
    rows, records = [], []
    for n in range(8):
        names = [picture(n + 3)] if n != 5 else []
        base = {"texts": texts_pairs(n + 7, 1 + n % 2, {}), "source": f"chart{n % 2}",
                "relevance_ratings": [n % 5, 5][: 1 + n % 2], "relevance_min": 0.5 * n}
        rows.append({**base, "images": [stored(name) for name in names]})
        records.append({**base, "images": [referred(name) for name in names]})
    write("finevision.parquet", schema, rows, row_group_size=8, compression="snappy", write_page_index=True,
          data_page_version="2.0", use_dictionary=False, write_page_checksum=True, data_page_size=256,
          write_batch_size=1, column_encoding={"source": "DELTA_BYTE_ARRAY", "relevance_min": "BYTE_STREAM_SPLIT"})
    twin("finevision.jsonl", records)


def chartqa():
    """A picture, a query and a list of labels; gzip."""
    schema = pa.schema([
        ("image", IMAGE), ("query", pa.string()), ("label", pa.list_(pa.string())), ("human_or_machine", pa.int64()),
    ])
    rows, records = [], []
    for n in range(6):
        base = {"query": words(n, 6) + "?", "label": [words(n, 1)], "human_or_machine": n % 2}
        rows.append({**base, "image": stored(picture(n + 1))})
        records.append({**base, "image": referred(picture(n + 1))})
    write("chartqa.parquet", schema, rows, row_group_size=4, compression="gzip")
    twin("chartqa.jsonl", records)


def docvqa():
    """Questions with several answers; not compressed, page index."""
    schema = pa.schema([
        ("questionId", pa.string()), ("question", pa.dictionary(pa.int32(), pa.string())),
        ("question_types", pa.list_(pa.string())), ("image", IMAGE), ("docId", pa.int64()),
        ("answers", pa.list_(pa.string())),
    ])
    rows, records = [], []
    for n in range(6):
        base = {"questionId": str(n), "question": words(n % 3, 5) + "?", "question_types": ["form", "layout"][: n % 3],
                "docId": 100 + n, "answers": [words(n, 2), words(n, 2).upper()]}
        rows.append({**base, "image": stored(picture(n + 4))})
        records.append({**base, "image": referred(picture(n + 4))})
    write("docvqa.parquet", schema, rows, compression="none", write_page_index=True, data_page_size=256,
          write_batch_size=1)
    twin("docvqa.jsonl", records)


def types():
    """One column of each type that a needed column may have."""
    utc = datetime.timezone.utc
    moment = datetime.datetime(2024, 2, 29, 12, 34, 56, 789000, utc)
    columns = [
        ("i8", pa.int8(), [-1, None], [-1, None]),
        ("i64", pa.int64(), [-(2**63), 5], [-(2**63), 5]),
        ("u8", pa.uint8(), [255, None], [255, None]),
        ("u32", pa.uint32(), [2**32 - 1, 0], [2**32 - 1, 0]),
        ("u64", pa.uint64(), [2**64 - 1, 1], [2**64 - 1, 1]),
        ("f16", pa.float16(), [1.5, -0.25], [1.5, -0.25]),
        ("f32", pa.float32(), [0.5, float("nan")], [0.5, "NaN"]),
        ("f64", pa.float64(), [1e300, None], [1e300, None]),
        ("bool", pa.bool_(), [True, False], [True, False]),
        ("text", pa.string(), ["a\u0000é", ""], ["a\u0000é", ""]),
        ("large", pa.large_string(), ["x", None], ["x", None]),
        ("dictionary", pa.dictionary(pa.int8(), pa.string()), ["d", "d"], ["d", "d"]),
        ("nothing", pa.null(), [None, None], [None, None]),
        ("date", pa.date32(), [datetime.date(1969, 12, 31), None], ["1969-12-31", None]),
        ("time", pa.time64("us"), [datetime.time(1, 2, 3, 4), None], ["01:02:03.000004", None]),
        ("stamp", pa.timestamp("ms", "UTC"), [moment, None], ["2024-02-29T12:34:56.789Z", None]),
        ("local", pa.timestamp("us"), [datetime.datetime(1970, 1, 1), None], ["1970-01-01T00:00:00", None]),
        ("money", pa.decimal128(10, 2), [decimal.Decimal("-0.05"), decimal.Decimal("12.30")], ["-0.05", "12.30"]),
        ("list", pa.list_(pa.int32()), [[1, None, 3], None], [[1, None, 3], None]),
        ("lists", pa.list_(pa.list_(pa.string())), [[["a"], [], ["b", "c"]], []], [[["a"], [], ["b", "c"]], []]),
        ("map", pa.map_(pa.string(), pa.int64()), [[("k", 1), ("l", None)], []], [{"k": 1, "l": None}, {}]),
        ("struct", pa.struct([("a", pa.int32()), ("b", pa.list_(pa.bool_()))]),
         [{"a": 1, "b": [True]}, {"a": None, "b": None}], [{"a": 1, "b": [True]}, {"a": None, "b": None}]),
    ]
    table = pa.table([pa.array(values, kind) for _, kind, values, _ in columns], [name for name, *_ in columns])
    pq.write_table(table, HERE / "types.parquet")
    twin("types.jsonl", [{name: expected[row] for name, _, _, expected in columns} for row in range(2)])


for make in [llava_onevision, the_cauldron, finevision, chartqa, docvqa, types]:
    make()
