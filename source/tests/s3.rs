//! `Stores` against a real S3 server, through a proxy that breaks answers: what comes back, and how many requests it took.
#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use feedmill_source::{
    CredentialsSource, FetchError, FetchSettings, MissingLooksLike, ObjectPrefix, ObjectUri, PermanentKind,
    S3Settings, SetupError, Stores, TransientKind,
};
use feedmill_testkit::certificates::{Authority, Validity};
use feedmill_testkit::{EmbeddedS3, Fault, FaultProxy, Rule, TestKeys, VersityGw};
use tempfile::TempDir;

const OBJECT: &str = "s3://bucket/object";

/// A server with one bucket, behind a proxy.
struct Setup {
    folder: TempDir,
    _server: EmbeddedS3,
    proxy: FaultProxy,
}

impl Setup {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let server = EmbeddedS3::start(folder.path(), &TestKeys::keys()).await.unwrap();
        server.create_bucket("bucket").unwrap();
        let proxy = FaultProxy::start(server.address()).await;
        let setup = Self { folder, _server: server, proxy };
        setup.put("object", &content());
        setup
    }

    fn bucket(&self) -> std::path::PathBuf {
        self.folder.path().join("bucket")
    }

    fn put(&self, key: &str, bytes: &[u8]) {
        let path = self.bucket().join(key);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }

    fn stores(&self, settings: FetchSettings) -> Stores {
        self.stores_with(given_keys(), settings)
    }

    fn stores_with(&self, credentials: CredentialsSource, settings: FetchSettings) -> Stores {
        let s3 = S3Settings {
            endpoint: Some(self.proxy.endpoint()),
            force_path_style: true,
            credentials,
            ..S3Settings::default()
        };
        Stores::new(s3, settings).unwrap()
    }
}

fn given_keys() -> CredentialsSource {
    CredentialsSource::Static {
        access_key_id: TestKeys::ACCESS_KEY_ID.into(),
        secret_access_key: TestKeys::SECRET_ACCESS_KEY.into(),
        session_token: None,
    }
}

/// Retries at once; time-outs that no test waits for.
fn settings() -> FetchSettings {
    FetchSettings {
        max_attempts: 3,
        retry_base: Duration::from_millis(1),
        missing_pause: Duration::from_millis(1),
        connect_timeout: Duration::from_secs(30),
        read_timeout: Duration::from_secs(30),
        get_deadline: Duration::from_secs(30),
        ..FetchSettings::default()
    }
}

fn content() -> Vec<u8> {
    (0..50_000_u32).map(|i| (i * 7 % 253) as u8).collect()
}

fn uri(text: &str) -> ObjectUri {
    ObjectUri::parse(text).unwrap()
}

async fn get(stores: &Stores, text: &str) -> Result<Vec<u8>, FetchError> {
    stores.get(&uri(text), 1 << 20).await.map(|bytes| bytes.to_vec())
}

fn transient(error: &FetchError) -> (u32, TransientKind) {
    match error {
        FetchError::Transient { attempts, last, .. } => (*attempts, *last),
        other => panic!("expected a transient error: {other:?}"),
    }
}

#[tokio::test]
async fn faults_of_the_moment_are_retried_and_the_bytes_are_whole() {
    let setup = Setup::new().await;
    let stores = setup.stores(settings());
    let cases = [
        (Fault::ResetBeforeHeaders, TransientKind::Reset),
        (Fault::ResetMidBody, TransientKind::IncompleteBody),
        (Fault::ShortBody, TransientKind::IncompleteBody),
        (Fault::SLOW_DOWN, TransientKind::Throttled),
        (Fault::INTERNAL_ERROR, TransientKind::ServerError),
        (Fault::EXPIRED_TOKEN, TransientKind::Credentials),
        (Fault::CLOCK_SKEW, TransientKind::ClockSkew),
        (Fault::S3Error { status: 400, code: "RequestTimeout" }, TransientKind::Timeout),
        (Fault::Html { status: 502 }, TransientKind::ServerError),
        (Fault::Html { status: 503 }, TransientKind::Throttled),
        (Fault::Html { status: 404 }, TransientKind::Unintelligible),
    ];
    for (fault, kind) in cases {
        // Twice, then the truth: three requests.
        let (before, failed) = (setup.proxy.count("/object"), stores.stats().failed(kind));
        setup.proxy.add(Rule::times(fault.clone(), 2));
        assert_eq!(get(&stores, OBJECT).await.unwrap(), content(), "{fault:?}");
        assert_eq!(setup.proxy.count("/object") - before, 3, "{fault:?}");
        assert_eq!(stores.stats().failed(kind) - failed, 2, "{fault:?}");

        // Always: three requests, then a transient error of that kind.
        let before = setup.proxy.count("/object");
        setup.proxy.add(Rule::always(fault.clone()));
        assert_eq!(transient(&get(&stores, OBJECT).await.unwrap_err()), (3, kind), "{fault:?}");
        assert_eq!(setup.proxy.count("/object") - before, 3, "{fault:?}");
        setup.proxy.clear();
    }
    assert_eq!(stores.stats().in_flight.load(Relaxed), 0);
    assert_eq!(stores.stats().waiting.load(Relaxed), 0);
}

