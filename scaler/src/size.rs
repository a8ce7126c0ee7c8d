//! Takes what runs need and what a worker makes, gives how many workers that is: `margin * demand / (0.8 * capacity)`, not rounded.
//!
//! The [margin](crate::margin) is 1.15 until a smaller fleet has been seen to be enough, and then what has been seen, at least 1.

use crate::margin;
use crate::observe::run::WAITING;
use crate::sight::Clear;
use crate::signals::Signals;
use crate::spec::ScalingSpec;
use crate::state::{MAX_RUNS, MAX_SIZES, Need, State};

/// A change by more than this is a change of the training and believed at once; less is noise and averaged.
const JUMP: f64 = 0.15;

/// The share of the newest window in an average: about the last three count.
const NEWEST: f64 = 0.3;

/// Of the sizes that a window after another has wanted, so large a share is believed; the rest are windows that a change fell into.
const BELIEVED: f64 = 0.9;

/// A fleet is busy when its workers are; below this, hungry ranks say that something else than CPU limits workers.
const BUSY: f64 = 0.8;

/// Nothing measures that little or that much of anything; it is a fault of who says so.
const SANE: std::ops::RangeInclusive<f64> = 1e-6..=1e9;

/// A size by arithmetic.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Size {
    /// Samples a second that trainings could use.
    pub(crate) demand: f64,
    /// Samples a second of one worker that is busy all the time.
    pub(crate) capacity: f64,
    /// Workers, not rounded, with the margin that is kept now.
    pub(crate) workers: f64,
    /// The same without a margin.
    pub(crate) bare: f64,
    /// Every run's need is known; else this is what some of them need.
    pub(crate) complete: bool,
}

/// Average of a figure that may also really change.
fn smooth(before: Option<f64>, now: Option<f64>) -> Option<f64> {
    match (before, now.filter(|value| SANE.contains(value))) {
        (Some(before), Some(now)) if (now / before - 1.0).abs() <= JUMP => {
            Some(before + NEWEST * (now - before))
        }
        (_, Some(now)) => Some(now),
        (before, None) => before,
    }
}

/// Learns from the window. Some when a run's need and a worker's capacity are known.
pub(crate) fn learn(spec: &ScalingSpec, signals: &Signals, clear: &Clear, state: &mut State) -> Option<Size> {
    learn_capacity(signals, state);
    let (mut demand, mut fresh, mut complete) = (0.0, false, true);
    for run in signals.runs.iter().filter(|run| run.reporting > 0) {
        let place = state.needs.iter().position(|need| need.run == run.name);
        let before = place.and_then(|place| state.needs.get(place));
        let waits = run.wait > WAITING;
        // While ranks wait, a step looks longer than it is, never shorter: what was seen since they began to wait is the least.
        let least = before.filter(|need| waits && need.at_least).map(|need| need.demand);
        let seen = run.demand.map(|seen| least.map_or(seen, |least| seen.max(least)));
        let Some(needs) = smooth(before.map(|need| need.demand), seen) else {
            complete = false;
            continue;
        };
        demand += needs;
        fresh |= run.demand.is_some();
        let need = Need { run: run.name.clone(), demand: needs, at_least: waits };
        if let Some(entry) = place.and_then(|place| state.needs.get_mut(place)) {
            *entry = need;
        } else if state.needs.len() < MAX_RUNS {
            state.needs.push(need);
        }
    }
    if clear.silent.is_none() {
        let talks = |name: &str| signals.runs.iter().any(|run| run.reporting > 0 && run.name == name);
        state.needs.retain(|need| talks(&need.run));
    }
    let capacity = state.capacity.filter(|_| demand > 0.0)?;
    let bare = demand / (spec.target().utilization * capacity);
    if fresh && complete {
        state.sizes.push(bare);
        let keep = (spec.timing.sated_windows.max(1) as usize).min(MAX_SIZES);
        let surplus = state.sizes.len().saturating_sub(keep);
        state.sizes.drain(..surplus);
    }
    Some(Size { demand, capacity, workers: margin::kept(state) * bare, bare, complete })
}

/// What many workers make is not averaged with what a few made.
fn learn_capacity(signals: &Signals, state: &mut State) {
    let of = signals.workers.answered;
    let before = state.capacity.filter(|_| of <= state.capacity_of.saturating_add(state.capacity_of / 4));
    let seen = signals.workers.capacity.filter(|seen| SANE.contains(seen));
    if seen.is_some() {
        state.capacity = smooth(before, seen);
        state.capacity_of = of;
    }
}

/// Learns what part of their CPU workers reach: while ranks starve, what is seen; else no less than what is seen. When it is a part, more
/// CPU in each would not help, and each makes less than its busy time says.
pub(crate) fn learn_reach(signals: &Signals, starving: bool, state: &mut State) {
    let Some(utilization) = signals.workers.utilization.filter(|share| (0.05..=1.5).contains(share)) else {
        return;
    };
    let reached = if utilization >= BUSY { 1.0 } else { utilization };
    let before = state.reach.unwrap_or(1.0);
    state.reach = if starving { smooth(state.reach, Some(reached)) } else { Some(before.max(reached)) };
}

/// The size when workers reach only a part of their CPU.
pub(crate) fn by_reach(size: Size, state: &State) -> f64 {
    size.workers / state.reach.unwrap_or(1.0).clamp(0.05, 1.0)
}

/// What the last so many windows have wanted at most without a margin, a few of them left out.
pub(crate) fn most(state: &State, windows: u32) -> Option<f64> {
    let skipped = state.sizes.len().saturating_sub(windows as usize);
    let mut sizes: Vec<f64> = state.sizes.iter().skip(skipped).copied().collect();
    sizes.sort_unstable_by(f64::total_cmp);
    sizes.get(((sizes.len() as f64 * BELIEVED) as usize).min(sizes.len().saturating_sub(1))).copied()
}
