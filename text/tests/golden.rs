//! Records, ids and labels against what transformers makes of the same conversations.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::sync::OnceLock;

use feedmill_text::fault::FaultClass;
use feedmill_text::processor::{
    BuiltinTemplate, ControlTokensAssistant, Encoded, ProcessorFiles, TemplateChoice, TextProcessor,
    TextSettings,
};
use feedmill_text::record::{Columns, ImageReference, RecordShape, detect_shape, parse_record};
use flate2::read::GzDecoder;
use serde::Deserialize;
use serde_json::Value;

fn read(path: &str) -> Vec<u8> {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden")).join(path);
    let bytes = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    if path.extension().is_some_and(|extension| extension == "gz") {
        let mut plain = Vec::new();
        GzDecoder::new(&bytes[..]).read_to_end(&mut plain).unwrap();
        return plain;
    }
    bytes
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
        self.images.iter().map(|image| image.grid_thw[1] * image.grid_thw[2] / 4).collect()
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
        tokenizer_json: read("tokenizer/tokenizer.json.gz"),
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
    TextSettings { control_tokens_assistant: ControlTokensAssistant::Escape, ..TextSettings::default() }
}

fn shape(manifest: &str) -> RecordShape {
    match manifest {
        "llava" | "sharegpt" => RecordShape::Conversations,
        "openai" | "qwen" | "messages-images" => RecordShape::Messages,
        other => panic!("manifest {other} is not of these shapes"),
    }
}

