//! What went wrong, and with whom.

use std::collections::VecDeque;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use feedmill_protocol::course::CourseError;
use feedmill_protocol::http::{Problem, problem_kind};
use feedmill_protocol::plan::PlanDigest;
use feedmill_protocol::position::Range;
use feedmill_protocol::report::ReportError;

use crate::fault::{Fault, describe};
use crate::settings::Endpoint;

/// What the client gives up with.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// An address that is none.
    #[error(
        "worker address {text:?} {reason}; write http://HOST or http://HOST:PORT, or https:// in their place"
    )]
    Endpoint {
        /// What was given.
        text: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A setting that makes no sense.
    #[error("setting {name}: {reason}")]
    Setting {
        /// Which.
        name: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// Steps, skips or an end that contradict each other.
    #[error(transparent)]
    Course(#[from] CourseError),
    /// A report that no worker would take.
    #[error(transparent)]
    Report(#[from] ReportError),
    /// A worker refused, and every other one would refuse as well.
    #[error("{worker} refuses range {range} of stream {stream:?}: {fault}")]
    Refused {
        /// The stream.
        stream: String,
        /// The range.
        range: Range,
        /// Who refused.
        worker: Endpoint,
        /// What it said; [`ClientError::problem`] gives its document.
        fault: Box<Fault>,
    },
    /// No worker admits this client, or none can be trusted. Nothing is asked again by itself: a token or a
    /// certificate must be changed first.
    #[error("{worker}: {fault}")]
    Denied {
        /// One of those that were asked.
        worker: Endpoint,
        /// Why, and what to do.
        fault: Box<Fault>,
    },
    /// A record kills the process that makes it, on every worker. No retry helps: its line must be excluded.
    #[error("range {range} of stream {stream:?} has a record that kills whoever makes it: {}", describe(.problem))]
    LethalSample {
        /// The stream.
        stream: String,
        /// The range.
        range: Range,
        /// Data set, line, object and remedy, as the worker names them.
        problem: Box<Problem>,
    },
    /// Every live worker reads by another plan than this trainer, which had its own from a worker when it began, or from a checkpoint.
    #[error(
        "no worker has plan {expected} of stream {stream:?} for range {range}: {}; the data or \
         the pipeline are not those that this reader began with: put those back, or begin anew with what is there now (from a checkpoint: \
         accept the new plan)",
        list(.workers)
    )]
    OtherPlan {
        /// The stream.
        stream: String,
        /// The range.
        range: Range,
        /// What the trainer reads by.
        expected: PlanDigest,
        /// What each worker has.
        workers: Vec<Disagreement>,
    },
    /// No worker made the range in time.
    #[error(
        "no worker made range {range} of stream {stream:?} for rank {rank} within {}: {history}; look at \
         the workers' logs and /v1/status",
        span(*waited)
    )]
    TimedOut {
        /// The stream.
        stream: String,
        /// The range.
        range: Range,
        /// Whose it is.
        rank: u64,
        /// How long it was waited for.
        waited: Duration,
        /// The last attempts.
        history: Box<History>,
    },
    /// Another rank of the run has announced other numbers, or another process is this rank too: some positions would be read twice, others
    /// never.
    #[error("the ranks of run {run:?} do not agree: {}", describe(.problem))]
    RunMismatch {
        /// The run.
        run: String,
        /// The run's home, which holds the ranks against each other.
        worker: Endpoint,
        /// Both sides, as that worker names them.
        problem: Box<Problem>,
    },
    /// The agent of this node cannot be used; batches are not asked of workers in its stead.
    #[error(
        "the agent at {} has not answered for {}: {reason}; is it running, and is its socket shared with \
         this process? (without FEEDMILL_AGENT workers are asked directly)",
        socket.display(),
        span(*away)
    )]
    Agent {
        /// Its socket.
        socket: PathBuf,
        /// How long it has been away.
        away: Duration,
        /// What happened last.
        reason: String,
    },
    /// A request on a control connection failed.
    #[error("{worker} gives no answer to {path}: {fault}")]
    Control {
        /// Who was asked.
        worker: Endpoint,
        /// For what.
        path: &'static str,
        /// What happened.
        fault: Box<Fault>,
    },
    /// No worker answered a request on a control connection in time.
    #[error(
        "no worker answered {path} within {}: {history}; are they running, and reachable from here?",
        span(*waited)
    )]
    NoAnswer {
        /// What was asked.
        path: &'static str,
        /// How long it was tried.
        waited: Duration,
        /// The last attempts.
        history: Box<History>,
    },
    /// An answer that is not what the interface promises.
    #[error("{worker} answers {path} with something else: {reason}; do both sides have the same version?")]
    Malformed {
        /// Who was asked.
        worker: Endpoint,
        /// For what.
        path: &'static str,
        /// What is wrong with the answer.
        reason: String,
    },
    /// The pipeline has no such stream.
    #[error("{worker} has no stream {stream:?}; it has: {known}")]
    UnknownStream {
        /// Who was asked.
        worker: Endpoint,
        /// What was asked for.
        stream: String,
        /// What there is.
        known: String,
    },
    /// The task that fetched a range ended without a result: the runtime is shutting down.
    #[error("the task that fetched range {range} was stopped: {reason}")]
    Stopped {
        /// The range.
        range: Range,
        /// Why.
        reason: String,
    },
}

