//! Takes a smaller size that is being tried, gives the size before when somebody waits; each time it happens the next try comes later.

use crate::spec::ScalingSpec;
use crate::state::{Probation, State};

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
    hungry: bool,
    current: u32,
    now: u64,
    state: &mut State,
) -> Option<u32> {
    let probation = state.probation.as_mut()?;
    if probation.before <= current {
        // Somebody has made the fleet larger meanwhile.
        state.probation = None;
        return None;
    }
    if hungry {
        let before = probation.before;
        state.probation = None;
        state.reverts = state.reverts.saturating_add(1).min(LONGEST);
        let first = spec.timing.window_ms.saturating_mul(u64::from(spec.timing.sated_windows.max(1)));
        state.shrink_not_before_ms = now.saturating_add(first.saturating_mul(1 << state.reverts));
        return Some(before);
    }
    probation.windows = probation.windows.saturating_add(1);
    if probation.windows >= spec.timing.sated_windows {
        state.probation = None;
        state.reverts = state.reverts.saturating_sub(1);
    }
    None
}
