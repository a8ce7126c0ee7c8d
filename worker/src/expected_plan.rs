//! Takes the plan that a fleet serves by and the plan computed here, gives what differs.
//!
//! A fleet's operator writes the plan of its first workers into a folder, one file a stream. A worker that computes another one, because a
//! manifest or the processor's files were overwritten, must not serve beside those that computed the first.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use feedmill_protocol::plan::PlanDigest;

/// A digest and a line end fit; what is longer is none.
const MAX_BYTES: u64 = 256;

/// What differs, for people; nothing when all streams have the expected plan or none is expected of them.
pub fn other<'a>(folder: &Path, streams: impl Iterator<Item = (&'a str, PlanDigest)>) -> Option<String> {
    let found: Vec<String> = streams.filter_map(|(name, digest)| differs(folder, name, digest)).collect();
    (!found.is_empty()).then(|| found.join("; "))
}

fn differs(folder: &Path, name: &str, digest: PlanDigest) -> Option<String> {
    let mut text = String::new();
    let read = File::open(folder.join(name)).and_then(|file| file.take(MAX_BYTES).read_to_string(&mut text));
    let expected = match read {
        Ok(_) => text.trim(),
        // Nothing is agreed on yet.
        Err(error) if error.kind() == ErrorKind::NotFound => return None,
        Err(_) => "something that cannot be read",
    };
    (expected != digest.to_string()).then(|| {
        format!(
            "unready because stream {name} has plan {digest} here and the fleet serves {expected}: a manifest or the processor's \
             files were overwritten; restore them and start this worker again, or suspend the pipeline until no worker is left and resume it, to go on by the new plan"
        )
    })
}

#[cfg(test)]
mod tests {
    use feedmill_protocol::plan::Plan;

    #[test]
    fn only_another_plan_keeps_a_worker_from_serving() {
        let folder = tempfile::tempdir().unwrap();
        let digest = Plan::new().digest();
        let other = |name: &'static str| super::other(folder.path(), [(name, digest)].into_iter());
        assert_eq!(other("train"), None);
        std::fs::write(folder.path().join("train"), format!("{digest}\n")).unwrap();
        assert_eq!(other("train"), None);
        for wrong in ["", "sha256:00", &"x".repeat(1000)] {
            std::fs::write(folder.path().join("train"), wrong).unwrap();
            assert!(other("train").is_some_and(|reason| reason.contains("stream train")), "{wrong}");
        }
        std::fs::write(folder.path().join("train"), [0xff, 0xfe]).unwrap();
        assert!(other("train").is_some());
        std::fs::remove_file(folder.path().join("train")).unwrap();
        std::fs::create_dir(folder.path().join("train")).unwrap();
        assert!(other("train").is_some(), "it is there, and cannot be read");
        // Another stream is none of its business.
        assert_eq!(other("eval"), None);
    }
}
