//! docs/data.md says what is true: its examples become samples, its bad records are bad with the message it names.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

use std::path::Path;

use feedmill_protocol::bad::BadClass;
use feedmill_protocol::frame::FrameView;
use serde_json::Value;
use support::{Served, document, golden, pipeline, processor_folder, served, settings};

fn page() -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/data.md")).unwrap()
}

/// A fenced block: what stands behind the fence, and the lines in it.
struct Block {
    info: String,
    text: String,
}

fn blocks(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(info) = line.strip_prefix("```") {
            let text: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            blocks.push(Block { info: info.to_owned(), text: text.join("\n") });
        }
    }
    blocks
}

/// The pictures that the page's examples name.
fn pictures(folder: &Path) {
    let picture = std::fs::read(golden("images/geo_chart_17x230.png")).unwrap();
    for name in ["a.jpg", "b.png"] {
        std::fs::write(folder.join(name), &picture).unwrap();
    }
    // As a tar has it: a header, the picture, and nothing up to the next block.
    let mut shard = vec![0; 512];
    shard.extend_from_slice(&picture);
    shard.resize(512 + 4096, 0);
    std::fs::write(folder.join("shard.tar"), shard).unwrap();
}

/// A worker over one data set; `dataset` has its fields beside name and uri. The built-in template writes tools.
async fn worker(folder: &Path, records: &str, dataset: &str) -> Served {
    std::fs::write(folder.join("records.jsonl"), records).unwrap();
    let processor = processor_folder();
    let fields: String = dataset.lines().map(|line| format!("      {line}\n")).collect();
    let streams = format!(
        "  - name: train\n    shuffle: false\n    badSamples: ZeroLoss\n    datasets:\n    - name: page\n      uri: \
         \"file://{}/records.jsonl\"\n{fields}",
        folder.display()
    );
    let uri = format!("file://{}/", processor.path().display());
    let document = document(&uri, ", minPixels: 4096, maxPixels: 32768, chatTemplate: Qwen3VL", &streams);
    served(pipeline(&document), &settings()).await
}

async fn sample(worker: &Served, position: usize) -> Value {
    worker.get(&format!("/v1/streams/train/samples/{position}")).await.json()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_example_becomes_a_sample() {
    let (mut dataset, mut examples) = (String::new(), 0);
    for block in blocks(&page()) {
        match block.info.split_once(' ') {
            None if block.info == "yaml" => dataset = block.text,
            Some(("jsonl", shape)) if shape != "bad" => {
                let folder = tempfile::tempdir().unwrap();
                pictures(folder.path());
                let worker = worker(folder.path(), &block.text, &std::mem::take(&mut dataset)).await;
                let plan = worker.get("/v1/plan").await.json();
                assert!(plan.to_string().contains(&format!("\"dataset.000.shape\":\"{shape}\"")), "{plan}");
                for (position, line) in block.text.lines().enumerate() {
                    let sample = sample(&worker, position).await;
                    assert_eq!(sample["status"], "ok", "{line}: {}", sample["rejected"]);
                    examples += 1;
                }
                let records = block.text.lines().count();
                let batch = worker.get(&format!("/v1/streams/train/batches/0-{records}")).await;
                let frame = FrameView::parse(&batch.body).unwrap();
                assert_eq!(frame.tensor("status").unwrap().data, vec![0; records], "{}", block.text);
            }
            _ => {}
        }
    }
    assert_eq!(examples, 22);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_bad_record_is_bad_with_the_message_the_page_names() {
    let page = page();
    let bad = blocks(&page).into_iter().find(|block| block.info == "jsonl bad").unwrap();
    let (_, table) = page.split_once("| class | message begins |\n|---|---|\n").unwrap();
    let folder = tempfile::tempdir().unwrap();
    pictures(folder.path());
    let worker = worker(folder.path(), &bad.text, "recordFormat: Conversations").await;
    let mut rows = 0;
    for (position, row) in table.lines().take_while(|line| line.starts_with('|')).enumerate() {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let sample = sample(&worker, position).await;
        let rejected = &sample["rejected"][0];
        assert_eq!(format!("`{}`", rejected["class"].as_str().unwrap()), cells[0], "{rejected}");
        let detail = rejected["detail"].as_str().unwrap();
        assert!(detail.starts_with(cells[1]), "{detail}");
        rows += 1;
    }
    assert_eq!(rows, bad.text.lines().count());
}

#[test]
fn every_class_stands_on_the_page_with_its_remedy() {
    let page = page();
    for class in BadClass::ALL {
        let row = format!("| `{}` | {} | {} |", class.name(), *class as u8, class.remedy());
        assert!(page.contains(&row), "docs/data.md lacks: {row}");
    }
}