#[tokio::test]
async fn silence_before_the_headers_ends_at_the_read_timeout() {
    let setup = Setup::new().await;
    let patience = FetchSettings { read_timeout: Duration::from_millis(300), ..settings() };
    setup.proxy.add(Rule::always(Fault::StallBeforeHeaders));
    let error =
        get(&setup.stores(FetchSettings { max_attempts: 2, ..patience.clone() }), OBJECT).await.unwrap_err();
    assert_eq!(transient(&error), (2, TransientKind::Timeout));
    assert_eq!(setup.proxy.count("/object"), 2);
    setup.proxy.clear();
    setup.proxy.add(Rule::times(Fault::StallBeforeHeaders, 1));
    let bytes = get(&setup.stores(FetchSettings { max_attempts: 20, ..patience }), OBJECT).await.unwrap();
    assert_eq!(bytes, content());
}

/// The SDK's own protection lets a body of 20 bytes a second pass for ever, and looks at a stalled one only after seconds.
#[tokio::test]
async fn stalled_and_trickling_bodies_end_at_the_deadline() {
    let setup = Setup::new().await;
    let patience = FetchSettings {
        get_deadline: Duration::from_millis(300),
        min_bytes_per_second: 100_000_000,
        max_attempts: 2,
        ..settings()
    };
    for fault in [Fault::StallMidBody, Fault::Trickle { bytes_per_second: 20 }] {
        let before = setup.proxy.count("/object");
        setup.proxy.add(Rule::always(fault.clone()));
        let error = get(&setup.stores(patience.clone()), OBJECT).await.unwrap_err();
        assert_eq!(transient(&error), (2, TransientKind::Timeout), "{fault:?}");
        assert_eq!(setup.proxy.count("/object") - before, 2, "{fault:?}");
        setup.proxy.clear();
        setup.proxy.add(Rule::times(fault.clone(), 1));
        let bytes =
            get(&setup.stores(FetchSettings { max_attempts: 20, ..patience.clone() }), OBJECT).await.unwrap();
        assert_eq!(bytes, content(), "{fault:?}");
        setup.proxy.clear();
    }
}

#[tokio::test]
async fn nobody_listening_is_no_connection() {
    // Bound, so that nobody else gets the port, but not listening.
    let bound = tokio::net::TcpSocket::new_v4().unwrap();
    bound.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let endpoint = format!("http://{}", bound.local_addr().unwrap());
    let s3 = S3Settings {
        endpoint: Some(endpoint),
        force_path_style: true,
        credentials: given_keys(),
        ..S3Settings::default()
    };
    let stores = Stores::new(s3, settings()).unwrap();
    assert_eq!(transient(&get(&stores, OBJECT).await.unwrap_err()), (3, TransientKind::Connect));
}

