//! Takes a bucket, a key and a limit, gives the bytes of one attempt, or how it failed. No retries here.

use std::net::IpAddr;
use std::ops::Range;
use std::time::Duration;

use aws_config::default_provider::credentials::DefaultCredentialsChain;
use aws_config::provider_config::ProviderConfig;
use aws_credential_types::Credentials;
use aws_sdk_s3::Client;
use aws_sdk_s3::config::retry::RetryConfig;
use aws_sdk_s3::config::timeout::TimeoutConfig;
use aws_sdk_s3::config::{
    BehaviorVersion, IdentityCache, Region, SharedCredentialsProvider, StalledStreamProtectionConfig,
};
use aws_sdk_s3::error::DisplayErrorContext;
use aws_sdk_s3::primitives::ByteStream;
use aws_smithy_http_client::Builder;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use aws_smithy_http_client::tls::{Provider, TlsContext, TrustStore};
use aws_smithy_runtime_api::client::dns::{DnsFuture, ResolveDns};
use bytes::{Bytes, BytesMut};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use tokio::time::{Instant, timeout_at};

use crate::classify::classify;
use crate::credentials::FolderCredentials;
use crate::error::{AttemptError, SetupError, TransientKind};
use crate::settings::{CredentialsSource, FetchSettings, S3Settings};
use crate::stores::{Fetched, ObjectVersion};

/// One S3 client; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct S3 {
    client: Client,
}

/// What to get of an object: all of it, or some bytes, and only of the object with this tag.
#[derive(Default)]
pub(crate) struct Part<'a> {
    pub(crate) range: Option<Range<u64>>,
    pub(crate) tag: Option<&'a str>,
}

/// Refuses what [`S3::connect`] would refuse, without connecting to anything.
pub(crate) fn check(settings: &S3Settings) -> Result<(), SetupError> {
    match &settings.endpoint {
        Some(endpoint) if !endpoint.starts_with("http://") && !endpoint.starts_with("https://") => {
            Err(SetupError::Endpoint { endpoint: endpoint.clone() })
        }
        _ => trusted(settings).map(drop),
    }
}

/// Who is trusted: the authorities of a file, or else the system's.
fn trusted(settings: &S3Settings) -> Result<TrustStore, SetupError> {
    let given = || std::env::var_os("AWS_CA_BUNDLE").filter(|path| !path.is_empty()).map(Into::into);
    let Some(path) = settings.ca_file.clone().or_else(given) else { return Ok(TrustStore::default()) };
    let wrong = |reason: String| SetupError::Authorities { path: path.clone(), reason };
    let text = std::fs::read(&path).map_err(|error| wrong(format!("cannot be read: {error}")))?;
    // The HTTP client takes it for granted that all of them can be used.
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&text) {
        let certificate = certificate.map_err(|error| wrong(format!("is damaged: {error}")))?;
        roots.add(certificate).map_err(|error| wrong(format!("has one that cannot be used: {error}")))?;
    }
    if roots.is_empty() {
        return Err(wrong("has no certificate".into()));
    }
    Ok(TrustStore::empty().with_pem_certificate(text))
}

