use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::settings::{FetchSettings, S3Settings};

/// Runs work where it is.
struct Here;

impl Cpu for Here {
    async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
        Ok(work())
    }
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("tests/golden").join(name)
}

fn stores() -> Stores {
    let fetch = FetchSettings {
        max_attempts: 1,
        missing_pause: std::time::Duration::ZERO,
        ..FetchSettings::default()
    };
    Stores::new(S3Settings::default(), fetch).unwrap()
}

struct Setup {
    stores: Stores,
    settings: ManifestSettings,
    _folder: tempfile::TempDir,
}

impl Setup {
    fn new(disk: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let settings = ManifestSettings::new(folder.path().join("cache"), disk);
        Self { stores: stores(), settings, _folder: folder }
    }

    async fn open(&self, path: &str) -> Result<Table, TableError> {
        self.open_columns(path, |_| true).await
    }

    async fn open_columns(&self, path: &str, wanted: impl Fn(&str) -> bool) -> Result<Table, TableError> {
        Table::open(&self.stores, &format!("file://{path}"), wanted, &self.settings, |_| {}).await
    }

    async fn row(&self, table: &Table, index: u64, bytes: u64) -> Result<TableRow, RowError> {
        let mut room = 0;
        loop {
            match table.row(&self.stores, index, RowLimits { bytes, room }, &Here).await? {
                RowOutcome::Row(row) => {
                    assert!(row.bytes <= room.max(1));
                    return Ok(row);
                }
                RowOutcome::NeedsRoom(needed) => {
                    assert!(
                        needed > room && needed <= RowLimits::most(bytes),
                        "{needed} after {room} of {bytes}"
                    );
                    room = needed;
                }
            }
        }
    }
}

/// A cell as the twin has it: a structure of bytes and a path is the path of the golden picture with these bytes.
fn written(cell: &Cell) -> Value {
    match cell {
        Cell::Null => Value::Null,
        Cell::Bool(value) => json!(value),
        Cell::Integer(value) => json!(value),
        Cell::Unsigned(value) => json!(value),
        Cell::Float(value) => json!(value),
        Cell::Text(value) => json!(value),
        Cell::Bytes(_) => json!("bytes"),
        Cell::List(items) => items.iter().map(written).collect(),
        Cell::Struct(fields) => match fields.as_slice() {
            [(one, Cell::Bytes(bytes)), (other, Cell::Text(path))]
                if one == "bytes" && other == "path" && path != "text" =>
            {
                let path = format!("images/{path}");
                assert_eq!(bytes[..], fs::read(golden(&path)).unwrap());
                json!(path)
            }
            _ => Value::Object(fields.iter().map(|(name, cell)| (name.clone(), written(cell))).collect()),
        },
    }
}

fn row_written(row: &TableRow) -> Value {
    Value::Object(row.columns.iter().map(|(name, cell)| (name.clone(), written(cell))).collect())
}