#[tokio::test]
async fn a_server_is_trusted_by_the_authorities_of_a_file_and_by_no_others() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("bucket")).unwrap();
    std::fs::write(folder.path().join("bucket/object"), content()).unwrap();
    let (ours, theirs) = (Authority::new(), Authority::new());
    let server = VersityGw::start_with_tls(folder.path(), &ours.sign("s3", &["127.0.0.1"], Validity::Now));
    let stores = |ca: std::path::PathBuf| {
        let s3 = S3Settings {
            endpoint: Some(server.endpoint()),
            force_path_style: true,
            ca_file: Some(ca),
            credentials: given_keys(),
            ..S3Settings::default()
        };
        Stores::new(s3, settings())
    };
    assert_eq!(get(&stores(ours.file()).unwrap(), OBJECT).await.unwrap(), content());
    // Of several, each counts.
    let both = folder.path().join("both.pem");
    let text = [theirs.file(), ours.file()].map(|file| std::fs::read_to_string(file).unwrap()).concat();
    std::fs::write(&both, &text).unwrap();
    assert_eq!(get(&stores(both.clone()).unwrap(), OBJECT).await.unwrap(), content());
    let error = get(&stores(theirs.file()).unwrap(), OBJECT).await.unwrap_err();
    assert_eq!(transient(&error).1, TransientKind::Connect, "{error}");
    // What cannot be used is told before anything is asked for.
    for (text, reason) in [
        ("", "no certificate"),
        ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "cannot be used"),
        (&text[..text.len() - 100], "damaged"),
    ] {
        std::fs::write(&both, text).unwrap();
        let error = stores(both.clone()).err().unwrap();
        assert!(
            matches!(error, SetupError::Authorities { .. }) && error.to_string().contains(reason),
            "{error}"
        );
    }
    let error = stores(folder.path().join("nothing")).err().unwrap();
    assert!(error.to_string().contains("cannot be read"), "{error}");
}

#[tokio::test]
async fn the_whole_time_is_bounded_too() {
    let setup = Setup::new().await;
    setup.proxy.add(Rule::always(Fault::INTERNAL_ERROR));
    // The first pause alone would end after the bound.
    let bounded = FetchSettings {
        max_attempts: 1000,
        retry_for: Duration::ZERO,
        retry_base: Duration::from_secs(3600),
        retry_cap: Duration::from_secs(3600),
        ..settings()
    };
    let error = get(&setup.stores(bounded), OBJECT).await.unwrap_err();
    assert_eq!(transient(&error), (1, TransientKind::ServerError));
}

#[tokio::test]
async fn missing_is_believed_after_a_second_look() {
    let setup = Setup::new().await;
    let stores = setup.stores(settings());
    let error = get(&stores, "s3://bucket/nothing").await.unwrap_err();
    assert!(matches!(error, FetchError::Permanent { kind: PermanentKind::Missing, .. }), "{error:?}");
    assert_eq!(setup.proxy.count("/nothing"), 2);
    // A 404 that is not confirmed is not believed.
    setup.proxy.add(Rule::times(Fault::NO_SUCH_KEY, 1));
    assert_eq!(get(&stores, OBJECT).await.unwrap(), content());
    // And faults between the looks neither confirm nor refute.
    setup.proxy.clear();
    setup.proxy.add(Rule::times(Fault::NO_SUCH_KEY, 1));
    setup.proxy.add(Rule::times(Fault::INTERNAL_ERROR, 1));
    assert_eq!(get(&stores, OBJECT).await.unwrap(), content());
    assert_eq!(stores.stats().missing.load(Relaxed), 1);
}

#[tokio::test]
async fn refusals_are_loud_at_once_and_never_permanent() {
    let setup = Setup::new().await;
    let stores = setup.stores(settings());
    for (status, code) in [
        (403, "AccessDenied"),
        (403, "InvalidAccessKeyId"),
        (403, "SignatureDoesNotMatch"),
        (404, "NoSuchBucket"),
    ] {
        let before = setup.proxy.count("/object");
        setup.proxy.add(Rule::times(Fault::S3Error { status, code }, 1));
        let error = get(&stores, OBJECT).await.unwrap_err();
        assert!(matches!(&error, FetchError::Denied { code: told, .. } if told == code), "{code}: {error:?}");
        assert_eq!(setup.proxy.count("/object") - before, 1);
    }
    assert_eq!(stores.stats().denied.load(Relaxed), 4);
    // The real server's own words for a wrong secret and an unknown key.
    for (id, secret, told) in
        [(TestKeys::ACCESS_KEY_ID, "wrong", "SignatureDoesNotMatch"), ("unknown", "wrong", "NotSignedUp")]
    {
        let keys = CredentialsSource::Static {
            access_key_id: id.into(),
            secret_access_key: secret.into(),
            session_token: None,
        };
        let error = get(&setup.stores_with(keys, settings()), OBJECT).await.unwrap_err();
        assert!(matches!(&error, FetchError::Denied { code, .. } if code == told), "{error:?}");
        assert!(error.to_string().contains("check access key"), "{error}");
    }
}

