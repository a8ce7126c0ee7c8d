//! Takes an error of the S3 client, gives what it means: missing, denied, or for now.
//!
//! The error code decides, then the status. Codes: Amazon S3 API reference, "Error responses". What is neither known to be transient
//! nor known to mean "missing" is denied, that is loud: a bad sample must never be made from an answer nobody understands.

use std::error::Error;

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_s3::error::{DisplayErrorContext, ProvideErrorMetadata, SdkError};
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;

use crate::error::{AttemptError, TransientKind, with_causes};

/// Our own code: there is no address to ask.
pub(crate) const NO_REGION: &str = "NoRegion";

/// Longer than any code of S3; an answer from elsewhere must not become a long message.
const MAX_CODE_CHARACTERS: usize = 64;

pub(crate) fn classify<E>(error: &SdkError<E, HttpResponse>) -> AttemptError
where
    E: ProvideErrorMetadata + Error + Send + Sync + 'static,
{
    if let Some(response) = error.raw_response() {
        let code = error.code();
        return answer(response.status().as_u16(), code, error.message().unwrap_or_default());
    }
    let detail = with_causes(error);
    if let Some(credentials) = find::<CredentialsError>(error) {
        return match credentials {
            CredentialsError::CredentialsNotLoaded(_) => {
                AttemptError::Denied { code: "NoCredentials".into() }
            }
            CredentialsError::InvalidConfiguration(_) => {
                AttemptError::Denied { code: "InvalidCredentials".into() }
            }
            // The chain of providers ends with the machine's role, whose words are of a request that nobody asked for.
            _ => AttemptError::transient(
                TransientKind::Credentials,
                format_args!("none found, and asking for a role failed: {}", innermost(credentials)),
            ),
        };
    }
    match error {
        SdkError::TimeoutError(_) => AttemptError::transient(TransientKind::Timeout, detail),
        SdkError::DispatchFailure(failure) if failure.is_timeout() => {
            AttemptError::transient(TransientKind::Timeout, detail)
        }
        SdkError::DispatchFailure(failure) if is_connect(failure.as_connector_error()) => {
            AttemptError::transient(TransientKind::Connect, detail)
        }
        // Any key can be encoded, so it is the bucket, the endpoint or the region that makes no request.
        SdkError::ConstructionFailure(_) => AttemptError::Denied { code: "InvalidRequest".into() },
        _ => AttemptError::transient(TransientKind::Reset, detail),
    }
}

fn answer(status: u16, code: Option<&str>, message: &str) -> AttemptError {
    let transient = |kind| {
        AttemptError::transient(
            kind,
            format_args!("status {status} {} {message}", code.unwrap_or("without a code")),
        )
    };
    let Some(code) = code else {
        return match status {
            429 | 503 => transient(TransientKind::Throttled),
            408 => transient(TransientKind::Timeout),
            500.. => transient(TransientKind::ServerError),
            401 | 403 => AttemptError::Denied { code: format!("status {status}") },
            // S3 always sends a code; without one somebody in between answered.
            _ => transient(TransientKind::Unintelligible),
        };
    };
    match code {
        "NoSuchKey" => AttemptError::Missing,
        // A range that begins behind the end.
        "InvalidRange" => AttemptError::PastEnd,
        // Another object than the one whose tag was named.
        "PreconditionFailed" => AttemptError::Changed,
        "KeyTooLongError" | "InvalidURI" => AttemptError::InvalidKey,
        "SlowDown"
        | "ServiceUnavailable"
        | "Throttling"
        | "ThrottlingException"
        | "TooManyRequests"
        | "RequestLimitExceeded"
        | "BandwidthLimitExceeded" => transient(TransientKind::Throttled),
        "ExpiredToken" | "ExpiredTokenException" | "TokenRefreshRequired" => {
            transient(TransientKind::Credentials)
        }
        "RequestTimeTooSkewed" | "RequestExpired" => transient(TransientKind::ClockSkew),
        "RequestTimeout" => transient(TransientKind::Timeout),
        "InternalError" | "OperationAborted" | "TemporaryRedirect" => transient(TransientKind::ServerError),
        _ if matches!(status, 429 | 503) => transient(TransientKind::Throttled),
        _ if status >= 500 => transient(TransientKind::ServerError),
        code => AttemptError::Denied { code: code.chars().take(MAX_CODE_CHARACTERS).collect() },
    }
}

