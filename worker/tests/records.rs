//! Settings of records that several crates carry: sizes, stretches, turns, templates, and what of them is in the plan.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

use std::path::Path;

use feedmill_protocol::frame::FrameView;
use feedmill_worker::in_process::{InProcess, Options};
use serde_json::{Value, json};
use support::{Served, document, golden, pipeline, processor_folder, served, settings};

struct Setup {
    folder: tempfile::TempDir,
    processor: tempfile::TempDir,
}

impl Setup {
    fn new(records: &[Value]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let lines: String = records.iter().map(|record| format!("{record}\n")).collect();
        std::fs::write(folder.path().join("records.jsonl"), lines).unwrap();
        std::fs::copy(golden("images/geo_photo_640x480.png"), folder.path().join("a.png")).unwrap();
        Self { folder, processor: processor_folder() }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn document(&self, dataset: &str, processor: &str) -> String {
        let streams = format!(
            "  - name: train\n    shuffle: false\n    badSamples: ZeroLoss\n    datasets: [{{name: set, uri: \
             \"file://{}/records.jsonl\"{dataset}}}]\n",
            self.path().display()
        );
        let uri = format!("file://{}/", self.processor.path().display());
        document(&uri, &format!(", minPixels: 4096, maxPixels: 65536{processor}"), &streams)
    }

    async fn serve(&self, dataset: &str, processor: &str) -> Served {
        served(pipeline(&self.document(dataset, processor)), &settings()).await
    }

    async fn refused(&self, dataset: &str) -> String {
        match InProcess::open(pipeline(&self.document(dataset, "")), Options::default()).await {
            Ok(_) => panic!("a start was expected to be refused"),
            Err(error) => format!("{error:#}"),
        }
    }
}

async fn sample(worker: &Served, position: usize) -> Value {
    worker.get(&format!("/v1/streams/train/samples/{position}")).await.json()
}

fn part(extra: Value) -> Value {
    let mut part = json!({"type": "image", "image": "a.png"});
    part.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    part
}

fn asked(parts: Vec<Value>) -> Value {
    json!({"messages": [{"role": "user", "content": parts}, {"role": "assistant", "content": "a"}]})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_narrows_the_limits_of_its_pictures_and_cannot_widen_them() {
    let setup = Setup::new(&[
        asked(vec![part(json!({}))]),
        asked(vec![part(json!({"max_pixels": 16384}))]),
        asked(vec![part(json!({"max_pixels": 99999999, "min_pixels": 1}))]),
        asked(vec![part(json!({"max_pixels": 1}))]),
        asked(vec![part(json!({"resized_height": 64, "resized_width": 320}))]),
        asked(vec![part(json!({"resized_height": 6400, "resized_width": 3200}))]),
        asked(vec![part(json!({})), part(json!({"max_pixels": 16384})), part(json!({}))]),
        asked(vec![part(json!({"resized_height": 32, "resized_width": 32000}))]),
    ]);
    let worker = setup.serve("", "").await;
    let mut sizes: Vec<Vec<(u64, u64)>> = Vec::new();
    for position in 0..7 {
        let sample = sample(&worker, position).await;
        assert_eq!(sample["status"], "ok", "{sample}");
        let size = |image: &Value| {
            (image["resized_height"].as_u64().unwrap(), image["resized_width"].as_u64().unwrap())
        };
        sizes.push(sample["sample"]["images"].as_array().unwrap().iter().map(size).collect());
    }
    // 640 x 480 under 65536, 16384 and 4096 pixels, by smart_resize with sides of 32.
    let (whole, small, least) = ((192, 288), (96, 128), (32, 64));
    assert_eq!(sizes[0], [whole]);
    assert_eq!(sizes[1], [small]);
    assert_eq!(sizes[2], [whole]);
    assert_eq!(sizes[3], [least]);
    assert_eq!(sizes[4], [(64, 320)]);
    assert_eq!(sizes[5], [(352, 160)]);
    assert_eq!(sizes[6], [whole, small, whole]);
    let batch = worker.get("/v1/streams/train/batches/0-7").await;
    let frame = FrameView::parse(&batch.body).unwrap();
    assert_eq!(frame.tensor("status").unwrap().data, vec![0; 7]);
    let stretched = sample(&worker, 7).await;
    assert_eq!(stretched["rejected"][0]["class"], "image_aspect_ratio", "{stretched}");
}

#[tokio::test(flavor = "multi_thread")]
async fn last_turns_go_whole_and_with_their_pictures_until_the_sample_fits() {
    let turn = |text: &str| {
        [
            json!({"role": "user", "content": [part(json!({"max_pixels": 16384})), {"type": "text", "text": text}]}),
            json!({"role": "assistant", "content": "answer"}),
        ]
    };
    let turns: Vec<Value> = ["one", "two", "three", "four"].into_iter().flat_map(turn).collect();
    let long = "word ".repeat(400);
    let setup = Setup::new(&[
        json!({"messages": turns[..2]}),
        json!({"messages": turns}),
        json!({"messages": [{"role": "user", "content": long}, {"role": "assistant", "content": "a"}]}),
    ]);
    let one = sample(&setup.serve("", "").await, 0).await["sample"]["tokens"].as_u64().unwrap();
    let limit = 2 * one + one / 2;
    let worker = setup.serve("", &format!(", tooLong: DropTurns, maxTokens: {limit}")).await;
    let cut = sample(&worker, 1).await;
    assert_eq!(cut["status"], "ok", "{cut}");
    assert_eq!(cut["sample"]["dropped_turns"], 2);
    assert_eq!(cut["sample"]["images"].as_array().unwrap().len(), 2);
    assert_eq!(cut["sample"]["messages"].as_array().unwrap().len(), 4);
    assert!(cut["sample"]["tokens"].as_u64().unwrap() <= limit, "{cut}");
    let whole = sample(&worker, 0).await;
    assert_eq!((&whole["sample"]["dropped_turns"], &whole["sample"]["tokens"]), (&json!(0), &json!(one)));
    let bad = sample(&worker, 2).await;
    assert_eq!(bad["rejected"][0]["class"], "too_long", "{bad}");
    let batch = worker.get("/v1/streams/train/batches/0-2").await;
    let frame = FrameView::parse(&batch.body).unwrap();
    assert_eq!(frame.tensor("images_per_sample").unwrap().i32s().collect::<Vec<_>>(), [1, 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn stretches_of_one_file_are_pictures_of_their_own() {
    let stretch = |offset: u64, length: u64| json!({"image": {"path": "shard.tar", "offset": offset, "length": length}, "question": "q", "answer": "a"});
    let first = std::fs::read(golden("images/geo_chart_17x230.png")).unwrap();
    let second = std::fs::read(golden("images/geo_photo_128x160.png")).unwrap();
    let (a, b) = (first.len() as u64, second.len() as u64);
    let setup = Setup::new(&[
        stretch(0, a),
        stretch(a, b),
        stretch(a, b + 1),
        stretch(a + b + 5, 1),
        stretch(0, 40 << 20),
        json!({"image": "https://example.org/a.png", "question": "q", "answer": "a"}),
    ]);
    std::fs::write(setup.path().join("shard.tar"), [first, second].concat()).unwrap();
    let worker = setup.serve("", "").await;
    for (position, size) in [(0, (17, 230)), (1, (128, 160))] {
        let image = &sample(&worker, position).await["sample"]["images"][0];
        assert_eq!((&image["width"], &image["height"]), (&json!(size.0), &json!(size.1)), "{image}");
    }
    for (position, class) in
        [(2, "bad_reference"), (3, "bad_reference"), (4, "image_too_many_bytes"), (5, "bad_reference")]
    {
        let sample = sample(&worker, position).await;
        assert_eq!(sample["rejected"][0]["class"], class, "{sample}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn roots_and_prefixes_lead_where_they_say_and_nowhere_else() {
    let other = tempfile::tempdir().unwrap();
    std::fs::copy(golden("images/geo_photo_640x480.png"), other.path().join("b c#%20.png")).unwrap();
    let record = |image: String| json!({"image": image, "prompt": "p", "response": "r"});
    let inside = format!("file://{}/b c#%20.png", other.path().display());
    let setup = Setup::new(&[
        record(inside),
        record("/mnt/b c#%20.png".into()),
        record("/mnt/../a.png".into()),
        record("file:///etc/hostname".into()),
        record("/old/a.png".into()),
    ]);
    let root = other.path().display();
    let dataset = format!(
        ", imageRoots: [\"file://{root}\"], imagePrefixes: [{{from: /mnt/, to: \"file://{root}\"}}, {{from: /old/, to: \"\"}}]"
    );
    let worker = setup.serve(&dataset, "").await;
    for position in [0, 1, 4] {
        let sample = sample(&worker, position).await;
        assert_eq!(sample["status"], "ok", "{sample}");
    }
    for position in [2, 3] {
        let sample = sample(&worker, position).await;
        assert_eq!(sample["rejected"][0]["class"], "bad_reference", "{sample}");
    }
    let gone = format!(", imageRoots: [\"file://{root}/nowhere\"]");
    assert!(setup.refused(&gone).await.contains("nowhere"), "a root that is not there");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_that_does_not_compile_stops_the_start_with_its_line() {
    let setup = Setup::new(&[json!({"q": "q"})]);
    let refused = setup.refused(", template: \"[\\n{% if %}\\n]\"").await;
    assert!(refused.contains("data set set: template: the template does not compile"), "{refused}");
    assert!(refused.contains("line 2"), "{refused}");
    let refused = setup.refused("").await;
    assert!(refused.contains("write a template"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_setting_of_records_is_in_the_plan() {
    let setup = Setup::new(&[asked(vec![part(json!({}))])]);
    let plan = async |dataset: &str, processor: &str| {
        let document = setup.document(dataset, processor);
        InProcess::open(pipeline(&document), Options::default()).await.unwrap().plan("train").unwrap().0
    };
    let plain = plan("", "").await;
    assert_eq!(plain, plan("", "").await);
    // Detected or named, the shape is the same.
    assert_eq!(plain, plan(", recordFormat: Messages", "").await);
    for (dataset, processor) in [
        (", recordFormat: QuestionAnswer", ""),
        (", columns: {image: picture}", ""),
        (", template: \"{{ messages | tojson }}\"", ""),
        (", imagePrefixes: [{from: /x/, to: \"\"}]", ""),
        (", imageRoots: [\"file:///tmp\"]", ""),
        ("", ", controlTokens: {sanitize: false}"),
        ("", ", tooLong: DropTurns"),
    ] {
        assert_ne!(plain, plan(dataset, processor).await, "{dataset}{processor}");
    }
}
