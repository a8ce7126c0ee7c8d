//! What a record costs from Parquet files against JSON lines and a file for each picture: CPU time (all threads, kernel included) and
//! bytes read, in one run, in turns, from the page cache, in a shuffled order.
//!
//! - `lines`: the line of a manifest, then the picture's file.
//! - `indexed`: rows of 150 KiB in pages of 1 MB, with an offset index; every row is read once: decoding a page keeps its neighbours.
//! - `chunked`: the same rows, row groups of 100, no index, as most public data sets are.
//! - `again`: the rows of `indexed` once more, all of them on disk by then.
//! - `no_room`: the rows of `indexed` without room on disk: each row costs its page.
//!
//! `cargo bench -p feedmill-source --bench table -- [--rows 2000] [--folder DIR]`; ends with one line of JSON.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use feedmill_source::{
    Cpu, FetchSettings, Manifest, ManifestSettings, ObjectUri, RowLimits, RowOutcome, S3Settings, Stores,
    Table,
};
use parquet::basic::Compression;
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

const PICTURE_BYTES: usize = 150 << 10;
const TEXT_BYTES: usize = 1000;
const LIMIT: u64 = 256 << 20;

struct Here;

/// The bytes of a row's value.
type Values<'a> = &'a dyn Fn(usize) -> Vec<u8>;

impl Cpu for Here {
    async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
        Ok(work())
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let value = |name: &str| {
        arguments.iter().position(|argument| argument == name).and_then(|at| arguments.get(at + 1))
    };
    let rows: usize = value("--rows").map_or(2000, |text| text.parse().expect("a number of rows"));
    let folder = value("--folder").map_or_else(std::env::temp_dir, PathBuf::from);
    let folder = tempfile::tempdir_in(folder).expect("a folder");
    write_lines(folder.path(), rows);
    write_table(&folder.path().join("indexed.parquet"), rows, 1000, true);
    write_table(&folder.path().join("chunked.parquet"), rows, 100, false);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut order: Vec<u64> = (0..rows as u64).collect();
    fastrand::Rng::with_seed(3).shuffle(&mut order);
    let stores = Stores::new(S3Settings::default(), FetchSettings::default()).expect("stores");
    let room = 4 * (rows * PICTURE_BYTES) as u64;
    let mut figures: Vec<(&str, f64, f64)> = Vec::new();
    for _round in 0..3 {
        let settings = ManifestSettings::new(folder.path().join("cache"), room);
        let none = ManifestSettings::new(folder.path().join("cache"), 0);
        let open = |name: &str, settings: &ManifestSettings| {
            let uri = format!("file://{}", folder.path().join(name).display());
            runtime.block_on(Table::open(&stores, &uri, |_| true, settings, |_| {})).expect("a table")
        };
        let uri = ObjectUri::File(folder.path().join("lines.jsonl"));
        let manifest =
            runtime.block_on(Manifest::open(&stores, &uri, &settings, |_| {})).expect("a manifest");
        let (indexed, chunked) = (open("indexed.parquet", &settings), open("chunked.parquet", &settings));
        let no_room = open("indexed.parquet", &none);
        let mut measure = |name, work: &dyn Fn(u64)| {
            let (cpu, bytes) = (cpu_seconds(), stores.stats().bytes.load(Relaxed));
            order.iter().for_each(|index| work(*index));
            let micros = (cpu_seconds() - cpu) * 1e6 / rows as f64;
            let bytes = (stores.stats().bytes.load(Relaxed) - bytes) as f64 / rows as f64;
            figures.push((name, micros, bytes));
        };
        measure("lines", &|index| {
            let record = manifest.record(index).expect("a record");
            let path = folder.path().join(format!("{index}.jpg"));
            let picture = runtime.block_on(stores.get(&ObjectUri::File(path), LIMIT)).expect("a picture");
            assert!(record.bytes.len() >= TEXT_BYTES && picture.len() == PICTURE_BYTES);
        });
        let row = |table: &Table, index: u64| {
            let limits = RowLimits { bytes: LIMIT, room: RowLimits::most(LIMIT) };
            match runtime.block_on(table.row(&stores, index, limits, &Here)).expect("a row") {
                RowOutcome::Row(row) => assert!(row.bytes as usize > PICTURE_BYTES + TEXT_BYTES),
                RowOutcome::NeedsRoom(bytes) => panic!("{bytes} bytes"),
            }
        };
        measure("indexed", &|index| row(&indexed, index));
        measure("again", &|index| row(&indexed, index));
        measure("chunked", &|index| row(&chunked, index));
        measure("no_room", &|index| row(&no_room, index));
    }
    let median = |name: &str| {
        let mut micros: Vec<f64> =
            figures.iter().filter(|figure| figure.0 == name).map(|figure| figure.1).collect();
        micros.sort_by(f64::total_cmp);
        micros[micros.len() / 2]
    };
    let bytes = |name: &str| figures.iter().find(|figure| figure.0 == name).map_or(0.0, |figure| figure.2);
    let lines = median("lines");
    let part = |name: &str| {
        format!(
            "\"{name}_cpu_micros\": {:.0}, \"{name}_to_lines\": {:.2}, \"{name}_bytes\": {:.0}",
            median(name),
            median(name) / lines,
            bytes(name)
        )
    };
    let parts: Vec<String> = ["lines", "indexed", "again", "chunked", "no_room"].map(part).to_vec();
    println!("{{\"bench\": \"table\", \"rows\": {rows}, {}}}", parts.join(", "));
}

