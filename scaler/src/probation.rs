//! Takes a smaller size that is being tried, gives the size before when somebody waits; each time it happens the next try comes later.

use crate::margin;
use crate::size::Size;
use crate::spec::ScalingSpec;
use crate::state::{Blamed, Probation, State};

/// The longest pause is so many times the shortest: some hours.
const LONGEST: u32 = 6;

/// Begins a try.
pub(crate) fn begin(state: &mut State, before: u32) {
    // A second step down before the first is proven would forget where it began.
    let before = state.probation.map_or(before, |probation| probation.before.max(before));
    state.probation = Some(Probation { before, windows: 0 });
}

/// Looks at one window of the try: the size to go back to when it has failed.
pub(crate) fn look(
    spec: &ScalingSpec,
    waits: bool,
    size: Option<Size>,
    current: u32,
    now: u64,
    state: &mut State,
) -> Option<u32> {
    judge(spec, size, now, state);
    let probation = state.probation.as_mut()?;
    if probation.before <= current {
        // Somebody has made the fleet larger meanwhile.
        state.probation = None;
        return None;
    }
    if waits {
        let before = probation.before;
        (state.probation, state.margin) = (None, None);
        if f64::from(before) > f64::from(current) * margin::CHANGED {
            // A training that is slow for some minutes and quick again would come here again and again.
            fail(spec, now, state);
        } else {
            blame(current, state);
        }
        return Some(before);
    }
    probation.windows = probation.windows.saturating_add(1);
    if probation.windows >= spec.timing.sated_windows {
        state.probation = None;
        state.reverts = state.reverts.saturating_sub(1);
    }
    None
}

/// Ranks waited with this size; whether it was too small or the training has just changed is not known yet.
pub(crate) fn blame(size: u32, state: &mut State) {
    state.blamed = Some(Blamed { size, windows: 0 });
}

/// Some windows later steps show whether the training had changed. If not, the next try comes later.
fn judge(spec: &ScalingSpec, size: Option<Size>, now: u64, state: &mut State) {
    let Some(blamed) = &mut state.blamed else { return };
    blamed.windows = blamed.windows.saturating_add(1);
    if size.is_some_and(|size| size.bare * margin::WHOLE > f64::from(blamed.size) * margin::CHANGED) {
        state.blamed = None;
    } else if blamed.windows >= spec.timing.hungry_windows.max(1) {
        fail(spec, now, state);
    }
}

/// A try was wrong: the next one comes later.
fn fail(spec: &ScalingSpec, now: u64, state: &mut State) {
    state.blamed = None;
    state.reverts = state.reverts.saturating_add(1).min(LONGEST);
    let first = spec.timing.window_ms.saturating_mul(u64::from(spec.timing.sated_windows.max(1)));
    state.shrink_not_before_ms = now.saturating_add(first.saturating_mul(1 << state.reverts));
}
