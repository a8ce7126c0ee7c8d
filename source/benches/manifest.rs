//! Opens a local manifest of JSON lines that is in the page cache: MB of manifest per second of CPU time (index and digest together,
//! all threads, kernel time included), growth of anonymous memory, and the time to read one record.
//!
//! `cargo bench -p feedmill-source --bench manifest -- [--lines 10000000] [--folder DIR]`; ends with one line of JSON.

use std::fs::File;
use std::io::{BufWriter, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use feedmill_source::{FetchSettings, Manifest, ManifestSettings, ObjectUri, S3Settings, Stores};

/// Average length of a line, newline included.
const LINE_BYTES: usize = 300;

/// Records read one by one, at random.
const READS: u32 = 100_000;

#[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
fn now() -> Instant {
    Instant::now()
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let value = |name: &str| {
        arguments.iter().position(|argument| argument == name).and_then(|at| arguments.get(at + 1))
    };
    let lines: u64 = value("--lines").map_or(10_000_000, |text| text.parse().expect("a number of lines"));
    let folder = value("--folder").map_or_else(std::env::temp_dir, PathBuf::from);
    let folder = tempfile::tempdir_in(folder).expect("a folder for the manifest");
    let path = folder.path().join("manifest.jsonl");
    let bytes = write(&path, lines);
    read_through(&path);

    let stores = Stores::new(S3Settings::default(), FetchSettings::default()).expect("stores");
    let settings = ManifestSettings::new(folder.path().join("cache"), 0);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let before = rss_anon();
    let peak = Arc::new(AtomicU64::new(0));
    let sampled = Arc::clone(&peak);
    let (cpu, began) = (cpu_seconds(), now());
    let progress = move |_| {
        sampled.fetch_max(rss_anon(), Relaxed);
    };
    let manifest = runtime
        .block_on(Manifest::open(&stores, &ObjectUri::File(path), &settings, progress))
        .expect("a manifest");
    let (seconds, cpu) = (began.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    peak.fetch_max(rss_anon(), Relaxed);
    assert_eq!((manifest.len(), manifest.bytes()), (lines, bytes));

    let mut random = fastrand::Rng::with_seed(7);
    let began = now();
    let mut read = 0;
    for _ in 0..READS {
        read += manifest.record(random.u64(0..lines)).expect("a record").bytes.len();
    }
    let record_micros = began.elapsed().as_secs_f64() * 1e6 / f64::from(READS);
    assert!(read > 0);

    let megabytes = bytes as f64 / 1e6;
    println!(
        "{{\"bench\": \"manifest\", \"lines\": {lines}, \"bytes\": {bytes}, \"seconds\": {seconds:.2}, \"cpu_seconds\": {cpu:.2}, \
         \"mb_per_second\": {:.0}, \"mb_per_cpu_second\": {:.0}, \"rss_anon_growth_mb\": {:.1}, \"index_bytes\": {}, \
         \"record_micros\": {record_micros:.1}}}",
        megabytes / seconds,
        megabytes / cpu,
        peak.load(Relaxed).saturating_sub(before) as f64 / 1e6,
        manifest.index_bytes(),
    );
}

/// Lines that look like LLaVA records, of 250 to 350 bytes; the file's length.
fn write(path: &Path, lines: u64) -> u64 {
    let mut random = fastrand::Rng::with_seed(1);
    let words: String =
        (0..4096).map(|_| if random.u8(0..6) == 0 { ' ' } else { random.lowercase() }).collect();
    let mut out = BufWriter::with_capacity(1 << 20, File::create(path).expect("a file"));
    let mut bytes = 0;
    for line in 0..lines {
        let head = format!(
            "{{\"id\": \"{line:09}\", \"image\": \"coco/train2017/{line:012}.jpg\", \"conversations\": [{{\"from\": \"human\", \"value\": \""
        );
        let text = random.usize(LINE_BYTES - 50..=LINE_BYTES + 50).saturating_sub(head.len() + 5);
        let from = random.usize(0..words.len() - text);
        writeln!(out, "{head}{}\"}}]}}", &words[from..from + text]).expect("room on the disk");
        bytes += head.len() as u64 + text as u64 + 5;
    }
    out.flush().expect("room on the disk");
    bytes
}

/// So that the page cache holds it.
fn read_through(path: &Path) {
    let mut file = File::open(path).expect("the file");
    let mut buffer = vec![0; 1 << 20];
    while file.read(&mut buffer).expect("the file") > 0 {}
}

/// Anonymous memory of this process in bytes.
fn rss_anon() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("RssAnon");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

/// CPU time of all threads, ended ones too, user and kernel; in steps of 10 ms.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("/proc");
    let after_name = stat.rsplit(')').next().expect("a name");
    let field = |at: usize| {
        after_name.split_whitespace().nth(at).and_then(|text| text.parse::<u64>().ok()).expect("a number")
    };
    // Fields 14 and 15 of proc_pid_stat(5), counted from the one after the name.
    (field(11) + field(12)) as f64 / 100.0
}
