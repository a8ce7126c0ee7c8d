//! Takes what a rung cost, gives what limits it, in words and with the figure that says so.

use crate::rungs::Rung;

/// A thread, or the machine, that is busy for more of its time than this is what others wait for.
const BUSY: f64 = 0.8;

/// Below this nothing limits: the rest is what a run of this length measures at all.
const NO_WAIT: f64 = 0.02;

/// What one batch cost, on average.
pub struct Cost {
    /// Seconds from one batch to the next.
    pub wall: f64,
    /// Of them, seconds of waiting.
    pub waiting: f64,
    /// Samples in it.
    pub samples: f64,
    /// How much later S3 answers, in seconds.
    pub latency: f64,
    /// Megabytes that a rank received.
    pub megabytes: f64,
    /// CPU milliseconds of ranks.
    pub trainer: f64,
    /// CPU milliseconds of the coordinator.
    pub coordinator: f64,
    /// CPU milliseconds of the worker.
    pub worker: f64,
    /// CPU milliseconds of S3.
    pub s3: f64,
    /// Share of the time in which the coordinator's thread was busy.
    pub coordinator_busy: f64,
    /// Share of the time in which the machine's cores were busy with this bench.
    pub cores_busy: f64,
}

impl Cost {
    /// What limits it.
    pub fn limit(&self, rung: Rung, wait: f64) -> String {
        if wait < NO_WAIT {
            return "the step".to_owned();
        }
        let percent = |share: f64| format!("{:.0} %", 100.0 * share);
        if rung == Rung::Serial {
            let latency = self.latency * self.samples;
            return format!(
                "S3's latency, one sample after another: {} of the waiting",
                percent(latency / self.waiting)
            );
        }
        if self.coordinator_busy > BUSY {
            return format!(
                "copies: the coordinator's thread is busy for {}",
                percent(self.coordinator_busy)
            );
        }
        if self.cores_busy > BUSY {
            let copies = self.coordinator / (self.coordinator + self.worker + self.s3 + self.trainer);
            return format!(
                "the cores are busy for {}, the coordinator takes {} of that",
                percent(self.cores_busy),
                percent(copies)
            );
        }
        if rung == Rung::Concurrent {
            return format!(
                "latency and work come one after another: nothing is asked ahead; cores are busy for {}",
                percent(self.cores_busy)
            );
        }
        format!(
            "the cores ({} busy with this, and others use them) and the coordinator's thread ({})",
            percent(self.cores_busy),
            percent(self.coordinator_busy)
        )
    }
}
