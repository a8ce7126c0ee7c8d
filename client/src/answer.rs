//! Takes the head and the bytes of an answer, gives its length, a fault, or the word that it is the
//! batch that was asked for. No I/O, no clock.

use std::time::Duration;

use feedmill_protocol::frame::BatchView;
use feedmill_protocol::http::{CONTENT_PROBLEM, CONTENT_SAFETENSORS, HEADER_PLAN, Problem, problem_kind};
use feedmill_protocol::plan::PlanDigest;
use feedmill_protocol::position::Range;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, StatusCode};

use crate::batch::Counts;
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
        return Err(Fault::Head(format!("content-type is {kind:?}, expected {CONTENT_SAFETENSORS:?}")));
    }
    let plan = plan_of(headers)
        .ok_or_else(|| Fault::Head(format!("header {HEADER_PLAN} is missing or is no plan digest")))?;
    if expected.is_some_and(|expected| expected != plan) {
        return Err(Fault::OtherPlan { theirs: Some(plan) });
    }
    let length: u64 = text(headers, CONTENT_LENGTH.as_str())
        .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
        .and_then(|digits| digits.parse().ok())
        .ok_or_else(|| Fault::Head("content-length is missing or is no number".into()))?;
    let too_long = Fault::TooLong { expected: length, limit };
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
        StatusCode::CONFLICT if asked_with.is_some() && problem.kind == problem_kind::OTHER_PLAN => {
            Fault::OtherPlan { theirs: plan_of(headers) }
        }
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            Fault::Denied { status: status.as_u16(), problem: Box::new(problem) }
        }
        _ => Fault::Status { status: status.as_u16(), problem: Box::new(problem) },
    }
}

/// Checks that these bytes are the batch of this range and plan, and says what is in them.
pub(crate) fn batch_bytes(
    bytes: &[u8],
    range: Range,
    plan: PlanDigest,
    verify_hashes: bool,
) -> Result<Counts, Fault> {
    let view = BatchView::parse(bytes)?;
    let checks = [
        ("range", view.range().to_owned(), range.to_string()),
        ("plan", view.plan().to_owned(), plan.to_string()),
        ("rows", view.samples().len().to_string(), range.len().to_string()),
    ];
    for (what, got, expected) in checks {
        if got != expected {
            return Err(Fault::OtherBatch { what, got: got.chars().take(128).collect(), expected });
        }
    }
    if verify_hashes {
        for (position, sample) in range.positions().zip(view.samples()) {
            if sample.computed_hash() != sample.hash {
                return Err(Fault::Hash(position));
            }
        }
    }
    Ok(Counts::of(&view))
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
    let title = status.canonical_reason().unwrap_or("unknown status");
    let detail: String = String::from_utf8_lossy(body).chars().take(200).collect();
    Problem::new("about:blank", status.as_u16(), title, detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use feedmill_protocol::plan::Plan;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pairs =
            pairs.iter().map(|(name, value)| (http::HeaderName::from_static(name), value.parse().unwrap()));
        pairs.collect()
    }

    #[test]
    fn heads_are_taken_or_named() {
        let plan = Plan::new().digest();
        let digest = plan.to_string();
        let head = |kind: &str, plan: &str, length: &str| {
            let headers =
                headers(&[("content-type", kind), ("feedmill-plan", plan), ("content-length", length)]);
            batch_head(&headers, Plan::new().digest().into(), 1000).map_err(|f| f.to_string())
        };
        let good = Ok(Head { length: 1000, plan });
        assert_eq!(head(CONTENT_SAFETENSORS, &digest, "1000"), good);
        assert_eq!(head("application/vnd.safetensors; v=1", &digest, "1000"), good);
        let other = format!("sha256:{}", "0".repeat(64));
        let cases = [
            ("text/html", &*digest, "10", "content-type"),
            ("", &digest, "10", "content-type"),
            (CONTENT_SAFETENSORS, "sha256:1", "10", "feedmill-plan"),
            (CONTENT_SAFETENSORS, &other, "10", "plan is sha256:0000"),
            (CONTENT_SAFETENSORS, &digest, "", "content-length"),
            (CONTENT_SAFETENSORS, &digest, "+5", "content-length"),
            (CONTENT_SAFETENSORS, &digest, "-5", "content-length"),
            (CONTENT_SAFETENSORS, &digest, "99999999999999999999", "content-length"),
            (CONTENT_SAFETENSORS, &digest, "1001", "over the bound"),
        ];
        for (kind, plan, length, part) in cases {
            let error = head(kind, plan, length).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
        assert!(batch_head(&HeaderMap::new(), None, 1000).is_err());
    }

    #[test]
    fn a_pause_is_honoured_within_bounds() {
        let bound = Duration::from_secs(10);
        for (value, seconds) in [("3", 3), ("0", 0), ("86400", 10), ("soon", 1), ("-1", 1)] {
            let headers = headers(&[("retry-after", value)]);
            let status = StatusCode::SERVICE_UNAVAILABLE;
            let fault = refusal(status, &headers, b"", None, bound);
            let Fault::NotNow { retry_after, .. } = fault else { panic!("{fault}") };
            assert_eq!(retry_after.as_secs(), seconds, "{value}");
        }
    }

    #[test]
    fn a_status_without_a_problem_document_still_says_what_came() {
        let html = headers(&[("content-type", "text/html")]);
        let json = headers(&[("content-type", CONTENT_PROBLEM)]);
        for (headers, body) in [(&html, "<b>proxy</b>"), (&json, "{\"not\": \"a problem\"}")] {
            let status = StatusCode::BAD_GATEWAY;
            let bound = Duration::ZERO;
            let fault = refusal(status, headers, body.as_bytes(), None, bound);
            let text = fault.to_string();
            assert!(text.contains("502") && text.contains(body), "{text}");
        }
    }

    /// A 409 of another kind, or one to a request that named no plan, is no disagreement on plans.
    #[test]
    fn only_a_named_plan_can_be_disagreed_with() {
        let plan = Plan::new().digest();
        let document = |kind: &str| {
            let problem = serde_json::json!({"type": kind, "status": 409, "title": "", "detail": ""});
            problem.to_string().into_bytes()
        };
        let headers = headers(&[("content-type", CONTENT_PROBLEM)]);
        let fault = |kind: &str, asked_with| {
            let status = StatusCode::CONFLICT;
            refusal(status, &headers, &document(kind), asked_with, Duration::ZERO)
        };
        let kind = problem_kind::OTHER_PLAN;
        assert!(matches!(fault(kind, Some(plan)), Fault::OtherPlan { theirs: None }));
        assert!(matches!(fault(kind, None), Fault::Status { status: 409, .. }));
        assert!(matches!(fault("x", Some(plan)), Fault::Status { status: 409, .. }));
    }
}
