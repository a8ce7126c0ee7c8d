//! Records, ids and labels against what transformers makes of the same conversations.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use feedmill_text::fault::FaultClass;
use feedmill_text::processor::{
    BuiltinTemplate, ControlTokensAssistant, Encoded, ProcessorFiles, TemplateChoice,
    TextProcessor, TextSettings,
};
use feedmill_text::record::{RecordShape, detect_shape, parse_record};
use serde::Deserialize;
use serde_json::Value;

fn golden() -> PathBuf {
    match std::env::var_os("GOLDEN") {
        Some(path) => path.into(),
        None => Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden")).to_path_buf(),
    }
}

fn read(path: &str) -> Vec<u8> {
    let path = golden().join(path);
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn read_json<T: for<'de> Deserialize<'de>>(path: &str) -> T {
    serde_json::from_slice(&read(path)).unwrap()
}

#[derive(Deserialize)]
struct Row {
    input_ids: Vec<i32>,
    labels: Vec<i32>,
}

#[derive(Deserialize)]
struct Image {
    grid_thw: [u32; 3],
}

#[derive(Deserialize)]
struct Sample {
    id: String,
    manifests: BTreeMap<String, usize>,
    images: Vec<Image>,
    #[serde(flatten)]
    escaped: Row,
    keep_content: Option<Row>,
    hf_default_input_ids: Option<Vec<i32>>,
}

impl Sample {
    fn tokens_per_image(&self) -> Vec<u32> {
        self.images
            .iter()
            .map(|image| image.grid_thw[1] * image.grid_thw[2] / 4)
            .collect()
    }

    fn kept(&self) -> &Row {
        self.keep_content.as_ref().unwrap_or(&self.escaped)
    }
}

fn samples() -> &'static [Sample] {
    #[derive(Deserialize)]
    struct Text {
        samples: Vec<Sample>,
    }
    static SAMPLES: OnceLock<Vec<Sample>> = OnceLock::new();
    SAMPLES.get_or_init(|| read_json::<Text>("expected/text.json").samples)
}

fn sample(id: &str) -> &'static Sample {
    samples().iter().find(|sample| sample.id == id).unwrap()
}

fn files() -> ProcessorFiles {
    ProcessorFiles {
        tokenizer_json: read("tokenizer/tokenizer.json"),
        tokenizer_config_json: Some(read("tokenizer/tokenizer_config.json")),
        chat_template: Some(read("tokenizer/chat_template.jinja")),
        preprocessor_config_json: read("tokenizer/preprocessor_config.json"),
    }
}

fn load(settings: TextSettings) -> TextProcessor {
    TextProcessor::load(&files(), &settings).unwrap()
}

/// The default settings, loaded once for all tests of this file.
fn keep_content() -> &'static TextProcessor {
    static PROCESSOR: OnceLock<TextProcessor> = OnceLock::new();
    PROCESSOR.get_or_init(|| load(TextSettings::default()))
}

fn escape() -> TextSettings {
    TextSettings {
        control_tokens_assistant: ControlTokensAssistant::Escape,
        ..TextSettings::default()
    }
}

fn shape(manifest: &str) -> RecordShape {
    match manifest {
        "llava" | "sharegpt" => RecordShape::Conversations,
        "openai" | "qwen" | "messages-images" => RecordShape::Messages,
        other => panic!("manifest {other} is not of these shapes"),
    }
}

fn lines(manifest: &str) -> Vec<Vec<u8>> {
    read(manifest)
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(<[u8]>::to_vec)
        .collect()
}

fn assert_row(name: &str, encoded: &Encoded, expected: &Row) {
    assert_eq!(encoded.tokens, expected.input_ids, "{name}: ids");
    let labels: Vec<i32> = encoded
        .tokens
        .iter()
        .zip(&encoded.loss_mask)
        .map(|(token, mask)| if *mask == 1 { *token } else { -100 })
        .collect();
    assert_eq!(labels, expected.labels, "{name}: labels");
}

/// Every sample in every format against `expected`; gives the number of rows compared.
fn compare_all(processor: &TextProcessor, expected: impl Fn(&Sample) -> &Row) -> usize {
    let mut manifests = BTreeMap::new();
    let mut compared = 0;
    for sample in samples() {
        for (manifest, line) in &sample.manifests {
            let lines = manifests
                .entry(manifest.clone())
                .or_insert_with(|| lines(&format!("manifests/{manifest}.jsonl")));
            let conversation = parse_record(&lines[line - 1], shape(manifest)).unwrap();
            assert_eq!(conversation.id.as_deref(), Some(sample.id.as_str()));
            let encoded = processor
                .encode(&conversation, &sample.tokens_per_image())
                .unwrap();
            assert_row(
                &format!("{} in {manifest}", sample.id),
                &encoded,
                expected(sample),
            );
            compared += 1;
        }
    }
    compared
}

#[test]
fn every_sample_in_every_format_has_the_default_ids_and_labels() {
    assert_eq!(compare_all(keep_content(), Sample::kept), 349);
}

#[test]
fn every_sample_in_every_format_has_the_escaped_ids_and_labels() {
    assert_eq!(compare_all(&load(escape()), |sample| &sample.escaped), 349);
}