#[tokio::test]
async fn the_probe_tells_what_missing_looks_like() {
    let setup = Setup::new().await;
    let prefix = ObjectPrefix::parse("s3://bucket/images").unwrap();
    let stores = setup.stores(settings());
    assert_eq!(stores.probe(&prefix).await.unwrap(), MissingLooksLike::NotFound);
    assert!(
        setup.proxy.seen().iter().all(|request| request.target.starts_with("/bucket/images/feedmill-probe-"))
    );

    setup.proxy.add(Rule::always(Fault::ACCESS_DENIED));
    let plain = get(&stores, OBJECT).await.unwrap_err().to_string();
    assert!(plain.contains("allow s3:GetObject on it"), "{plain}");
    assert_eq!(stores.probe(&prefix).await.unwrap(), MissingLooksLike::Forbidden);
    let ambiguous = get(&stores, OBJECT).await.unwrap_err().to_string();
    assert!(
        ambiguous.contains("missing or not allowed") && ambiguous.contains("s3:ListBucket"),
        "{ambiguous}"
    );

    setup.proxy.clear();
    setup.proxy.add(Rule::always(Fault::S3Error { status: 403, code: "InvalidAccessKeyId" }));
    assert!(matches!(stores.probe(&prefix).await, Err(FetchError::Denied { .. })));
}

#[tokio::test]
async fn odd_keys_are_encoded_exactly_once() {
    let setup = Setup::new().await;
    let stores = setup.stores(settings());
    let keys = [
        "a b",
        "a+b",
        "a%b",
        "a%20b",
        "a%2Fb",
        "a#b",
        "a?b",
        "a?versionId=x",
        "a&b=c",
        "ü",
        "日本/写真.jpg",
        "😀",
        "a\\b",
        "a:b@c",
        "a;b,c",
        "(a)[b]{c}",
        "'a\"b",
        "~a!$*",
        " a",
        "a ",
        "a|b^c`d<e>",
        "a\tb",
        "e\u{301}",
        "\u{e9}",
    ];
    for key in keys {
        setup.put(key, key.as_bytes());
    }
    for key in keys {
        let bytes = get(&stores, &format!("s3://bucket/{key}")).await;
        assert_eq!(bytes.unwrap(), key.as_bytes(), "{key:?}");
    }
    assert_eq!(setup.proxy.seen().len(), keys.len());
}

#[tokio::test]
async fn too_large_is_told_from_the_headers() {
    let setup = Setup::new().await;
    let stores = setup.stores(settings());
    let error = stores.get(&uri(OBJECT), 49_999).await.unwrap_err();
    let expected = PermanentKind::TooLarge { bytes: 50_000, limit: 49_999 };
    assert!(matches!(error, FetchError::Permanent { kind, .. } if kind == expected), "{error:?}");
    assert_eq!(setup.proxy.count("/object"), 1);
    assert_eq!(stores.get(&uri(OBJECT), 50_000).await.unwrap(), content());
    setup.put("empty", b"");
    assert_eq!(stores.get(&uri("s3://bucket/empty"), 0).await.unwrap(), "");
}

#[tokio::test]
async fn ranges_are_of_one_version() {
    let setup = Setup::new().await;
    let stores = setup.stores(settings());
    let version = stores.head(&uri(OBJECT)).await.unwrap();
    assert_eq!(version.size, 50_000);
    assert_eq!(stores.get_range(&uri(OBJECT), 10..20, &version).await.unwrap(), content()[10..20]);
    assert_eq!(stores.get_range(&uri(OBJECT), 49_990..50_000, &version).await.unwrap(), content()[49_990..]);
    assert_eq!(stores.get_range(&uri(OBJECT), 5..5, &version).await.unwrap(), "");
    setup.put("object", &content()[1..]);
    let error = stores.get_range(&uri(OBJECT), 10..20, &version).await.unwrap_err();
    assert!(matches!(error, FetchError::Permanent { kind: PermanentKind::Changed, .. }), "{error:?}");
}

