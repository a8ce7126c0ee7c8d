//! `feedmill verify`, as far as it goes without Hugging Face's packages.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use support::{example, pipeline_over_files, run, said};

/// The interpreter without its installed packages.
fn bare_python(folder: &Path) -> String {
    let path = folder.join("python");
    std::fs::write(&path, "#!/bin/sh\nexec python3 -I -S \"$@\"\n").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn missing_packages_are_named_with_the_line_that_installs_them() {
    let (folder, pipeline) = pipeline_over_files("name: quickstart", "name: over-files");
    let python = bare_python(folder.path());
    let processor = example("bucket/processor");
    let output = run(&["verify", &pipeline, "--processor", processor.to_str().unwrap(), "--python", &python]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    let line =
        format!("{python} -m pip install transformers tokenizers torch torchvision pillow numpy jinja2");
    assert!(said(&output).contains(&line), "{}", said(&output));
}

#[test]
fn what_cannot_be_started_is_the_callers_to_mend() {
    let (_folder, pipeline) = pipeline_over_files("name: quickstart", "name: over-files");
    let processor = example("bucket/processor");
    for (processor, python, part) in [
        (processor.to_str().unwrap(), "/no/such/python", "--python"),
        ("/no/such/folder", "python3", "--processor /no/such/folder"),
    ] {
        let output = run(&["verify", &pipeline, "--processor", processor, "--python", python]);
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        assert!(said(&output).contains(part), "{}", said(&output));
    }
}

fn compare(one: &Path, two: &Path) -> Output {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/src/verify/verify.py");
    Command::new("python3").args(["-I", "-S", script]).args([one, two]).output().unwrap()
}

/// The bytes of a tensor in a frame: where they begin, and its header entry.
fn place(frame: &[u8], name: &str) -> usize {
    let length = u64::from_le_bytes(frame[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&frame[8..8 + length]).unwrap();
    8 + length + header[name]["data_offsets"][0].as_u64().unwrap() as usize
}

/// The comparison itself, on a real frame that is damaged in one place.
#[test]
fn the_first_difference_is_found_and_placed() {
    let (folder, pipeline) = pipeline_over_files("shuffle: true", "shuffle: false");
    let [whole, damaged] = ["whole", "damaged"].map(|name| folder.path().join(name));
    let output = run(&["get", &pipeline, "0-4", "--output", whole.to_str().unwrap()]);
    assert!(output.status.success(), "{}", said(&output));
    let same = compare(&whole, &whole);
    assert_eq!((same.status.code(), said(&same).trim()), (Some(0), "4 samples are equal"));
    let frame = std::fs::read(&whole).unwrap();
    let row = |index: usize| index * 3 * 16 * 16;
    for (tensor, byte, expected) in [
        ("tokens", 4 * 7, r#""sample": 0, "tensor": "input_ids", "index": 7,"#),
        ("loss_mask", 3, r#""sample": 0, "tensor": "labels", "index": 3,"#),
        ("image_grid_thw", 0, r#""tensor": "image_grid_thw""#),
        // The fourth patch is the lower right one of the first block of 2 x 2.
        ("patches", row(3) + 256 + 16 * 2 + 5, r#""tensor": "pixel_values", "index": 2597, "#),
    ] {
        let mut bytes = frame.clone();
        let at = place(&bytes, tensor) + byte;
        bytes[at] ^= 1;
        std::fs::write(&damaged, bytes).unwrap();
        let output = compare(&whole, &damaged);
        assert_eq!(output.status.code(), Some(1), "{tensor}: {}", said(&output));
        assert!(said(&output).contains(expected), "{tensor}: {}", said(&output));
        if tensor == "patches" {
            assert!(
                said(&output).contains(r#""picture": 0, "channel": "G", "y": 18, "x": 21, "differing": 1,"#),
                "{}",
                said(&output)
            );
        }
    }
}