/// What a person should do about a refusal.
pub(crate) fn remedy(code: &str, bucket_hides_missing: bool) -> &'static str {
    match code {
        "AccessDenied" | "status 403" if bucket_hides_missing => {
            "the object is missing or not allowed, which look alike in this bucket; allow s3:ListBucket on the bucket, so that missing \
             objects are told apart, and s3:GetObject on the objects"
        }
        "AccessDenied" => "allow s3:GetObject on it for these credentials",
        "status 403" => "check that the keys are right and not expired, and allow them s3:GetObject on it",
        "InvalidAccessKeyId" | "SignatureDoesNotMatch" | "InvalidToken" | "NotSignedUp" => {
            "check access key, secret key and session token"
        }
        "NoCredentials" | "InvalidCredentials" => {
            "set credentials: environment, profile, role, or a folder with key files"
        }
        "NoSuchBucket" | "InvalidBucketName" | "InvalidRequest" => {
            "check the bucket's name, the region and the endpoint"
        }
        "PermanentRedirect" | "AuthorizationHeaderMalformed" | "IllegalLocationConstraintException" => {
            "check the region: the bucket lies in another"
        }
        "InvalidObjectState" => "the object is archived: restore it or leave it out",
        NO_REGION => {
            "set spec.s3.region or AWS_REGION; a server other than AWS needs spec.s3.endpoint instead"
        }
        "EACCES" => "make the file readable for the user the program runs as",
        _ => "ask who runs the store what this code means",
    }
}

fn is_connect(error: Option<&aws_smithy_runtime_api::client::result::ConnectorError>) -> bool {
    // The connector reports a refused connection as an i/o error without a word of its own.
    error.is_some_and(|error| {
        let refused = find::<std::io::Error>(error).is_some_and(|io| {
            use std::io::ErrorKind::{
                AddrNotAvailable, ConnectionRefused, HostUnreachable, NetworkUnreachable,
            };
            matches!(io.kind(), ConnectionRefused | AddrNotAvailable | HostUnreachable | NetworkUnreachable)
        });
        let untrusted = find::<std::io::Error>(error).is_some_and(is_tls);
        refused || untrusted || DisplayErrorContext(error).to_string().contains("dns error")
    })
}

/// Whether TLS found a fault, such as a certificate of an authority that is not trusted: that lies within one i/o error or
/// several, and none of them calls it its source.
fn is_tls(error: &std::io::Error) -> bool {
    let mut within = error.get_ref();
    while let Some(error) = within {
        if error.is::<rustls::Error>() {
            return true;
        }
        within = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
    }
    false
}

fn innermost(error: &(dyn Error + 'static)) -> String {
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}

fn find<'a, T: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a T> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<T>() {
            return Some(found);
        }
        next = error.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(status: u16, code: Option<&str>) -> String {
        match answer(status, code, "") {
            AttemptError::Transient { kind, .. } => kind.label().to_owned(),
            AttemptError::Denied { code } => format!("denied {code}"),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn answers_by_code_then_by_status() {
        let cases = [
            (404, Some("NoSuchKey"), "Missing"),
            (416, Some("InvalidRange"), "PastEnd"),
            (412, Some("PreconditionFailed"), "Changed"),
            (404, None, "unintelligible"),
            (404, Some("NoSuchBucket"), "denied NoSuchBucket"),
            (403, Some("AccessDenied"), "denied AccessDenied"),
            (403, Some("InvalidAccessKeyId"), "denied InvalidAccessKeyId"),
            (403, Some("SignatureDoesNotMatch"), "denied SignatureDoesNotMatch"),
            (403, None, "denied status 403"),
            (403, Some("RequestTimeTooSkewed"), "clock_skew"),
            (400, Some("ExpiredToken"), "credentials"),
            (403, Some("ExpiredToken"), "credentials"),
            (400, Some("RequestTimeout"), "timeout"),
            (400, Some("KeyTooLongError"), "InvalidKey"),
            (503, Some("SlowDown"), "throttled"),
            (503, None, "throttled"),
            (429, None, "throttled"),
            (500, Some("InternalError"), "server_error"),
            (502, None, "server_error"),
            (418, Some("Teapot"), "denied Teapot"),
            (400, None, "unintelligible"),
            (301, Some("PermanentRedirect"), "denied PermanentRedirect"),
        ];
        for (status, code, expected) in cases {
            assert_eq!(kind(status, code), expected, "{status} {code:?}");
        }
    }
}
