//! What the repository says of itself is true: names in the map exist, the README's commands are targets.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn read(name: &str) -> String {
    std::fs::read_to_string(root().join(name)).unwrap()
}

/// Everything between single backticks that looks like a path of the repository.
fn named_paths(page: &str) -> Vec<&str> {
    let spans = page.split('`').skip(1).step_by(2);
    let plain = |text: &&str| {
        !text.is_empty()
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_./".contains(&b))
            && (text.contains('/') || text.ends_with(".toml"))
    };
    spans.filter(plain).collect()
}

#[test]
fn what_the_map_names_exists() {
    let page = read("ARCHITECTURE.md");
    let paths = named_paths(&page);
    assert!(paths.len() > 15, "only {paths:?} were found");
    for path in paths {
        assert!(root().join(path).exists(), "ARCHITECTURE.md names {path}, which does not exist");
    }
}

#[test]
fn every_crate_is_on_the_map() {
    let page = read("ARCHITECTURE.md");
    let manifest = read("Cargo.toml");
    let members = manifest.split("members = [").nth(1).unwrap().split(']').next().unwrap();
    for member in members.split(',').map(|name| name.trim().trim_matches('"')).filter(|name| !name.is_empty())
    {
        assert!(page.contains(&format!("| `{member}` |")), "{member} is missing in ARCHITECTURE.md");
    }
}

#[test]
fn links_between_pages_lead_somewhere() {
    for page in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"] {
        let text = read(page);
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for target in targets.filter(|target| !target.contains("://")) {
            let file = target.split('#').next().unwrap_or_default();
            assert!(root().join(file).exists(), "{page} links to {target}");
        }
    }
}

#[test]
fn the_readmes_commands_are_targets() {
    let (readme, makefile) = (read("README.md"), read("Makefile"));
    for target in ["quickstart", "test"] {
        assert!(readme.contains(&format!("make {target}")));
        assert!(makefile.lines().any(|line| line.starts_with(&format!("{target}:"))));
    }
    assert!(read(".ci/run").contains("exec make test"));
}
