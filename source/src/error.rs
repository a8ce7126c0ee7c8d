//! Why bytes did not come: for good, by lack of permission, or for now.
//!
//! The three kinds must never be mixed up. `Permanent` makes a bad sample, which is part of the data's definition. `Denied` is a fault
//! of the settings and stops loudly. `Transient` only ever means waiting.

use std::path::PathBuf;

use crate::classify::NO_REGION;
use crate::uri::ObjectUri;

/// Enough for a chain of errors in words; servers may send more.
const MAX_DETAIL_CHARACTERS: usize = 500;

/// Result of a `get` that gave no bytes.
#[derive(Clone, Debug, thiserror::Error)]
pub enum FetchError {
    /// The object cannot be used, now or later.
    #[error("{uri} {kind}")]
    Permanent {
        /// What is wrong with it.
        kind: PermanentKind,
        /// Which object.
        uri: ObjectUri,
    },
    /// The store refuses us. Not the sample's fault: somebody has to change a setting, a key or a policy.
    #[error("{uri}: {}: {remedy}", not_asked_or_refused(code))]
    Denied {
        /// The store's error code, such as `AccessDenied`.
        code: String,
        /// What to do about it.
        remedy: &'static str,
        /// Which object.
        uri: ObjectUri,
    },
    /// The store did not answer properly within the bounds of [`crate::FetchSettings`]; asking again later is right.
    #[error("{uri}: no answer after {attempts} attempts, last: {last} ({detail}){}", what_to_do(*last))]
    Transient {
        /// Attempts made.
        attempts: u32,
        /// How the last attempt ended.
        last: TransientKind,
        /// The last attempt's error in words.
        detail: String,
        /// Which object.
        uri: ObjectUri,
    },
}

/// Some codes are our own: nobody was asked.
fn not_asked_or_refused(code: &str) -> String {
    match code {
        NO_REGION => "the store cannot be asked, no S3 region is set".into(),
        "NoCredentials" => "the store cannot be asked, there are no credentials".into(),
        "InvalidCredentials" => {
            "the store cannot be asked, the credentials' settings contradict themselves".into()
        }
        code => format!("the store refuses access ({code})"),
    }
}

/// What a person can do about an answer that does not come, where somebody can.
fn what_to_do(kind: TransientKind) -> String {
    kind.remedy().map_or_else(String::new, |remedy| format!("; {remedy}"))
}

/// What is wrong with an object for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PermanentKind {
    /// Looked for twice and not there.
    #[error("does not exist")]
    Missing,
    /// Longer than the caller's limit.
    #[error("is too large: {bytes} bytes, the limit is {limit}")]
    TooLarge {
        /// Its size; when the store does not say, the number of bytes read before giving up.
        bytes: u64,
        /// The caller's limit.
        limit: u64,
    },
    /// No object can have this name, or what has it is no plain file.
    #[error(
        "is not a possible object: it is a folder, a pipe, a device or a loop of links, or its name is not valid"
    )]
    InvalidKey,
    /// A range that does not lie within the object.
    #[error("ends before the range that was asked for")]
    PastEnd,
    /// Not the object that was there when reading it began.
    #[error("has changed while it was read")]
    Changed,
}

/// How an attempt can fail for now. A closed list: the names are metric labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum TransientKind {
    /// No connection, or none that TLS lets be trusted.
    #[error("no connection")]
    Connect,
    /// Headers or body did not come in time.
    #[error("time-out")]
    Timeout,
    /// The connection broke before the headers.
    #[error("connection reset")]
    Reset,
    /// The body ended early, or its length is not what was announced.
    #[error("incomplete body")]
    IncompleteBody,
    /// The body is not what the checksum says that was stored with the object.
    #[error("wrong checksum")]
    Checksum,
    /// SlowDown, 503, 429.
    #[error("throttled")]
    Throttled,
    /// 5xx and other faults of the server.
    #[error("server error")]
    ServerError,
    /// ExpiredToken, or keys cannot be had just now.
    #[error("no credentials that are valid now")]
    Credentials,
    /// RequestTimeTooSkewed.
    #[error("clock skew")]
    ClockSkew,
    /// An answer that is no S3 answer, as from a proxy in between.
    #[error("unintelligible answer")]
    Unintelligible,
    /// A local file could not be read just now.
    #[error("local i/o error")]
    LocalIo,
}

