//! Manifests from a real S3 server, through a proxy that breaks answers.
#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

use std::fs;
use std::path::Path;
use std::time::Duration;

use feedmill_source::{
    Compression, CredentialsSource, FetchError, FetchSettings, Manifest, ManifestError, ManifestSettings,
    ObjectUri, PermanentKind, S3Settings, Stores,
};
use feedmill_testkit::{EmbeddedS3, Fault, FaultProxy, Rule, TestKeys};

struct Setup {
    folder: tempfile::TempDir,
    _server: EmbeddedS3,
    proxy: FaultProxy,
    stores: Stores,
    settings: ManifestSettings,
}

impl Setup {
    async fn new(manifest: &[u8]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let server = EmbeddedS3::start(folder.path(), &TestKeys::keys()).await.unwrap();
        server.create_bucket("bucket").unwrap();
        fs::write(folder.path().join("bucket/manifest"), manifest).unwrap();
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
        let settings = ManifestSettings::new(folder.path().join("cache"), 1 << 30);
        Self { folder, _server: server, proxy, stores, settings }
    }

    async fn open(&self) -> Result<Manifest, ManifestError> {
        let uri = ObjectUri::parse("s3://bucket/manifest").unwrap();
        Manifest::open(&self.stores, &uri, &self.settings, |_| {}).await
    }

    async fn open_local(&self, path: &Path) -> Manifest {
        Manifest::open(&self.stores, &ObjectUri::File(path.to_owned()), &self.settings, |_| {}).await.unwrap()
    }
}

/// Two pieces and a bit.
fn text() -> Vec<u8> {
    let line = |i: u32| {
        format!("{{\"id\": {i}, \"text\": \"{:x}\"}}\n", u64::from(i).wrapping_mul(0x9E37_79B9_7F4A_7C15))
    };
    let mut text: String = (0..).map(line).take(420_000).collect();
    text.truncate(text.len() - 1);
    assert!(text.len() > 16 << 20);
    text.into_bytes()
}

#[tokio::test]
async fn a_manifest_in_s3_is_the_same_as_on_disk_whatever_breaks() {
    let setup = Setup::new(&text()).await;
    for fault in [Fault::ResetMidBody, Fault::ShortBody, Fault::SLOW_DOWN] {
        setup.proxy.add(Rule::times(fault, 2).on_path("x-id=GetObject"));
    }
    let manifest = setup.open().await.unwrap();
    let local = setup.open_local(&setup.folder.path().join("bucket/manifest")).await;
    assert_eq!(
        (manifest.len(), manifest.digest(), manifest.bytes()),
        (local.len(), local.digest(), local.bytes())
    );
    assert_eq!(manifest.len(), 420_000);
    for index in [0, 1, 63, 64, 210_000, 419_999] {
        assert_eq!(manifest.record(index).unwrap(), local.record(index).unwrap());
    }
    assert_eq!(setup.settings.disk.used(), manifest.bytes());
}

#[tokio::test]
async fn a_compressed_manifest_in_s3_is_decompressed_on_the_way() {
    let text = text();
    let setup = Setup::new(&zstd::encode_all(&text[..], 1).unwrap()).await;
    let manifest = setup.open().await.unwrap();
    assert_eq!(
        (manifest.compression(), manifest.bytes(), manifest.len()),
        (Compression::Zstd, text.len() as u64, 420_000)
    );
}

#[tokio::test]
async fn an_empty_object_is_an_empty_manifest() {
    assert!(Setup::new(b"").await.open().await.unwrap().is_empty());
}

#[tokio::test]
async fn errors_of_the_store_come_through_as_they_are() {
    let setup = Setup::new(b"{}\n").await;
    // The first befalls the head; the second lets the head pass, which has no body.
    for fault in [Fault::INTERNAL_ERROR, Fault::ShortBody] {
        setup.proxy.add(Rule::always(fault.clone()));
        let error = setup.open().await.unwrap_err();
        let told = error.fetch_error();
        assert!(matches!(told, Some(FetchError::Transient { attempts: 10, .. })), "{fault:?}: {error:?}");
        setup.proxy.clear();
    }
    setup.proxy.add(Rule::always(Fault::ACCESS_DENIED).on_path("x-id=GetObject"));
    let error = setup.open().await.unwrap_err();
    assert!(matches!(error.fetch_error(), Some(FetchError::Denied { .. })), "{error:?}");
    setup.proxy.clear();
    fs::remove_file(setup.folder.path().join("bucket/manifest")).unwrap();
    let error = setup.open().await.unwrap_err();
    let missing = PermanentKind::Missing;
    assert!(
        matches!(error.fetch_error(), Some(FetchError::Permanent { kind, .. }) if *kind == missing),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_manifest_too_large_for_the_cache_is_refused_before_it_is_fetched() {
    let mut setup = Setup::new(&text()).await;
    setup.settings.disk = feedmill_source::DiskBudget::new(16 << 20);
    let error = setup.open().await.unwrap_err();
    let needed_all = text().len() as u64;
    assert!(matches!(error, ManifestError::CacheFull { needed, .. } if needed == needed_all), "{error:?}");
    assert_eq!(setup.settings.disk.used(), 0);
}

#[tokio::test]
async fn dropping_the_opening_ends_it_and_gives_the_room_back() {
    let setup = Setup::new(&text()).await;
    setup.proxy.add(Rule::times(Fault::ShortBody, 0));
    setup.proxy.add(Rule::always(Fault::StallMidBody).on_path("x-id=GetObject"));
    {
        let opening = setup.open();
        tokio::pin!(opening);
        // Until the first request for the body is on its way.
        while setup.proxy.count("x-id=GetObject") == 0 {
            tokio::select! {
                opened = &mut opening => panic!("{opened:?}"),
                () = tokio::task::yield_now() => {}
            }
        }
    }
    // The thread that waited for bytes sees that nobody sends any more.
    let given_back = async {
        while setup.settings.disk.used() > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), given_back).await.expect("the room is given back");
}
