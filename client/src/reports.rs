//! Takes a rank's meter, gives its reports to the run's home: regularly, also while the rank starves, and a last
//! one that says farewell.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

use crate::chance;
use crate::error::{ClientError, lock};
use crate::fleet::Fleet;
use crate::tally::Meter;

/// How long whoever closes a rank waits for its farewell to be taken. It is a courtesy: without it the rank is
/// forgotten when its reports have grown old.
const FAREWELL: Duration = Duration::from_secs(1);

/// The reports of one rank. Dropping it says farewell too, and does not wait for that.
#[derive(Debug)]
pub(crate) struct Reports {
    ends: watch::Sender<bool>,
    task: JoinHandle<()>,
    refusal: Refusal,
}

/// What the run's home has against this rank, until somebody takes it.
type Refusal = Arc<Mutex<Option<ClientError>>>;

impl Reports {
    /// Begins, on the caller's runtime.
    pub(crate) fn begin(fleet: Fleet, meter: Meter, every: Duration) -> Self {
        let (ends, ended) = watch::channel(false);
        let refusal = Refusal::default();
        let task = tokio::spawn(run(fleet, meter, every, ended, Arc::clone(&refusal)));
        Self { ends, task, refusal }
    }

    /// Why the last report was refused, if this rank may not go on; once.
    pub(crate) fn refusal(&self) -> Option<ClientError> {
        lock(&self.refusal).take()
    }

    /// Says farewell.
    pub(crate) async fn end(mut self) {
        self.ends.send_replace(true);
        let _ = tokio::time::timeout(FAREWELL, &mut self.task).await;
    }
}

async fn run(
    fleet: Fleet,
    meter: Meter,
    every: Duration,
    mut ended: watch::Receiver<bool>,
    refusal: Refusal,
) {
    // The first one waits too: what a rank has to say when it begins says `wait_ready`.
    let mut ticks = tokio::time::interval_at(chance::now() + every, every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let report = async {
        loop {
            ticks.tick().await;
            match fleet.report(&meter.report()).await {
                Ok(()) => *lock(&refusal) = None,
                Err(error @ ClientError::RunMismatch { .. }) => *lock(&refusal) = Some(error),
                // The next one says it all again.
                Err(error) => tracing::debug!(%error, "a report was not taken"),
            }
        }
    };
    tokio::select! {
        // Also when the sender is gone.
        _ = ended.changed() => {}
        () = report => {}
    }
    let mut last = meter.report();
    last.farewell = true;
    if let Err(error) = fleet.report(&last).await {
        tracing::debug!(%error, "nobody took the farewell");
    }
}