/// HEAD answers carry no error code; a clock that is wrong must not look like a refusal.
#[tokio::test]
async fn errors_of_head_are_told_apart() {
    let setup = Setup::new().await;
    let stores = setup.stores(settings());
    for (fault, kind) in
        [(Fault::CLOCK_SKEW, TransientKind::ClockSkew), (Fault::EXPIRED_TOKEN, TransientKind::Credentials)]
    {
        setup.proxy.add(Rule::always(fault));
        assert_eq!(transient(&stores.head(&uri(OBJECT)).await.unwrap_err()), (3, kind));
        setup.proxy.clear();
    }
    setup.proxy.add(Rule::always(Fault::ACCESS_DENIED));
    let error = stores.head(&uri(OBJECT)).await.unwrap_err();
    assert!(matches!(&error, FetchError::Denied { code, .. } if code == "AccessDenied"), "{error:?}");
    setup.proxy.clear();
    let error = stores.head(&uri("s3://bucket/nothing")).await.unwrap_err();
    assert!(matches!(error, FetchError::Permanent { kind: PermanentKind::Missing, .. }), "{error:?}");
}

#[tokio::test]
async fn throttling_lowers_the_limit_and_successes_raise_it() {
    let setup = Setup::new().await;
    let stores = setup.stores(FetchSettings { max_in_flight: 16, max_attempts: 100, ..settings() });
    let limit = || stores.stats().throttle_limit.load(Relaxed);
    assert_eq!(limit(), 16);
    setup.proxy.add(Rule::times(Fault::SLOW_DOWN, 1));
    get(&stores, OBJECT).await.unwrap();
    assert_eq!(limit(), 8);
    for _ in 0..9 {
        get(&stores, OBJECT).await.unwrap();
    }
    assert_eq!(limit(), 9);
    setup.proxy.add(Rule::times(Fault::SLOW_DOWN, 10));
    get(&stores, OBJECT).await.unwrap();
    assert_eq!(limit(), 2);
}

#[tokio::test]
async fn keys_from_a_folder_are_read_again_after_a_rotation() {
    let setup = Setup::new().await;
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let staged = folder.path().join("staged");
        std::fs::write(&staged, text).unwrap();
        std::fs::rename(staged, folder.path().join(name)).unwrap();
    };
    let stores = setup.stores_with(CredentialsSource::Folder(folder.path().to_owned()), settings());
    // No files yet, as when a Secret is mounted late: waiting, not refusing.
    assert_eq!(transient(&get(&stores, OBJECT).await.unwrap_err()), (3, TransientKind::Credentials));
    assert_eq!(setup.proxy.count("/object"), 0);
    write("access-key-id", TestKeys::ACCESS_KEY_ID);
    write("secret-access-key", "old");
    assert!(matches!(get(&stores, OBJECT).await, Err(FetchError::Denied { .. })));
    write("secret-access-key", TestKeys::SECRET_ACCESS_KEY);
    assert_eq!(get(&stores, OBJECT).await.unwrap(), content());
}

#[tokio::test]
async fn files_go_by_the_same_rules() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| ObjectUri::File(folder.path().join(name));
    // No region, no credentials: files need neither.
    let stores = Stores::new(S3Settings::default(), settings()).unwrap();
    std::fs::write(folder.path().join("a b%20#?"), content()).unwrap();
    assert_eq!(stores.get(&file("a b%20#?"), 1 << 20).await.unwrap(), content());
    let error = stores.get(&file("a b%20#?"), 10).await.unwrap_err();
    assert!(matches!(
        error,
        FetchError::Permanent { kind: PermanentKind::TooLarge { bytes: 50_000, limit: 10 }, .. }
    ));
    let error = stores.get(&file("nothing"), 10).await.unwrap_err();
    assert!(matches!(error, FetchError::Permanent { kind: PermanentKind::Missing, .. }));
    let version = stores.head(&file("a b%20#?")).await.unwrap();
    assert_eq!(stores.get_range(&file("a b%20#?"), 1..3, &version).await.unwrap(), content()[1..3]);
    let found = stores.probe(&ObjectPrefix::File(folder.path().to_owned())).await.unwrap();
    assert_eq!(found, MissingLooksLike::NotFound);
    assert!(stores.probe(&ObjectPrefix::File(Path::new("/nonexistent").to_owned())).await.is_err());
}
