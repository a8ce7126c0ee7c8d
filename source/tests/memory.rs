//! Memory while opening and reading manifests. One test, so that nothing else of this process counts.

use feedmill_source::{
    FetchSettings, Manifest, ManifestSettings, ObjectUri, RecordReadError, S3Settings, Stores,
};

/// Highest anonymous-plus-mapped memory of this process so far, in bytes.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("VmHWM");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

/// 256 MiB without a newline: neither indexing it nor asking for it may take memory of that order.
#[tokio::test]
async fn a_huge_line_needs_no_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("manifest");
    // A hole in the file: NUL bytes that take no room on the disk.
    std::fs::File::create(&path).unwrap().set_len(256 << 20).unwrap();
    let stores = Stores::new(S3Settings::default(), FetchSettings::default()).unwrap();
    let settings = ManifestSettings::new(folder.path().join("cache"), 0);
    let before = peak();
    let manifest = Manifest::open(&stores, &ObjectUri::File(path), &settings, |_| {}).await.unwrap();
    assert_eq!((manifest.len(), manifest.bytes()), (1, 256 << 20));
    assert!(matches!(manifest.record(0), Err(RecordReadError::TooLong { line: 1, offset: 0, .. })));
    let growth = peak() - before;
    assert!(growth < 64 << 20, "{growth} bytes");
}
