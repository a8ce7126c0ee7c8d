//! Takes spec, signals, the state of the decision before and the time, gives how many workers there should be, why, and the next state.

use serde::Serialize;

use crate::bounds::{self, Limit};
use crate::hold;
use crate::hunger;
use crate::margin;
use crate::probation;
use crate::reason::Reason;
use crate::sight::{self, Clear, Sight};
use crate::signals::Signals;
use crate::size::{self, Size};
use crate::spec::{Fallback, ScalingSpec};
use crate::state::State;

/// After so many windows without a decision, what was counted in windows means nothing any more. A leader that dies leaves a state of up to
/// 60 s, its lease runs for 15 s, and who follows watches a window: that must not be one.
const GAP: u64 = 12;

/// Hungry ranks make a fleet larger by a quarter when arithmetic does not say more.
const HUNGRY_GROWTH: f64 = 1.25;

/// When workers reach only a part of their CPU, arithmetic may at most double them: whatever limits them may be shared by all.
const REACH_GROWTH: u32 = 2;

/// A fleet with plenty becomes smaller by at most a tenth at once.
const SATED_SHRINK: f64 = 0.9;

/// When arithmetic needs less than this part of a fleet, its training has changed and its steps show that: the fleet may shrink by as much as
/// it may grow at once.
const FAR: f64 = 0.75;
const FAR_SHRINK: f64 = 1.0 / bounds::GROWTH as f64;

/// And after this part of the time that a small step waits for: steps say how much too large it is, not the lack of waiting.
const FAR_SOONER: f64 = 0.4;

/// How many, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Workers that there should be; an absolute number.
    pub replicas: u32,
    /// Why; its `Display` is one sentence.
    pub reason: Reason,
    /// What kept the size from being as it was wished.
    pub limited_by: Option<Limit>,
    /// The figures of this window, for status and metrics.
    pub figures: Figures,
    /// What the next decision needs.
    pub state: State,
}

/// The figures of one window; all of them are finite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// Longest wait of all ranks, 0..1, where it can be seen.
    pub wait: Option<f64>,
    /// Emptiest queue of all ranks, 0..1, where it can be seen.
    pub fill: Option<f64>,
    /// Ranks whose reports count.
    pub reporting_ranks: u32,
    /// Samples a second that trainings could use.
    pub demand: Option<f64>,
    /// Samples a second of one busy worker.
    pub capacity: Option<f64>,
    /// Workers by arithmetic, not rounded.
    pub needed: Option<f64>,
}

/// Decides for one pipeline at the end of a window. Asked again before the next window has ended it says the same again.
#[must_use]
pub fn decide(spec: &ScalingSpec, signals: &Signals, previous: Option<&State>, now_ms: u64) -> Decision {
    let window = spec.timing.window_ms.max(1);
    let current = signals.fleet.replicas;
    let mut state = previous.cloned().unwrap_or_default();
    let since = now_ms.checked_sub(state.at_ms);
    let begun = previous.is_some() && since.is_some_and(|since| since <= window.saturating_mul(GAP));
    if begun && since < Some(window - window / 10) {
        let (replicas, reason) = (state.replicas, state.reason.clone());
        return Decision { replicas, reason, limited_by: None, figures: Figures::default(), state };
    }
    state.at_ms = now_ms;
    let mut figures = Figures {
        reporting_ranks: signals.runs.iter().map(|run| run.reporting).fold(0, u32::saturating_add),
        ..Figures::default()
    };
    let (wish, reason) = match current {
        None => (spec.first, Reason::FirstSize),
        Some(current) if !begun => {
            state = resumed(state, now_ms);
            (current, Reason::Watching)
        }
        Some(current) => weigh(spec, signals, current, now_ms, &mut state, &mut figures),
    };
    let from = current.unwrap_or(wish);
    let (replicas, limited_by) = bounds::keep(spec, from, wish);
    let bounded = replicas != wish && (wish == from || matches!(limited_by, Some(Limit::Min)));
    let (min, max) = spec.range();
    let reason = if bounded { Reason::Bounds { min, max } } else { reason };
    if replicas != from {
        // What was counted was counted of another fleet.
        (state.hungry, state.rising, state.sated) = (0, 0, 0);
    }
    state.replicas = replicas;
    state.reason = reason.clone();
    Decision { replicas, reason, limited_by, figures, state }
}

