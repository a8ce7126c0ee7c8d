//! Ids and extents against the `tokenizers` release that still returns offsets.

use std::fs;
use std::io::Read as _;
use std::path::Path;

use proptest::prelude::*;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use tokenizers_022 as oracle;

use super::*;
use crate::processor::layout::Row;

fn tokenizer_json() -> Vec<u8> {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/tokenizer/tokenizer.json.gz"));
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(fs::File::open(path).unwrap()).read_to_end(&mut bytes).unwrap();
    bytes
}

/// Rendered texts of the golden conversations.
fn golden_texts() -> Vec<String> {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/expected/text.json"));
    let text: serde_json::Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    text["samples"]
        .as_array()
        .unwrap()
        .iter()
        .map(|sample| sample["rendered"].as_str().unwrap().to_owned())
        .collect()
}

/// Stretches that are hard for tokenizers: marks that compose and reorder, spaces, digits, contractions, added tokens.
const HARD: [&str; 40] = [
    "e\u{301}",
    "\u{301}",
    "\u{327}\u{301}",
    "\u{1100}\u{1161}\u{11a8}",
    "\u{958}",
    "\u{2126}",
    "\u{fb01}",
    "\u{212b}",
    ">\u{338}",
    "<\u{338}",
    "  ",
    "\t",
    "\r\n",
    "\n\n",
    "\u{a0}",
    "\u{3000}",
    "\u{2028}",
    "\u{85}",
    "\u{200d}",
    "\u{feff}",
    "👩‍👩‍👧‍👦",
    "🇩🇪",
    "مرحبا",
    "नमस्ते",
    "日本語",
    "12345",
    "½",
    "'s",
    "'LL",
    "don't",
    "\0",
    "\u{7f}",
    "_",
    "…",
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<|im_",
    "end|>",
];

fn random_text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        4 => prop::sample::select(HARD.to_vec()).prop_map(str::to_owned),
        2 => "[a-zA-Z ]{1,12}",
        1 => any::<String>(),
        1 => "\\PC{1,8}",
    ];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

/// `count` texts, the same in every run.
fn seeded_texts(count: usize) -> Vec<String> {
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let strategy = random_text();
    (0..count).map(|_| strategy.new_tree(&mut runner).unwrap().current()).collect()
}

#[test]
fn ids_and_extents_are_those_of_the_release_with_offsets() {
    let json = tokenizer_json();
    let ours = Tokenizer::from_files(&json, &[], &[]).unwrap();
    let reference: oracle::Tokenizer = oracle::Tokenizer::from_bytes(&json).unwrap();
    let golden = golden_texts();
    let random = seeded_texts(4000);
    let (mut spans_compared, mut spans_refused) = (0, 0);
    for (number, text) in golden.iter().chain(&random).enumerate() {
        let expected = reference.encode(text.as_str(), false).unwrap();
        let mut row = Row::new(&ours, &[], text.len());
        row.text(text, 0..text.len()).unwrap();
        assert_eq!(row.ids(), expected.get_ids(), "{text:?}");

        // Two spans at places that differ from text to text.
        let places: Vec<usize> = text.char_indices().map(|(place, _)| place).chain([text.len()]).collect();
        let place = |part: usize| places[(number * 31 + places.len() * part / 5) % places.len()];
        let mut ends = [place(1), place(2), place(3), place(4)];
        ends.sort_unstable();
        let spans: Vec<_> =
            [ends[0]..ends[1], ends[2]..ends[3]].into_iter().filter(|span| !span.is_empty()).collect();
        let mut row = Row::new(&ours, &spans, text.len());
        // A place between a letter and the mark that composes with it is in no token; such spans are refused.
        if row.text(text, 0..text.len()).is_err() {
            spans_refused += 1;
            continue;
        }
        let expected: Vec<u8> = expected
            .get_offsets()
            .iter()
            .map(|(start, end)| u8::from(spans.iter().any(|span| *start < span.end && *end > span.start)))
            .collect();
        assert_eq!(row.loss_mask, expected, "{text:?} {spans:?}");
        spans_compared += 1;
    }
    assert!(spans_compared > 3000, "{spans_compared} compared, {spans_refused} refused");
}

#[test]
fn merges_written_as_lines_are_read_like_pairs() {
    let mut file: serde_json::Value = serde_json::from_slice(&tokenizer_json()).unwrap();
    let pairs = Tokenizer::from_files(&serde_json::to_vec(&file).unwrap(), &[], &[]).unwrap();
    let merges = file["model"]["merges"].as_array_mut().unwrap();
    for merge in merges.iter_mut() {
        *merge = format!("{} {}", merge[0].as_str().unwrap(), merge[1].as_str().unwrap()).into();
    }
    let lines = Tokenizer::from_files(&serde_json::to_vec(&file).unwrap(), &[], &[]).unwrap();
    for text in seeded_texts(50) {
        assert_eq!(pairs.model_ids(&text).unwrap(), lines.model_ids(&text).unwrap());
    }
}
