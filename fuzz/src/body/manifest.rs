//! A manifest: lines or an array; plain, gzip, zstd.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};

use feedmill_source::{FetchSettings, Manifest, ManifestSettings, ObjectUri, S3Settings, Stores};

/// Shorter than in production, so that lines that are too long are met.
const MAX_LINE_BYTES: u64 = 3_000;
/// Records of a case that are read.
const MOST_READ: u64 = 200;

struct Place {
    runtime: tokio::runtime::Runtime,
    stores: Stores,
    settings: ManifestSettings,
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Option<Self> {
        let folder = tempfile::tempdir().ok()?;
        let mut settings = ManifestSettings::new(folder.path().to_owned(), 64 << 20);
        settings.max_line_bytes = MAX_LINE_BYTES;
        Some(Self {
            runtime: tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?,
            stores: Stores::new(S3Settings::default(), FetchSettings::default()).ok()?,
            settings,
            folder,
        })
    }
}

thread_local! {
    static PLACE: RefCell<Option<Place>> = const { RefCell::new(None) };
}

/// A manifest is refused, or each of its records can be read by number: in order, with lines that rise, and again
/// with the same bytes.
pub(super) fn body(data: &[u8]) -> bool {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    PLACE.with_borrow_mut(|place| {
        let place = match place {
            Some(place) => place,
            None => {
                let made = Place::new();
                assert!(made.is_some(), "no folder for temporary files");
                let Some(made) = made else { return false };
                place.insert(made)
            }
        };
        let path = place.folder.path().join(NUMBER.fetch_add(1, Ordering::Relaxed).to_string());
        let written = std::fs::write(&path, data);
        assert!(written.is_ok(), "no room for a manifest: {written:?}");
        let uri = ObjectUri::File(path.clone());
        let opened = place.runtime.block_on(Manifest::open(&place.stores, &uri, &place.settings, |_| {}));
        let taken = opened.is_ok();
        if let Ok(manifest) = opened {
            read(&manifest);
        }
        drop(std::fs::remove_file(path));
        assert_eq!(place.settings.disk.used(), 0, "room in the cache was not given back");
        taken
    })
}

fn read(manifest: &Manifest) {
    let mut line = 0;
    for number in 0..manifest.len().min(MOST_READ) {
        match manifest.record(number) {
            Ok(record) => {
                assert!(record.line >= line, "record {number} stands before the one before it");
                line = record.line;
                assert!(record.bytes.len() as u64 <= MAX_LINE_BYTES);
                assert_eq!(manifest.record(number).ok().as_ref(), Some(&record), "another answer");
            }
            Err(error) => assert!(error.is_bad_record(), "record {number}: {error}"),
        }
    }
    assert!(manifest.record(manifest.len()).is_err(), "a record behind the last");
}
