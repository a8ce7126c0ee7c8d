//! Paths, headers and problem documents of the HTTP interface.

use serde::{Deserialize, Serialize};

use crate::position::Range;

/// Port that a worker listens on unless told otherwise.
pub const DEFAULT_PORT: u16 = 8470;

/// Plan digest, both ways.
pub const HEADER_PLAN: &str = "feedmill-plan";
/// `run/rank` of the asker; ranges are shared fairly between runs.
pub const HEADER_RUN: &str = "feedmill-run";
/// Milliseconds until the range is needed; 0 = waiting now.
pub const HEADER_NEED: &str = "feedmill-need";
/// How many workers died under this range, or fell silent over it.
pub const HEADER_DEATHS: &str = "feedmill-deaths";

/// From so many deaths on, a worker makes a range's pictures in a child process. One worker may die of anything.
pub const DEATHS_THAT_MAKE_SUSPECT: u32 = 2;

/// Content type of a batch.
pub const CONTENT_SAFETENSORS: &str = "application/vnd.safetensors";
/// Content type of a [`Problem`].
pub const CONTENT_PROBLEM: &str = "application/problem+json";

/// `/v1/plan`: facts and digest of each stream.
pub const PATH_PLAN: &str = "/v1/plan";
/// `/v1/bad`: bad records met so far.
pub const PATH_BAD: &str = "/v1/bad";
/// `/v1/status`: [`crate::report::WorkerStatus`].
pub const PATH_STATUS: &str = "/v1/status";
/// The same without the ranks' reports, for those who ask often.
pub const PATH_LOAD: &str = "/v1/status?reports=no";
/// `POST /v1/reports`: [`crate::report::RankReport`].
pub const PATH_REPORTS: &str = "/v1/reports";
/// 200 while the process lives.
pub const PATH_LIVE: &str = "/livez";
/// 200 when batches can be asked for.
pub const PATH_READY: &str = "/readyz";
/// Prometheus metrics.
pub const PATH_METRICS: &str = "/metrics";

/// The path of a range of a stream; `stop` is the trainer's end, past which rows are filler.
#[must_use]
pub fn batch_path(stream: &str, range: Range, stop: Option<u64>) -> String {
    let stop = stop.map(|stop| format!("?stop={stop}")).unwrap_or_default();
    format!("/v1/streams/{stream}/batches/{range}{stop}")
}

/// The path of one sample as a person sees it.
#[must_use]
pub fn sample_path(stream: &str, position: u64) -> String {
    format!("/v1/streams/{stream}/samples/{position}")
}

/// The path of one picture of that sample, from 0, as PNG.
#[must_use]
pub fn picture_path(stream: &str, position: u64, number: usize) -> String {
    format!("{}/images/{number}.png", sample_path(stream, position))
}

/// An error as RFC 9457 has it: what, where, what to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Problem {
    /// Stable name of the kind, for programs.
    #[serde(rename = "type")]
    pub kind: String,
    /// HTTP status.
    pub status: u16,
    /// What is wrong, in a few words.
    pub title: String,
    /// What is wrong, here.
    pub detail: String,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// The data set, when one is meant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dataset: Option<String>,
    /// The 1-based physical line of the manifest, when one is meant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
    /// The object key, when one is meant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

impl Problem {
    /// A problem of this kind without remedy or place.
    #[must_use]
    pub fn new(kind: &str, status: u16, title: &str, detail: impl Into<String>) -> Self {
        Self {
            kind: kind.into(),
            status,
            title: title.into(),
            detail: detail.into(),
            remedy: None,
            dataset: None,
            line: None,
            key: None,
        }
    }
}

/// Problem kinds that clients act on.
pub mod problem_kind {
    /// 401: no token, or one that is not admitted; 403: sent to a name that is not the worker's.
    pub const DENIED: &str = "feedmill:denied";
    /// 409: the worker has another plan than the asker.
    pub const OTHER_PLAN: &str = "feedmill:other-plan";
    /// 409: another rank of the run has announced other numbers than this one.
    pub const RUN_MISMATCH: &str = "feedmill:run-mismatch";
    /// 503: manifests are being read; ask again after `Retry-After`.
    pub const NOT_READY: &str = "feedmill:not-ready";
    /// 503: the worker is draining; ask another one.
    pub const DRAINING: &str = "feedmill:draining";
    /// 503: too much is outstanding here; ask again after `Retry-After` or ask another one.
    pub const FULL: &str = "feedmill:full";
    /// 422: a record cannot be used and the stream's policy says fail.
    pub const BAD_SAMPLE: &str = "feedmill:bad-sample";
    /// 404: no such stream, path or position.
    pub const NOT_FOUND: &str = "feedmill:not-found";
    /// 400: the request makes no sense.
    pub const BAD_REQUEST: &str = "feedmill:bad-request";
    /// 413: the range is larger than this worker serves.
    pub const TOO_LARGE: &str = "feedmill:too-large";
    /// 500: the worker failed; another one may not.
    pub const INTERNAL: &str = "feedmill:internal";
    /// 500: a record kills the process that makes it, on every worker; exclude its line and go on by the new plan.
    pub const LETHAL_SAMPLE: &str = "feedmill:lethal-sample";
    /// 502: storage refuses access; no retry will mend it.
    pub const STORAGE_DENIED: &str = "feedmill:storage-denied";
}
