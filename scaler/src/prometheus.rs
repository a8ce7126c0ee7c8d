//! Takes what a Prometheus server answered to instant queries, gives the signals of a window, or why there are none.
//!
//! Whoever asks has a server's address and queries from its own settings, sends them, and hands over what came back; nothing here opens a socket.
//! A value's time is that of the query, not of the scrape: Prometheus gives what it has scraped within its look-back of five minutes. So ask with
//! `lookback_delta` (or over a range, `max_over_time(x[15s])`), or a training that is gone looks alive for so long.
//!
//! Nothing that is missing is read as zero: one answer that cannot be used makes the window a lost one, which freezes the fleet. A fleet is never
//! found idle by what Prometheus says.

use std::fmt;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use crate::signals::{Fleet, Run, Signals, Workers};
use crate::spec::ScalingSpec;

/// An answer is one number; so many bytes are a hundred series with long labels, which is a wrong query already.
pub const MOST_BYTES: usize = 64 * 1024;

/// A query that takes longer than this is given up: a window is 10 s long, and three of them are asked in it.
pub const MOST_MS: u64 = 2_000;

/// An event with a longer note is refused; a file's path and what to do have a third of this.
const MOST_REASON: usize = 600;

/// Clocks of two machines may differ by so much.
const CLOCK_SLACK_MS: u64 = 5_000;

/// More workers than this are no answer.
const MOST_WORKERS: f64 = 1e6;

/// The name that runs have in reasons when they come from queries.
const RUN: &str = "prometheus";

/// Why a query gave no number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mute {
    /// No connection.
    Down,
    /// What is needed to ask cannot be used: a file of a token or of authorities.
    Unprepared {
        /// Which, why, and what to do; never what stands in it.
        reason: String,
    },
    /// No connection that can be trusted.
    Insecure {
        /// Why, and what to do.
        reason: String,
    },
    /// No answer within [`MOST_MS`].
    Late,
    /// An HTTP status that is no success, or a query that failed.
    Refused {
        /// HTTP status.
        status: u16,
    },
    /// A longer answer than one number needs.
    Large,
    /// No JSON, or none of Prometheus.
    Unreadable,
    /// A matrix, a string or a histogram.
    WrongType,
    /// No series; nothing was scraped.
    Empty,
    /// More than one series: an aggregation is missing.
    Several {
        /// So many.
        series: u32,
    },
    /// NaN, infinite, or what cannot be.
    NoNumber,
    /// Evaluated too long ago; a cache, or a clock that is wrong.
    Stale {
        /// So long ago.
        age_ms: u64,
    },
    /// Evaluated in the future: a clock is wrong.
    Future,
}

impl Mute {
    /// All names that [`label`](Self::label) gives.
    pub const LABELS: [&str; 13] = [
        "down",
        "unprepared",
        "insecure",
        "late",
        "refused",
        "large",
        "unreadable",
        "wrong_type",
        "empty",
        "several",
        "no_number",
        "stale",
        "future",
    ];

    /// Without what is needed to ask.
    #[must_use]
    pub fn unprepared(reason: impl fmt::Display) -> Self {
        Self::Unprepared { reason: bounded(&reason) }
    }

    /// Without a connection that can be trusted.
    #[must_use]
    pub fn insecure(reason: impl fmt::Display) -> Self {
        Self::Insecure { reason: bounded(&reason) }
    }

    /// Its name in metrics.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Mute::Down => "down",
            Mute::Unprepared { .. } => "unprepared",
            Mute::Insecure { .. } => "insecure",
            Mute::Late => "late",
            Mute::Refused { .. } => "refused",
            Mute::Large => "large",
            Mute::Unreadable => "unreadable",
            Mute::WrongType => "wrong_type",
            Mute::Empty => "empty",
            Mute::Several { .. } => "several",
            Mute::NoNumber => "no_number",
            Mute::Stale { .. } => "stale",
            Mute::Future => "future",
        }
    }
}

impl fmt::Display for Mute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mute::Down => write!(f, "does not answer"),
            Mute::Unprepared { reason } => write!(f, "is not asked: {reason}"),
            Mute::Insecure { reason } => write!(f, "cannot be asked over TLS: {reason}"),
            Mute::Late => write!(f, "took longer than {} s to answer", MOST_MS / 1000),
            Mute::Refused { status: 401 } => {
                write!(
                    f,
                    "refused the query (HTTP 401): it wants a token, or another one; see operator.prometheus of the chart"
                )
            }
            Mute::Refused { status: 403 } => {
                write!(
                    f,
                    "refused the query (HTTP 403): whoever asks may not; give the token's account the right to"
                )
            }
            Mute::Refused { status } => write!(f, "refused the query (HTTP {status})"),
            Mute::Large => {
                write!(f, "gave more than {} KiB; aggregate the query to one series", MOST_BYTES / 1024)
            }
            Mute::Unreadable => write!(f, "gave no answer of Prometheus"),
            Mute::WrongType => write!(f, "gave no vector or scalar; ask for one number"),
            Mute::Empty => write!(f, "has no such series"),
            Mute::Several { series } => {
                write!(f, "gave {series} series; aggregate the query to one, with max or sum")
            }
            Mute::NoNumber => write!(f, "gave no possible number"),
            Mute::Stale { age_ms } => write!(f, "gave a value that is {} s old", age_ms / 1000),
            Mute::Future => write!(f, "gave a value from the future; compare the clocks"),
        }
    }
}