impl TransientKind {
    /// Every kind, in the order of [`crate::FetchStats`].
    pub const ALL: [Self; 11] = [
        Self::Connect,
        Self::Timeout,
        Self::Reset,
        Self::IncompleteBody,
        Self::Checksum,
        Self::Throttled,
        Self::ServerError,
        Self::Credentials,
        Self::ClockSkew,
        Self::Unintelligible,
        Self::LocalIo,
    ];

    /// What a person can do about it; None where waiting is all.
    #[must_use]
    pub fn remedy(self) -> Option<&'static str> {
        match self {
            Self::Credentials => Some(
                "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, a role, or a folder with key files; where they are set already, renew them",
            ),
            Self::ClockSkew => Some("set this machine's clock"),
            Self::Connect => Some(
                "check the endpoint, the network and, for https, the authorities (caBundleRef, AWS_CA_BUNDLE)",
            ),
            Self::Unintelligible => Some(
                "check the endpoint, and that the keys are not expired: S3 says so without words when it is asked for headers alone",
            ),
            Self::Timeout
            | Self::Reset
            | Self::IncompleteBody
            | Self::Checksum
            | Self::Throttled
            | Self::ServerError
            | Self::LocalIo => None,
        }
    }

    /// Label for metrics.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Timeout => "timeout",
            Self::Reset => "reset",
            Self::IncompleteBody => "incomplete_body",
            Self::Checksum => "checksum",
            Self::Throttled => "throttled",
            Self::ServerError => "server_error",
            Self::Credentials => "credentials",
            Self::ClockSkew => "clock_skew",
            Self::Unintelligible => "unintelligible",
            Self::LocalIo => "local_io",
        }
    }
}

/// How one attempt failed, before retries are decided.
#[derive(Debug, Clone)]
pub(crate) enum AttemptError {
    /// Not there, if a second look agrees.
    Missing,
    TooLarge {
        bytes: u64,
        limit: u64,
    },
    InvalidKey,
    PastEnd,
    Changed,
    Denied {
        code: String,
    },
    Transient {
        kind: TransientKind,
        detail: String,
    },
}

impl AttemptError {
    pub(crate) fn transient(kind: TransientKind, detail: impl std::fmt::Display) -> Self {
        Self::Transient { kind, detail: detail.to_string().chars().take(MAX_DETAIL_CHARACTERS).collect() }
    }
}

/// Why the stores cannot be set up at all.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// No region given and none can be assumed.
    #[error("no S3 region: set the region, AWS_REGION, or an endpoint")]
    NoRegion,
    /// An endpoint that is not http or https.
    #[error("the S3 endpoint '{endpoint}' must begin with http:// or https://")]
    Endpoint {
        /// What was given.
        endpoint: String,
    },
    /// A file of certificates that cannot be used.
    #[error(
        "the file of S3's authorities {} {reason}; it should have parts that begin with -----BEGIN CERTIFICATE-----",
        path.display()
    )]
    Authorities {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A bound of zero.
    #[error("the fetch setting {name} must be at least 1")]
    Zero {
        /// Name of the setting.
        name: &'static str,
    },
}

/// An error with everything behind it, in one line.
#[must_use]
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        // Transparent wrappers repeat what they wrap.
        if !text.ends_with(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classify::remedy;

    fn uri() -> ObjectUri {
        ObjectUri::parse("s3://bucket/a.jpg").unwrap()
    }

    #[test]
    fn expired_and_wrong_keys_come_with_a_remedy() {
        let transient = |last| {
            FetchError::Transient { attempts: 5, last, detail: "status 400".into(), uri: uri() }.to_string()
        };
        assert!(transient(TransientKind::Credentials).contains("set AWS_ACCESS_KEY_ID"));
        assert!(transient(TransientKind::Unintelligible).contains("expired"));
        assert!(transient(TransientKind::ClockSkew).contains("clock"));
        for code in ["InvalidAccessKeyId", "SignatureDoesNotMatch", "status 403", "NoCredentials"] {
            let denied =
                FetchError::Denied { remedy: remedy(code, false), code: code.into(), uri: uri() }.to_string();
            assert!(denied.contains("key") || denied.contains("credentials"), "{denied}");
        }
    }

    /// Nobody refused anything: a setting is missing.
    #[test]
    fn a_missing_region_is_not_called_a_refusal() {
        let denied =
            FetchError::Denied { remedy: remedy(NO_REGION, false), code: NO_REGION.into(), uri: uri() };
        let text = denied.to_string();
        assert!(
            !text.contains("refuse") && text.contains("spec.s3.region") && text.contains("AWS_REGION"),
            "{text}"
        );
    }
}
