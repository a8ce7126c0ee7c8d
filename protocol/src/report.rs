//! What ranks report and what workers answer about themselves.
//!
//! Ages, never wall clocks: every time here is a duration in milliseconds.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::bad::BadClass;
use crate::course::LastStep;

/// The most bytes a report may have.
pub const MAX_REPORT_BYTES: usize = 4096;

/// What a rank calls its plan before it knows it.
pub const UNKNOWN_PLAN: &str = "unknown";

/// What one rank says of its own queue, every 2 s, also while it starves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankReport {
    /// One name per start of a training, shared by its ranks.
    pub run: String,
    /// The stream it reads.
    pub stream: String,
    /// The plan it reads by; [`UNKNOWN_PLAN`] before it knows.
    pub plan: String,
    /// Data-parallel rank.
    pub rank: u32,
    /// Data-parallel size.
    pub size: u32,
    /// Which process this is, as `host/process id/chance`: of two that live and say that they are the same rank, one reads what the other
    /// reads, and some positions nobody. Empty from those that do not say.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub process: String,
    /// Batches in hand that it can take one after another: those behind one that is missing do not count.
    pub ready: u32,
    /// Batches it wants in hand.
    pub target: u32,
    /// How long it has been waiting for the batch it needs now; 0 when it does not wait.
    pub waiting_ms: u64,
    /// Waiting since its last report.
    pub wait_ms: u64,
    /// Whole steps' time since its last report, waiting included.
    pub step_ms: u64,
    /// Waiting since the rank's start, the present one included. Totals lose nothing when reports are lost or not all of them are read.
    #[serde(default)]
    pub waited_ms: u64,
    /// The trainer's own time in the whole steps made since the rank's start, waiting for data left out. A rank that waits in a collective
    /// for another one counts that as its own.
    #[serde(default)]
    pub computed_ms: u64,
    /// Samples that all ranks together have used in those steps.
    #[serde(default)]
    pub trained: u64,
    /// The least of the trainer's own time in one of its last few steps, in microseconds; 0 before the first. A rank that is the last one to
    /// get its data waits for no other, so the least of all ranks is what a step takes, also while everybody waits for somebody.
    #[serde(default)]
    pub quickest_us: u64,
    /// Samples that all ranks together have used in that step.
    #[serde(default)]
    pub quickest_samples: u64,
    /// Samples consumed by whole optimizer steps.
    pub consumed: u64,
    /// Rises with each report of the run and rank; the highest wins.
    pub sequence: u64,
    /// True in a rank's last report: it wants nothing any more, and is forgotten.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub farewell: bool,
    /// How the rank begins, in the report that announces it: what all ranks of a run must agree on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begin: Option<RunBegin>,
}

/// The most bytes of [`RunBegin::skips`]: 17 stretches of the longest numbers, and more.
const MAX_SKIPS_BYTES: usize = 1024;

/// What, beside stream, plan and size, all ranks of a run begin with. Ranks that differ in one of these read
/// some positions twice and others never, or one ends while others go on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunBegin {
    /// `G` of the first step.
    pub global_batch: u64,
    /// `m`.
    pub micro_batch: u64,
    /// Samples consumed before the first step.
    pub consumed: u64,
    /// The stretches that are left out, as [`Skips::written`](crate::course::Skips::written) has them; None from those that do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skips: Option<String>,
    /// Where it ends; None from those that do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<RunEnd>,
}

/// Where a rank ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunEnd {
    /// The first position that is not read; None = it reads on for ever.
    pub position: Option<u64>,
    /// What becomes of the step that crosses it.
    pub last_step: LastStep,
}

/// A report that cannot be taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReportError {
    /// A name that is empty, long or not plain.
    #[error("report field {0:?} must have 1 to 128 characters out of letters, digits and ._:/@-")]
    Name(&'static str),
    /// Skips that are long or not plain.
    #[error(
        "report field \"begin.skips\" must have at most {MAX_SKIPS_BYTES} characters out of digits, a to f and -,+:"
    )]
    Skips,
    /// A rank outside the size, or a size of 0.
    #[error("report says rank {rank} of {size}")]
    Rank {
        /// The rank.
        rank: u32,
        /// The size.
        size: u32,
    },
}

