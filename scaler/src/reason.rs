//! Why: one sentence for every decision, and a label out of a closed set for metrics and events.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::sight::Blind;

/// Why there are so many workers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub enum Reason {
    /// Nothing has been decided.
    #[default]
    Undecided,
    /// Nobody has reported, ever.
    FirstSize,
    /// Decisions have just begun, or begun again; one whole window is watched first.
    Watching,
    /// The size is right.
    Enough {
        /// Longest wait, 0..1.
        wait: f64,
        /// Size by arithmetic, where it is known.
        needed: Option<f64>,
    },
    /// Arithmetic wants more.
    Demand {
        /// Samples a second that trainings could use.
        demand: f64,
        /// Samples a second of one busy worker.
        capacity: f64,
    },
    /// A query asks for more.
    Desired {
        /// Workers that would do at the load they are planned for.
        workers: f64,
    },
    /// Ranks have waited nearly all the time and made no step that arithmetic could begin from.
    Starved {
        /// Longest wait, 0..1.
        wait: f64,
    },
    /// Ranks wait, and their queues are not full.
    Hungry {
        /// Longest wait, 0..1.
        wait: f64,
        /// Emptiest queue, 0..1.
        fill: f64,
        /// Windows in a row.
        windows: u32,
    },
    /// Nobody waits and queues are full.
    Sated {
        /// Windows in a row.
        windows: u32,
        /// Size by arithmetic without a margin: the most of those windows.
        needed: f64,
    },
    /// A smaller size was tried, and ranks waited.
    Reverted {
        /// Longest wait, 0..1.
        wait: f64,
        /// The size that was too small.
        tried: u32,
    },
    /// Nobody pulls; not yet for long enough.
    Quiet {
        /// For how long.
        for_ms: u64,
        /// Idle from then on.
        idle_after_ms: u64,
    },
    /// Nobody has pulled for long.
    Idle {
        /// For how long.
        for_ms: u64,
    },
    /// Reports are lost: the size freezes.
    Lost {
        /// What is missing.
        why: Blind,
        /// Windows in a row.
        windows: u32,
    },
    /// Reports have been lost for long.
    Fallback {
        /// What is missing.
        why: Blind,
        /// Windows in a row.
        windows: u32,
    },
    /// A rollout goes on.
    Rollout,
    /// More would be wanted, and those that were asked for do not become ready.
    NotStarting {
        /// Workers that are not ready.
        pending: u32,
        /// For how long nothing has got better.
        for_ms: u64,
    },
    /// More would be wanted, but workers that were asked for are still on their way.
    Warming {
        /// Workers that are not ready.
        pending: u32,
    },
    /// No worker is ready, so nothing can be learnt.
    NoneReady,
    /// The bounds alone say so.
    Bounds {
        /// Fewest.
        min: u32,
        /// Most.
        max: u32,
    },
}

impl Reason {
    /// All names that [`label`](Self::label) gives.
    pub const LABELS: [&str; 19] = [
        "Undecided",
        "FirstSize",
        "Watching",
        "Enough",
        "Demand",
        "Desired",
        "Starved",
        "Hungry",
        "Sated",
        "Reverted",
        "Quiet",
        "Idle",
        "ReportsLost",
        "Fallback",
        "Rollout",
        "WorkersNotStarting",
        "WorkersWarming",
        "NoWorkerReady",
        "Bounds",
    ];

    /// Its name in metrics, conditions and events.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Reason::Undecided => "Undecided",
            Reason::FirstSize => "FirstSize",
            Reason::Watching => "Watching",
            Reason::Enough { .. } => "Enough",
            Reason::Demand { .. } => "Demand",
            Reason::Desired { .. } => "Desired",
            Reason::Starved { .. } => "Starved",
            Reason::Hungry { .. } => "Hungry",
            Reason::Sated { .. } => "Sated",
            Reason::Reverted { .. } => "Reverted",
            Reason::Quiet { .. } => "Quiet",
            Reason::Idle { .. } => "Idle",
            Reason::Lost { .. } => "ReportsLost",
            Reason::Fallback { .. } => "Fallback",
            Reason::Rollout => "Rollout",
            Reason::NotStarting { .. } => "WorkersNotStarting",
            Reason::Warming { .. } => "WorkersWarming",
            Reason::NoneReady => "NoWorkerReady",
            Reason::Bounds { .. } => "Bounds",
        }
    }
}

/// A share as people read it; one decimal where it is small.
fn percent(share: f64) -> String {
    let percent = 100.0 * share;
    if percent < 9.95 { format!("{percent:.1} %") } else { format!("{percent:.0} %") }
}

fn span(ms: u64) -> String {
    let seconds = ms / 1000;
    if seconds < 120 { format!("{seconds} s") } else { format!("{} min", seconds / 60) }
}

fn windows(count: u32) -> String {
    if count == 1 { "1 window".into() } else { format!("{count} windows") }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Undecided => write!(f, "nothing has been decided yet"),
            Reason::FirstSize => write!(f, "no rank has reported yet, so this is the first size"),
            Reason::Watching => write!(f, "watching for one window before deciding anything"),
            Reason::Enough { wait, needed: Some(needed) } => {
                write!(
                    f,
                    "no change: ranks wait {} of their time, arithmetic needs {needed:.1}",
                    percent(*wait)
                )
            }
            Reason::Enough { wait, needed: None } => {
                write!(f, "no change: ranks wait {} of their time", percent(*wait))
            }
            Reason::Demand { demand, capacity } => write!(
                f,
                "trainings could use {demand:.0} samples/s and a busy worker makes {capacity:.0}; this is with headroom"
            ),
            Reason::Desired { workers } => {
                write!(f, "Prometheus says that {workers:.1} workers would do; this is with headroom")
            }
            Reason::Starved { wait } => {
                write!(
                    f,
                    "a rank waits {} of its time, and no step has told yet how much is needed",
                    percent(*wait)
                )
            }
            Reason::Hungry { wait, fill, windows: count } => write!(
                f,
                "a rank waits {} of its time with its queue {} full, for {}",
                percent(*wait),
                percent(*fill),
                windows(*count)
            ),
            Reason::Sated { windows: count, needed } => write!(
                f,
                "nobody has waited and queues have been full for {}, and arithmetic without a margin needs {needed:.1}: trying fewer",
                windows(*count)
            ),
            Reason::Reverted { wait, tried } => {
                write!(
                    f,
                    "with {tried} a rank waited {} of its time, so the size before is back",
                    percent(*wait)
                )
            }
            Reason::Quiet { for_ms, idle_after_ms } => {
                write!(f, "nobody has pulled for {}; idle after {}", span(*for_ms), span(*idle_after_ms))
            }
            Reason::Idle { for_ms } => write!(f, "idle: nobody has pulled for {}", span(*for_ms)),
            Reason::Lost { why, windows: count } => {
                write!(f, "{why}, for {}: the size is frozen", windows(*count))
            }
            Reason::Fallback { why, windows: count } => {
                write!(f, "{why}, for {}: the fallback", windows(*count))
            }
            Reason::Rollout => write!(f, "workers are being replaced; the size is held meanwhile"),
            Reason::NotStarting { pending, for_ms } => write!(
                f,
                "{pending} of the workers are not ready and none has become so for {}; more would not help",
                span(*for_ms)
            ),
            Reason::Warming { pending } => {
                write!(f, "ranks are hungry, and {pending} of the workers are still on their way")
            }
            Reason::NoneReady => write!(f, "no worker is ready, so more would not be known to help"),
            Reason::Bounds { min, max } => write!(f, "kept within {min} to {max}"),
        }
    }
}
