//! Takes an optimizer step's number and size, gives the positions that all ranks read in it.

use std::num::NonZeroU64;

use clap::Args;
use feedmill_protocol::course::{Course, LastStep, Skips};
use feedmill_protocol::position::{POSITION_END, Range};

use crate::usage::Usage;

/// A step in the place of positions.
#[derive(Clone, Debug, Default, Args)]
pub struct StepArguments {
    /// An optimizer step, as trainers log it: the first one is 1. Needs --global-batch
    #[arg(long, value_name = "N", requires = "global_batch")]
    pub step: Option<NonZeroU64>,
    /// Samples of one step over all ranks
    #[arg(long, value_name = "G", requires = "step")]
    pub global_batch: Option<NonZeroU64>,
    /// Positions START-END that the training left out; may be given several times
    #[arg(long = "skip", value_name = "RANGE", requires = "step")]
    pub skips: Vec<Range>,
}

impl StepArguments {
    /// The step's positions; None when no step is asked for.
    ///
    /// # Errors
    /// A step past the last position; skips that overlap, or that begin within this step or one before it.
    pub fn positions(&self) -> anyhow::Result<Option<Range>> {
        let (Some(step), Some(size)) = (self.step, self.global_batch) else { return Ok(None) };
        let (step, size) = (step.get(), size.get());
        let skips = Skips::new(self.skips.iter().copied()).map_err(Usage::of)?;
        let start = skips.position((step - 1).saturating_mul(size).min(POSITION_END));
        let range = Range::new(start, start.saturating_add(size)).map_err(Usage::of)?;
        // No training has a step within which a skip begins, neither this one nor one before it: the loader's own check.
        let course = Course::new(1, 0, size, 0).map_err(Usage::of)?;
        let mut course = course.skipping(skips).until(Some(range.end()), LastStep::Pad);
        course
            .go_on(size)
            .map_err(|error| Usage::of(anyhow::anyhow!("{error}; is the global batch {size}?")))?;
        Ok(Some(range))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_counted_from_one_and_round_skips() {
        let step = |step: u64, size: u64, skips: &[&str]| {
            let arguments = StepArguments {
                step: NonZeroU64::new(step),
                global_batch: NonZeroU64::new(size),
                skips: skips.iter().map(|skip| skip.parse().unwrap()).collect(),
            };
            arguments.positions().map(|range| range.map(|range| range.to_string()))
        };
        assert_eq!(step(1, 8, &[]).unwrap().as_deref(), Some("0-8"));
        assert_eq!(step(3, 8, &[]).unwrap().as_deref(), Some("16-24"));
        assert_eq!(step(3, 8, &["12-20", "0-4"]).unwrap().as_deref(), Some("28-36"));
        assert_eq!(step(2, 8, &["100-200"]).unwrap().as_deref(), Some("8-16"));
        let error = step(2, 8, &["12-20"]).unwrap_err().to_string();
        assert!(error.contains("12-20") && error.contains("8-16"), "{error}");
        // A step before it, too.
        assert!(step(3, 8, &["3-9"]).unwrap_err().to_string().contains("3-9 begins within the step at 0-8"));
        assert!(step(2, 8, &["0-4", "2-6"]).is_err());
        assert!(step(u64::MAX, u64::MAX, &[]).is_err());
        assert_eq!(StepArguments::default().positions().unwrap(), None);
    }
}
