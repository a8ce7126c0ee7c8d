//! The goldens as inputs to begin with, and words that the formats are made of.

use std::path::{Path, PathBuf};

use feedmill_protocol::bad::{BadClass, RowStatus};
use feedmill_protocol::frame::{BatchShape, FORMAT_VERSION, write_header};
use feedmill_protocol::hash::SampleHasher;
use feedmill_text::record::{RecordRules, RecordShape, parse_record};

/// Larger pictures make slow cases and no other ones.
const MOST_PICTURE_BYTES: u64 = 30_000;
/// A frame's header and its small tensors lie within this.
const MOST_FRAME_BYTES: usize = 24_000;

fn golden(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden").join(folder)
}

/// Files of a folder in the order of their names, up to a size.
///
/// # Panics
/// When the goldens are not there.
fn files(folder: &str, most: u64) -> Vec<(String, Vec<u8>)> {
    let folder = golden(folder);
    let listed = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<(String, Vec<u8>)> = listed
        .filter_map(Result::ok)
        .filter(|entry| entry.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.len() <= most))
        .filter_map(|entry| Some((entry.file_name().into_string().ok()?, std::fs::read(entry.path()).ok()?)))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{} has no files", folder.display());
    files
}

/// Pictures of every format, good and bad, and files that once broke something.
#[must_use]
pub fn pictures() -> Vec<Vec<u8>> {
    let mut pictures: Vec<Vec<u8>> = files("images", MOST_PICTURE_BYTES)
        .into_iter()
        // 24 megapixels in 30 kB: right, and slow.
        .filter(|(name, _)| name != "huge_flat_6000x4000.png")
        .map(|(_, bytes)| bytes)
        .collect();
    pictures.push(crate::hostile::webp_of_tables(4));
    pictures
}

/// Lines of every manifest.
#[must_use]
pub fn records() -> Vec<Vec<u8>> {
    manifests()
        .iter()
        .flat_map(|manifest| manifest.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect::<Vec<_>>())
        .filter(|line| !line.is_empty() && line.len() < 20_000)
        .collect()
}

/// The records that become conversations.
#[must_use]
pub fn conversations() -> Vec<Vec<u8>> {
    let read = |line: &[u8]| {
        RecordShape::ALL.into_iter().any(|shape| parse_record(line, &RecordRules::from(shape)).is_ok())
    };
    records().into_iter().filter(|line| read(line)).collect()
}

/// What records are made of.
pub const RECORD_WORDS: &[&[u8]] = &[
    b"<image>",
    b"<video>",
    b"null",
    b"true",
    b"-1",
    b"1e309",
    b"18446744073709551616",
    b"\"\"",
    b"[]",
    b"{}",
    b"\\ud800",
    b"\\u0000",
    b"\xF0\x9F\x98\x80",
    b"\xED\xA0\x80",
    b"\"image\":",
    b"\"images\":",
    b"\"messages\":",
    b"\"conversations\":",
    b"\"content\":",
    b"\"loss\":",
    b"\"tool_calls\":",
    b"\"from\":\"gpt\",",
    b"\"role\":\"assistant\",",
    b"{\"type\":\"image\",\"image\":",
    b"data:image/png;base64,",
    b"s3://b/../k",
    b"file:///etc/passwd",
    b"<|im_start|>",
    b"<|im_end|>\n",
    b"<|vision_start|><|image_pad|><|vision_end|>",
    b"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
];

/// Whole manifests, as they are.
#[must_use]
pub fn manifests() -> Vec<Vec<u8>> {
    files("manifests", 1 << 20).into_iter().map(|(_, bytes)| bytes).collect()
}

/// The beginnings of manifests, plain and compressed.
#[must_use]
pub fn framed_manifests() -> Vec<Vec<u8>> {
    use std::io::Write as _;
    let mut framed = Vec::new();
    for manifest in manifests() {
        let part = &manifest[..manifest.len().min(4000)];
        framed.push(part.to_vec());
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        if gzip.write_all(part).is_ok()
            && let Ok(bytes) = gzip.finish()
        {
            framed.push(bytes);
        }
        if let Ok(bytes) = zstd::encode_all(part, 1) {
            framed.push(bytes);
        }
    }
    framed
}

/// A small batch, and the beginning of one of the goldens, which is cut and may be spliced to it.
#[must_use]
pub fn frames() -> Vec<Vec<u8>> {
    let mut frames = vec![small_frame(); 7];
    for (name, mut bytes) in files("expected", 64 << 20) {
        if name == "batch-0.safetensors" {
            bytes.truncate(MOST_FRAME_BYTES);
            frames.push(bytes);
        }
    }
    frames
}

/// A batch of two rows, the first with two pictures of four patches, as a worker writes it.
fn small_frame() -> Vec<u8> {
    let shape = BatchShape { samples: 2, tokens: 5, images: 2, patches: 8, patch_bytes: 12 };
    let patches: Vec<u8> = (0..96).collect();
    let tokens = [10i32, 11, 12, 20, 21];
    let mask = [0u8, 0, 1, 0, 1];
    let grids = [[1i32, 2, 2], [1, 2, 2]];
    let mut first = SampleHasher::new(&tokens[..3], &mask[..3], &grids);
    first.patches(&patches);
    let second = SampleHasher::new(&tokens[3..], &mask[3..], &[]);
    let metadata = [("format", FORMAT_VERSION), ("plan", "sha256:00"), ("range", "4-6")];
    let mut bytes = write_header(&shape.tensors(), &metadata);
    bytes.extend(&patches);
    bytes.extend([7i64, 8, 3, 9].iter().flat_map(|number| number.to_le_bytes()));
    let small = [1i32, 2, 2, 1, 2, 2].into_iter().chain(tokens).chain([0, 3, 5, 2, 0, 0, 1]);
    bytes.extend(small.flat_map(i32::to_le_bytes));
    bytes.extend(mask);
    bytes.extend([0, RowStatus::Substituted(BadClass::ImageMissing).to_byte()]);
    bytes.extend(first.finish());
    bytes.extend(second.finish());
    bytes
}

/// Requests: a path's range, a query and headers, one a line.
#[must_use]
pub fn requests() -> Vec<Vec<u8>> {
    let plan = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    [
        "0-4\n\n".to_owned(),
        format!(
            "8-12\nstop=10&layout=hf&tensors=labels,input_ids\nfeedmill-plan: {plan}\nfeedmill-need: 250\n\
             feedmill-run: job-7/3\nfeedmill-deaths: 2\n"
        ),
        "9007199254740980-9007199254740992\ntensors=patches,tokens\nfeedmill-need: 0\n".to_owned(),
        "{\"run\": \"job-7\", \"stream\": \"train\", \"plan\": \"sha256:0\", \"rank\": 0, \"size\": 8, \"ready\": 3, \
         \"target\": 4, \"waiting_ms\": 0, \"wait_ms\": 12, \"step_ms\": 2000, \"consumed\": 51200, \"sequence\": 17}"
            .to_owned(),
        "s3://bucket/a%20b+c/ü#?.jpg".to_owned(),
    ]
    .map(String::into_bytes)
    .into()
}

/// What requests are made of.
pub const REQUEST_WORDS: &[&[u8]] = &[
    b"0-0",
    b"-",
    b"=",
    b"&",
    b"%00",
    b"\n",
    b": ",
    b"18446744073709551615",
    b"9007199254740993",
    b"stop=",
    b"layout=",
    b"tensors=",
    b"feedmill-plan: sha256:",
    b"feedmill-need: ",
    b"feedmill-deaths: ",
    b"../",
    b"s3://",
    b"file:///",
    b"http://",
];