/// After a gap: what was learnt stays, what was counted in windows does not.
fn resumed(state: State, now: u64) -> State {
    State {
        at_ms: now,
        reported: state.reported,
        needs: state.needs,
        capacity: state.capacity,
        capacity_of: state.capacity_of,
        reach: state.reach,
        margin: state.margin,
        quiet_since_ms: state.quiet_since_ms.filter(|since| *since <= now),
        reverts: state.reverts,
        // A clock that was set back must not forbid it for ever.
        shrink_not_before_ms: state.shrink_not_before_ms.min(now),
        ..State::default()
    }
}

/// One whole window: a wish and its reason.
fn weigh(
    spec: &ScalingSpec,
    signals: &Signals,
    current: u32,
    now: u64,
    state: &mut State,
    figures: &mut Figures,
) -> (u32, Reason) {
    let hold = hold::look(spec, &signals.fleet, current, now, state);
    let sight = sight::look(spec, signals, state);
    let quiet_for = quiet_for(&sight, now, state);
    let idle = |for_ms: u64| {
        (for_ms >= spec.idle_after_ms).then_some((spec.range().0.min(current), Reason::Idle { for_ms }))
    };
    match sight {
        Sight::Never => {
            (state.lost, state.silent) = (0, 0);
            // Never smaller for want of data: somebody may have sized it by hand.
            (spec.first.max(current), Reason::FirstSize)
        }
        Sight::Lost(why) => lost(spec, why, current, state),
        Sight::Quiet => {
            (state.hungry, state.rising, state.sated, state.lost, state.silent) = (0, 0, 0, 0, 0);
            let quiet = Reason::Quiet { for_ms: quiet_for, idle_after_ms: spec.idle_after_ms };
            idle(quiet_for).unwrap_or((current, quiet))
        }
        Sight::Clear(clear) => {
            state.reported = true;
            // A run that has been silent for as long as lost reports are waited for has ended, if others go on.
            state.lost = 0;
            state.silent = if clear.silent.is_some() { state.silent.saturating_add(1) } else { 0 };
            let silent = clear.silent.clone().filter(|_| state.silent < spec.reports.failure_threshold);
            let clear = Clear { silent, ..clear };
            let size = size::learn(spec, signals, &clear, state);
            figures.wait = Some(clear.wait);
            figures.fill = Some(clear.fill);
            figures.demand = size.map(|size| size.demand);
            figures.capacity = state.capacity;
            figures.needed = size.map(|size| size.workers);
            if let Some(idle) = idle(quiet_for) {
                return idle;
            }
            if let Some(reason) = hold.all {
                return (current, reason);
            }
            seen(spec, signals, &clear, size, &hold, current, now, state)
        }
    }
}

/// For how long nobody has pulled.
fn quiet_for(sight: &Sight, now: u64, state: &mut State) -> u64 {
    let quiet = match sight {
        Sight::Quiet => true,
        Sight::Clear(clear) => !clear.pulls,
        // Not known, so it counts as neither: the count goes on when it is known again.
        Sight::Lost(_) => return 0,
        Sight::Never => false,
    };
    state.quiet_since_ms =
        if quiet { Some(state.quiet_since_ms.map_or(now, |since| since.min(now))) } else { None };
    state.quiet_since_ms.map_or(0, |since| now.saturating_sub(since))
}

fn lost(spec: &ScalingSpec, why: sight::Blind, current: u32, state: &mut State) -> (u32, Reason) {
    (state.hungry, state.rising, state.sated) = (0, 0, 0);
    state.lost = state.lost.saturating_add(1);
    let windows = state.lost;
    if windows < spec.reports.failure_threshold {
        return (current, Reason::Lost { why, windows });
    }
    let size = match spec.reports.fallback {
        Fallback::CurrentReplicas => current,
        Fallback::CurrentReplicasIfHigher(size) => size.max(current),
    };
    (size, Reason::Fallback { why, windows })
}

