//! Takes a wish, gives what may be asked for: within the bounds, and no more than one step up.

use serde::{Deserialize, Serialize};

use crate::spec::ScalingSpec;

/// At most four times as many at once: what was learnt from few workers may be wrong for many.
pub(crate) const GROWTH: u32 = 4;

/// At most so many more at once: a scheduler and a registry have to cope.
const STEP: u32 = 500;

/// What kept a size from being as it was wished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Limit {
    /// `min`.
    Min,
    /// `max`.
    Max,
    /// One step's growth; the next window goes on.
    Step,
}

impl Limit {
    /// Its name, as it is written.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Min => "Min",
            Self::Max => "Max",
            Self::Step => "Step",
        }
    }
}

/// The size that may be asked for, and what kept it from being the wish.
pub(crate) fn keep(spec: &ScalingSpec, current: u32, wish: u32) -> (u32, Option<Limit>) {
    let (min, max) = spec.range();
    let from = current.max(1);
    let step = from.saturating_mul(GROWTH).min(from.saturating_add(STEP));
    // A raised `min` is a person's wish and no guess, so no step bounds it.
    if wish > max {
        let size = max.min(step.max(min));
        return (size, Some(if size == max { Limit::Max } else { Limit::Step }));
    }
    if wish < min {
        return (min, Some(Limit::Min));
    }
    if wish > step.max(min) { (step.max(min), Some(Limit::Step)) } else { (wish, None) }
}
