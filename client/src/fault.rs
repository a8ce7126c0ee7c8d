//! Why one attempt at a worker gave nothing, and what follows from it.

use std::error::Error as _;
use std::time::Duration;

use feedmill_access::TlsFault;
use feedmill_protocol::frame::FrameError;
use feedmill_protocol::http::{Problem, problem_kind};
use feedmill_protocol::plan::PlanDigest;

use crate::error::span;

/// Why one attempt at one worker gave no batch.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Fault {
    /// No connection could be made.
    #[error("cannot connect: {0}")]
    Connect(String),
    /// The connection broke while the request was outstanding.
    #[error("connection lost: {0}")]
    Lost(String),
    /// What came first is no HTTP/2.
    #[error("it does not speak HTTP/2; is it a feedmill worker?")]
    NotHttp2,
    /// It did not say a word in time, and nothing else came from it meanwhile.
    #[error("silent: it did not answer when asked for a word")]
    Silent,
    /// PING was not answered in time.
    #[error("frozen: PING was not answered in time")]
    Frozen,
    /// The worker closed the connection in order before it took the request.
    #[error("connection closed by the worker before it took the request")]
    Closed,
    /// The worker, or something on the way, reset this one stream.
    #[error("stream reset: {0}")]
    Reset(String),
    /// No head of an answer in time.
    #[error("no answer within {}", span(*.0))]
    NoHead(Duration),
    /// The body stopped half-way.
    #[error("answer stopped after {received} of {expected} bytes")]
    Stalled {
        /// Bytes that came.
        received: u64,
        /// Bytes promised.
        expected: u64,
    },
    /// The body ended early or ran on.
    #[error("answer has {received} bytes where its head promised {expected}")]
    Length {
        /// Bytes that came.
        received: u64,
        /// Bytes promised.
        expected: u64,
    },
    /// The promised length is over the bound.
    #[error("answer of {expected} bytes is over the bound of {limit} bytes")]
    TooLong {
        /// Bytes promised.
        expected: u64,
        /// The bound.
        limit: u64,
    },
    /// No memory for an answer of the promised length.
    #[error("no memory for an answer of {0} bytes")]
    NoMemory(u64),
    /// The head lacks something or says something else.
    #[error("answer's head: {0}")]
    Head(String),
    /// The worker cannot now: 503, or 429 from something on the way.
    #[error("not now ({kind}), ask again after {}", span(*retry_after))]
    NotNow {
        /// Kind of its problem document, or the status.
        kind: String,
        /// What `Retry-After` said, within bounds.
        retry_after: Duration,
    },
    /// The worker reads by another plan.
    #[error("the worker's plan is {}", .theirs.map_or("another one".to_owned(), |plan| plan.to_string()))]
    OtherPlan {
        /// Its plan, where it said so.
        theirs: Option<PlanDigest>,
    },
    /// The worker does not admit this client: 401 or 403.
    #[error("access denied, status {status}: {}", describe(.problem))]
    Denied {
        /// HTTP status.
        status: u16,
        /// What the worker said.
        problem: Box<Problem>,
    },
    /// No connection over TLS.
    #[error(transparent)]
    Tls(#[from] TlsFault),
    /// The worker speaks TLS only.
    #[error("the worker speaks TLS only; write https:// in its address")]
    WantsTls,
    /// Any other status that is no success.
    #[error("status {status}: {}", describe(.problem))]
    Status {
        /// HTTP status.
        status: u16,
        /// What the worker said.
        problem: Box<Problem>,
    },
    /// The bytes are no batch.
    #[error("not a batch: {0}")]
    Frame(#[from] FrameError),
    /// A batch, but not the one asked for.
    #[error("batch says {what} {got:?}, expected {expected:?}")]
    OtherBatch {
        /// Which property.
        what: &'static str,
        /// What it says.
        got: String,
        /// What was asked for.
        expected: String,
    },
    /// A sample's bytes do not have the hash that came with them.
    #[error("sample at position {0} does not have the hash that came with it")]
    Hash(u64),
}

pub(crate) fn describe(problem: &Problem) -> String {
    match &problem.remedy {
        Some(remedy) => format!("{}: {}; {remedy}", problem.title, problem.detail),
        None => format!("{}: {}", problem.title, problem.detail),
    }
}

/// What follows from a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The worker cannot be reached; nobody asks it until it answers a probe.
    Down,
    /// The connection ended in order; a new one serves.
    Reopen,
    /// Another worker is asked; this one rests for a moment.
    AskAnother,
    /// This worker asked for a pause.
    Rest(Duration),
    /// This worker does not serve this plan.
    Exclude,
    /// This worker does not admit this client, or cannot be trusted: a person must act, unless others do.
    Denied,
    /// This worker's batches are of a format that is not known here: a person must act, unless others' are.
    Unreadable,
    /// No worker will answer otherwise.
    Fatal,
}

