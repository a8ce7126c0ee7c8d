//! Takes how long ranks wait and how full their queues are, gives how many windows in a row they have been hungry or sated.

use crate::sight::Clear;
use crate::size::Size;
use crate::spec::ScalingSpec;
use crate::state::State;

/// Queues that are so full are full.
const FULL: f64 = 0.9;

/// Arithmetic wants more only beyond this: its size has more headroom than that, and its noise is smaller.
const DEADBAND: f64 = 1.08;

/// A rank that waits so many times longer than it may is hungry also with its queue half full: what it needs next is not there. That is so when
/// some of the workers are slow and later batches come before earlier ones. With a full queue it waits for something else.
const LATE: f64 = 2.5;

/// A rank that waits so long, with the others waiting for half of that, has made hardly a step: what is there is far too little.
const STARVED: f64 = 0.9;

/// What the window says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hunger {
    /// Ranks wait and their queues are not full.
    pub(crate) hungry: bool,
    /// Ranks wait longer than they may; so much is enough against a size that is only being tried.
    pub(crate) waits: bool,
    /// Arithmetic wants more.
    pub(crate) rising: bool,
    /// Nobody has made a step yet from which arithmetic could begin, and nearly all time is spent waiting.
    pub(crate) starved: bool,
}

/// Counts windows.
///
/// Hunger while workers are on their way says nothing of those.
pub(crate) fn count(
    spec: &ScalingSpec,
    clear: &Clear,
    size: Option<Size>,
    current: u32,
    pending: u32,
    state: &mut State,
) -> Hunger {
    let target = spec.target();
    let waits = clear.wait > target.wait;
    let hungry =
        waits && (clear.fill < target.fill || (clear.fill < FULL && clear.wait > LATE * target.wait));
    let rising = size.is_some_and(|size| size.workers > f64::from(current) * DEADBAND);
    // A training whose need is not known yet may need more in a moment.
    let known = size.is_some_and(|size| size.complete) && clear.silent.is_none();
    let sated = known && clear.wait < target.wait / 2.0 && clear.fill > FULL;
    let next = |count: u32, holds: bool| if holds { count.saturating_add(1) } else { 0 };
    state.hungry = next(state.hungry, hungry && pending == 0);
    state.rising = next(state.rising, rising);
    state.sated = next(state.sated, sated && !rising);
    let unknown = size.is_none_or(|size| !size.complete);
    let starved = hungry && unknown && clear.wait > STARVED && clear.mean_wait > STARVED / 2.0;
    Hunger { hungry, waits, rising, starved }
}
