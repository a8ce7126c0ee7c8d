//! Whole batches through records, fetch, size, fill and frame, held against Hugging Face's.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

use std::collections::HashMap;

use feedmill_protocol::bad::RowStatus;
use feedmill_protocol::frame::{BatchView, FrameView};
use feedmill_protocol::pipeline::ValidatedPipeline;
use feedmill_protocol::position::Range;
use feedmill_testkit::{VersityGw, client, put_folder};
use feedmill_worker::in_process::{InProcess, Options};
use feedmill_worker::settings::Settings;
use serde_json::Value;
use sha2::{Digest, Sha256};
use support::{credentials_folder, document, golden, pipeline, processor_folder, served, settings};

const Q3_SMALL: &str = ", minPixels: 4096, maxPixels: 32768, controlTokens: {assistant: Escape}";
const Q3_SMALL_KEEP: &str = ", minPixels: 4096, maxPixels: 32768";

fn streams(root: &str, manifest: &str) -> String {
    format!(
        "  - name: train\n    shuffle: false\n    badSamples: Fail\n    datasets: [{{name: golden, uri: \
         \"{root}/manifests/{manifest}\", imageBaseUri: \"{root}/\"}}]\n"
    )
}

fn expected() -> Value {
    serde_json::from_slice(&std::fs::read(golden("expected/batches.json")).unwrap()).unwrap()
}

/// Record index of each id in a manifest of one record a line.
fn places(manifest: &str) -> HashMap<String, u64> {
    let text = std::fs::read_to_string(golden("manifests").join(manifest)).unwrap();
    let id = |line: &str| serde_json::from_str::<Value>(line).unwrap()["id"].as_str().unwrap().to_owned();
    text.lines().enumerate().map(|(index, line)| (id(line), index as u64)).collect()
}

fn hex(bytes: &[u8]) -> String {
    feedmill_protocol::hash::hex(&Sha256::digest(bytes))
}

async fn rows_match(manifest: &str, settings: &str, keep_content: bool) {
    let processor = processor_folder();
    let uri = format!("file://{}/", processor.path().display());
    let root = format!("file://{}", golden("").display());
    let pipeline = pipeline(&document(&uri, settings, &streams(&root, manifest)));
    rows_match_in(pipeline, Options::default(), manifest, keep_content).await;
}

async fn rows_match_in(pipeline: ValidatedPipeline, options: Options, manifest: &str, keep_content: bool) {
    let worker = InProcess::open(pipeline, options).await.unwrap();
    let places = places(manifest);
    let (mut held, mut patches_held) = (0, 0);
    for batch in expected()["batches"].as_array().unwrap() {
        let file = batch["file"].as_str().unwrap();
        let bytes = std::fs::read(golden("expected").join(file)).unwrap();
        let frame = FrameView::parse(&bytes).unwrap();
        let kept = golden("expected").join(file.replace(".safe", "-keep_content.safe"));
        let kept = std::fs::read(kept).ok().filter(|_| keep_content);
        let kept = kept.as_ref().map(|bytes| FrameView::parse(bytes).unwrap());
        let tensor = |name: &str| {
            let name = format!("ragged.{name}");
            let kept = kept.as_ref().and_then(|frame| frame.tensor(&name)).cloned();
            kept.unwrap_or_else(|| frame.tensor(&name).unwrap().clone())
        };
        let bounds: Vec<usize> = tensor("cu_seqlens").i32s().map(|n| n as usize).collect();
        let tokens: Vec<i32> = tensor("tokens").i32s().collect();
        // A batch without pictures has no grid.
        let pictures = frame.tensor("ragged.image_grid_thw").is_some();
        let grids: Vec<i32> = if pictures { tensor("image_grid_thw").i32s().collect() } else { Vec::new() };
        let mask = tensor("loss_mask").data;
        let mut patches = Sha256::new();
        let (mut whole, mut grid) = (true, 0);
        for (row, id) in batch["samples"].as_array().unwrap().iter().enumerate() {
            let images = tensor("images_per_sample").i32s().nth(row).unwrap() as usize;
            let row_grids = &grids[grid..grid + images * 3];
            grid += images * 3;
            // Formats that cannot say a sample leave it out.
            let Some(place) = places.get(id.as_str().unwrap()) else {
                whole = false;
                continue;
            };
            let range = Range::new(*place, place + 1).unwrap();
            let frame = worker.batch("train", range, None).await.unwrap_or_else(|p| panic!("{id}: {p:?}"));
            let view = BatchView::parse(&frame).unwrap();
            let sample = &view.samples()[0];
            assert_eq!(sample.status, RowStatus::Ok);
            assert_eq!(sample.tokens, tokens[bounds[row]..bounds[row + 1]], "{id}: tokens");
            assert_eq!(sample.loss_mask, &mask[bounds[row]..bounds[row + 1]], "{id}: mask");
            assert_eq!(sample.grids.as_flattened(), row_grids, "{id}: grids");
            assert_eq!(sample.hash, sample.computed_hash(), "{id}: hash");
            patches.update(sample.patches);
            held += 1;
        }
        if whole {
            let digest = feedmill_protocol::hash::hex(&patches.finalize());
            // A batch without pictures has no patches to hold against.
            if let Some(expected) = batch["patches_u8_sha256"].as_str() {
                assert_eq!(digest, expected, "{file}: patches");
                patches_held += 1;
            }
        }
    }
    assert!(held >= 20 && patches_held >= 1, "only {held} rows and {patches_held} pictures' batches held");
}