fn lines(manifest: &str) -> Vec<Vec<u8>> {
    read(manifest).split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(<[u8]>::to_vec).collect()
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
            let conversation = parse_record(&lines[line - 1], &shape(manifest).into()).unwrap();
            assert_eq!(conversation.id.as_deref(), Some(sample.id.as_str()));
            let encoded = processor.encode(&conversation, &sample.tokens_per_image()).unwrap();
            assert_row(&format!("{} in {manifest}", sample.id), &encoded, expected(sample));
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

#[test]
fn a_json_array_of_records_gives_the_same_rows_as_lines() {
    let records: Vec<Value> = read_json("manifests/llava-array.json");
    let mut compared = 0;
    for sample in samples() {
        let Some(line) = sample.manifests.get("llava") else {
            continue;
        };
        let record = serde_json::to_vec(&records[line - 1]).unwrap();
        let conversation = parse_record(&record, &RecordShape::Conversations.into()).unwrap();
        let encoded = keep_content().encode(&conversation, &sample.tokens_per_image()).unwrap();
        assert_row(&sample.id, &encoded, sample.kept());
        compared += 1;
    }
    assert_eq!(compared, records.len());
}

#[test]
fn without_sanitizing_the_ids_are_hugging_faces_own() {
    let processor = load(TextSettings { sanitize: false, ..TextSettings::default() });
    let lines = lines("manifests/openai.jsonl");
    let mut compared = 0;
    for sample in samples() {
        let Some(expected) = &sample.hf_default_input_ids else {
            continue;
        };
        let line = &lines[sample.manifests["openai"] - 1];
        let conversation = parse_record(line, &RecordShape::Messages.into()).unwrap();
        let encoded = processor.encode(&conversation, &sample.tokens_per_image()).unwrap();
        assert_eq!(&encoded.tokens, expected, "{}", sample.id);
        compared += 1;
    }
    assert!(compared >= 5, "only {compared} samples have such ids");
}

#[test]
fn the_built_in_qwen3_vl_template_gives_the_same_rows() {
    let processor = load(TextSettings {
        template: TemplateChoice::Builtin(BuiltinTemplate::Qwen3Vl),
        ..TextSettings::default()
    });
    assert_eq!(compare_all(&processor, Sample::kept), 349);
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Outcome {
    Ok,
    Error,
}

#[derive(Deserialize)]
struct BadLine {
    manifest: Option<String>,
    line: usize,
    outcome: Outcome,
    same_as: Option<String>,
    level: Option<String>,
    class: Option<String>,
    why: Option<String>,
}

/// What the class of a faulty line should be, where the golden fixes none but its reason leaves no choice.
fn class_of(line: &BadLine) -> Option<FaultClass> {
    let class = match (line.class.as_deref(), line.why.as_deref()?) {
        (Some("unsupported_modality"), _) => FaultClass::UnsupportedModality,
        (_, "placeholder without image" | "three placeholders, two images") => {
            FaultClass::PlaceholderMismatch
        }
        (_, "unknown role") => FaultClass::UnknownRole,
        (_, "nothing to supervise") => FaultClass::NoSupervision,
        (_, "not JSON") => FaultClass::MalformedJson,
        (_, "no conversation" | "empty conversation" | "value is a number" | "a bare string") => {
            FaultClass::WrongShape
        }
        (_, "unknown content part type, in a record of another shape") => FaultClass::WrongShape,
        _ => return None,
    };
    Some(class)
}

#[test]
fn faulty_lines_are_refused_by_class_and_good_lines_between_them_are_not_touched() {
    #[derive(Deserialize)]
    struct Bad {
        manifest: String,
        lines: Vec<BadLine>,
    }
    let bad: Bad = read_json("expected/bad.json");
    let (mut good, mut refused) = (0, 0);
    for line in &bad.lines {
        let manifest = line.manifest.as_ref().unwrap_or(&bad.manifest);
        let shape = match line.manifest {
            None => RecordShape::Conversations,
            Some(_) => RecordShape::Messages,
        };
        let name = format!("{manifest} line {}", line.line);
        let parsed = parse_record(&lines(manifest)[line.line - 1], &shape.into());
        match (&line.outcome, line.level.as_deref()) {
            (Outcome::Ok, _) => {
                let sample = sample(line.same_as.as_deref().unwrap());
                let encoded = keep_content().encode(&parsed.unwrap(), &sample.tokens_per_image()).unwrap();
                assert_row(&name, &encoded, sample.kept());
                good += 1;
            }
            // Found when the image is fetched or decoded, or, for a path, resolved.
            (Outcome::Error, Some("image")) => assert!(parsed.is_ok(), "{name}"),
            (Outcome::Error, _) if line.why.as_deref() == Some("path leaves the root") => {
                assert_eq!(parsed.unwrap().images, [ImageReference::Path("../secret.png".into()).into()]);
            }
            (Outcome::Error, _) => {
                let error = parsed.expect_err(&name);
                assert_eq!(Some(error.class()), class_of(line), "{name}: {error}");
                refused += 1;
            }
        }
    }
    assert_eq!((good, refused), (27, 17));
}

#[test]
fn one_sample_said_in_several_forms_gives_the_same_row() {
    #[derive(Deserialize)]
    struct Form {
        line: usize,
        what: String,
        same_as: String,
    }
    let forms: BTreeMap<String, Vec<Form>> = read_json("expected/forms.json");
    let mut compared = 0;
    for (manifest, forms) in &forms {
        let lines = lines(manifest);
        let detected = detect_shape(lines.iter().map(Vec::as_slice), &Columns::default());
        let shape = match manifest.as_str() {
            "manifests/forms-llava.jsonl" => RecordShape::Conversations,
            "manifests/forms-messages-images.jsonl" | "manifests/forms-openai.jsonl" => RecordShape::Messages,
            "manifests/forms-texts.jsonl" => RecordShape::Texts,
            "manifests/forms-alpaca.jsonl" | "manifests/forms-query.jsonl" => RecordShape::PromptResponse,
            other => panic!("forms of an unknown shape: {other}"),
        };
        assert_eq!(detected, Ok(shape));
        for form in forms {
            let conversation = parse_record(&lines[form.line - 1], &shape.into()).unwrap();
            let sample = sample(&form.same_as);
            let encoded = keep_content().encode(&conversation, &sample.tokens_per_image()).unwrap();
            assert_row(&form.what, &encoded, sample.kept());
            compared += 1;
        }
    }
    assert_eq!(compared, 23);
}

/// The bytes of one tensor of a safetensors file.
fn tensor(file: &[u8], name: &str) -> Vec<u8> {
    let header_end = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&file[8..header_end]).unwrap();
    let offset = |index: usize| header[name]["data_offsets"][index].as_u64().unwrap() as usize;
    file[header_end + offset(0)..header_end + offset(1)].to_vec()
}

#[test]
fn batches_hold_the_tokens_and_masks_of_their_samples() {
    #[derive(Deserialize)]
    struct Batch {
        file: String,
        samples: Vec<String>,
    }
    #[derive(Deserialize)]
    struct Batches {
        batches: Vec<Batch>,
    }
    let escape = load(escape());
    let openai = lines("manifests/openai.jsonl");
    let row = |processor: &TextProcessor, id: &String| {
        let sample = sample(id);
        let line = &openai[sample.manifests["openai"] - 1];
        let conversation = parse_record(line, &RecordShape::Messages.into()).unwrap();
        processor.encode(&conversation, &sample.tokens_per_image()).unwrap()
    };
    let mut kept_files = 0;
    for batch in read_json::<Batches>("expected/batches.json").batches {
        let kept = format!("expected/{}", batch.file.replace(".safetensors", "-keep_content.safetensors"));
        let has_kept = batch.samples.iter().any(|id| sample(id).keep_content.is_some());
        kept_files += usize::from(has_kept);
        let main = format!("expected/{}", batch.file);
        let cases = [
            (&escape, main),
            (keep_content(), if has_kept { kept } else { format!("expected/{}", batch.file) }),
        ];
        for (processor, path) in cases {
            let file = read(&path);
            let rows: Vec<Encoded> = batch.samples.iter().map(|id| row(processor, id)).collect();
            let tokens: Vec<u8> =
                rows.iter().flat_map(|row| &row.tokens).flat_map(|token| token.to_le_bytes()).collect();
            let masks: Vec<u8> = rows.iter().flat_map(|row| row.loss_mask.clone()).collect();
            assert_eq!(tokens, tensor(&file, "ragged.tokens"), "{path}");
            assert_eq!(masks, tensor(&file, "ragged.loss_mask"), "{path}");
        }
    }
    assert_eq!(kept_files, 1);
}