/// A certificate has as many names as its maker likes.
fn bounded(reason: &impl fmt::Display) -> String {
    reason.to_string().chars().take(MOST_REASON).collect()
}

/// A query that gave no number, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unanswered {
    /// `wait`, `fill` or `desired`.
    pub query: String,
    /// Why.
    pub why: Mute,
}

impl fmt::Display for Unanswered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the query for {} was in vain: Prometheus {}", self.query, self.why)
    }
}

/// The numbers of one window, for whoever keeps them between answers and decision.
#[derive(Clone, Debug, PartialEq)]
pub struct Numbers {
    /// Share of its time that a rank waits, 0..1.
    pub wait: Result<f64, Mute>,
    /// The emptiest queue, 0..1.
    pub fill: Result<f64, Mute>,
    /// Workers that would do at the load they are planned for; None when there is no such query: then only hunger makes a fleet larger,
    /// and nothing makes it smaller.
    pub desired: Option<Result<f64, Mute>>,
}

/// The signals of a window; when an answer is of no use, [`Signals::unanswered`] says which.
#[must_use]
pub fn signals(spec: &ScalingSpec, fleet: Fleet, numbers: &Numbers) -> Signals {
    let of = |query: &str, number: &Result<f64, Mute>| {
        number.clone().map_err(|why| Unanswered { query: query.into(), why })
    };
    let read = || {
        let (wait, fill) = (of("wait", &numbers.wait)?, of("fill", &numbers.fill)?);
        let Some(desired) = &numbers.desired else { return Ok((wait, fill, None)) };
        let desired = of("desired", desired)?;
        if !(0.0..=MOST_WORKERS).contains(&desired) {
            return Err(Unanswered { query: "desired".into(), why: Mute::NoNumber });
        }
        // Nothing needs no worker at all; the bounds make one of it.
        Ok((wait, fill, Some(desired.max(0.01))))
    };
    match read() {
        Err(unanswered) => Signals { fleet, unanswered: Some(unanswered), ..Signals::default() },
        Ok((wait, fill, desired)) => Signals {
            fleet,
            workers: Workers {
                asked: 1,
                answered: 1,
                served: 1,
                pulled: true,
                // In units of a worker at the planned load.
                capacity: desired.map(|_| 1.0 / spec.target().utilization),
                utilization: None,
            },
            runs: vec![Run {
                name: RUN.into(),
                ranks: 1,
                reporting: 1,
                contradicts: false,
                wait,
                mean_wait: wait,
                fill,
                demand: desired,
            }],
            unanswered: None,
            in_workers: true,
        },
    }
}

/// An instant query's answer: <https://prometheus.io/docs/prometheus/latest/querying/api/#instant-queries>.
#[derive(Deserialize)]
struct Envelope {
    status: String,
    data: Option<Data>,
}

#[derive(Deserialize)]
#[serde(tag = "resultType", content = "result", rename_all = "lowercase")]
enum Data {
    Vector(Vec<Series>),
    Scalar(Sample),
    Matrix(IgnoredAny),
    String(IgnoredAny),
}

#[derive(Deserialize)]
struct Series {
    /// Absent in a histogram.
    value: Option<Sample>,
}

/// Seconds since 1970, and a number in words.
#[derive(Deserialize)]
struct Sample(f64, String);

/// The one number of an answer, of its HTTP status and its body: at most [`MOST_BYTES`] and one more, as longer ones need not be read to
/// the end. `now_ms` is the calendar's, in milliseconds since 1970.
///
/// # Errors
/// Why there is none.
pub fn number(status: u16, body: &[u8], now_ms: u64, stale_after_ms: u64) -> Result<f64, Mute> {
    if body.len() > MOST_BYTES {
        return Err(Mute::Large);
    }
    if !(200..300).contains(&status) {
        return Err(Mute::Refused { status });
    }
    let envelope: Envelope = serde_json::from_slice(body).map_err(|_| Mute::Unreadable)?;
    if envelope.status != "success" {
        return Err(Mute::Refused { status });
    }
    let Sample(at, text) = match envelope.data.ok_or(Mute::Unreadable)? {
        Data::Scalar(sample) => sample,
        Data::Matrix(_) | Data::String(_) => return Err(Mute::WrongType),
        Data::Vector(mut all) => match all.len() {
            0 => return Err(Mute::Empty),
            1 => all.pop().and_then(|series| series.value).ok_or(Mute::WrongType)?,
            many => return Err(Mute::Several { series: u32::try_from(many).unwrap_or(u32::MAX) }),
        },
    };
    let value: f64 = text.parse().map_err(|_| Mute::NoNumber)?;
    if !value.is_finite() {
        return Err(Mute::NoNumber);
    }
    if !at.is_finite() || at < 0.0 {
        return Err(Mute::Unreadable);
    }
    // `as` saturates.
    let at_ms = (at * 1000.0) as u64;
    if at_ms > now_ms.saturating_add(CLOCK_SLACK_MS) {
        return Err(Mute::Future);
    }
    let age_ms = now_ms.saturating_sub(at_ms);
    if age_ms > stale_after_ms.max(CLOCK_SLACK_MS) { Err(Mute::Stale { age_ms }) } else { Ok(value) }
}

#[cfg(test)]
mod tests;
