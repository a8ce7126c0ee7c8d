//! Processor time to turn chat text into ids, and to load a checkpoint: one JSON line. Medians of rounds, one thread.
//!
//! `cargo bench -p feedmill-text`, optionally with `-- DIRECTORY` of a checkpoint's processor files.

use std::fs;
use std::hint::black_box;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use feedmill_text::processor::{
    BuiltinTemplate, ProcessorFiles, TemplateChoice, TextProcessor, TextSettings,
};
use feedmill_text::record::{RecordShape, parse_record};

const ROUNDS: usize = 7;
const RECORDS: usize = 1500;
/// Passes over the records in a round: the kernel counts processor time in steps of milliseconds.
const REPEATS: usize = 8;

/// Words of ordinary prose, so that lengths of words and tokens are ordinary.
const WORDS: [&str; 24] = [
    "the",
    "picture",
    "shows",
    "a",
    "narrow",
    "street",
    "with",
    "two",
    "cyclists",
    "near",
    "an",
    "awning",
    "while",
    "pigeons",
    "circle",
    "over",
    "copper",
    "roofs",
    "and",
    "someone",
    "quietly",
    "measures",
    "yesterday's",
    "shadow",
];

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Seconds this thread has been on a processor, from the kernel: other work on the machine does not count.
fn processor_seconds() -> f64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").expect("schedstat of Linux");
    let nanoseconds: u64 =
        text.split_whitespace().next().and_then(|field| field.parse().ok()).expect("nanoseconds");
    nanoseconds as f64 / 1e9
}

fn seconds<T>(work: impl FnOnce() -> T) -> (f64, T) {
    let start = processor_seconds();
    let result = work();
    (processor_seconds() - start, result)
}

/// Records with about 1 KiB of chat text: question, answer, question, answer. `seed` makes texts differ.
fn record(seed: usize) -> Vec<u8> {
    let mut state = seed as u64 * 2 + 1;
    let mut text = |length: usize| {
        let mut text = String::new();
        while text.len() < length {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            text.push_str(WORDS[(state >> 33) as usize % WORDS.len()]);
            text.push(' ');
        }
        text.trim_end().to_owned() + "."
    };
    let messages = serde_json::json!([
        {"role": "user", "content": text(150)},
        {"role": "assistant", "content": text(400)},
        {"role": "user", "content": text(120)},
        {"role": "assistant", "content": text(300)},
    ]);
    serde_json::to_vec(&serde_json::json!({ "messages": messages })).expect("json")
}

fn read(directory: &Path, name: &str) -> Option<Vec<u8>> {
    if let Ok(bytes) = fs::read(directory.join(name)) {
        return Some(bytes);
    }
    let packed = fs::read(directory.join(format!("{name}.gz"))).ok()?;
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(&packed[..]).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

fn main() {
    let directory = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).map_or_else(
        || Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/tokenizer")).to_path_buf(),
        PathBuf::from,
    );
    let files = ProcessorFiles {
        tokenizer_json: read(&directory, "tokenizer.json").expect("tokenizer.json"),
        tokenizer_config_json: read(&directory, "tokenizer_config.json"),
        chat_template: read(&directory, "chat_template.jinja"),
        preprocessor_config_json: read(&directory, "preprocessor_config.json")
            .expect("preprocessor_config.json"),
    };
    let settings = TextSettings::default();
    let load = || TextProcessor::load(&files, &settings).expect("checkpoint");
    let load_ms = median((0..3).map(|_| seconds(load).0 * 1e3).collect());
    let processor = load();
    let builtin = TextProcessor::load(
        &files,
        &TextSettings {
            template: TemplateChoice::Builtin(BuiltinTemplate::Qwen3Vl),
            ..TextSettings::default()
        },
    )
    .expect("built-in template");

    let records: Vec<Vec<u8>> = (0..RECORDS).map(record).collect();
    let conversations: Vec<_> = records
        .iter()
        .map(|record| parse_record(record, &RecordShape::Messages.into()).expect("record"))
        .collect();
    let per_record = |times: Vec<f64>| median(times) * 1e6 / (REPEATS * RECORDS) as f64;
    let parse_us = per_record(
        (0..ROUNDS)
            .map(|_| {
                seconds(|| {
                    for record in records.iter().cycle().take(REPEATS * RECORDS) {
                        black_box(parse_record(record, &RecordShape::Messages.into()).expect("record"));
                    }
                })
                .0
            })
            .collect(),
    );
    let encode_us = |processor: &TextProcessor| {
        per_record(
            (0..ROUNDS)
                .map(|_| {
                    seconds(|| {
                        for conversation in conversations.iter().cycle().take(REPEATS * RECORDS) {
                            black_box(processor.prepare(conversation).expect("row"));
                        }
                    })
                    .0
                })
                .collect(),
        )
    };
    let bytes: usize = conversations
        .iter()
        .flat_map(|conversation| &conversation.messages)
        .map(|message| message.text().len())
        .sum();
    let tokens: usize = conversations
        .iter()
        .map(|conversation| processor.prepare(conversation).expect("row").text_len())
        .sum();
    println!(
        "{}",
        serde_json::json!({
            "bench": "text_encode",
            "records": RECORDS,
            "text_bytes_per_record": bytes / RECORDS,
            "tokens_per_record": tokens / RECORDS,
            "parse_us": parse_us,
            "prepare_us": encode_us(&processor),
            "prepare_builtin_us": encode_us(&builtin),
            "load_ms": load_ms,
        })
    );
}
