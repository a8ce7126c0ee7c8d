use std::fs;
use std::io::Write as _;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use tempfile::TempDir;

use super::framing::{Scanner, Span};
use super::*;
use crate::error::{FetchError, PermanentKind};
use crate::settings::{FetchSettings, S3Settings};
use crate::stores::Stores;

/// Records by physical line and text.
type Listed = &'static [(u64, &'static str)];

/// A folder with one manifest in it, and room for copies.
struct Setup {
    folder: TempDir,
    settings: ManifestSettings,
}

impl Setup {
    fn new(content: &[u8]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("manifest"), content).unwrap();
        let settings = ManifestSettings::new(folder.path().join("cache"), 1 << 30);
        Self { folder, settings }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("manifest")
    }

    fn open(&self) -> Result<Manifest, ManifestError> {
        open(&self.path(), &self.settings, |_| {})
    }
}

fn open(
    path: &Path,
    settings: &ManifestSettings,
    progress: impl Fn(Progress) + Send + 'static,
) -> Result<Manifest, ManifestError> {
    let stores = Stores::new(S3Settings::default(), FetchSettings::default()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(Manifest::open(&stores, &ObjectUri::File(path.to_owned()), settings, progress))
}

fn all(manifest: &Manifest) -> Vec<(u64, String)> {
    let record = |index| manifest.record(index).unwrap();
    (0..manifest.len())
        .map(record)
        .map(|record| (record.line, String::from_utf8(record.bytes).unwrap()))
        .collect()
}

fn records(content: &[u8]) -> Vec<(u64, String)> {
    all(&Setup::new(content).open().unwrap())
}

fn listed(expected: &[(u64, &str)]) -> Vec<(u64, String)> {
    expected.iter().map(|(line, text)| (*line, (*text).to_owned())).collect()
}

fn golden(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/manifests").join(name)).unwrap()
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

fn zstd(content: &[u8]) -> Vec<u8> {
    ::zstd::encode_all(content, 1).unwrap()
}

/// Lines that do not compress to nothing, `bytes` of them or a little more.
fn lines(bytes: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(1);
    let mut text = Vec::new();
    while text.len() < bytes {
        writeln!(text, "{{\"id\": \"{:x}{:x}\"}}", random.u64(..), random.u128(..)).unwrap();
    }
    text
}

#[test]
fn golden_framings_hold_the_same_records() {
    let text = |name: &str| records(&golden(name)).into_iter().map(|(_, text)| text).collect::<Vec<_>>();
    let reference = text("framing-lf.jsonl");
    assert_eq!(reference.len(), 4);
    assert!(reference.iter().any(|record| record.contains(['\u{2028}', '\u{85}'])));
    for name in [
        "framing-crlf.jsonl",
        "framing-bom.jsonl",
        "framing-blank-lines.jsonl",
        "framing-no-last-newline.jsonl",
    ] {
        assert_eq!(text(name), reference, "{name}");
    }
}

#[test]
fn a_golden_array_holds_the_records_of_its_lines() {
    let array = Setup::new(&golden("llava-array.json")).open().unwrap();
    let parsed = |record: &(u64, String)| serde_json::from_str::<serde_json::Value>(&record.1).unwrap();
    assert_eq!(array.framing(), Framing::JsonArray);
    let lines = records(&golden("llava.jsonl"));
    assert_eq!(
        all(&array).iter().map(parsed).collect::<Vec<_>>(),
        lines.iter().map(parsed).collect::<Vec<_>>()
    );
}

#[test]
fn lines_are_split_at_newlines_alone_and_blank_ones_are_no_records() {
    let cases: [(&[u8], Listed); 12] = [
        (b"", &[]),
        (b"\n", &[]),
        (b" \t\r\n\n\r\n", &[]),
        (b"a", &[(1, "a")]),
        (b"a\n", &[(1, "a")]),
        (b"a\r\nb\r\n", &[(1, "a"), (2, "b")]),
        (b"a\r\r\nb\r", &[(1, "a\r"), (2, "b")]),
        (b"\n\n a \n\n\tb\n \n", &[(3, " a "), (5, "\tb")]),
        (b"\xEF\xBB\xBFa\nb", &[(1, "a"), (2, "b")]),
        (b"\xEF\xBB\xBF\n\xEF\xBB\xBF\n", &[(2, "\u{feff}")]),
        ("a\u{2028}b\u{85}c\u{b}\u{c}d\re\n".as_bytes(), &[(1, "a\u{2028}b\u{85}c\u{b}\u{c}d\re")]),
        ("\u{a0}\n\u{c}\n".as_bytes(), &[(1, "\u{a0}"), (2, "\u{c}")]),
    ];
    for (content, expected) in cases {
        assert_eq!(records(content), listed(expected), "{:?}", String::from_utf8_lossy(content));
    }
}

#[test]
fn elements_of_arrays_are_records() {
    let cases: [(&str, Listed); 9] = [
        ("[]", &[]),
        (" \n[\n]\n \n", &[]),
        (r#"[{"a":1}]"#, &[(1, r#"{"a":1}"#)]),
        (
            "\u{feff}[\n  {\n    \"a\": 1\n  },\n  {\"b\": [\"]\", \"}\"]}\n]\n",
            &[(2, "{\n    \"a\": 1\n  }"), (5, "{\"b\": [\"]\", \"}\"]}")],
        ),
        (r#"[{"a":"\"},{"},{"b":"\\"}]"#, &[(1, r#"{"a":"\"},{"}"#), (1, r#"{"b":"\\"}"#)]),
        ("[1,\n2 , \"x,]\"\n, null,true\n]", &[(1, "1"), (2, "2"), (2, "\"x,]\""), (3, "null"), (3, "true")]),
        ("[[1,[2]],{}]", &[(1, "[1,[2]]"), (1, "{}")]),
        ("[{\"a\":\"\n\"},\n{}]", &[(1, "{\"a\":\"\n\"}"), (3, "{}")]),
        // What is inside the brackets is for whoever parses the record: one bad record, not a bad manifest.
        ("[{a b;},{}]", &[(1, "{a b;}"), (1, "{}")]),
    ];
    for (content, expected) in cases {
        let manifest = Setup::new(content.as_bytes()).open().unwrap();
        assert_eq!(manifest.framing(), Framing::JsonArray);
        assert_eq!(all(&manifest), listed(expected), "{content}");
    }
}

#[test]
fn broken_arrays_are_refused_with_the_place() {
    let deep = format!("[{}", "[".repeat(129));
    let cases = [
        ("[", 1, 1, "ends before the array's ']'"),
        ("[{}", 3, 1, "ends before the array's ']'"),
        ("[{},", 4, 1, "ends before the array's ']'"),
        ("[{\"a\":\n", 7, 2, "ends inside an element"),
        ("[\"a", 3, 1, "ends inside a string"),
        ("[{},]", 4, 1, "expected an element"),
        ("[,{}]", 1, 1, "expected an element"),
        ("[{}\n{}]", 4, 2, "expected ',' or ']'"),
        ("[{]}]", 2, 1, "does not close"),
        ("[\n[}]", 3, 2, "does not close"),
        ("[{}]\n{}", 5, 2, "text after the array's end"),
        ("[1]\n[2]", 4, 2, "text after the array's end"),
        ("[1 2]", 3, 1, "expected ',' or ']'"),
        ("[1{}]", 2, 1, "expected ',' or ']'"),
        (deep.as_str(), 129, 1, "nested deeper than 128"),
    ];
    for (content, at, in_line, says) in cases {
        match Setup::new(content.as_bytes()).open() {
            Err(ManifestError::BrokenArray { offset, line, what, .. }) => {
                assert_eq!((offset, line), (at, in_line), "{content}");
                assert!(what.contains(says), "{content}: {what}");
            }
            other => panic!("{content}: {other:?}"),
        }
    }
    assert_eq!(records(format!("[{}{}]", "[".repeat(128), "]".repeat(128)).as_bytes()).len(), 1);
}

#[test]
fn compressed_copies_are_the_same_manifest() {
    let text = lines(9 << 20);
    let plain = Setup::new(&text).open().unwrap();
    let (front, back) = text.split_at(text.len() / 3);
    let skippable = [&[0x50, 0x2A, 0x4D, 0x18, 3, 0, 0, 0, 1, 2, 3][..], &zstd(&text)].concat();
    let forms = [
        (Compression::Gzip, gzip(&text)),
        (Compression::Gzip, [gzip(front), gzip(b""), gzip(back)].concat()),
        (Compression::Zstd, zstd(&text)),
        (Compression::Zstd, [zstd(front), zstd(b""), zstd(back)].concat()),
        (Compression::Zstd, skippable),
    ];
    for (compression, stored) in forms {
        let setup = Setup::new(&stored);
        let manifest = setup.open().unwrap();
        assert_eq!(manifest.compression(), compression);
        assert_eq!(
            (manifest.len(), manifest.bytes(), manifest.digest()),
            (plain.len(), plain.bytes(), plain.digest())
        );
        for index in [0, 63, 64, 65, plain.len() / 2, plain.len() - 1] {
            assert_eq!(manifest.record(index).unwrap(), plain.record(index).unwrap());
        }
        assert_eq!(setup.settings.disk.used(), plain.bytes());
        // The copy has no name: nothing stays behind, whatever happens.
        assert_eq!(fs::read_dir(&setup.settings.cache_dir).unwrap().count(), 0);
        drop(manifest);
        assert_eq!(setup.settings.disk.used(), 0);
    }
}

#[test]
fn a_plain_local_file_is_not_copied() {
    let setup = Setup::new(b"{}\n");
    let manifest = setup.open().unwrap();
    assert_eq!(setup.settings.disk.used(), 0);
    assert!(!setup.settings.cache_dir.exists());
    assert_eq!(manifest.compression(), Compression::Plain);
}

#[test]
fn cut_and_damaged_compressed_files_are_refused() {
    let text = lines(300_000);
    let mut encoder = ::zstd::Encoder::new(Vec::new(), 1).unwrap();
    encoder.include_checksum(true).unwrap();
    encoder.write_all(&text).unwrap();
    let mut flipped = encoder.finish().unwrap();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 0xFF;
    let mut wrong_checksum = gzip(&text);
    let end = wrong_checksum.len();
    wrong_checksum[end - 8] ^= 1;
    let mut cases = vec![
        flipped,
        wrong_checksum,
        [gzip(&text), b"garbage".to_vec()].concat(),
        [zstd(&text), b"garbage".to_vec()].concat(),
    ];
    for stored in [gzip(&text), zstd(&text)] {
        for keep in [4, 11, stored.len() / 2, stored.len() - 1] {
            cases.push(stored[..keep].to_vec());
        }
        // A second member of which only the beginning is there.
        cases.push([&stored[..], &stored[..6]].concat());
    }
    for (case, stored) in cases.into_iter().enumerate() {
        let setup = Setup::new(&stored);
        let opened = setup.open();
        assert!(matches!(opened, Err(ManifestError::Damaged { .. })), "case {case}: {opened:?}");
        assert_eq!(setup.settings.disk.used(), 0);
    }
}

#[test]
fn other_formats_are_refused_by_name() {
    for (head, name) in [
        (&b"PAR1...."[..], "Parquet"),
        (b"PK\x03\x04", "zip"),
        (b"BZh91AY", "bzip2"),
        (b"\xFF\xFE{\0", "UTF-16"),
    ] {
        for stored in [head.to_vec(), gzip(head)] {
            let error = Setup::new(&stored).open().unwrap_err();
            assert!(matches!(error, ManifestError::Format { found, .. } if found.contains(name)), "{name}");
        }
    }
}

#[test]
fn a_decompression_bomb_ends_at_the_disk_bound() {
    let zeros = vec![b' '; 64 << 20];
    for stored in [gzip(&zeros), zstd(&zeros)] {
        let mut setup = Setup::new(&stored);
        setup.settings.disk = DiskBudget::new(10 << 20);
        match setup.open() {
            Err(error @ ManifestError::CacheFull { needed, limit, used, .. }) => {
                assert_eq!((needed, limit, used), (12 << 20, 10 << 20, 0));
                assert!(error.to_string().contains("cache.disk"));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(setup.settings.disk.used(), 0);
    }
}

#[test]
fn a_line_beyond_the_limit_is_one_bad_record() {
    let long = "x".repeat(300_000);
    let text = format!("first\n{long}\r\n\nlast\n{}\r\n", "y".repeat(1000));
    for array in [false, true] {
        let text = if array {
            format!("[\"first\",\n\"{long}\",\n\n\"last\", \"{}\"]", "y".repeat(998))
        } else {
            text.clone()
        };
        let mut setup = Setup::new(text.as_bytes());
        setup.settings.max_line_bytes = 1000;
        let manifest = setup.open().unwrap();
        assert_eq!(manifest.len(), 4);
        let error = manifest.record(1).unwrap_err();
        assert!(error.is_bad_record());
        let at = if array { 10 } else { 6 };
        assert!(
            matches!(error, RecordReadError::TooLong { line: 2, offset, limit: 1000 } if offset == at),
            "{error:?}"
        );
        assert_eq!(manifest.record(2).unwrap().line, 4);
        assert_eq!(manifest.record(3).unwrap().bytes.len(), 1000);
        setup.settings.max_line_bytes = 999;
        assert!(setup.open().unwrap().record(3).unwrap_err().is_bad_record());
    }
    assert!(matches!(
        Setup::new(b"a\n").open().unwrap().record(1),
        Err(RecordReadError::OutOfRange { index: 1, records: 1 })
    ));
}

/// Whatever the borders of chunks and of the index are: in order is as by number.
#[test]
fn records_in_order_are_those_by_number() {
    let mut text = Vec::new();
    for number in 0..3000_usize {
        let length = match number % 997 {
            0 => 300_000,
            1 => 700_000,
            other => other % 90,
        };
        text.extend(format!("{{\"n\": {number}, \"x\": \"{}\"}}\r\n", "y".repeat(length)).bytes());
        text.extend_from_slice(if number % 7 == 0 { b"\n" } else { b"" });
    }
    let array = text.trim_ascii_end().to_vec();
    let array = String::from_utf8(array).unwrap().replace("}\r\n", "},\r\n");
    for content in [text.clone(), [b"[", array.as_bytes(), b"]"].concat()] {
        let mut setup = Setup::new(&content);
        setup.settings.max_line_bytes = 500_000;
        let manifest = setup.open().unwrap();
        assert_eq!(manifest.len(), 3000);
        for from in [0, 1, 63, 64, 500, 997, 1500, 2999, 3000, 4000] {
            let mut in_order = manifest.records(from..u64::MAX);
            for number in from..3000 {
                match (in_order.next().unwrap(), manifest.record(number)) {
                    (Ok(record), Ok(expected)) => assert_eq!(record, expected, "{number} from {from}"),
                    (Err(error), Err(expected)) => {
                        assert_eq!(number % 997, 1);
                        assert_eq!(error.to_string(), expected.to_string());
                    }
                    other => panic!("{number} from {from}: {other:?}"),
                }
            }
            assert!(in_order.next().is_none());
        }
    }
}

/// What a reader sees of a record: its line and text, or that it is too long.
fn seen(record: Result<Record, RecordReadError>) -> Result<(u64, u64, Vec<u8>), u64> {
    match record {
        Ok(record) => Ok((record.line, record.offset, record.bytes)),
        Err(RecordReadError::TooLong { line, .. }) => Err(line),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn neighbours_in_a_row_are_the_records_by_number() {
    let mut contents: Vec<Vec<u8>> = [
        "framing-crlf.jsonl",
        "framing-blank-lines.jsonl",
        "framing-no-last-newline.jsonl",
        "llava-array.json",
    ]
    .into_iter()
    .map(golden)
    .collect();
    contents.push([lines(20_000), vec![b' '; 3000], b"{\"after\": 1}\n".to_vec(), vec![b'x'; 9000]].concat());
    for content in contents {
        let mut setup = Setup::new(&content);
        setup.settings.max_line_bytes = 5000;
        let manifest = setup.open().unwrap();
        let one_by_one: Vec<_> = (0..manifest.len()).map(|index| seen(manifest.record(index))).collect();
        for block in [1, 7, 4096, 1 << 20] {
            for range in [0..manifest.len(), 1..3, 65..u64::MAX, 3..3, manifest.len()..manifest.len() + 5] {
                let found: Vec<_> = manifest.records_in_blocks(range.clone(), block).map(seen).collect();
                let end = usize::try_from(range.end).unwrap_or(usize::MAX).min(one_by_one.len());
                let begin = (range.start as usize).min(end);
                assert_eq!(found, one_by_one[begin..end], "{range:?} in blocks of {block}");
            }
        }
    }
}

#[test]
fn records_of_a_file_that_changed_end_with_an_error() {
    let setup = Setup::new(&lines(1 << 20));
    let manifest = setup.open().unwrap();
    let mut records = manifest.records(0..u64::MAX);
    assert!(records.next().unwrap().is_ok());
    fs::write(setup.path(), b"{}\n").unwrap();
    assert!(matches!(
        records.find(Result::is_err),
        Some(Err(RecordReadError::Changed { .. } | RecordReadError::Io { .. }))
    ));
    assert!(records.next().is_none());
}

/// A backup that touched a file ended every training on it.
#[test]
fn a_file_that_is_touched_or_put_back_is_read_on() {
    let text = lines(50_000);
    let setup = Setup::new(&text);
    let manifest = setup.open().unwrap();
    let first = manifest.record(0).unwrap().bytes;
    let touch = |seconds: u64| {
        let file = fs::OpenOptions::new().write(true).open(setup.path()).unwrap();
        file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds)).unwrap();
    };
    touch(1_000_000);
    assert_eq!(manifest.record(0).unwrap().bytes, first);
    let mut row = manifest.records(0..3);
    touch(2_000_000);
    assert!(row.all(|record| record.is_ok()));
    // Other bytes of the same length.
    let mut other = text.clone();
    other[2] ^= 1;
    let overwrite = |bytes: &[u8]| {
        let file = fs::OpenOptions::new().write(true).open(setup.path()).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, bytes, 0).unwrap();
    };
    overwrite(&other);
    touch(3_000_000);
    for _ in 0..2 {
        assert!(matches!(manifest.record(0), Err(RecordReadError::Changed { .. })));
    }
    overwrite(&text);
    touch(4_000_000);
    assert_eq!(manifest.record(0).unwrap().bytes, first);
}

#[test]
fn reading_in_a_row_ends_where_the_file_was_changed() {
    let setup = Setup::new(&lines(200_000));
    let manifest = setup.open().unwrap();
    let mut records = manifest.records_in_blocks(0..u64::MAX, 4096);
    assert!(records.next().unwrap().is_ok());
    fs::OpenOptions::new().write(true).open(setup.path()).unwrap().set_len(100_000).unwrap();
    let rest: Vec<_> = records.collect();
    assert!(rest.len() < 200, "no more than the block that was read before");
    assert!(matches!(rest.last(), Some(Err(RecordReadError::Changed { .. }))));
}

#[test]
fn records_of_megabytes_are_found_and_whole() {
    let text: Vec<String> = (0..40).map(|i| format!("{i}:{}", "z".repeat(300_000 + i))).collect();
    assert_eq!(records(text.join("\n").as_bytes()), (1..).zip(text).collect::<Vec<_>>());
}

#[test]
fn a_file_changed_after_opening_is_an_error_and_not_a_signal() {
    let text = lines(200_000);
    let changed = |change: &dyn Fn(&Path)| {
        let setup = Setup::new(&text);
        let manifest = setup.open().unwrap();
        manifest.record(manifest.len() - 1).unwrap();
        change(&setup.path());
        for index in [0, manifest.len() - 1] {
            let error = manifest.record(index).unwrap_err();
            assert!(matches!(error, RecordReadError::Changed { .. }) && !error.is_bad_record(), "{error:?}");
        }
    };
    let cut = |length: u64| {
        move |path: &Path| fs::OpenOptions::new().write(true).open(path).unwrap().set_len(length).unwrap()
    };
    changed(&cut(100));
    changed(&cut(0));
    changed(&|path| fs::OpenOptions::new().append(true).open(path).unwrap().write_all(b"{}\n").unwrap());
    // Same length, other content: told by the time of modification.
    changed(&|path| {
        fs::write(path, vec![b'\n'; text.len()]).unwrap();
        let later = std::time::UNIX_EPOCH + std::time::Duration::from_secs(4_000_000_000);
        fs::File::options().write(true).open(path).unwrap().set_modified(later).unwrap();
    });
}

/// Who replaces a file by renaming leaves the opened one as it was.
#[test]
fn a_file_replaced_after_opening_is_still_the_old_one() {
    let setup = Setup::new(b"old\n");
    let manifest = setup.open().unwrap();
    fs::write(setup.folder.path().join("new"), b"new\n").unwrap();
    fs::rename(setup.folder.path().join("new"), setup.path()).unwrap();
    assert_eq!(all(&manifest), listed(&[(1, "old")]));
}

#[test]
fn what_is_not_there_or_no_file_is_refused() {
    let setup = Setup::new(b"");
    let kind = |path: &Path| match open(path, &setup.settings, |_| {}) {
        Err(error) => match error.fetch_error() {
            Some(FetchError::Permanent { kind, .. }) => *kind,
            _ => panic!("{error:?}"),
        },
        Ok(manifest) => panic!("{manifest:?}"),
    };
    assert_eq!(kind(&setup.folder.path().join("nothing")), PermanentKind::Missing);
    assert_eq!(kind(setup.folder.path()), PermanentKind::InvalidKey);
    let empty = setup.open().unwrap();
    assert!(empty.is_empty() && empty.bytes() == 0);
}

#[test]
fn progress_ends_at_the_whole() {
    let text = lines(5 << 20);
    let setup = Setup::new(&gzip(&text));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&seen);
    let manifest =
        open(&setup.path(), &setup.settings, move |progress| sink.lock().unwrap().push(progress)).unwrap();
    let stored = fs::metadata(setup.path()).unwrap().len();
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 2);
    let last = Progress {
        input_bytes: stored,
        input_total: stored,
        bytes: manifest.bytes(),
        records: manifest.len(),
    };
    assert_eq!(seen.last(), Some(&last));
    assert!(seen[0].bytes < last.bytes && seen[0].records < last.records);
}

/// Spans found when the text comes in blocks of the given lengths, over and over.
fn scan(framing: Framing, text: &[u8], blocks: &[usize]) -> Option<Vec<Span>> {
    let mut scanner = Scanner::new(framing, 0);
    let mut spans = Vec::new();
    let mut each = |span| {
        spans.push(span);
        ControlFlow::Continue(())
    };
    let mut rest = text;
    let mut lengths = blocks.iter().cycle();
    while !rest.is_empty() {
        let (block, after) = rest.split_at(rest.len().min(*lengths.next().unwrap()));
        rest = after;
        let _ = scanner.feed(block, &mut each).ok()?;
    }
    scanner.finish(&mut each).ok()?;
    Some(spans)
}

fn naive_lines(text: &[u8]) -> Vec<(u64, Vec<u8>)> {
    let text = text.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(text);
    (1..)
        .zip(text.split(|byte| *byte == b'\n'))
        .filter(|(_, line)| line.iter().any(|byte| !b" \t\r".contains(byte)))
        .map(|(number, line)| (number, line.strip_suffix(b"\r").unwrap_or(line).to_vec()))
        .collect()
}

fn messy_bytes() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        4 => Just(b"\n".to_vec()),
        2 => Just(b"\r\n".to_vec()),
        1 => Just(b" ".to_vec()),
        1 => Just(b"\r".to_vec()),
        1 => Just(b"\xEF\xBB\xBF".to_vec()),
        3 => prop::collection::vec(any::<u8>(), 0..20),
        1 => (any::<u8>(), 0..70_000_usize).prop_map(|(byte, length)| vec![byte; length]),
    ];
    prop::collection::vec(piece, 0..200).prop_map(|pieces| pieces.concat())
}

fn any_json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<i32>().prop_map(serde_json::Value::from),
        "[\\[\\]{}\",:\\\\\n\ta-c\u{2028}é]{0,12}".prop_map(serde_json::Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(serde_json::Value::from),
            prop::collection::hash_map("[a-c\"\\\\]{0,3}", inner, 0..4)
                .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn every_record_equals_the_naive_split(mut text in messy_bytes()) {
        // Not one of the other kinds of files: those have their own tests.
        if text.iter().find(|byte| !b" \t\r\n\xEF\xBB\xBF".contains(byte)).is_none_or(|byte| !byte.is_ascii_alphanumeric()) {
            text.splice(0..0, *b"x");
        }
        let manifest = Setup::new(&text).open().unwrap();
        let expected = naive_lines(&text);
        prop_assert_eq!(manifest.len(), expected.len() as u64);
        for (index, (line, bytes)) in (0..).zip(expected) {
            let record = manifest.record(index).unwrap();
            prop_assert_eq!(record.line, line);
            prop_assert_eq!(&text[record.offset as usize..][..bytes.len()], &bytes[..]);
            prop_assert_eq!(record.bytes, bytes);
        }
    }

    #[test]
    fn block_borders_do_not_matter(text in messy_bytes(), blocks in prop::collection::vec(1..100_usize, 1..8)) {
        prop_assert_eq!(scan(Framing::Lines, &text, &blocks), scan(Framing::Lines, &text, &[usize::MAX]));
        let array = [b"[", &text[..], b"]"].concat();
        prop_assert_eq!(scan(Framing::JsonArray, &array, &blocks), scan(Framing::JsonArray, &array, &[usize::MAX]));
    }

    #[test]
    fn elements_of_any_array_come_back(
        values in prop::collection::vec(any_json(), 0..200),
        spaces in prop::collection::vec("[ \t\r\n]{0,3}", 1..10),
        blocks in prop::collection::vec(1..50_usize, 1..8),
        pretty: bool,
    ) {
        let mut spaces = spaces.iter().cycle();
        let mut text = String::from("[");
        let mut texts = Vec::new();
        for (at, value) in values.iter().enumerate() {
            text.push_str(if at > 0 { "," } else { "" });
            text.push_str(spaces.next().unwrap());
            let element = if pretty { format!("{value:#}") } else { value.to_string() };
            texts.push((1 + text.matches('\n').count() as u64, element.clone()));
            text.push_str(&element);
            text.push_str(spaces.next().unwrap());
        }
        text.push(']');
        prop_assert_eq!(records(text.as_bytes()), texts);
        prop_assert_eq!(scan(Framing::JsonArray, text.as_bytes(), &blocks).unwrap().len(), values.len());
    }
}
