//! `feedmill check`: what it says, its exit codes, and that its page holds data as text only.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

use std::collections::BTreeMap;

use serde_json::Value;
use support::{bucket, example, pipeline_over_files, run, said};

fn json(path: &std::path::Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn the_quickstart_s_faults_are_told_with_line_key_and_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let example = example("pipeline.yaml");
    let output = run(&[
        "check",
        example.to_str().unwrap(),
        "--embedded-s3",
        &bucket(),
        "--decode",
        "--json",
        &path("json"),
        "--html",
        &path("html"),
        "--bad",
        &path("bad"),
        "--max-bad",
        "0.02",
    ]);
    let text = said(&output);
    // 11 bad records: 2.08 % of an epoch's samples, since one data set counts one and a half times.
    assert_eq!(output.status.code(), Some(1), "{text}");
    for part in [
        "records name 566 pictures in storage, 47 different ones",
        "566 requests at S3",
        "Conversations, named",
        "Messages, detected",
        "not-uploaded.jpg does not exist",
        "upload the object or mend the reference",
        "unsupported image: HTML page",
        "premature end of jpeg file",
        "stream train: 2.08 % of its samples cannot be used",
    ] {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
    let report = json(&folder.path().join("json"));
    assert_eq!(report["format"], 1);
    let classes: BTreeMap<&str, u64> = report["datasets"][0]["bad"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(class, count)| (class.as_str(), count.as_u64().unwrap()))
        .collect();
    assert_eq!(classes["image_missing"], 1);
    assert_eq!(classes["image_corrupt"], 1);
    let listed = std::fs::read_to_string(folder.path().join("bad")).unwrap();
    assert_eq!(listed.lines().count(), report["bad"].as_array().unwrap().len());
    assert_eq!(report["bad"].as_array().unwrap().len(), 11);
    let page = std::fs::read_to_string(folder.path().join("html")).unwrap();
    assert!(page.contains("<svg") && page.contains("not-uploaded.jpg"));
    only_known_markup(&page);
}

#[test]
fn the_exit_code_tells_clean_from_bad_from_unreadable() {
    let (folder, pipeline) = pipeline_over_files("name: quickstart", "name: over-files");
    let code = |arguments: &[&str]| {
        let output = run(&[&["check", &pipeline], arguments].concat());
        (output.status.code(), said(&output))
    };
    assert_eq!(code(&["--max-bad", "0.3"]).0, Some(0));
    assert_eq!(code(&[]).0, Some(1));
    let (broken, text) = code(&["--state", folder.path().to_str().unwrap()]);
    assert_eq!(broken, Some(2), "{text}");
    // Refused before anything is read, and not after an hour.
    let (no_page, text) = code(&["--html", "-"]);
    assert_eq!(
        (no_page, text.contains("--html needs a file"), text.contains("stream ")),
        (Some(2), true, false)
    );
    let output = run(&["check", "/nonexistent.yaml"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("/nonexistent.yaml"));
    let (_folder, missing) = pipeline_over_files("captions.jsonl", "nothing.jsonl");
    let output = run(&["check", &missing]);
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("nothing.jsonl"), "{}", said(&output));
    // Files are no requests at S3.
    assert_eq!(code(&["--images", "--max-requests", "0", "--max-bad", "1"]).0, Some(0));
    let example = example("pipeline.yaml");
    let output = run(&[
        "check",
        example.to_str().unwrap(),
        "--embedded-s3",
        &bucket(),
        "--images",
        "--max-requests",
        "46",
    ]);
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("47 requests are more than --max-requests 46"), "{}", said(&output));
}

