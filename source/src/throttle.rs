//! Takes requests that want to start and how earlier ones ended, gives each a place when the store can bear it.
//!
//! Additive increase, multiplicative decrease, as TCP does it: each success adds `1 / limit` (so one full round of requests adds one),
//! a throttled request halves the limit. Throttle answers come in bursts from requests that were in flight together; only the first
//! of a burst counts, told by the generation in which the request began, so no clock is needed.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The rule alone: no waiting, no clock.
#[derive(Debug)]
struct Limit {
    min: f64,
    max: f64,
    value: f64,
    generation: u64,
}

impl Limit {
    fn succeeded(&mut self) {
        self.value = (self.value + 1.0 / self.value).min(self.max);
    }

    fn throttled(&mut self, began_in: u64) {
        if began_in == self.generation {
            self.value = (self.value / 2.0).max(self.min);
            self.generation += 1;
        }
    }

    fn whole(&self) -> usize {
        // Between 1 and max, both small whole numbers.
        self.value.floor() as usize
    }
}

struct State {
    limit: Limit,
    /// Places that exist, taken or free.
    places: usize,
}

/// Places for requests in flight.
#[derive(Clone)]
pub(crate) struct Gate {
    semaphore: Arc<Semaphore>,
    state: Arc<Mutex<State>>,
}

/// One place; tell how the request ended with [`Place::succeeded`] or [`Place::throttled`], or just drop it.
pub(crate) struct Place {
    gate: Gate,
    permit: Option<OwnedSemaphorePermit>,
    generation: u64,
}

impl Gate {
    pub(crate) fn new(min: usize, max: usize) -> Self {
        let max = max.clamp(1, Semaphore::MAX_PERMITS);
        let min = min.clamp(1, max);
        let limit = Limit { min: min as f64, max: max as f64, value: max as f64, generation: 0 };
        Self {
            semaphore: Arc::new(Semaphore::new(max)),
            state: Arc::new(Mutex::new(State { limit, places: max })),
        }
    }

    /// Waits, first come first served, for a place.
    pub(crate) async fn enter(&self) -> Place {
        // The semaphore is never closed, so a permit always comes; without one the place would merely not be counted.
        let permit = Arc::clone(&self.semaphore).acquire_owned().await.ok();
        let generation = self.with_state(|state| state.limit.generation);
        Place { gate: self.clone(), permit, generation }
    }

    pub(crate) fn limit(&self) -> usize {
        self.with_state(|state| state.limit.whole())
    }

    pub(crate) fn publish(&self, gauge: &AtomicU64) {
        gauge.store(self.limit() as u64, Relaxed);
    }

    fn with_state<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        // Nothing in here can panic half way, so a poisoned lock still guards whole values.
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Makes the number of places follow the limit; what cannot be taken away now goes when its holder leaves.
    fn resize(&self, state: &mut State) {
        let target = state.limit.whole();
        if target > state.places {
            self.semaphore.add_permits(target - state.places);
            state.places = target;
        } else if target < state.places {
            state.places -= self.semaphore.forget_permits(state.places - target);
        }
    }
}

impl Place {
    pub(crate) fn succeeded(self) {
        self.gate.with_state(|state| {
            state.limit.succeeded();
            self.gate.resize(state);
        });
    }

    pub(crate) fn throttled(self) {
        self.gate.with_state(|state| {
            state.limit.throttled(self.generation);
            self.gate.resize(state);
        });
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some(permit) = self.permit.take() else {
            return;
        };
        self.gate.with_state(|state| {
            if state.places > state.limit.whole() {
                permit.forget();
                state.places -= 1;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;

    #[test]
    fn one_burst_of_throttling_halves_once_and_a_round_of_successes_adds_one() {
        let mut limit = Limit { min: 2.0, max: 64.0, value: 64.0, generation: 0 };
        for _ in 0..64 {
            limit.throttled(0);
        }
        assert_eq!(limit.whole(), 32);
        limit.throttled(1);
        assert_eq!(limit.whole(), 16);
        for _ in 0..17 {
            limit.succeeded();
        }
        assert_eq!(limit.whole(), 17);
        for generation in 2..20 {
            limit.throttled(generation);
        }
        assert_eq!(limit.whole(), 2);
        for _ in 0..10_000 {
            limit.succeeded();
        }
        assert_eq!(limit.whole(), 64);
    }

    #[tokio::test]
    async fn places_shrink_as_holders_leave_and_come_back() {
        let gate = Gate::new(1, 8);
        let mut held = Vec::new();
        for _ in 0..8 {
            held.push(gate.enter().await);
        }
        assert!(gate.enter().now_or_never().is_none());
        held.pop().unwrap().throttled();
        assert_eq!(gate.limit(), 4);
        // Seven are still in flight: three more must leave before anybody may enter.
        for _ in 0..3 {
            assert!(gate.enter().now_or_never().is_none());
            drop(held.pop());
        }
        assert!(gate.enter().now_or_never().is_none());
        held.pop().unwrap().succeeded();
        assert!(gate.enter().now_or_never().is_some());
        drop(held);
        for _ in 0..100 {
            gate.enter().await.succeeded();
        }
        assert_eq!(gate.limit(), 8);
        let held: Vec<_> = (0..8).map(|_| gate.enter().now_or_never()).collect();
        assert!(held.iter().all(Option::is_some));
        assert!(gate.enter().now_or_never().is_none());
    }
}
