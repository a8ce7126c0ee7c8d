//! What one decision leaves to the next. It can be stored, so that another process goes on where this one ended.

use serde::{Deserialize, Serialize};

use crate::reason::Reason;

/// So many runs are remembered; a pipeline has one or two.
pub(crate) const MAX_RUNS: usize = 64;
/// So many sizes are remembered, whatever is asked for.
pub(crate) const MAX_SIZES: usize = 360;

/// Everything that outlives a window: a few hundred bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct State {
    /// When the last window ended.
    pub at_ms: u64,
    /// What was decided then.
    pub replicas: u32,
    /// And why.
    pub reason: Reason,
    /// A rank has reported at some time.
    pub reported: bool,
    /// Windows in a row in which ranks were hungry.
    pub hungry: u32,
    /// Windows in a row in which arithmetic wanted more.
    pub rising: u32,
    /// Windows in a row in which everybody had plenty.
    pub sated: u32,
    /// Windows in a row in which reports were lost.
    pub lost: u32,
    /// Windows in a row in which one run was silent while others reported.
    pub silent: u32,
    /// Since when nobody has pulled.
    pub quiet_since_ms: Option<u64>,
    /// What each run needs.
    pub needs: Vec<Need>,
    /// Samples a second of one busy worker, smoothed.
    pub capacity: Option<f64>,
    /// So many workers told of it.
    pub capacity_of: u32,
    /// Share of their CPU that workers reached while ranks were hungry; below 1 when something else limits them.
    pub reach: Option<f64>,
    /// The margin that has been seen to be enough, or is being tried; None for the whole one.
    pub margin: Option<f64>,
    /// A fleet without the whole margin was hungry; what it was is not known yet.
    pub blamed: Option<Blamed>,
    /// Sizes by arithmetic in the last windows, without a margin and not rounded; the newest is last.
    pub sizes: Vec<f64>,
    /// A smaller size that is being tried.
    pub probation: Option<Probation>,
    /// How often a smaller size was taken back lately.
    pub reverts: u32,
    /// No smaller size before this.
    pub shrink_not_before_ms: u64,
    /// Since when a rollout goes on.
    pub rollout_since_ms: Option<u64>,
    /// Since when workers are awaited without a further one becoming ready, and how many were ready at most.
    pub pending: Option<Pending>,
}

/// What a run needs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Need {
    /// Its name.
    pub run: String,
    /// Samples a second, smoothed.
    pub demand: f64,
    /// That was learnt while its ranks waited, so it is the least that is needed.
    pub at_least: bool,
}

/// A smaller size that is being tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probation {
    /// The size before.
    pub before: u32,
    /// Windows for which it has held.
    pub windows: u32,
}

/// A fleet that was hungry with less than the whole margin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blamed {
    /// Its size.
    pub size: u32,
    /// Windows since.
    pub windows: u32,
}

/// Workers that are awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    /// Since when nothing has got better.
    pub since_ms: u64,
    /// Most that were ready since.
    pub ready: u32,
}