fn picture(row: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(row as u64);
    // Like a JPEG: nothing for a compressor.
    let mut bytes = vec![0; PICTURE_BYTES];
    random.fill(&mut bytes);
    bytes
}

fn text(row: usize) -> String {
    let mut random = fastrand::Rng::with_seed(row as u64);
    (0..TEXT_BYTES).map(|_| if random.u8(0..6) == 0 { ' ' } else { random.lowercase() }).collect()
}

fn write_lines(folder: &Path, rows: usize) {
    let mut lines = String::new();
    for row in 0..rows {
        lines += &format!("{{\"image\": \"{row}.jpg\", \"text\": \"{}\"}}\n", text(row));
        fs::write(folder.join(format!("{row}.jpg")), picture(row)).expect("room on the disk");
    }
    fs::write(folder.join("lines.jsonl"), lines).expect("room on the disk");
}

fn write_table(path: &Path, rows: usize, group: usize, index: bool) {
    let schema = "message rows { optional group image { optional binary bytes; optional binary path (STRING); } \
                  optional binary text (STRING); }";
    let schema = Arc::new(parse_message_type(schema).expect("a schema"));
    let page = if index { 1 << 20 } else { usize::MAX };
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_dictionary_enabled(false)
        .set_offset_index_disabled(!index)
        .set_data_page_size_limit(page)
        .set_write_batch_size(1)
        .build();
    let file = File::create(path).expect("a file");
    let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties)).expect("a writer");
    let numbers: Vec<usize> = (0..rows).collect();
    for part in numbers.chunks(group) {
        let mut group = writer.next_row_group().expect("a row group");
        let columns: [(Values<'_>, i16); 3] = [
            (&picture, 2),
            (&|row| format!("{row}.jpg").into_bytes(), 2),
            (&|row| text(row).into_bytes(), 1),
        ];
        for (make, level) in columns {
            let mut column = group.next_column().expect("a column").expect("another column");
            for row in part {
                let values = [ByteArray::from(make(*row))];
                column.typed::<ByteArrayType>().write_batch(&values, Some(&[level]), None).expect("a value");
            }
            column.close().expect("a column's end");
        }
        group.close().expect("a row group's end");
    }
    writer.close().expect("a file's end");
}

/// CPU time of all threads, ended ones too, user and kernel; in steps of 10 ms.
fn cpu_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").expect("/proc");
    let after_name = stat.rsplit(')').next().expect("a name");
    let field = |at: usize| {
        after_name.split_whitespace().nth(at).and_then(|text| text.parse::<u64>().ok()).expect("a number")
    };
    // Fields 14 and 15 of proc_pid_stat(5), counted from the one after the name.
    (field(11) + field(12)) as f64 / 100.0
}
