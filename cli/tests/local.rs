//! `feedmill local` on the quickstart's data, as a user runs it.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Stdio};

use support::{bucket, example, feedmill, local, run, said};

#[test]
fn every_position_comes_once_and_the_last_step_is_padded() {
    let arguments =
        ["--workers", "2", "--ranks", "3", "--micro-batch", "2", "--step-ms", "0", "--steps", "4"];
    let (code, json, said) = local(&arguments);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(json["samples"], 24, "{said}");
    for fault in ["missing", "twice", "wrong_hash", "misplaced_filler"] {
        assert_eq!(json[fault]["count"], 0, "{fault}\n{said}");
    }
    assert_eq!((&json["kept"], &json["interrupted"]), (&true.into(), &false.into()));
    assert!(json["reference_bytes_per_sample"].as_f64() > json["bytes_per_sample"].as_f64());
    assert!(said.contains("kept    every position came exactly once: 24 of 24"), "{said}");
}

/// One epoch with a worker killed in the middle, against one undisturbed worker; the epoch's end is no multiple of the step.
#[test]
fn a_killed_worker_changes_no_byte() {
    let arguments =
        ["--ranks", "2", "--micro-batch", "8", "--step-ms", "0", "--window", "3", "--kill-worker", "--check"];
    let (code, json, said) = local(&arguments);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(json["killed"]["worker"], "w0", "{said}");
    assert_eq!(json["samples"], json["samples_per_epoch"], "{said}");
    assert_eq!(json["filler"], 16 - json["samples"].as_u64().unwrap() % 16);
    assert_eq!(json["check"]["chain"], json["chain"], "{said}");
    assert_eq!(json["check"]["samples"], json["samples"], "{said}");
    // An epoch meets every record, the broken ones included.
    let listed = json["bad_records"].as_array().unwrap();
    for class in ["image_missing", "image_corrupt", "malformed_record", "unsupported_modality"] {
        assert!(json["bad"][class]["replaced"].as_u64() > Some(0), "{class}\n{said}");
        assert!(listed.iter().any(|record| record["class"] == class), "{class}\n{said}");
    }
}

#[test]
fn a_signal_ends_the_run_in_order_and_the_summary_is_still_printed() {
    ends_in_order(rustix::process::Signal::INT, 130);
}

/// It ended with 130, which says SIGINT.
#[test]
fn sigterm_ends_the_run_with_143() {
    ends_in_order(rustix::process::Signal::TERM, 143);
}

/// Closing the terminal left its folder behind.
#[test]
fn sighup_ends_the_run_in_order_with_129() {
    ends_in_order(rustix::process::Signal::HUP, 129);
}

/// As `nohup` starts it; SIGINT is what ends it.
#[test]
fn sighup_stays_ignored_where_it_was() {
    let mut child = Command::new("sh");
    child.args(["-c", "trap '' HUP; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_feedmill")]);
    let [hangup, interrupt] = [rustix::process::Signal::HUP, rustix::process::Signal::INT];
    run_and_end(child, &[hangup, interrupt], 130);
}

