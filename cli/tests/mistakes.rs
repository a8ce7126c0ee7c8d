//! What the user gets wrong, and what the command says: what, where, what to do.

mod support;

use support::{bucket, example, feedmill, pipeline_over_files, run, said};

fn refused(arguments: &[&str], code: i32, parts: &[&str]) {
    let output = run(arguments);
    let text = said(&output);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}\n{text}");
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
}

#[test]
fn a_pipeline_that_contradicts_itself_shows_every_field() {
    let (_folder, pipeline) = pipeline_over_files("percent: 150", "percent: 0\n          exclude: [0]\n");
    let parts = ["spec.streams[0].datasets[1].percent", "spec.streams[0].datasets[1].exclude"];
    for command in [&["local", &pipeline][..], &["get", &pipeline, "0-4"], &["show", &pipeline, "0"]] {
        refused(command, 2, &parts);
    }
    let (_folder, pipeline) = pipeline_over_files("percent: 150", "procent: 150");
    refused(&["local", &pipeline], 2, &["procent", "percent"]);
}

#[test]
fn wrong_names_and_numbers_are_named() {
    let pipeline = example("pipeline.yaml");
    let pipeline = pipeline.to_str().unwrap();
    let bucket = bucket();
    refused(&["local", "/nonexistent.yaml"], 2, &["/nonexistent.yaml"]);
    refused(&["local", pipeline, "--stream", "eval"], 2, &["\"eval\"", "it has train", "--stream"]);
    refused(&["local", pipeline, "--global-batch", "9"], 2, &["global batch 9", "8 or 16"]);
    refused(&["local", pipeline, "--micro-batch", "65"], 2, &["--micro-batch 65", "maxRange, 64"]);
    refused(&["local", pipeline, "--embedded-s3", "/nonexistent"], 2, &["/nonexistent"]);
    refused(&["local", pipeline, "--json", "/nonexistent/x"], 2, &["/nonexistent/x"]);
    let serve = ["local", pipeline, "--serve", "--workers-file"];
    refused(&[&serve[..], &["/nonexistent/x"]].concat(), 2, &["--workers-file", "/nonexistent/x"]);
    refused(
        &["local", pipeline, "--embedded-s3", &bucket, "--steps", "1", "--kill-worker"],
        2,
        &["at least 2 steps"],
    );
    refused(&["get", pipeline, "0-65", "--embedded-s3", &bucket], 1, &["0-65", "at most 64", "maxRange"]);
    refused(&["get", "ftp://x", "0-4"], 2, &["http://"]);
    refused(
        &["get", "http://127.0.0.1:1", "0-4"],
        1,
        &["cannot connect to http://127.0.0.1:1", "is a worker listening"],
    );
}

#[test]
fn a_worker_that_cannot_start_shows_its_last_words() {
    let (_folder, pipeline) = pipeline_over_files("decode: 1Gi", "decode: 1Mi");
    refused(&["local", &pipeline], 1, &["worker w", "ended", "its last lines", "cache.decode"]);
    let (_folder, pipeline) = pipeline_over_files("captions.jsonl", "nothing.jsonl");
    refused(&["local", &pipeline], 1, &["worker w", "its last lines", "nothing.jsonl"]);
}

#[test]
fn a_port_that_is_taken_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (_folder, pipeline) = pipeline_over_files("name: quickstart", "name: over-files");
    let output = feedmill().args(["worker", "--pipeline", &pipeline, "--listen", &address]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = said(&output);
    assert!(text.contains(&format!("cannot listen on {address}")) && text.contains("--listen"), "{text}");
}

/// It panicked.
#[test]
fn a_full_disk_behind_standard_output_is_said_and_no_panic() {
    let (_folder, pipeline) = pipeline_over_files("name: quickstart", "name: over-files");
    for arguments in [&["get", &pipeline, "0-2"][..], &["show", &pipeline, "0"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = feedmill().args(arguments).stdout(full).output().unwrap();
        let text = said(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains("cannot write to standard output") && !text.contains("panicked"), "{text}");
    }
    refused(&["show", &pipeline, "0", "--html", "/dev/full"], 1, &["cannot write /dev/full"]);
    refused(&["show", &pipeline, "0", "--html", "/nonexistent/x"], 1, &["cannot write /nonexistent/x"]);
}

/// It said that the store refuses access.
#[test]
fn a_pipeline_on_s3_without_a_region_is_told_which_setting_is_missing() {
    let text = std::fs::read_to_string(example("pipeline.yaml"))
        .unwrap()
        .replace("region: us-east-1", "region: \"\"");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipeline.yaml");
    std::fs::write(&path, text).unwrap();
    let mut command = feedmill();
    command
        .args(["get", path.to_str().unwrap(), "0-2"])
        .env_remove("AWS_REGION")
        .env_remove("AWS_DEFAULT_REGION");
    let output = command.output().unwrap();
    let text = said(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("spec.s3.region") && text.contains("AWS_REGION") && !text.contains("refuses"),
        "{text}"
    );
}

/// A list given as a device's name took the device's place.
#[test]
fn a_list_of_workers_takes_no_device_and_no_folder_away() {
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RWXU).unwrap();
    let pipeline = example("pipeline.yaml");
    for path in [&fifo, folder.path()] {
        let path = path.to_str().unwrap();
        let arguments = ["local", pipeline.to_str().unwrap(), "--serve", "--workers-file", path];
        refused(&arguments, 2, &["--workers-file", path, "no plain file"]);
    }
    assert!(!std::fs::metadata(&fifo).unwrap().is_file());
}