fn twin(name: &str) -> Vec<Value> {
    let text = fs::read_to_string(golden(&format!("parquet/{name}.jsonl"))).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

const SETS: [(&str, &str); 6] = [
    ("llava_onevision", "llava_onevision/"),
    ("the_cauldron", "the_cauldron.parquet"),
    ("finevision", "finevision.parquet"),
    ("chartqa", "chartqa.parquet"),
    ("docvqa", "docvqa.parquet"),
    ("types", "types.parquet"),
];

/// Every layout, in an order that no cache likes, with and without a cache; by pages and by chunks.
#[tokio::test]
async fn rows_are_the_records_of_their_twins() {
    for (name, files) in SETS {
        let expected = twin(name);
        for (disk, bytes) in [(0, 64 << 10), (4000, 64 << 10), (1 << 20, 64 << 10), (1 << 20, 256 << 20)] {
            let setup = Setup::new(disk);
            let table = setup.open(&golden(&format!("parquet/{files}")).display().to_string()).await.unwrap();
            assert_eq!(table.len(), expected.len() as u64);
            for step in 0..3 * table.len() {
                let index = step * 7 % table.len();
                let row = setup.row(&table, index, bytes).await.unwrap();
                assert_eq!(row_written(&row), expected[index as usize], "{name} row {index}, disk {disk}");
            }
            assert!(matches!(setup.row(&table, table.len(), bytes).await, Err(RowError::OutOfRange { .. })));
            let (hits, misses) = setup.settings.rows.hits_and_misses();
            assert!(disk < 1 << 20 || hits > misses, "{hits} hits, {misses} misses");
            assert!(setup.settings.disk.used() <= disk);
        }
    }
}

#[tokio::test]
async fn shards_are_in_the_order_of_their_names_and_rows_say_where_they_stand() {
    let folder = tempfile::tempdir().unwrap();
    let from = golden("parquet/llava_onevision");
    for (shard, name) in [(0, "train-b.parquet"), (1, "train-a.parquet"), (1, "test-0.parquet")] {
        fs::copy(from.join(format!("train-0000{shard}-of-00002.parquet")), folder.path().join(name)).unwrap();
    }
    fs::write(folder.path().join("train-README.md"), b"x").unwrap();
    let (setup, root) = (Setup::new(1 << 20), folder.path().display().to_string());
    let table = setup.open(&format!("{root}/train-*.parquet")).await.unwrap();
    let place = |table: &Table, index| {
        let (uri, row) = table.place(index).unwrap();
        (uri.to_string().rsplit('/').next().unwrap().to_owned(), row)
    };
    assert_eq!((table.files(), table.len()), (2, 11));
    assert_eq!(place(&table, 3), ("train-a.parquet".into(), 3));
    assert_eq!(place(&table, 4), ("train-b.parquet".into(), 0));
    assert_eq!(place(&table, 10), ("train-b.parquet".into(), 6));
    assert_eq!(row_written(&setup.row(&table, 4, 1 << 20).await.unwrap())["id"], "onevision-0");
    let all = setup.open(&format!("{root}/")).await.unwrap();
    assert_eq!((all.files(), all.len()), (3, 15));
    assert_ne!(all.digest(), table.digest());
    assert!(matches!(setup.open(&format!("{root}/none-*.parquet")).await, Err(TableError::NoFiles { .. })));
    assert!(matches!(setup.open(&format!("{root}/none/")).await, Err(TableError::Fetch { .. })));
}

#[tokio::test]
async fn an_example_has_every_column_and_reads_no_row() {
    let setup = Setup::new(0);
    let uri = format!("file://{}/", golden("parquet/llava_onevision").display());
    let example = Value::Object(
        Table::example(&setup.stores, &uri)
            .await
            .unwrap()
            .iter()
            .map(|(name, cell)| (name.clone(), written(cell)))
            .collect(),
    );
    let turn = json!({"from": "text", "value": "text"});
    // The path of no picture.
    assert_eq!(
        example,
        json!({"id": "text", "image": {"bytes": "bytes", "path": "text"}, "conversations": [turn], "data_source": "text"})
    );
}

#[tokio::test]
async fn only_wanted_columns_are_read() {
    let setup = Setup::new(1 << 20);
    let path = golden("parquet/types.parquet").display().to_string();
    let table = setup.open_columns(&path, |name| name == "lists" || name == "i8").await.unwrap();
    assert_eq!(table.columns(), ["i8", "lists"]);
    let row = setup.row(&table, 0, 1 << 20).await.unwrap();
    assert_eq!(row_written(&row), json!({"i8": -1, "lists": [["a"], [], ["b", "c"]]}));
    let none = setup.open_columns(&path, |_| false).await;
    assert!(matches!(none, Err(TableError::File { source: Refusal::NoColumns, .. })));
}

/// What the digest's doc says, in the words of another hand.
#[tokio::test]
async fn the_digest_is_over_lengths_and_footers() {
    let setup = Setup::new(1 << 20);
    let table = setup.open(&golden("parquet/llava_onevision/").display().to_string()).await.unwrap();
    let mut text = b"feedmill table digest 1\n".to_vec();
    for shard in 0..2 {
        let file =
            fs::read(golden(&format!("parquet/llava_onevision/train-0000{shard}-of-00002.parquet"))).unwrap();
        let length = u32::from_le_bytes(file[file.len() - 8..file.len() - 4].try_into().unwrap()) as usize;
        let footer = &file[file.len() - 8 - length..file.len() - 8];
        text.extend((file.len() as u64).to_le_bytes());
        text.extend((length as u64).to_le_bytes());
        text.extend(Sha256::digest(footer));
    }
    let expected: [u8; 32] = Sha256::digest(text).into();
    assert_eq!(table.digest(), expected);
}

#[tokio::test]
async fn a_file_that_changes_is_refused_and_never_read_as_other_data() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    fs::copy(golden("parquet/chartqa.parquet"), &path).unwrap();
    let setup = Setup::new(0);
    let table = setup.open(&path.display().to_string()).await.unwrap();
    setup.row(&table, 0, 1 << 20).await.unwrap();
    fs::copy(golden("parquet/docvqa.parquet"), &path).unwrap();
    for index in 0..table.len() {
        match setup.row(&table, index, 1 << 20).await {
            Err(RowError::Fetch { source, .. }) => {
                assert!(matches!(
                    *source,
                    FetchError::Permanent { kind: crate::error::PermanentKind::Changed, .. }
                ));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn rows_and_pages_beyond_the_limit_are_bad_whatever_was_read_before() {
    let path = golden("parquet/chartqa.parquet").display().to_string();
    for disk in [0, 1 << 20] {
        let setup = Setup::new(disk);
        let table = setup.open(&path).await.unwrap();
        // Pictures of one row group stand in one page; each alone is far smaller.
        let error = setup.row(&table, 0, 1500).await.unwrap_err();
        assert!(
            matches!(&error, RowError::Bad { too_large: true, what } if what.contains("page")),
            "{error}"
        );
        assert!(setup.row(&table, 0, 64 << 10).await.is_ok());
    }
}

/// A footer of one schema element after another, each the only child of the one before.
fn nested(depth: usize) -> Vec<u8> {
    // FileMetaData: 1 version = 1, 2 schema = list of structures.
    let mut footer = vec![0x15, 0x02, 0x19, 0xFC];
    let mut count = depth;
    while count >= 0x80 {
        footer.push(count as u8 | 0x80);
        count >>= 7;
    }
    footer.push(count as u8);
    for _ in 0..depth {
        // SchemaElement: 4 name = "a", 5 num_children = 1.
        footer.extend([0x48, 1, b'a', 0x15, 0x02, 0]);
    }
    footer.extend([0x16, 0, 0x19, 0x0C, 0]);
    footer
}

fn with_footer(footer: &[u8]) -> Vec<u8> {
    [b"PAR1", footer, &(footer.len() as u32).to_le_bytes(), b"PAR1"].concat()
}

#[tokio::test]
async fn hostile_files_are_refused_by_name() {
    let long_list = [&[0x15, 0x02, 0x19, 0xFC, 0xFF, 0xFF, 0xFF, 0xFF, 0x0F][..], &[0; 32]].concat();
    let cases = [
        (Vec::new(), "does not end as a Parquet file"),
        (b"PAR1PAR1".to_vec(), "does not end as a Parquet file"),
        (b"PAR1\0\0\0\0PARE".to_vec(), "encrypted"),
        (b"PAR1\xFF\xFF\xFF\xFFPAR1".to_vec(), "the limit is"),
        (b"PAR1\xFF\xFF\0\0PAR1".to_vec(), "longer than the file"),
        (with_footer(&[]), "damaged"),
        (with_footer(&[0xFF; 100]), "damaged"),
        (with_footer(&nested(9_000)), "nested too deep"),
        (with_footer(&nested(20_000)), "more than 10000 elements"),
        (with_footer(&long_list), "damaged"),
    ];
    for (number, (bytes, says)) in cases.into_iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.parquet");
        fs::write(&path, bytes).unwrap();
        let error = Setup::new(0).open(&path.display().to_string()).await.unwrap_err();
        match error {
            TableError::File { source, .. } => {
                assert!(source.to_string().contains(says), "case {number}: {source}");
            }
            other => panic!("case {number}: {other:?}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Damage anywhere is a refusal, a bad row or another row, within the room that was given; never a crash.
    #[test]
    fn damaged_files_are_refused_or_have_bad_rows(
        set in 0..SETS.len(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        near_end: bool,
        disk in prop::sample::select(vec![0u64, 1 << 20]),
    ) {
        let (name, files) = SETS[set];
        let file = if name == "llava_onevision" { "llava_onevision/train-00000-of-00002.parquet" } else { files };
        let mut bytes = fs::read(golden(&format!("parquet/{file}"))).unwrap();
        for (place, value) in damage {
            let from = if near_end { bytes.len().saturating_sub(3000) } else { 0 };
            let at = from + place.index(bytes.len() - from);
            bytes[at] = value;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.parquet");
        fs::write(&path, bytes).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (setup, other) = (Setup::new(disk), Setup::new(0));
            let Ok(table) = setup.open(&path.display().to_string()).await else { return };
            let fresh = other.open(&path.display().to_string()).await.unwrap();
            for index in (0..table.len().min(12)).chain(table.len().checked_sub(1)) {
                let first = setup.row(&table, index, 64 << 10).await;
                let again = setup.row(&table, index, 64 << 10).await;
                // What was read before makes no difference.
                let alone = other.row(&fresh, index, 64 << 10).await;
                let told = |row: Result<TableRow, RowError>| match row {
                    Ok(row) => format!("{row:?}"),
                    Err(RowError::Bad { what, .. }) => what,
                    Err(error) => panic!("{error:?}"),
                };
                let first = told(first);
                assert_eq!(first, told(again));
                assert_eq!(first, told(alone));
            }
        });
    }
}

/// With the usual limit every row that was not on disk was asked for twice: the first room was never enough.
#[tokio::test]
async fn usual_room_is_enough_for_usual_rows() {
    const BYTES: u64 = 256 << 20;
    for (_, file) in SETS {
        // Without room on disk no row is there already.
        let setup = Setup::new(0);
        let table = setup.open(&format!("{}/{file}", golden("parquet").display())).await.unwrap();
        for index in 0..table.len() {
            let limits = RowLimits { bytes: BYTES, room: RowLimits::usual(BYTES) };
            let row = table.row(&setup.stores, index, limits, &Here).await.unwrap();
            assert!(matches!(row, RowOutcome::Row(_)), "{file} row {index}");
        }
    }
}
