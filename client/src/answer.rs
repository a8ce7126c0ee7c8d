//! Takes the head and the bytes of an answer, gives its length, a fault, or the word that it is the
//! batch that was asked for. No I/O, no clock.

use std::time::Duration;

use feedmill_protocol::frame::BatchView;
use feedmill_protocol::http::{
    CONTENT_PROBLEM, CONTENT_SAFETENSORS, HEADER_PLAN, Problem, problem_kind,
};
use feedmill_protocol::plan::PlanDigest;
use feedmill_protocol::position::Range;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, StatusCode};

use crate::fault::Fault;

/// An error document is read up to this; a real one has a few hundred bytes.
pub(crate) const MAX_PROBLEM_BYTES: usize = 64 << 10;

/// A pause when a worker asks for one and does not say how long.
const DEFAULT_RETRY_AFTER: Duration = Duration::from_secs(1);

/// What the head of a good answer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// Bytes of the body.
    pub length: usize,
    /// The worker's plan.
    pub plan: PlanDigest,
}

/// Checks the head of a 200.
pub(crate) fn batch_head(
    headers: &HeaderMap,
    expected: Option<PlanDigest>,
    limit: u64,
) -> Result<Head, Fault> {
    let kind = content_type(headers);
    if kind != CONTENT_SAFETENSORS {
        return Err(Fault::Head(format!(
            "content-type is {kind:?}, expected {CONTENT_SAFETENSORS:?}"
        )));
    }
    let plan = plan_of(headers).ok_or_else(|| {
        Fault::Head(format!(
            "header {HEADER_PLAN} is missing or is no plan digest"
        ))
    })?;
    if expected.is_some_and(|expected| expected != plan) {
        return Err(Fault::OtherPlan { theirs: Some(plan) });
    }
    let length: u64 = text(headers, CONTENT_LENGTH.as_str())
        .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
        .and_then(|digits| digits.parse().ok())
        .ok_or_else(|| Fault::Head("content-length is missing or is no number".into()))?;
    let too_long = Fault::TooLong {
        expected: length,
        limit,
    };
    match usize::try_from(length) {
        Ok(length) if length as u64 <= limit => Ok(Head { length, plan }),
        _ => Err(too_long),
    }
}

/// What a status other than 200 means. `asked_with` is the plan that the request named.
pub(crate) fn refusal(
    status: StatusCode,
    headers: &HeaderMap,
    body: &[u8],
    asked_with: Option<PlanDigest>,
    max_retry_after: Duration,
) -> Fault {
    let problem = problem(status, headers, body);
    match status {
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => Fault::NotNow {
            kind: problem.kind,
            retry_after: text(headers, RETRY_AFTER.as_str())
                .and_then(|seconds| seconds.trim().parse().ok())
                .map_or(DEFAULT_RETRY_AFTER, Duration::from_secs)
                .min(max_retry_after),
        },
        StatusCode::CONFLICT
            if asked_with.is_some() && problem.kind == problem_kind::OTHER_PLAN =>
        {
            Fault::OtherPlan {
                theirs: plan_of(headers),
            }
        }
        _ => Fault::Status {
            status: status.as_u16(),
            problem: Box::new(problem),
        },
    }
}

/// Checks that these bytes are the batch of this range and plan.
pub(crate) fn batch_bytes(
    bytes: &[u8],
    range: Range,
    plan: PlanDigest,
    verify_hashes: bool,
) -> Result<(), Fault> {
    let view = BatchView::parse(bytes)?;
    let checks = [
        ("range", view.range().to_owned(), range.to_string()),
        ("plan", view.plan().to_owned(), plan.to_string()),
        (
            "rows",
            view.samples().len().to_string(),
            range.len().to_string(),
        ),
    ];
    for (what, got, expected) in checks {
        if got != expected {
            return Err(Fault::OtherBatch {
                what,
                got: got.chars().take(128).collect(),
                expected,
            });
        }
    }
    if verify_hashes {
        for (position, sample) in range.positions().zip(view.samples()) {
            if sample.computed_hash() != sample.hash {
                return Err(Fault::Hash(position));
            }
        }
    }
    Ok(())
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// The media type without its parameters.
fn content_type(headers: &HeaderMap) -> &str {
    let value = text(headers, CONTENT_TYPE.as_str()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim()
}

fn plan_of(headers: &HeaderMap) -> Option<PlanDigest> {
    text(headers, HEADER_PLAN)?.parse().ok()
}

/// The problem document, or one made from what came in its stead.
fn problem(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Problem {
    if content_type(headers) == CONTENT_PROBLEM
        && let Ok(problem) = serde_json::from_slice(body)
    {
        return problem;
    }
    Problem {
        kind: "about:blank".into(),
        status: status.as_u16(),
        title: status.canonical_reason().unwrap_or("unknown status").into(),
        detail: String::from_utf8_lossy(body).chars().take(200).collect(),
        remedy: None,
        dataset: None,
        line: None,
        key: None,
    }
}
