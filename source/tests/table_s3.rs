//! Parquet files from a real S3 server, through a proxy that breaks answers.
#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use feedmill_source::{
    Cpu, CredentialsSource, FetchError, FetchSettings, ManifestSettings, PermanentKind, RowError, RowLimits,
    RowOutcome, S3Settings, Stores, Table, TableError, TableRow,
};
use feedmill_testkit::{EmbeddedS3, Fault, FaultProxy, Rule, TestKeys};

struct Here;

impl Cpu for Here {
    async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
        Ok(work())
    }
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("tests/golden/parquet").join(name)
}

struct Setup {
    folder: tempfile::TempDir,
    _server: EmbeddedS3,
    proxy: FaultProxy,
    stores: Stores,
    settings: ManifestSettings,
}

const ROOT: &str = "s3://bucket/data/onevision/";
const BYTES: u64 = 64 << 10;

impl Setup {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let server = EmbeddedS3::start(folder.path(), &TestKeys::keys()).await.unwrap();
        server.create_bucket("bucket").unwrap();
        let data = folder.path().join("bucket/data/onevision");
        fs::create_dir_all(data.join("deeper")).unwrap();
        for shard in 0..2 {
            let name = format!("train-0000{shard}-of-00002.parquet");
            fs::copy(golden(&format!("llava_onevision/{name}")), data.join(name)).unwrap();
        }
        // Neither is a file of the data set.
        fs::write(data.join("deeper/train-x.parquet"), b"x").unwrap();
        fs::write(data.join("train-readme.txt"), b"x").unwrap();
        let proxy = FaultProxy::start(server.address()).await;
        let s3 = S3Settings {
            endpoint: Some(proxy.endpoint()),
            force_path_style: true,
            credentials: CredentialsSource::Static {
                access_key_id: TestKeys::ACCESS_KEY_ID.into(),
                secret_access_key: TestKeys::SECRET_ACCESS_KEY.into(),
                session_token: None,
            },
            ..S3Settings::default()
        };
        let fetch = FetchSettings {
            max_attempts: 10,
            retry_base: Duration::from_millis(1),
            missing_pause: Duration::from_millis(1),
            read_timeout: Duration::from_secs(60),
            get_deadline: Duration::from_secs(60),
            ..FetchSettings::default()
        };
        let stores = Stores::new(s3, fetch).unwrap();
        let settings = ManifestSettings::new(folder.path().join("cache"), 1 << 20);
        Self { folder, _server: server, proxy, stores, settings }
    }

    async fn open(&self, uri: &str) -> Result<Table, TableError> {
        Table::open(&self.stores, uri, |_| true, &self.settings, |_| {}).await
    }

    async fn row(&self, table: &Table, index: u64) -> Result<TableRow, RowError> {
        let limits = RowLimits { bytes: BYTES, room: RowLimits::most(BYTES) };
        match table.row(&self.stores, index, limits, &Here).await? {
            RowOutcome::Row(row) => Ok(row),
            RowOutcome::NeedsRoom(bytes) => panic!("{bytes} are more than the most"),
        }
    }
}

async fn local() -> Vec<TableRow> {
    let folder = tempfile::tempdir().unwrap();
    let stores = Stores::new(S3Settings::default(), FetchSettings::default()).unwrap();
    let settings = ManifestSettings::new(folder.path().to_owned(), 1 << 20);
    let uri = format!("file://{}/", golden("llava_onevision").display());
    let table = Table::open(&stores, &uri, |_| true, &settings, |_| {}).await.unwrap();
    let mut rows = Vec::new();
    for index in 0..table.len() {
        let limits = RowLimits { bytes: BYTES, room: RowLimits::most(BYTES) };
        match table.row(&stores, index, limits, &Here).await.unwrap() {
            RowOutcome::Row(row) => rows.push(row),
            RowOutcome::NeedsRoom(bytes) => panic!("{bytes}"),
        }
    }
    rows
}