impl ClientError {
    pub(crate) fn control(worker: &Endpoint, path: &'static str, fault: Fault) -> Self {
        Self::Control { worker: worker.clone(), path, fault: Box::new(fault) }
    }

    /// What a report's refusal means, if it is that the run's ranks do not agree; else the fault comes back.
    pub(crate) fn run_mismatch(run: &str, worker: &Endpoint, fault: Fault) -> Result<Self, Fault> {
        match fault {
            Fault::Status { status: 409, problem } if problem.kind == problem_kind::RUN_MISMATCH => {
                Ok(Self::RunMismatch { run: run.to_owned(), worker: worker.clone(), problem })
            }
            other => Err(other),
        }
    }

    /// What a fault that every worker would repeat is to whoever asked.
    pub(crate) fn refused(stream: &str, range: Range, worker: &Endpoint, fault: Fault) -> Self {
        let stream = stream.to_owned();
        match fault {
            Fault::Status { problem, .. } if problem.kind == problem_kind::LETHAL_SAMPLE => {
                Self::LethalSample { stream, range, problem }
            }
            fault => Self::Refused { stream, range, worker: worker.clone(), fault: Box::new(fault) },
        }
    }

    /// The worker's own words, where it gave some.
    #[must_use]
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            ClientError::Refused { fault, .. }
            | ClientError::Denied { fault, .. }
            | ClientError::Control { fault, .. } => match fault.as_ref() {
                Fault::Status { problem, .. } | Fault::Denied { problem, .. } => Some(problem),
                _ => None,
            },
            ClientError::LethalSample { problem, .. } | ClientError::RunMismatch { problem, .. } => {
                Some(problem)
            }
            _ => None,
        }
    }
}

/// A worker that reads by another plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disagreement {
    /// Which worker.
    pub worker: Endpoint,
    /// Its plan, where it said so.
    pub plan: Option<PlanDigest>,
}

fn list(workers: &[Disagreement]) -> String {
    let words: Vec<String> = workers
        .iter()
        .map(|other| match &other.plan {
            Some(plan) => format!("{} has {plan}", other.worker),
            None => format!("{} has another one", other.worker),
        })
        .collect();
    words.join(", ")
}

/// One attempt that gave nothing.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// Who was asked.
    pub worker: Endpoint,
    /// When it ended, counted from the first attempt's begin.
    pub after: Duration,
    /// What happened.
    pub fault: Fault,
}

/// The last attempts at something, and how many there were.
#[derive(Clone, Debug, Default)]
pub struct History {
    last: VecDeque<Attempt>,
    count: u64,
    outstanding: Option<Endpoint>,
    note: Option<String>,
}

impl History {
    /// A report of more attempts than this is not read.
    const KEPT: usize = 16;

    fn push(&mut self, attempt: Attempt) {
        self.outstanding = None;
        if self.last.len() == Self::KEPT {
            self.last.pop_front();
        }
        self.last.push_back(attempt);
        self.count += 1;
    }

    /// The last attempts, oldest first.
    pub fn attempts(&self) -> impl ExactSizeIterator<Item = &Attempt> {
        self.last.iter()
    }

