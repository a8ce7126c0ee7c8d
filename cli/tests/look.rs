//! `feedmill get` and `feedmill show`: from a file as from a worker.

mod support;

use support::{Worker, bucket, example, pipeline_over_files, run, said};

#[test]
fn a_file_gives_the_bytes_that_a_worker_gives() {
    let (folder, pipeline) = pipeline_over_files("name: quickstart", "name: over-files");
    let worker = Worker::start(&pipeline);
    let get = |target: &str, name: &str, range: &str, more: &[&str]| {
        let path = folder.path().join(name);
        let path = path.to_str().unwrap();
        let output = run(&[&["get", target, range, "--output", path], more].concat());
        assert!(output.status.success(), "{}", said(&output));
        (std::fs::read(path).unwrap(), said(&output))
    };
    for (range, more) in [("60-66", &[][..]), ("600-604", &["--stop", "602"])] {
        let (from_file, said_of_file) = get(&pipeline, "file", range, more);
        let (from_worker, said_of_worker) = get(&worker.url, "worker", range, more);
        assert!(!from_file.is_empty() && from_file == from_worker, "{range} differs");
        let described = |text: &str| text.split("\nwritten to").next().unwrap().to_owned();
        assert_eq!(described(&said_of_file), described(&said_of_worker));
    }
    let filler = get(&worker.url, "filler", "600-604", &["--stop", "602"]).1;
    assert_eq!(filler.lines().filter(|line| line.ends_with("  filler")).count(), 2, "{filler}");
    let (from_file, from_worker) = (run(&["show", &pipeline, "63"]), run(&["show", &worker.url, "63"]));
    assert_eq!(said(&from_file), said(&from_worker));
    assert!(from_file.status.success());
}

#[test]
fn a_batch_is_the_same_from_s3_as_from_files() {
    let (folder, pipeline) = pipeline_over_files("name: quickstart", "name: over-files");
    let paths = ["s3", "files"].map(|name| folder.path().join(name).to_str().unwrap().to_owned());
    let example = example("pipeline.yaml");
    let from_s3 =
        run(&["get", example.to_str().unwrap(), "0-3", "--embedded-s3", &bucket(), "-o", &paths[0]]);
    let from_files = run(&["get", &pipeline, "0-3", "-o", &paths[1]]);
    assert!(
        from_s3.status.success() && from_files.status.success(),
        "{}{}",
        said(&from_s3),
        said(&from_files)
    );
    // Where data lies is no part of the plan, so whole files are equal.
    let [s3, files] = paths.map(|path| std::fs::read(path).unwrap());
    assert!(!s3.is_empty() && s3 == files);
}

#[test]
fn show_marks_what_is_learnt() {
    let (_folder, pipeline) = pipeline_over_files("shuffle: true", "shuffle: false");
    // The first row with a picture.
    let table = said(&run(&["get", &pipeline, "0-20"]));
    let cells = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let row =
        cells.into_iter().find(|cells| cells.get(5) == Some(&"1") && cells.last() == Some(&"ok")).unwrap();
    let output = run(&["show", &pipeline, row[0]]);
    let text = said(&output);
    assert!(output.status.success(), "{text}");
    let (_, assistant) = text.split_once("<|im_start|>assistant\n").unwrap();
    assert!(assistant.starts_with('«'), "{text}");
    assert!(assistant.contains("<|im_end|>⏎»"), "{text}");
    let (_, user) = text.split_once("<|im_start|>user\n").unwrap();
    assert!(!user.split("<|im_end|>").next().unwrap().contains('«'), "{text}");
    assert!(text.contains("pixels, grid 1x"), "{text}");
}

#[test]
fn show_says_why_another_record_stands_there() {
    // In the order of the manifest line 11 stands at a position that can be found by its record.
    let (_folder, pipeline) = pipeline_over_files("shuffle: true", "shuffle: false");
    let table = said(&run(&["get", &pipeline, "0-20"]));
    let row = table.lines().find(|line| line.contains("image_missing")).unwrap();
    let position = row.split_whitespace().next().unwrap();
    let text = said(&run(&["show", &pipeline, position]));
    for part in [
        "another record stands here",
        "assigned: captions line 11: image_missing",
        "not-uploaded.jpg",
        "what to do  upload the object",
    ] {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
}

#[test]
fn a_pipelines_plan_is_held_against_a_workers() {
    let (folder, pipeline) = pipeline_over_files("name: quickstart", "name: over-files");
    let worker = Worker::start(&pipeline);
    let equal = run(&["diff", &pipeline, &worker.url]);
    assert!(equal.status.success() && said(&equal).contains("the plans are equal"), "{}", said(&equal));
    let (_other_folder, other) = pipeline_over_files("shuffle: true", "shuffle: false");
    let differ = run(&["diff", &other, &worker.url]);
    assert_eq!(differ.status.code(), Some(1), "{}", said(&differ));
    assert!(said(&differ).contains("the plans differ in 1 fact"), "{}", said(&differ));
    let neither = folder.path().join("neither");
    std::fs::write(&neither, "text").unwrap();
    let refused = run(&["diff", neither.to_str().unwrap(), &worker.url]);
    assert!(said(&refused).contains("is no JSON, so no plan.json: "), "{}", said(&refused));
}
