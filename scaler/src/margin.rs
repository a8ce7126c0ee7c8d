//! Takes a size by arithmetic, gives it with as much on top as this training has been seen to need.
//!
//! The whole margin is for what is not known. A fleet that has tried less of it, on probation, with nobody waiting and queues full, keeps
//! that; when ranks wait, or the training changes, the whole one counts in the same window.

use crate::probation;
use crate::size::Size;
use crate::state::State;

/// More than is needed by arithmetic: what a worker makes differs from minute to minute, and workers die. Nothing less than 1 is ever tried:
/// that is the load that a person wants workers to have.
pub(crate) const WHOLE: f64 = 1.15;

/// A training that needs so much more than there is has changed: what was measured before says nothing of it.
pub(crate) const CHANGED: f64 = 1.25;

/// What is kept now.
pub(crate) fn kept(state: &State) -> f64 {
    state.margin.unwrap_or(WHOLE).clamp(1.0, WHOLE)
}

/// Such a margin is being tried.
pub(crate) fn learn(tried: f64, state: &mut State) {
    state.margin = (tried < WHOLE).then_some(tried.max(1.0));
}

/// Looks at one window: the size with the margin that counts now.
pub(crate) fn look(
    size: Option<Size>,
    waits: bool,
    current: u32,
    pending: u32,
    state: &mut State,
) -> Option<Size> {
    let changed = size.is_some_and(|size| size.workers > f64::from(current) * CHANGED);
    if waits || changed {
        let less = state.margin.take().is_some();
        // Workers that are missing explain hunger by themselves.
        if less && waits && pending == 0 {
            probation::blame(current, state);
        }
    }
    size.map(|size| Size { workers: kept(state) * size.bare, ..size })
}