impl S3 {
    /// Makes the client. Opens no connection, except that the default chain may look for its sources.
    pub(crate) async fn connect(settings: &S3Settings, fetch: &FetchSettings) -> Result<Self, SetupError> {
        check(settings)?;
        let region = region(settings)?;
        let plain = settings.endpoint.as_ref().is_some_and(|endpoint| endpoint.starts_with("http://"));
        let mut http = Builder::new();
        http.set_pool_max_idle_per_host(Some(fetch.max_in_flight));
        // Without TLS no certificates are looked for, which a minimal image may not have.
        let without_tls = plain && !matches!(settings.credentials, CredentialsSource::DefaultChain);
        let ring = Provider::Rustls(CryptoMode::Ring);
        let context =
            TlsContext::builder().with_trust_store(trusted(settings)?).build().map_err(|error| {
                let path = settings.ca_file.clone().unwrap_or_default();
                SetupError::Authorities { path, reason: format!("cannot be used: {error}") }
            })?;
        let http = match settings.connect_to {
            Some(address) => {
                http.tls_provider(ring).tls_context(context).build_with_resolver(Always(address))
            }
            None if without_tls => http.build_http(),
            None => http.tls_provider(ring).tls_context(context).build_https(),
        };
        let mut config = aws_sdk_s3::Config::builder()
            .behavior_version(BehaviorVersion::v2026_01_12())
            .region(region.clone())
            .http_client(http.clone())
            .force_path_style(settings.force_path_style)
            // Retries and deadlines have one place: the loop in stores.rs. The SDK's do not cover bodies.
            .retry_config(RetryConfig::disabled())
            .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
            .timeout_config(
                TimeoutConfig::builder()
                    .connect_timeout(fetch.connect_timeout)
                    .read_timeout(fetch.read_timeout)
                    .build(),
            );
        config.set_endpoint_url(settings.endpoint.clone());
        let config = match &settings.credentials {
            CredentialsSource::DefaultChain => {
                let provider =
                    ProviderConfig::without_region().with_region(Some(region)).with_http_client(http);
                config.credentials_provider(
                    DefaultCredentialsChain::builder().configure(provider).build().await,
                )
            }
            CredentialsSource::Static { access_key_id, secret_access_key, session_token } => config
                .credentials_provider(Credentials::new(
                    access_key_id,
                    secret_access_key,
                    session_token.clone(),
                    None,
                    "settings",
                )),
            CredentialsSource::Folder(folder) => config
                .identity_cache(IdentityCache::no_cache())
                .credentials_provider(SharedCredentialsProvider::new(FolderCredentials::new(folder.clone()))),
        };
        Ok(Self { client: Client::from_conf(config.build()) })
    }

    /// The whole object or a part of it, as one attempt within its own deadline.
    pub(crate) async fn get(
        &self,
        bucket: &str,
        key: &str,
        part: Part<'_>,
        max_bytes: u64,
        settings: &FetchSettings,
    ) -> Result<Fetched, AttemptError> {
        let began = Instant::now();
        let mut request = self.client.get_object().bucket(bucket).key(key);
        if let Some(range) = &part.range {
            request = request.range(format!("bytes={}-{}", range.start, range.end.saturating_sub(1)));
        }
        // Not every server heeds it, so the caller compares the answer's tag too.
        request = request.set_if_match(part.tag.filter(|tag| !tag.is_empty()).map(str::to_owned));
        let answer = within(began, settings.deadline_for(0), request.send())
            .await?
            .map_err(|error| classify(&error))?;
        let announced = answer.content_length().and_then(|length| u64::try_from(length).ok());
        if let Some(length) = announced
            && length > max_bytes
        {
            // Dropping the answer closes its connection; nothing of the body is read.
            return Err(AttemptError::TooLarge { bytes: length, limit: max_bytes });
        }
        let size = match answer.content_range() {
            Some(range) => range.rsplit('/').next().and_then(|total| total.parse().ok()),
            None => announced,
        };
        let tag = answer.e_tag().unwrap_or_default().to_owned();
        let deadline = settings.deadline_for(announced.unwrap_or(max_bytes));
        let bytes = within(began, deadline, collect(answer.body, announced, max_bytes)).await??;
        let size = size.unwrap_or(bytes.len() as u64);
        Ok(Fetched { bytes, version: ObjectVersion { size, tag } })
    }

    /// Size and version, as one attempt.
    pub(crate) async fn head(
        &self,
        bucket: &str,
        key: &str,
        settings: &FetchSettings,
    ) -> Result<ObjectVersion, AttemptError> {
        let request = self.client.head_object().bucket(bucket).key(key).send();
        let answer = match within(Instant::now(), settings.deadline_for(0), request).await? {
            Ok(answer) => answer,
            // An answer to HEAD has no body and so no error code: a missing bucket, an expired token and a refusal look alike. GET
            // of one byte tells.
            Err(error) if error.raw_response().is_some() => {
                let first = self.get(bucket, key, Part { range: Some(0..1), tag: None }, 1, settings).await?;
                return Ok(first.version);
            }
            Err(error) => return Err(classify(&error)),
        };
        let size =
            answer.content_length().and_then(|length| u64::try_from(length).ok()).ok_or_else(|| {
                AttemptError::transient(TransientKind::Unintelligible, "an answer without content-length")
            })?;
        Ok(ObjectVersion { size, tag: answer.e_tag().unwrap_or_default().to_owned() })
    }