#[tokio::test(flavor = "multi_thread")]
async fn openai_messages() {
    rows_match("openai.jsonl", Q3_SMALL, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn openai_messages_with_the_default_of_control_tokens() {
    rows_match("openai.jsonl", Q3_SMALL_KEEP, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn qwen_parts() {
    rows_match("qwen.jsonl", Q3_SMALL, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn llava_conversations() {
    rows_match("llava.jsonl", Q3_SMALL, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sharegpt_columns() {
    rows_match("sharegpt.jsonl", Q3_SMALL, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_with_images_column() {
    rows_match("messages-images.jsonl", Q3_SMALL, false).await;
}

/// An independent S3 server with everything of the goldens in its bucket `golden`.
struct Independent {
    server: VersityGw,
    keys: tempfile::TempDir,
    _root: tempfile::TempDir,
}

impl Independent {
    async fn new() -> Self {
        let (root, processor) = (tempfile::tempdir().unwrap(), processor_folder());
        let server = VersityGw::start(root.path());
        let client = client(&server.endpoint());
        server.create_bucket("golden").await;
        for (folder, prefix) in [
            (golden("images"), "images/"),
            (golden("manifests"), "manifests/"),
            (processor.path().to_owned(), "processor/"),
        ] {
            put_folder(&client, "golden", &folder, prefix).await;
        }
        Self { server, keys: credentials_folder(), _root: root }
    }
}

/// Manifest, processor and pictures from versitygw: the same rows, with 0 differences.
#[tokio::test(flavor = "multi_thread")]
async fn every_row_is_the_same_from_another_s3_server() {
    let s3 = Independent::new().await;
    for (manifest, settings, keep) in [
        ("openai.jsonl", Q3_SMALL_KEEP, true),
        ("llava-array.json", Q3_SMALL, false),
        ("sharegpt.jsonl", Q3_SMALL, false),
    ] {
        let streams = streams("s3://golden", manifest);
        let pipeline = pipeline(&document("s3://golden/processor/", settings, &streams));
        let options = Options {
            s3_endpoint: Some(s3.server.endpoint()),
            s3_credentials_dir: Some(s3.keys.path().to_owned()),
            ..Options::default()
        };
        // The array holds the records of the lines.
        let lines = manifest.replace("-array.json", ".jsonl");
        rows_match_in(pipeline, options, &lines, keep).await;
    }
}

/// The padded layout over HTTP, byte for byte what the processor returns.
#[tokio::test(flavor = "multi_thread")]
async fn padded_batches_are_the_processors_own() {
    let processor = processor_folder();
    let uri = format!("file://{}/", processor.path().display());
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("batches.jsonl"), records_of_batches()).unwrap();
    let manifest = format!("file://{}/batches.jsonl", folder.path().display());
    padded_match(&uri, &manifest, &format!("file://{}/", golden("").display()), &settings()).await;
}

/// The same worker, its data in versitygw.
#[tokio::test(flavor = "multi_thread")]
async fn padded_batches_are_the_same_from_another_s3_server() {
    let s3 = Independent::new().await;
    let put = client(&s3.server.endpoint()).put_object().bucket("golden").key("batches.jsonl");
    put.body(records_of_batches().into_bytes().into()).send().await.unwrap();
    let mut settings = settings();
    settings.s3_endpoint = Some(s3.server.endpoint());
    settings.s3_credentials = Some(s3.keys.path().to_owned());
    padded_match("s3://golden/processor/", "s3://golden/batches.jsonl", "s3://golden/", &settings).await;
}

/// The batches' samples, one after another, so that a batch is a range.
fn records_of_batches() -> String {
    let (batches, places) = (expected(), places("openai.jsonl"));
    let manifest = std::fs::read_to_string(golden("manifests/openai.jsonl")).unwrap();
    let lines: Vec<&str> = manifest.lines().collect();
    let samples =
        batches["batches"].as_array().unwrap().iter().flat_map(|batch| batch["samples"].as_array().unwrap());
    samples.map(|id| lines[places[id.as_str().unwrap()] as usize].to_owned() + "\n").collect()
}

async fn padded_match(processor: &str, manifest: &str, images: &str, settings: &Settings) {
    let batches = expected();
    let streams = format!(
        "  - name: train\n    shuffle: false\n    datasets: [{{name: golden, uri: \"{manifest}\", imageBaseUri: \
         \"{images}\"}}]\n"
    );
    let served = served(pipeline(&document(processor, Q3_SMALL, &streams)), settings).await;
    for (index, batch) in batches["batches"].as_array().unwrap().iter().enumerate() {
        let path = format!("/v1/streams/train/batches/{}-{}?layout=hf", index * 4, index * 4 + 4);
        let answer = served.get(&path).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let frame = FrameView::parse(&answer.body).unwrap();
        let bytes = std::fs::read(golden("expected").join(batch["file"].as_str().unwrap())).unwrap();
        let expected = FrameView::parse(&bytes).unwrap();
        for name in ["input_ids", "attention_mask", "labels", "mm_token_type_ids"] {
            let wanted = expected.tensor(&format!("padded.{name}")).unwrap();
            assert_eq!(frame.tensor(name).unwrap(), wanted, "batch {index}: {name}");
        }
        let pixels = frame.tensor("pixel_values").unwrap();
        match batch["pixel_values_fp32_sha256"].as_str() {
            Some(digest) => assert_eq!(hex(pixels.data), digest, "batch {index}: pixel_values"),
            None => assert!(pixels.data.is_empty()),
        }
        let selected = served.get(&format!("{path}&tensors=labels")).await;
        let selected = FrameView::parse(&selected.body).unwrap();
        assert_eq!(selected.tensors().count(), 1);
        assert_eq!(selected.tensor("labels"), frame.tensor("labels"));
    }
}
