//! What a decision is made from: one window's signals. They may come from strangers, so nothing here is trusted to be a number.

use crate::prometheus::Unanswered;

/// One window.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Signals {
    /// The fleet as it is wanted and as it is.
    pub fleet: Fleet,
    /// What workers said of themselves.
    pub workers: Workers,
    /// Trainings that read streams for training; evaluation does not count.
    pub runs: Vec<Run>,
    /// The signals come from Prometheus, and a query gave no number: nothing else counts then.
    pub unanswered: Option<Unanswered>,
    /// Demand and capacity are counted in workers at the planned load, not in samples a second.
    pub in_workers: bool,
}

/// The fleet as it is wanted and as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fleet {
    /// Workers that are wanted now, those that are pending or warming included; None when there is no fleet yet.
    pub replicas: Option<u32>,
    /// Those that are ready.
    pub ready: u32,
    /// Workers are being replaced by others of another kind.
    pub rollout: bool,
}

/// What workers said of themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Workers {
    /// Workers that were asked in this window.
    pub asked: u32,
    /// Those that answered.
    pub answered: u32,
    /// Samples served in this window.
    pub served: u64,
    /// Somebody has really read from this fleet at some time.
    pub pulled: bool,
    /// Samples a second that one worker makes when it is busy all the time; None when none was busy in this window.
    pub capacity: Option<f64>,
    /// Share of their CPU time that the workers with work ahead of them were busy; None when none had any.
    pub utilization: Option<f64>,
}

/// One training's ranks together; of one that reads several streams for training, each stream apart.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Run {
    /// Its name, with the stream's where there are several.
    pub name: String,
    /// Its ranks.
    pub ranks: u32,
    /// Those whose reports count: not stale, by the right plan, not contradicting themselves.
    pub reporting: u32,
    /// Its reports contradict each other, as those of two trainings of one name do.
    pub contradicts: bool,
    /// The largest share of this window that a rank waited, 0..1.
    pub wait: f64,
    /// What its ranks waited on average, 0..1.
    pub mean_wait: f64,
    /// The emptiest queue of its ranks, 0..1.
    pub fill: f64,
    /// Samples a second that it would use if it never waited, from steps that ended in this window; None when none did.
    pub demand: Option<f64>,
}