/// Steps of no time first, which no fleet can feed; then steps that one worker feeds with ease.
#[test]
fn a_fleet_grows_for_hungry_ranks_and_shrinks_when_they_have_plenty() {
    let mut child = feedmill()
        .arg("local")
        .arg(example("pipeline.yaml"))
        .args(["--embedded-s3", &bucket(), "--epochs", "1000000", "--ranks", "2", "--micro-batch", "2"])
        .args(["--workers", "1", "--autoscale", "--max-workers", "3", "--scaling-window-ms", "200"])
        .args(["--step-ms", "0", "--then-step-ms", "400@500"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut sizes = |grows: bool| {
        let decided = |line: &String| line.starts_with("autoscale: ") && line.contains(" -> ");
        let numbers =
            |line: &str| -> Vec<u32> { line.split(' ').filter_map(|word| word.parse().ok()).collect() };
        lines.find(|line| decided(line) && (numbers(line)[1] > numbers(line)[0]) == grows)
    };
    let grown = sizes(true);
    assert!(grown.is_some_and(|line| line.contains("autoscale: 1 -> 3 workers: ")));
    assert!(sizes(false).is_some_and(|line| line.contains("trying fewer")));
    let id = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(id, rustix::process::Signal::INT).unwrap();
    let rest: Vec<String> = lines.collect();
    let mut errors = String::new();
    child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{errors}");
    let summary = rest.iter().find(|line| line.starts_with("autoscale   from 1 to "));
    assert!(
        summary.is_some_and(|line| line.contains("3 at most; grown ") && line.contains("in the end")),
        "{rest:#?}"
    );
    assert!(rest.iter().any(|line| line.starts_with("kept    every position")), "{rest:#?}");
    assert!(
        !rest.iter().any(|line| line.starts_with("lost  ")),
        "a worker that was not wanted any more is not lost: {rest:#?}"
    );
    assert!(!errors.contains("does not end by itself"), "{errors}");
}

fn ends_in_order(signal: rustix::process::Signal, code: i32) {
    run_and_end(feedmill(), &[signal], code);
}

fn run_and_end(mut command: Command, signals: &[rustix::process::Signal], code: i32) {
    let temporary = tempfile::tempdir().unwrap();
    let mut child = command
        .env("TMPDIR", temporary.path())
        .arg("local")
        .arg(example("pipeline.yaml"))
        .args(["--embedded-s3", &bucket(), "--epochs", "1000000", "--step-ms", "10"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    // On a busy machine seconds may pass before the first step is made.
    let made = |line: &String| line.contains("samples/s") && !line.starts_with("step 0/");
    let running = lines.by_ref().map(Result::unwrap).find(made);
    assert!(running.is_some(), "it ended before it ran");
    let id = rustix::process::Pid::from_child(&child);
    for signal in signals {
        rustix::process::kill_process(id, *signal).unwrap();
    }
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    let mut errors = String::new();
    child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(code), "{errors}");
    assert!(rest.iter().any(|line| line.contains("(stopped by a signal)")), "{rest:#?}");
    assert!(rest.iter().any(|line| line.starts_with("kept    every position")), "{rest:#?}");
    assert!(!errors.contains("does not end by itself"), "{errors}");
    assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 0, "it left folders behind");
}

/// A signal left the folder for manifests behind.
#[test]
fn a_signal_takes_a_shows_folders_away() {
    let storage = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("region: us-east-1\n    endpoint: http://{}", storage.local_addr().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let pipeline = folder.path().join("pipeline.yaml");
    let text = std::fs::read_to_string(example("pipeline.yaml")).unwrap();
    assert!(text.contains("region: us-east-1"));
    std::fs::write(&pipeline, text.replace("region: us-east-1", &endpoint)).unwrap();
    for (signal, code) in [(rustix::process::Signal::HUP, 129), (rustix::process::Signal::TERM, 143)] {
        let temporary = tempfile::tempdir().unwrap();
        let mut child = feedmill()
            .env("TMPDIR", temporary.path())
            .envs([("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", "key")])
            .args(["show", pipeline.to_str().unwrap(), "0"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // It asks for data, and nobody answers.
        let _asked = storage.accept().unwrap();
        rustix::process::kill_process(rustix::process::Pid::from_child(&child), signal).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(code));
        assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 0, "it left folders behind");
    }
}

/// `--serve`: trainers that come by themselves read from it, and go on when a worker was killed.
#[test]
fn workers_are_served_until_a_signal_and_their_list_is_kept_true() {
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("workers");
    let mut child = feedmill()
        .args(["local", "--serve", "--workers", "2"])
        .arg(example("pipeline.yaml"))
        .args(["--embedded-s3", &bucket(), "--workers-file"])
        .arg(&list)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let id = rustix::process::Pid::from_child(&child);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let addresses = lines.find(|line| line.contains("Loader(\"http://")).unwrap();
    let named = lines.find(|line| line.contains("Loader(\"file:")).unwrap();
    assert!(named.contains(list.to_str().unwrap()), "{named}");
    let listed =
        || -> Vec<String> { std::fs::read_to_string(&list).unwrap().lines().map(str::to_owned).collect() };
    let first = listed();
    assert!(first.len() == 2 && addresses.contains(&first.join(",")), "{addresses}\n{first:?}");
    let second = ["local", "--serve", "--workers-file", list.to_str().unwrap()];
    let pipeline = example("pipeline.yaml");
    let second = run(&[&second[..], &[pipeline.to_str().unwrap(), "--embedded-s3", &bucket()]].concat());
    assert_eq!(second.status.code(), Some(2), "{}", said(&second));
    assert!(said(&second).contains("which answers: another feedmill local --serve"), "{}", said(&second));
    assert_eq!(listed(), first, "the list was taken over");

    let hash = |url: &str| loop {
        let output = run(&["get", url, "0-4"]);
        // One that is ready is enough for trainers to begin.
        if !output.status.success() && said(&output).contains("this worker is starting") {
            continue;
        }
        assert!(output.status.success(), "{}", said(&output));
        break String::from_utf8(output.stdout).unwrap();
    };
    let from_both = [hash(&first[0]), hash(&first[1])];
    assert_eq!(from_both[0], from_both[1]);

    let number = id.as_raw_nonzero();
    let children = std::fs::read_to_string(format!("/proc/{number}/task/{number}/children")).unwrap();
    let worker: i32 = children.split_whitespace().next().unwrap().parse().unwrap();
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(worker).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    let replaced = lines.find(|line| line.contains("another one is at ")).unwrap();
    let address = replaced.rsplit(' ').next().unwrap();
    let now = listed();
    assert!(now.len() == 2 && now.contains(&address.to_owned()), "{replaced}\n{now:?}");
    assert_eq!(hash(&now[0]), from_both[0]);
    assert_eq!(hash(&now[1]), from_both[0]);

    rustix::process::kill_process(id, rustix::process::Signal::INT).unwrap();
    let rest: Vec<String> = lines.collect();
    assert!(rest.iter().any(|line| line.starts_with("served ")), "{rest:#?}");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(listed().is_empty());
}