impl RankReport {
    /// Checks what a stranger sent.
    ///
    /// # Errors
    /// Names that could not be labels, skips that are none, a rank outside its size.
    pub fn check(&self) -> Result<(), ReportError> {
        for (field, value) in [("run", &self.run), ("stream", &self.stream), ("plan", &self.plan)] {
            if !is_plain(value) {
                return Err(ReportError::Name(field));
            }
        }
        if !self.process.is_empty() && !is_plain(&self.process) {
            return Err(ReportError::Name("process"));
        }
        let is_written = |skips: &str| {
            let plain = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f' | b'-' | b',' | b'+' | b':');
            skips.len() <= MAX_SKIPS_BYTES && skips.bytes().all(plain)
        };
        if self
            .begin
            .as_ref()
            .and_then(|begin| begin.skips.as_deref())
            .is_some_and(|skips| !is_written(skips))
        {
            return Err(ReportError::Skips);
        }
        if self.rank >= self.size {
            return Err(ReportError::Rank { rank: self.rank, size: self.size });
        }
        Ok(())
    }

    /// The share of its last steps that it waited, in thousandths; None of a report without a step.
    #[must_use]
    pub fn wait_permille(&self) -> Option<u32> {
        let waited = u128::from(self.wait_ms.min(self.step_ms)) * 1000;
        Some(u32::try_from(waited.checked_div(self.step_ms.into())?).unwrap_or(1000))
    }
}

/// Of each run, stream and rank the newest report, whichever worker has it.
pub fn newest<'a>(
    reports: impl IntoIterator<Item = &'a KeptReport>,
) -> BTreeMap<(&'a str, &'a str, u32), &'a KeptReport> {
    let mut newest: BTreeMap<(&str, &str, u32), &KeptReport> = BTreeMap::new();
    for kept in reports {
        let report = &kept.report;
        let known = newest.entry((&report.run, &report.stream, report.rank)).or_insert(kept);
        if known.report.sequence < report.sequence {
            *known = kept;
        }
    }
    newest
}

/// Names that may stand in paths, headers and labels: 1 to 128 letters, digits and `._:/@-`.
#[must_use]
pub fn is_plain(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._:/@-".contains(&byte);
    (1..=128).contains(&name.len()) && name.bytes().all(plain)
}

/// A report as a worker keeps it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeptReport {
    /// Milliseconds since it came.
    pub age_ms: u64,
    /// What was said.
    #[serde(flatten)]
    pub report: RankReport,
}

/// Where a worker is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerState {
    /// Reading manifests; answers 503.
    Starting,
    /// Serving.
    Ready,
    /// Finishing what it has; takes nothing new.
    Draining,
}

/// With these words begins what a worker is doing whose storage does not answer, or not well: it goes on asking.
pub const CANNOT_READ: &str = "cannot read the data yet, trying again";

/// `GET /v1/status`: what a worker says of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerStatus {
    /// The worker's name, unique in its fleet.
    pub worker: String,
    /// Version of the program.
    pub version: String,
    /// Where it is in its life.
    pub state: WorkerState,
    /// What it is doing while it starts, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub doing: Option<String>,
    /// Threads that do CPU work: its capacity.
    pub cores: u32,
    /// Streams by name.
    pub streams: BTreeMap<String, StreamStatus>,
    /// Samples asked for and not yet answered.
    pub work_ahead: u64,
    /// Samples finished and not yet sent.
    pub ready: u64,
    /// Batches served since the start.
    pub batches: u64,
    /// Samples served since the start.
    pub samples: u64,
    /// Bytes served since the start.
    pub bytes_out: u64,
    /// Bytes fetched since the start.
    pub bytes_in: u64,
    /// CPU milliseconds spent on samples since the start.
    pub busy_ms: u64,
    /// Bad samples met since the start, by class.
    pub bad: BTreeMap<BadClass, u64>,
    /// What is wrong until a person acts, for people.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
    /// The last report of each rank that reports here.
    pub reports: Vec<KeptReport>,
    /// What an agent is beside; None of a worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentStatus>,
}

/// An agent: it makes nothing, it passes on what the workers make.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentStatus {
    /// The workers that it asks.
    pub upstream: Vec<String>,
    /// Those of them that answered and are ready.
    pub upstream_ready: u32,
    /// Processes connected to its socket.
    pub readers: u32,
    /// Bytes of batches that they hold.
    pub lent_bytes: u64,
    /// Bytes of shared memory that it may have.
    pub memory_bytes: u64,
    /// Batches fetched from workers since the start.
    pub fetched: u64,
}

/// One stream of a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamStatus {
    /// Plan digest.
    pub plan: String,
    /// N: positions in one epoch.
    pub samples_per_epoch: u64,
}