    /// Names directly below `prefix` that begin with `begins`, as one attempt: some of them, and the token to go on with.
    pub(crate) async fn list(
        &self,
        bucket: &str,
        prefix: &str,
        begins: &str,
        after: Option<String>,
        settings: &FetchSettings,
    ) -> Result<(Vec<String>, Option<String>), AttemptError> {
        let request = self
            .client
            .list_objects_v2()
            .bucket(bucket)
            .prefix(format!("{prefix}{begins}"))
            .delimiter("/")
            .set_continuation_token(after);
        let answer = within(Instant::now(), settings.deadline_for(0), request.send())
            .await?
            .map_err(|error| classify(&error))?;
        let names = answer.contents().iter().filter_map(|object| object.key()?.strip_prefix(prefix));
        let names = names.filter(|name| !name.is_empty()).map(str::to_owned).collect();
        let next = match answer.is_truncated() {
            Some(true) => Some(answer.next_continuation_token().map(str::to_owned).ok_or_else(|| {
                AttemptError::transient(TransientKind::Unintelligible, "a list without its continuation")
            })?),
            _ => None,
        };
        Ok((names, next))
    }
}

/// Every name has this address.
#[derive(Clone, Debug)]
struct Always(IpAddr);

impl ResolveDns for Always {
    fn resolve_dns<'a>(&'a self, _name: &'a str) -> DnsFuture<'a> {
        DnsFuture::ready(Ok(vec![self.0]))
    }
}

fn region(settings: &S3Settings) -> Result<Region, SetupError> {
    let from_environment =
        || ["AWS_REGION", "AWS_DEFAULT_REGION"].into_iter().find_map(|name| std::env::var(name).ok());
    settings
        .region
        .clone()
        .or_else(from_environment)
        .filter(|region| !region.is_empty())
        // Servers other than AWS mostly do not care; it only has to be the same on both sides of the signature.
        .or_else(|| settings.endpoint.as_ref().map(|_| "us-east-1".to_owned()))
        .map(Region::new)
        .ok_or(SetupError::NoRegion)
}

async fn within<T>(
    began: Instant,
    limit: Duration,
    work: impl Future<Output = T>,
) -> Result<T, AttemptError> {
    // A limit beyond what the clock can hold is none.
    let Some(deadline) = began.checked_add(limit) else {
        return Ok(work.await);
    };
    timeout_at(deadline, work).await.map_err(|_| {
        AttemptError::transient(TransientKind::Timeout, format_args!("not complete within {limit:?}"))
    })
}

/// The body as one piece, no longer than announced or than the limit.
async fn collect(
    mut body: ByteStream,
    announced: Option<u64>,
    max_bytes: u64,
) -> Result<Bytes, AttemptError> {
    let expected = announced.unwrap_or(0);
    let mut whole = Bytes::new();
    let mut buffer = BytesMut::new();
    let mut read: u64 = 0;
    while let Some(chunk) = body.next().await {
        let chunk = chunk.map_err(|error| {
            let detail = DisplayErrorContext(&error).to_string();
            // The SDK hands the validator's error on in words only.
            let damaged = detail.contains("checksum mismatch");
            let kind = if damaged { TransientKind::Checksum } else { TransientKind::IncompleteBody };
            AttemptError::transient(kind, detail)
        })?;
        read = read.saturating_add(chunk.len() as u64);
        if read > max_bytes {
            return Err(AttemptError::TooLarge { bytes: read, limit: max_bytes });
        }
        if whole.is_empty() && buffer.is_empty() && chunk.len() as u64 == expected {
            // All in one chunk: no copy.
            whole = chunk;
            continue;
        }
        if buffer.capacity() == 0 {
            // Not above max_bytes, which the caller has room for.
            buffer.reserve(usize::try_from(expected.min(max_bytes)).unwrap_or(0).max(chunk.len()));
        }
        buffer.extend_from_slice(&chunk);
    }
    if let Some(length) = announced
        && length != read
    {
        return Err(AttemptError::transient(
            TransientKind::IncompleteBody,
            format_args!("{read} of {length} bytes came"),
        ));
    }
    Ok(if buffer.is_empty() { whole } else { buffer.freeze() })
}
