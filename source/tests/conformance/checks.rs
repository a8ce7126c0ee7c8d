//! What holds for S3 and for files.

use feedmill_source::{FetchError, MissingLooksLike, PermanentKind, Stores};

use crate::backends::Backend;

/// Keys that are hard to encode. Each has another content, so that one taken for another is seen.
pub const ODD_KEYS: [&str; 36] = [
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
    "👩‍👩‍👧/é.png",
    "a\\b",
    "a:b@c",
    "a;b,c",
    "(a)[b]{c}",
    "'a\"b",
    "\"",
    "'",
    "~a!$*",
    " a",
    "a ",
    "a|b^c`d<e>",
    "a\tb",
    "e\u{301}",
    "\u{e9}",
    ".hidden",
    "..two",
    "dot.",
    "dots..",
    "a/.b/c.",
    "a/..b/c",
    "%",
    "%%",
    "%zz",
];

async fn get(stores: &Stores, backend: &Backend, key: &str) -> Result<Vec<u8>, FetchError> {
    stores.get(&backend.uri(key), 1 << 20).await.map(|bytes| bytes.to_vec())
}

fn kind(error: &FetchError) -> PermanentKind {
    match error {
        FetchError::Permanent { kind, .. } => *kind,
        other => panic!("expected a permanent error: {other:?}"),
    }
}

fn content() -> Vec<u8> {
    (0..50_000u32).map(|i| (i * 7 % 253) as u8).collect()
}

pub async fn odd_keys_give_their_own_bytes(backend: &Backend) {
    let stores = backend.stores();
    for (number, key) in ODD_KEYS.iter().enumerate() {
        backend.put(key, format!("{number} {key}").as_bytes()).await;
    }
    for (number, key) in ODD_KEYS.iter().enumerate() {
        assert_eq!(
            get(&stores, backend, key).await.unwrap(),
            format!("{number} {key}").as_bytes(),
            "{key:?}"
        );
        assert_eq!(
            stores.head(&backend.uri(key)).await.unwrap().size,
            format!("{number} {key}").len() as u64
        );
    }
}

/// Up to S3's 1,024 bytes, in parts that a file system can hold.
pub async fn very_long_keys(backend: &Backend) {
    let part = "k".repeat(200);
    let ascii = [part.as_str(); 5].join("/") + "/0123456789012345678";
    assert_eq!(ascii.len(), 1024);
    let wide = ["図".repeat(60).as_str(); 5].join("/");
    let stores = backend.stores();
    for key in [&ascii, &wide] {
        backend.put(key, key.as_bytes()).await;
        assert_eq!(get(&stores, backend, key).await.unwrap(), key.as_bytes());
    }
}

pub async fn ranges_are_exact(backend: &Backend) {
    let (stores, content) = (backend.stores(), content());
    backend.put("object", &content).await;
    let uri = backend.uri("object");
    let version = stores.head(&uri).await.unwrap();
    assert_eq!(version.size, 50_000);
    for range in [0..1, 0..50_000, 10..20, 49_999..50_000, 5..5] {
        let (from, to) = (range.start as usize, range.end as usize);
        assert_eq!(stores.get_range(&uri, range, &version).await.unwrap(), content[from..to]);
    }
    // Behind the end there is nothing: it was longer when its size was told.
    let error = stores.get_range(&uri, 50_000..50_001, &version).await.unwrap_err();
    assert!(
        matches!(
            error,
            FetchError::Permanent { kind: PermanentKind::Changed, .. } | FetchError::Transient { .. }
        ),
        "{error:?}"
    );
}

/// A manifest is read in pieces, which must all be of the object that was there at first.
pub async fn a_replaced_object_is_another_version(backend: &Backend) {
    let (stores, content) = (backend.stores(), content());
    backend.put("object", &content).await;
    let uri = backend.uri("object");
    let version = stores.head(&uri).await.unwrap();
    assert_eq!(stores.get_range(&uri, 10..20, &version).await.unwrap(), content[10..20]);
    backend.put("object", &content[1..]).await;
    let error = stores.get_range(&uri, 10..20, &version).await.unwrap_err();
    assert_eq!(kind(&error), PermanentKind::Changed);
    assert_ne!(stores.head(&uri).await.unwrap(), version);
}

pub async fn missing_is_told_from_empty_and_from_too_large(backend: &Backend) {
    let stores = backend.stores();
    backend.put("empty", b"").await;
    assert_eq!(get(&stores, backend, "empty").await.unwrap(), b"");
    assert_eq!(stores.head(&backend.uri("empty")).await.unwrap().size, 0);
    backend.put("object", &content()).await;
    let error = stores.get(&backend.uri("object"), 49_999).await.unwrap_err();
    assert_eq!(kind(&error), PermanentKind::TooLarge { bytes: 50_000, limit: 49_999 });
    for missing in ["nothing", "object2", "folder/nothing"] {
        assert_eq!(kind(&get(&stores, backend, missing).await.unwrap_err()), PermanentKind::Missing);
        let error = stores.head(&backend.uri(missing)).await.unwrap_err();
        assert_eq!(kind(&error), PermanentKind::Missing);
    }
}

pub async fn the_probe_sees_a_missing_object(backend: &Backend) {
    backend.put("images/x", b"x").await;
    let found = backend.stores().probe(&backend.prefix("images")).await.unwrap();
    assert_eq!(found, MissingLooksLike::NotFound);
}
