//! What a person wants: bounds, targets, what to do without reports, and how fast decisions are made.

use serde::{Deserialize, Serialize};

/// How a pipeline is scaled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScalingSpec {
    /// Workers before anybody has reported.
    pub first: u32,
    /// Fewest workers, at least 1: ranks report to workers, so nobody could wake a fleet of 0.
    pub min: u32,
    /// Most workers. It wins over `min` where the two contradict each other.
    pub max: u32,
    /// What is aimed at.
    pub target: Target,
    /// When reports count, and what happens when they are lost.
    pub reports: Reports,
    /// Nobody pulls for so long: idle.
    pub idle_after_ms: u64,
    /// How fast decisions are made.
    pub timing: Timing,
}

/// What is aimed at.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Target {
    /// Share of its time that a rank may wait for data, 0..1.
    pub wait: f64,
    /// Below this share of full queues, waiting ranks are hungry.
    pub fill: f64,
    /// Share of its capacity that a worker is planned to work at.
    pub utilization: f64,
}

/// When reports count, and what happens when they are lost.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reports {
    /// Reports older than this, and than three steps, do not count.
    pub stale_after_ms: u64,
    /// Share of a run's ranks that must report, in percent.
    pub min_ranks_percent: u32,
    /// So many windows without reports until the fallback.
    pub failure_threshold: u32,
    /// What then.
    pub fallback: Fallback,
}

/// The size without reports. None of these makes a fleet smaller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fallback {
    /// As it is: what somebody else breaks must not start workers.
    #[default]
    CurrentReplicas,
    /// At least so many.
    CurrentReplicasIfHigher(u32),
}

/// How fast decisions are made. Durations that are multiples of a window are counted in windows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timing {
    /// One decision each.
    pub window_ms: u64,
    /// So many windows must agree before a fleet grows by a factor, or by arithmetic while nobody waits.
    pub hungry_windows: u32,
    /// So many windows must agree before a fleet shrinks; probation is as long.
    pub sated_windows: u32,
    /// A rollout holds the size for no longer than this.
    pub rollout_deadline_ms: u64,
    /// Workers that are not ready after this, while no further one becomes ready, will not become so by adding more.
    pub pending_deadline_ms: u64,
}

impl Default for Timing {
    /// 10 s; 3 windows; 5 minutes; 10 minutes; 5 minutes, which a node that a cluster adds takes.
    fn default() -> Self {
        Self {
            window_ms: 10_000,
            hungry_windows: 3,
            sated_windows: 30,
            rollout_deadline_ms: 600_000,
            pending_deadline_ms: 300_000,
        }
    }
}

impl Default for ScalingSpec {
    fn default() -> Self {
        Self {
            first: 1,
            min: 1,
            max: 200,
            target: Target { wait: 0.02, fill: 0.5, utilization: 0.8 },
            reports: Reports {
                stale_after_ms: 15_000,
                min_ranks_percent: 80,
                failure_threshold: 12,
                fallback: Fallback::default(),
            },
            idle_after_ms: 1_800_000,
            timing: Timing::default(),
        }
    }
}

impl ScalingSpec {
    /// Fewest and most, made to agree: at least 1, and `max` wins.
    #[must_use]
    pub fn range(&self) -> (u32, u32) {
        let max = self.max.max(1);
        (self.min.clamp(1, max), max)
    }

    /// The targets, those that make no sense replaced by the defaults.
    #[must_use]
    pub fn target(&self) -> Target {
        let plain = ScalingSpec::default().target;
        let share = |value: f64, otherwise: f64| {
            if value.is_finite() && value > 0.0 && value <= 1.0 { value } else { otherwise }
        };
        Target {
            wait: share(self.target.wait, plain.wait),
            fill: share(self.target.fill, plain.fill),
            utilization: share(self.target.utilization, plain.utilization).max(0.1),
        }
    }
}