    /// How many attempts failed, forgotten ones included.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if self.count > 0 {
            parts.push(self.failed());
        }
        if let Some(worker) = &self.outstanding {
            parts.push(match self.count {
                0 => format!("{worker} was asked and has not answered"),
                _ => format!("{worker} is being asked"),
            });
        }
        parts.extend(self.note.clone());
        match parts.as_slice() {
            [] => f.write_str("there is nobody to ask"),
            parts => f.write_str(&parts.join(", ")),
        }
    }
}

impl History {
    /// What failed; the same from the same worker stands once.
    fn failed(&self) -> String {
        let mut kinds: Vec<(&Endpoint, String, u32, Duration)> = Vec::new();
        for attempt in &self.last {
            let said = attempt.fault.to_string();
            let same =
                |kind: &&mut (&Endpoint, String, u32, Duration)| kind.0 == &attempt.worker && kind.1 == said;
            match kinds.iter_mut().find(same) {
                Some(kind) => (kind.2, kind.3) = (kind.2 + 1, attempt.after),
                None => kinds.push((&attempt.worker, said, 1, attempt.after)),
            }
        }
        let mut text = format!("{} failed attempt{}", self.count, if self.count == 1 { "" } else { "s" });
        if self.count > self.last.len() as u64 {
            text.push_str(", the last ones");
        }
        for (worker, said, times, after) in kinds {
            let seconds = after.as_secs_f64();
            text += &match times {
                1 => format!(" [{worker} after {seconds:.1} s: {said}]"),
                _ => format!(" [{worker} {times} times, the last one after {seconds:.1} s: {said}]"),
            };
        }
        text
    }
}

/// A span of time for people: `250 ms`, `6 s`, `10.1 s`.
pub(crate) fn span(time: Duration) -> String {
    match time.as_secs_f64() {
        seconds if seconds < 1.0 => format!("{:.0} ms", seconds * 1e3),
        seconds if (seconds - seconds.round()).abs() < 0.05 => format!("{seconds:.0} s"),
        seconds => format!("{seconds:.1} s"),
    }
}

/// A history that the attempts write and whoever waits reads.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedHistory(Arc<Mutex<History>>);

impl SharedHistory {
    /// An attempt begins.
    pub(crate) fn asking(&self, worker: &Endpoint) {
        lock(&self.0).outstanding = Some(worker.clone());
    }

    /// Why nobody can be asked; the last one counts.
    pub(crate) fn note(&self, note: Option<String>) {
        lock(&self.0).note = note;
    }

    /// It gave nothing.
    pub(crate) fn push(&self, attempt: Attempt) {
        lock(&self.0).push(attempt);
    }

    pub(crate) fn snapshot(&self) -> Box<History> {
        Box::new(lock(&self.0).clone())
    }
}

/// Locks; what our locks guard is whole between any two statements, so a panic elsewhere harms nothing.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `is not there for 10.001040297s now` stood in a message.
    #[test]
    fn spans_of_time_are_rounded() {
        let spans = [0, 250_400, 6_000_000, 6_099_999, 9_960_000, 10_001_040]
            .map(|micros| span(Duration::from_micros(micros)));
        assert_eq!(spans, ["0 ms", "250 ms", "6 s", "6.1 s", "10 s", "10 s"]);
    }

    /// A port that spoke no HTTP/2 was named seven times; and "no attempt has failed, nobody is being asked" told nobody anything.
    #[test]
    fn a_history_says_the_same_once_and_nothing_that_says_nothing() {
        let worker: Endpoint = "http://127.0.0.1:9".parse().unwrap();
        let history = SharedHistory::default();
        assert_eq!(history.snapshot().to_string(), "there is nobody to ask");
        history.note(Some("http://fleet:9 gives no worker: no such name".into()));
        assert_eq!(history.snapshot().to_string(), "http://fleet:9 gives no worker: no such name");
        history.note(None);
        history.asking(&worker);
        assert_eq!(history.snapshot().to_string(), "http://127.0.0.1:9 was asked and has not answered");
        for (seconds, fault) in [(1, Fault::NotHttp2), (2, Fault::Frozen), (4, Fault::NotHttp2)] {
            history.push(Attempt { worker: worker.clone(), after: Duration::from_secs(seconds), fault });
        }
        assert_eq!(
            history.snapshot().to_string(),
            "3 failed attempts [http://127.0.0.1:9 2 times, the last one after 4.0 s: it does not speak HTTP/2; is it a \
             feedmill worker?] [http://127.0.0.1:9 after 2.0 s: frozen: PING was not answered in time]"
        );
    }
}
