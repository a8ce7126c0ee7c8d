//! What holds for S3 servers only: headers, signatures, refusals.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use aws_sdk_s3::types::{ChecksumAlgorithm, CompletedMultipartUpload, CompletedPart};
use feedmill_source::{CredentialsSource, FetchError, MissingLooksLike, PermanentKind, TransientKind};
use feedmill_testkit::{Fault, Rule, TestKeys, VIRTUAL_DOMAIN};

use crate::backends::{BUCKET, Backend, Server, keys, write_key};
use crate::checks::ODD_KEYS;

fn content() -> Vec<u8> {
    (0..50_000u32).map(|i| (i * 11 % 251) as u8).collect()
}

fn code(error: &FetchError) -> &str {
    match error {
        FetchError::Denied { code, .. } => code,
        other => panic!("expected a refusal: {other:?}"),
    }
}

fn transient(error: &FetchError) -> (u32, TransientKind) {
    match error {
        FetchError::Transient { attempts, last, .. } => (*attempts, *last),
        other => panic!("expected a transient error: {other:?}"),
    }
}

/// Undoes percent encoding.
fn decoded(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        match (first, tail) {
            (b'%', [high, low, tail @ ..]) => {
                let hex = std::str::from_utf8(&[*high, *low]).unwrap().to_owned();
                bytes.push(u8::from_str_radix(&hex, 16).unwrap());
                rest = tail;
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    bytes
}

/// On the wire each key is encoded once, and none is folded, whatever the server makes of it.
pub async fn keys_are_named_byte_for_byte(backend: &Backend) {
    let stores = backend.stores_with(|_, settings| settings.max_attempts = 1);
    let folding = ["a//b", "a/./b", "./a", "a/../b", "//", "a//", "/a"];
    for key in ODD_KEYS.into_iter().chain(folding) {
        let before = backend.proxy().seen().len();
        // Servers over file systems answer some of them in their own way.
        let _ = stores.get(&backend.uri(key), 0).await;
        let seen = backend.proxy().seen();
        let path = seen[before].target.split('?').next().unwrap();
        let by_path = format!("/{BUCKET}/{key}").into_bytes();
        let by_host = format!("/{key}").into_bytes();
        let path = decoded(path);
        assert!(path == by_path || path == by_host, "{key:?} became {:?}", String::from_utf8_lossy(&path));
    }
}

pub async fn the_bucket_is_in_the_host_header(backend: &Backend) {
    backend.put("folder/object", b"x").await;
    assert_eq!(backend.stores().get(&backend.uri("folder/object"), 9).await.unwrap(), "x");
    let seen = backend.proxy().seen();
    let port = backend.proxy().address().port();
    assert!(
        seen[0].head.contains(&format!("host: {BUCKET}.{VIRTUAL_DOMAIN}:{port}\r\n")),
        "{}",
        seen[0].head
    );
    assert!(seen[0].target.starts_with("/folder/object"), "{}", seen[0].target);
}

pub async fn what_was_stored_with_a_checksum_is_checked(backend: &Backend) {
    let (client, stores) = (backend.client(), backend.stores());
    use ChecksumAlgorithm as Algorithm;
    for algorithm in
        [Algorithm::Crc32, Algorithm::Crc32C, Algorithm::Crc64Nvme, Algorithm::Sha1, Algorithm::Sha256]
    {
        let key = format!("by-{}", algorithm.as_str());
        let put = client.put_object().bucket(BUCKET).key(&key).checksum_algorithm(algorithm.clone());
        put.body(content().into()).send().await.unwrap_or_else(|error| panic!("{key}: {error:?}"));
        assert_eq!(stores.get(&backend.uri(&key), 1 << 20).await.unwrap(), content(), "{key}");
    }
    // The SDK checks only when it says that it will.
    assert!(
        backend.proxy().seen().iter().all(|request| request.head.contains("x-amz-checksum-mode: ENABLED"))
    );
}

pub async fn a_wrong_byte_is_never_served(backend: &Backend) {
    let stores = backend.stores();
    let put = backend.client().put_object().bucket(BUCKET).key("object");
    put.checksum_algorithm(ChecksumAlgorithm::Crc64Nvme).body(content().into()).send().await.unwrap();
    backend.proxy().add(Rule::times(Fault::WrongByte, 2));
    assert_eq!(stores.get(&backend.uri("object"), 1 << 20).await.unwrap(), content());
    assert_eq!(stores.stats().failed(TransientKind::Checksum), 2);
    backend.proxy().add(Rule::always(Fault::WrongByte));
    let error = stores.get(&backend.uri("object"), 1 << 20).await.unwrap_err();
    assert_eq!(transient(&error), (3, TransientKind::Checksum));
}

/// `Content-Encoding` says how a browser should show it; records and pictures are what was stored.
pub async fn compressed_objects_come_as_they_are_stored(backend: &Backend) {
    let stored = [0x1f, 0x8b, 8, 0, 1, 2, 3, 4, 5];
    let put = backend.client().put_object().bucket(BUCKET).key("page.gz").content_encoding("gzip");
    put.body(stored.to_vec().into()).send().await.unwrap();
    let stores = backend.stores();
    assert_eq!(stores.get(&backend.uri("page.gz"), 100).await.unwrap(), stored[..]);
    assert_eq!(stores.head(&backend.uri("page.gz")).await.unwrap().size, 9);
}

/// Their ETag is no MD5, and their checksum may be one of checksums.
pub async fn objects_in_parts(backend: &Backend) {
    let client = backend.client();
    // S3's least size of a part that is not the last.
    let parts: [Vec<u8>; 2] = [vec![7; 5 << 20], content()];
    let whole = parts.concat();
    for algorithm in [ChecksumAlgorithm::Crc32, ChecksumAlgorithm::Crc64Nvme] {
        let begun = client.create_multipart_upload().bucket(BUCKET).key("parts");
        let begun = begun.checksum_algorithm(algorithm.clone()).send().await.unwrap();
        let upload = begun.upload_id().unwrap();
        let mut done = CompletedMultipartUpload::builder();
        for (number, part) in (1..).zip(&parts) {
            let sent = client.upload_part().bucket(BUCKET).key("parts").upload_id(upload).part_number(number);
            let sent =
                sent.checksum_algorithm(algorithm.clone()).body(part.clone().into()).send().await.unwrap();
            done = done.parts(
                CompletedPart::builder()
                    .part_number(number)
                    .set_e_tag(sent.e_tag)
                    .set_checksum_crc32(sent.checksum_crc32)
                    .set_checksum_crc64_nvme(sent.checksum_crc64_nvme)
                    .build(),
            );
        }
        let completing = client.complete_multipart_upload().bucket(BUCKET).key("parts").upload_id(upload);
        completing.multipart_upload(done.build()).send().await.unwrap();
        let (stores, uri) = (backend.stores(), backend.uri("parts"));
        assert_eq!(stores.get(&uri, 1 << 24).await.unwrap(), whole);
        let version = stores.head(&uri).await.unwrap();
        assert_eq!(version.size, whole.len() as u64);
        let across = (5 << 20) - 10..(5 << 20) + 10;
        let expected = &whole[across.start as usize..across.end as usize];
        assert_eq!(stores.get_range(&uri, across, &version).await.unwrap(), expected);
    }
}

pub async fn wrong_keys_are_refused_loudly(backend: &Backend) {
    backend.put("object", b"x").await;
    for (id, secret) in [(TestKeys::ACCESS_KEY_ID, "wrong"), ("unknown", "wrong")] {
        let stores = backend.stores_with(|s3, _| s3.credentials = keys(id, secret, None));
        let error = stores.get(&backend.uri("object"), 10).await.unwrap_err();
        let expected = ["SignatureDoesNotMatch", "InvalidAccessKeyId", "NotSignedUp"];
        assert!(expected.contains(&code(&error)), "{id}: {error:?}");
        assert!(error.to_string().contains("check access key"), "{error}");
        assert_eq!(stores.stats().denied.load(Relaxed), 1);
        let error = stores.probe(&backend.prefix("images")).await.unwrap_err();
        assert!(expected.contains(&code(&error)), "{id}: {error:?}");
    }
}

pub async fn rotated_keys_are_taken_from_the_folder(backend: &Backend) {
    backend.put("object", b"x").await;
    let folder = tempfile::tempdir().unwrap();
    let stores =
        backend.stores_with(|s3, _| s3.credentials = CredentialsSource::Folder(folder.path().to_owned()));
    let uri = backend.uri("object");
    assert_eq!(transient(&stores.get(&uri, 10).await.unwrap_err()), (3, TransientKind::Credentials));
    write_key(folder.path(), "access-key-id", TestKeys::ACCESS_KEY_ID);
    write_key(folder.path(), "secret-access-key", "old");
    assert_eq!(code(&stores.get(&uri, 10).await.unwrap_err()), "SignatureDoesNotMatch");
    write_key(folder.path(), "secret-access-key", TestKeys::SECRET_ACCESS_KEY);
    assert_eq!(stores.get(&uri, 10).await.unwrap(), "x");
}

pub async fn expired_tokens_are_waited_for(backend: &Backend) {
    backend.put("object", b"x").await;
    let temporary = keys(TestKeys::ACCESS_KEY_ID, TestKeys::SECRET_ACCESS_KEY, Some("token-of-a-session"));
    let stores = backend.stores_with(|s3, _| s3.credentials = temporary);
    backend.proxy().add(Rule::always(Fault::EXPIRED_TOKEN));
    let error = stores.get(&backend.uri("object"), 10).await.unwrap_err();
    assert_eq!(transient(&error), (3, TransientKind::Credentials));
    let seen = backend.proxy().seen();
    assert!(seen.iter().all(|request| request.head.contains("x-amz-security-token: token-of-a-session")));
}

pub async fn throttling_is_survived(backend: &Backend) {
    for number in 0..40 {
        backend.put(&number.to_string(), format!("{number}").as_bytes()).await;
    }
    let stores = backend.stores_with(|_, settings| {
        settings.max_attempts = 1000;
        settings.max_in_flight = 16;
    });
    backend.proxy().add(Rule::times(Fault::SLOW_DOWN, 60));
    backend.proxy().add(Rule::times(Fault::Html { status: 503 }, 20));
    let all = (0..40).map(|number| {
        let (stores, uri) = (stores.clone(), backend.uri(&number.to_string()));
        tokio::spawn(async move { (number, stores.get(&uri, 10).await.unwrap()) })
    });
    for one in all.collect::<Vec<_>>() {
        let (number, bytes) = one.await.unwrap();
        assert_eq!(bytes, format!("{number}"));
    }
    assert_eq!(stores.stats().failed(TransientKind::Throttled), 80);
    assert!(stores.stats().throttle_limit.load(Relaxed) < 16);
}

/// Every meeting with a missing picture used to cost two requests and a pause between them.
pub async fn missing_objects_are_remembered_for_a_while(backend: &Backend) {
    let stores = backend.stores();
    for _ in 0..5 {
        let error = stores.get(&backend.uri("nothing"), 10).await.unwrap_err();
        assert!(matches!(error, FetchError::Permanent { kind: PermanentKind::Missing, .. }), "{error:?}");
    }
    assert_eq!(backend.proxy().count("/nothing"), 2);
    assert_eq!(stores.stats().missing.load(Relaxed), 5);
    let forgetful = backend.stores_with(|_, settings| settings.missing_memory = Duration::ZERO);
    assert!(forgetful.get(&backend.uri("nothing"), 10).await.is_err());
    backend.put("nothing", b"x").await;
    assert_eq!(forgetful.get(&backend.uri("nothing"), 10).await.unwrap(), "x");
}

pub async fn the_server_itself_refuses_another_version(backend: &Backend) {
    let stores = backend.stores();
    backend.put("object", &content()).await;
    let uri = backend.uri("object");
    let version = stores.head(&uri).await.unwrap();
    stores.get_range(&uri, 0..9, &version).await.unwrap();
    let seen = backend.proxy().seen();
    assert!(seen.last().unwrap().head.contains(&format!("if-match: {}", version.tag)));
    backend.put("object", b"another").await;
    let error = stores.get_range(&uri, 0..5, &version).await.unwrap_err();
    assert!(matches!(error, FetchError::Permanent { kind: PermanentKind::Changed, .. }), "{error:?}");
    assert_eq!(backend.proxy().seen().last().unwrap().status, Some(412));
}

pub async fn a_clock_that_is_wrong_is_waited_for(backend: &Backend) {
    backend.put("object", b"x").await;
    let stores = backend.stores();
    backend.proxy().add(Rule::times(Fault::WrongDate, 2));
    assert_eq!(stores.get(&backend.uri("object"), 10).await.unwrap(), "x");
    assert_eq!(stores.stats().failed(TransientKind::ClockSkew), 2);
}

pub async fn another_region_is_refused_with_the_remedy(backend: &Backend) {
    backend.put("object", b"x").await;
    let stores = backend.stores_with(|s3, _| s3.region = Some("eu-central-1".into()));
    let error = stores.get(&backend.uri("object"), 10).await.unwrap_err();
    assert_eq!(code(&error), "AuthorizationHeaderMalformed");
    assert!(error.to_string().contains("check the region"), "{error}");
    assert_eq!(code(&stores.head(&backend.uri("object")).await.unwrap_err()), "AuthorizationHeaderMalformed");
}

pub async fn a_missing_bucket_is_no_missing_object(backend: &Backend) {
    let uri = feedmill_source::ObjectUri::parse("s3://no-such-bucket/object").unwrap();
    let stores = backend.stores();
    assert_eq!(code(&stores.get(&uri, 10).await.unwrap_err()), "NoSuchBucket");
    assert_eq!(code(&stores.head(&uri).await.unwrap_err()), "NoSuchBucket");
}

pub async fn not_allowed_is_told_from_missing(backend: &Backend) {
    let Server::Versity(server) = &backend.server else {
        panic!("users are made in versitygw");
    };
    server.create_user("reader", "reader-secret");
    backend.put("images/object", b"x").await;
    let mine = keys("reader", "reader-secret", None);
    // One store for each state: what missing looks like is learnt at the start.
    let stores = || backend.stores_with(|s3, _| s3.credentials = mine.clone());
    let refused = stores();
    for key in ["images/object", "images/nothing"] {
        assert_eq!(code(&refused.get(&backend.uri(key), 10).await.unwrap_err()), "AccessDenied");
    }
    assert_eq!(refused.probe(&backend.prefix("images")).await.unwrap(), MissingLooksLike::Forbidden);
    let error = refused.get(&backend.uri("images/nothing"), 10).await.unwrap_err();
    assert!(error.to_string().contains("s3:ListBucket"), "{error}");
    let policy = format!(
        r#"{{"Version": "2012-10-17", "Statement": [
            {{"Effect": "Allow", "Principal": ["reader"], "Action": ["s3:GetObject"], "Resource": ["arn:aws:s3:::{BUCKET}/*"]}},
            {{"Effect": "Allow", "Principal": ["reader"], "Action": ["s3:ListBucket"], "Resource": ["arn:aws:s3:::{BUCKET}"]}}]}}"#
    );
    backend.client().put_bucket_policy().bucket(BUCKET).policy(policy).send().await.unwrap();
    let allowed = stores();
    assert_eq!(allowed.get(&backend.uri("images/object"), 10).await.unwrap(), "x");
    assert_eq!(allowed.probe(&backend.prefix("images")).await.unwrap(), MissingLooksLike::NotFound);
    let error = allowed.get(&backend.uri("images/nothing"), 10).await.unwrap_err();
    assert!(matches!(error, FetchError::Permanent { kind: PermanentKind::Missing, .. }), "{error:?}");
}