#[tokio::test]
async fn rows_from_s3_are_those_on_disk_whatever_breaks() {
    let setup = Setup::new().await;
    for fault in [Fault::ResetMidBody, Fault::ShortBody, Fault::SLOW_DOWN, Fault::Html { status: 502 }] {
        setup.proxy.add(Rule::times(fault.clone(), 1).on_path("list-type=2"));
        setup.proxy.add(Rule::times(fault, 2).on_path("x-id=GetObject"));
    }
    let table = setup.open(ROOT).await.unwrap();
    let expected = local().await;
    assert_eq!((table.files(), table.len()), (2, expected.len() as u64));
    for step in 0..table.len() {
        let index = step * 5 % table.len();
        setup.proxy.add(Rule::times(Fault::ResetMidBody, 1).on_path("x-id=GetObject"));
        assert_eq!(setup.row(&table, index).await.unwrap(), expected[index as usize]);
    }
    let befell = setup.proxy.seen().iter().filter(|seen| seen.fault.is_some()).count();
    assert!(befell >= 12, "{befell} faults");
}

/// A list in several answers is put together: the server gives a thousand names at once.
#[tokio::test]
async fn a_long_list_of_files_is_read_to_its_end() {
    let setup = Setup::new().await;
    let many = setup.folder.path().join("bucket/many");
    fs::create_dir(&many).unwrap();
    let from = golden("chartqa.parquet");
    for number in 0..1100 {
        fs::hard_link(&from, many.join(format!("{number:05}.parquet")))
            .or_else(|_| fs::copy(&from, many.join(format!("{number:05}.parquet"))).map(|_| ()))
            .unwrap();
    }
    let table = setup.open("s3://bucket/many/*.parquet").await.unwrap();
    assert_eq!((table.files(), table.len()), (1100, 6600));
    let (last, row) = table.place(6599).unwrap();
    assert_eq!((last.to_string().as_str(), row), ("s3://bucket/many/01099.parquet", 5));
}

/// Opening must not read the data: footers alone, whatever the files' size.
#[tokio::test]
async fn only_the_ends_of_files_are_read_at_the_start() {
    let setup = Setup::new().await;
    let path = setup.folder.path().join("bucket/large.parquet");
    let small = fs::read(golden("chartqa.parquet")).unwrap();
    let length = u32::from_le_bytes(small[small.len() - 8..small.len() - 4].try_into().unwrap()) as usize;
    // The same data, then a hole of 64 MiB, then the footer.
    let mut large = small[..small.len() - 8 - length].to_vec();
    large.resize(large.len() + (64 << 20), 0);
    large.extend_from_slice(&small[small.len() - 8 - length..]);
    fs::write(&path, large).unwrap();
    let table = setup.open("s3://bucket/large.parquet").await.unwrap();
    let read = setup.stores.stats().bytes.load(std::sync::atomic::Ordering::Relaxed);
    assert!(read <= 64 << 10, "{read} bytes were read");
    assert_eq!(setup.row(&table, 5).await.unwrap().columns.len(), 4);
}

#[tokio::test]
async fn an_object_that_changes_or_goes_is_no_bad_record() {
    let setup = Setup::new().await;
    let table = setup.open(ROOT).await.unwrap();
    let path = setup.folder.path().join("bucket/data/onevision/train-00000-of-00002.parquet");
    let mut bytes = fs::read(&path).unwrap();
    bytes[1000] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let expect = |error: RowError, expected| match error {
        RowError::Fetch { source, .. } => match *source {
            FetchError::Permanent { kind, .. } => assert_eq!(kind, expected),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    expect(setup.row(&table, 0).await.unwrap_err(), PermanentKind::Changed);
    fs::remove_file(&path).unwrap();
    expect(setup.row(&table, 0).await.unwrap_err(), PermanentKind::Missing);
    assert!(setup.row(&table, 8).await.is_ok());
    setup.proxy.add(Rule::always(Fault::ACCESS_DENIED));
    assert!(matches!(setup.open(ROOT).await.unwrap_err().fetch_error(), Some(FetchError::Denied { .. })));
}