#[test]
fn json_on_standard_output_is_nothing_but_json() {
    let (_folder, pipeline) = pipeline_over_files("name: quickstart", "name: over-files");
    let output = run(&["check", &pipeline, "--json", "-", "--sample", "20", "--max-bad", "1"]);
    assert!(output.status.success(), "{}", said(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["datasets"][0]["looked_at"], 20);
    assert_eq!(report["selection"]["sample"], 20);
}

#[test]
fn the_page_shows_hostile_records_as_text() {
    let (folder, pipeline) = pipeline_over_files("name: quickstart", "name: hostile");
    let data = folder.path().join("hostile.jsonl");
    let hostile = "</pre><script>alert(1)</script><img src=x onerror=alert(2)> & \"'";
    let record = |image: &str, role: &str| {
        serde_json::json!({
            "image": image,
            "conversations": [{"from": role, "value": hostile}, {"from": "gpt", "value": hostile}],
        })
        .to_string()
    };
    let lines =
        [record("x.jpg", "human"), record(&format!("../{hostile}"), "human"), record("x.jpg", hostile)];
    std::fs::write(&data, lines.join("\n")).unwrap();
    let text = std::fs::read_to_string(&pipeline).unwrap();
    let uri = text
        .lines()
        .find_map(|line| line.split("uri: ").nth(1).filter(|uri| uri.contains("captions")))
        .unwrap();
    std::fs::write(&pipeline, text.replace(uri, &format!("\"file://{}\"", data.display()))).unwrap();
    let page = folder.path().join("page.html");
    let output = run(&["check", &pipeline, "--html", page.to_str().unwrap(), "--max-bad", "1"]);
    assert!(output.status.success(), "{}", said(&output));
    let page = std::fs::read_to_string(page).unwrap();
    let shown = only_known_markup(&page);
    assert!(shown.matches("<script>alert(1)</script>").count() >= 2, "{shown}");
}

/// Reads the page as a browser's tokenizer would, refuses every element and attribute that the page has no need of,
/// gives its text.
fn only_known_markup(page: &str) -> String {
    const ELEMENTS: [&str; 28] = [
        "!doctype", "html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "p", "div", "table",
        "tr", "th", "td", "svg", "rect", "line", "text", "details", "summary", "pre", "span", "code", "ul",
        "li", "b",
    ];
    const ATTRIBUTES: [&str; 20] = [
        "html",
        "lang",
        "charset",
        "http-equiv",
        "content",
        "name",
        "class",
        "width",
        "height",
        "viewbox",
        "role",
        "aria-label",
        "x",
        "y",
        "x1",
        "x2",
        "y1",
        "y2",
        "text-anchor",
        "id",
    ];
    let mut text = String::new();
    let mut open: Vec<String> = Vec::new();
    let mut rest = page;
    while let Some(start) = rest.find('<') {
        text.push_str(&rest[..start]);
        let (tag, after) = rest[start + 1..].split_once('>').expect("a tag has an end");
        rest = after;
        let (closing, tag) = tag.strip_prefix('/').map_or((false, tag), |tag| (true, tag));
        let name = tag.split_whitespace().next().unwrap_or_default().to_lowercase();
        assert!(ELEMENTS.contains(&name.as_str()), "<{tag}> in the page");
        for attribute in attributes(&tag[name.len()..]) {
            assert!(ATTRIBUTES.contains(&attribute.to_lowercase().as_str()), "{attribute} of <{tag}>");
        }
        match closing {
            true => assert_eq!(open.pop().as_deref(), Some(name.as_str()), "elements are closed in order"),
            false if matches!(name.as_str(), "!doctype" | "meta") => {}
            false => open.push(name),
        }
    }
    assert!(open.is_empty(), "{open:?} left open");
    text.push_str(rest);
    for (entity, character) in
        [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#39;", "'"), ("&amp;", "&")]
    {
        text = text.replace(entity, character);
    }
    text
}

/// Names of attributes; values must be quoted.
fn attributes(mut text: &str) -> Vec<&str> {
    let mut names = Vec::new();
    loop {
        text = text.trim_start();
        if text.is_empty() {
            return names;
        }
        let end = text.find(|c: char| c == '=' || c.is_whitespace()).unwrap_or(text.len());
        names.push(&text[..end]);
        text = &text[end..];
        if let Some(value) = text.strip_prefix("=\"") {
            text = value.split_once('"').expect("a value ends").1;
        } else {
            assert!(!text.starts_with('='), "a value is quoted");
        }
    }
}
