//! Takes how the fleet stands, gives what forbids a change for a while; every hold has an end.

use crate::reason::Reason;
use crate::signals::Fleet;
use crate::spec::ScalingSpec;
use crate::state::{Pending, State};

/// What a fleet allows.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Hold {
    /// Nothing may change, and why.
    pub(crate) all: Option<Reason>,
    /// The fleet may not grow, and why.
    pub(crate) growth: Option<Reason>,
    /// Workers that were asked for and are not ready: capacity that is on its way.
    pub(crate) pending: u32,
}

/// Looks at the fleet.
pub(crate) fn look(spec: &ScalingSpec, fleet: &Fleet, current: u32, now: u64, state: &mut State) -> Hold {
    let pending = current.saturating_sub(fleet.ready);
    state.pending = match state.pending {
        _ if pending == 0 => None,
        // A worker that falls over and comes back again and again is no progress; only more ready ones than ever are.
        Some(waiting) if fleet.ready <= waiting.ready && waiting.since_ms <= now => Some(waiting),
        _ => Some(Pending { since_ms: now, ready: fleet.ready }),
    };
    state.rollout_since_ms = match state.rollout_since_ms {
        _ if !fleet.rollout => None,
        Some(since) if since <= now => Some(since),
        _ => Some(now),
    };
    let for_ms = |since: u64| now.saturating_sub(since);
    let rollout = state.rollout_since_ms.is_some_and(|since| for_ms(since) < spec.timing.rollout_deadline_ms);
    let stuck = state
        .pending
        .map(|waiting| for_ms(waiting.since_ms))
        .filter(|ms| *ms >= spec.timing.pending_deadline_ms);
    let growth = if fleet.ready == 0 {
        Some(Reason::NoneReady)
    } else {
        stuck.map(|for_ms| Reason::NotStarting { pending, for_ms })
    };
    Hold { all: rollout.then_some(Reason::Rollout), growth, pending }
}
