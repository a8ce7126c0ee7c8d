//! Takes one worker that nobody disturbs, gives the chain of the same positions, read by one rank in other micro batches.

use feedmill_client::{Fleet, FleetSettings, Puller, PullerSettings};
use feedmill_protocol::plan::PlanDigest;
use feedmill_protocol::ranks::RankLayout;

use super::ledger::{self, Counts, Ledger};

/// What is read a second time.
#[derive(Clone, Debug)]
pub struct Again {
    /// The stream.
    pub stream: String,
    /// The plan it was read by.
    pub plan: PlanDigest,
    /// The trainer's end.
    pub stop: u64,
    /// The micro batch it was read in.
    pub micro_batch: u64,
    /// Most samples of one range.
    pub max_range: u64,
}

/// Batches asked for ahead.
const WINDOW: usize = 8;

impl Again {
    /// Reads all positions below the end from the one worker of `settings`.
    ///
    /// # Errors
    /// A batch that cannot be had.
    pub async fn read(&self, settings: FleetSettings) -> anyhow::Result<Counts> {
        let micro_batch = other_micro_batch(self.micro_batch, self.max_range);
        let settings_of_puller = PullerSettings {
            stream: self.stream.clone(),
            layout: RankLayout::new(micro_batch, 1, micro_batch)?,
            rank: 0,
            consumed: 0,
            stop: Some(self.stop),
            window: WINDOW,
            plan: Some(self.plan),
        };
        let mut puller = Puller::new(Fleet::new(settings)?, settings_of_puller)?;
        let mut ledger = Ledger::new(self.stop);
        while let Some(batch) = puller.next().await? {
            ledger.add(&ledger::rows(batch.range(), &batch.view()?));
            ledger.seal(batch.range().end());
        }
        Ok(ledger.counts().clone())
    }
}

/// Another micro batch than the first time, so that how samples were batched is seen not to matter. A
/// smaller one where there is one: a larger range might be more than a worker's memory allows.
fn other_micro_batch(first: u64, max_range: u64) -> u64 {
    if first > 1 { first - 1 } else { 2.min(max_range) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_reading_is_batched_otherwise() {
        for (first, max_range, expected) in [(4, 64, 3), (2, 64, 1), (1, 64, 2), (1, 1, 1)] {
            assert_eq!(other_micro_batch(first, max_range), expected);
        }
    }
}