/// Ranks can be seen.
#[expect(clippy::too_many_arguments, reason = "one stage, called once")]
fn seen(
    spec: &ScalingSpec,
    signals: &Signals,
    clear: &Clear,
    size: Option<Size>,
    hold: &hold::Hold,
    current: u32,
    now: u64,
    state: &mut State,
) -> (u32, Reason) {
    let hunger = hunger::count(spec, clear, size, current, hold.pending, state);
    let hungry = Reason::Hungry { wait: clear.wait, fill: clear.fill, windows: state.hungry };
    let before = probation::look(spec, hunger.waits, size, current, now, state);
    let size = margin::look(size, hunger.waits, current, hold.pending, state);
    // A training that has become quicker needs more than there was before the try.
    let quicker =
        hunger.hungry && hunger.rising && size.is_some_and(|size| before < Some(whole(size.workers)));
    if let Some(before) = before.filter(|_| !quicker) {
        return (before, Reason::Reverted { wait: clear.wait, tried: current });
    }
    let patience = spec.timing.hungry_windows.max(1);
    let by_demand = size.filter(|_| hunger.rising && (hunger.hungry || state.rising >= patience));
    let starving = state.hungry >= patience;
    size::learn_reach(signals, starving, state);
    let starved = hunger.starved && hold.pending == 0 && signals.workers.served > 0;
    if let Some(reason) = hold.growth.as_ref().filter(|_| by_demand.is_some() || starving || starved) {
        return (current, reason.clone());
    }
    let demanded = by_demand.map(|size| {
        let reason = if signals.in_workers {
            Reason::Desired { workers: size.demand }
        } else {
            Reason::Demand { demand: size.demand, capacity: size.capacity }
        };
        (whole(size.workers), reason)
    });
    if starved {
        return (current.max(1).saturating_mul(bounds::GROWTH), Reason::Starved { wait: clear.wait });
    }
    if starving {
        let reached = size
            .map_or(0, |size| whole(size::by_reach(size, state)).min(current.saturating_mul(REACH_GROWTH)));
        let factor = whole(f64::from(current) * HUNGRY_GROWTH).max(reached);
        return match demanded {
            Some((wish, reason)) if wish >= factor => (wish, reason),
            _ => (factor, hungry),
        };
    }
    if let Some(demanded) = demanded {
        return demanded;
    }
    if hunger.hungry && hold.pending > 0 {
        return (current, Reason::Warming { pending: hold.pending });
    }
    fewer(spec, hold, current, now, state)
        .unwrap_or((current, Reason::Enough { wait: clear.wait, needed: size.map(|size| size.workers) }))
}

/// A smaller size, when everybody has had plenty for long enough.
fn fewer(
    spec: &ScalingSpec,
    hold: &hold::Hold,
    current: u32,
    now: u64,
    state: &mut State,
) -> Option<(u32, Reason)> {
    let windows = state.sated;
    let enough = spec.timing.sated_windows.max(1);
    if hold.pending > 0 || state.probation.is_some() || now < state.shrink_not_before_ms {
        return None;
    }
    let reach = state.reach.unwrap_or(1.0).clamp(0.05, 1.0);
    let least = |bare: f64, margin: f64| whole(margin * bare / reach);
    let factor_of = |factor: f64| ((f64::from(current) * factor) as u32).max(spec.range().0);
    // Without a size by arithmetic nothing says how far down is safe.
    let soon = ((f64::from(enough) * FAR_SOONER) as u32).max(1);
    // Where arithmetic was wrong lately, small steps find the size.
    let far = size::most(state, soon).filter(|bare| {
        state.reverts == 0 && f64::from(least(*bare, margin::WHOLE)) < f64::from(current) * FAR
    });
    let (wish, needed) = match far {
        Some(bare) if windows >= soon => (least(bare, margin::WHOLE).max(factor_of(FAR_SHRINK)), bare),
        _ if windows >= enough => {
            let bare = size::most(state, enough)?;
            // Down to the load that a worker is planned for, with nothing on top, as long as queues stay full.
            (least(bare, 1.0).max(factor_of(SATED_SHRINK)), bare)
        }
        _ => return None,
    };
    if wish >= current {
        return None;
    }
    probation::begin(state, current);
    margin::learn(f64::from(wish) * reach / needed, state);
    Some((wish, Reason::Sated { windows, needed }))
}

/// Up to the next whole worker; what is too large for a number of workers is the largest one.
fn whole(workers: f64) -> u32 {
    // `as` saturates, and gives 0 for what is no number.
    workers.ceil().clamp(1.0, f64::from(u32::MAX)) as u32
}

#[cfg(test)]
mod tests;