impl Fault {
    /// What follows.
    pub(crate) fn verdict(&self) -> Verdict {
        match self {
            Fault::Denied { .. } | Fault::WantsTls => Verdict::Denied,
            Fault::Tls(fault) if fault.needs_a_person() => Verdict::Denied,
            Fault::Tls(_)
            | Fault::Connect(_)
            | Fault::Lost(_)
            | Fault::NotHttp2
            | Fault::Frozen
            | Fault::Silent => Verdict::Down,
            Fault::Closed => Verdict::Reopen,
            Fault::NotNow { retry_after, .. } => Verdict::Rest(*retry_after),
            Fault::Frame(FrameError::Version(_)) => Verdict::Unreadable,
            Fault::OtherPlan { .. } => Verdict::Exclude,
            Fault::Status { status, problem } => match problem.kind.as_str() {
                problem_kind::BAD_SAMPLE | problem_kind::STORAGE_DENIED | problem_kind::LETHAL_SAMPLE => {
                    Verdict::Fatal
                }
                _ if (400..500).contains(status) && *status != 408 => Verdict::Fatal,
                _ => Verdict::AskAnother,
            },
            _ => Verdict::AskAnother,
        }
    }

    /// True when the process may have died of the range, or hangs in it: the connection broke while it worked, or
    /// no answer came although the connection lives. A worker that drains closes in order, and one that nobody
    /// reaches was not asked. Counting too many costs a child process, and no byte.
    pub(crate) fn is_death(&self) -> bool {
        matches!(self, Fault::Lost(_) | Fault::NoHead(_))
    }
}

impl From<hyper::Error> for Fault {
    fn from(error: hyper::Error) -> Self {
        if error.is_timeout() {
            return Fault::Frozen;
        }
        if error.is_canceled() || error.is_closed() {
            return Fault::Closed;
        }
        let mut source = error.source();
        while let Some(inner) = source {
            if let Some(inner) = inner.downcast_ref::<h2::Error>() {
                if inner.is_remote() && inner.reason() == Some(h2::Reason::INADEQUATE_SECURITY) {
                    return Fault::WantsTls;
                }
                // Text of another protocol, read as a frame's head, promises a frame of megabytes.
                let endless = inner.is_library() && inner.reason() == Some(h2::Reason::FRAME_SIZE_ERROR);
                if endless && inner.is_go_away() {
                    return Fault::NotHttp2;
                }
                // Graceful ends: the request was not taken, by the protocol's own word.
                let refused = inner.reason() == Some(h2::Reason::REFUSED_STREAM);
                let orderly = inner.is_go_away() && inner.reason() == Some(h2::Reason::NO_ERROR);
                return if inner.is_remote() && (refused || orderly) {
                    Fault::Closed
                } else if inner.is_reset() {
                    Fault::Reset(inner.to_string())
                } else {
                    Fault::Lost(inner.to_string())
                };
            }
            if let Some(inner) = inner.downcast_ref::<std::io::Error>() {
                return Fault::Lost(inner.to_string());
            }
            source = inner.source();
        }
        Fault::Lost(error.to_string())
    }
}
