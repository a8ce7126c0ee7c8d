//! Takes requests for bytes with their urgencies, gives permits strictly in the order of need.

use std::collections::HashSet;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use crate::need_queue::NeedQueue;
use crate::urgency::{Reconsider, Urgency};

/// Why a budget, or a request on it, was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BudgetError {
    /// The request can never be granted.
    #[error(
        "{budget}: a request of {asked} bytes is larger than the whole budget of {capacity} bytes; raise {budget}"
    )]
    TooLarge {
        /// The setting that holds the budget.
        budget: &'static str,
        /// Bytes asked for.
        asked: u64,
        /// Bytes of the whole budget.
        capacity: u64,
    },
    /// The reserve leaves nothing for ordinary requests.
    #[error(
        "{budget}: the reserve of {reserve} bytes for the most urgent work is larger than the budget of {capacity} bytes; raise {budget}"
    )]
    ReserveTooLarge {
        /// The setting that holds the budget.
        budget: &'static str,
        /// Bytes set aside for the head.
        reserve: u64,
        /// Bytes of the whole budget.
        capacity: u64,
    },
}

/// What a budget looks like at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BudgetStats {
    /// Bytes of the whole budget.
    pub capacity: u64,
    /// Bytes of it that only a head may draw on.
    pub reserve: u64,
    /// Bytes held by permits.
    pub used: u64,
    /// Requests that wait.
    pub waiting: usize,
    /// Bytes they wait for.
    pub waiting_bytes: u64,
}

/// A number of bytes that work must hold a part of while it runs.
///
/// The most urgent waiter is served first. Nobody less urgent overtakes it, even where it would
/// fit, so a stream of small requests cannot starve a large one. Of the capacity, `reserve` bytes
/// are granted only to urgencies flagged as head, so the head finds room however many ordinary
/// permits are held back by something else.
pub struct Budget {
    name: &'static str,
    capacity: u64,
    reserve: u64,
    state: Mutex<State>,
    me: Weak<dyn Reconsider>,
}

struct State {
    used: u64,
    next_id: u64,
    waiting: NeedQueue<Waiter>,
    waiting_bytes: u64,
    /// Granted, but the future has not been polled since: their bytes count as used.
    granted: HashSet<u64>,
}

struct Waiter {
    bytes: u64,
    waker: Option<Waker>,
}

impl Budget {
    /// A budget of `capacity` bytes, `reserve` of them for heads only. `name` is the setting that
    /// people change, errors carry it. An ordinary request larger than `capacity - reserve` waits
    /// until it is flagged as head.
    ///
    /// # Errors
    /// The reserve is larger than the capacity.
    pub fn new(name: &'static str, capacity: u64, reserve: u64) -> Result<Arc<Self>, BudgetError> {
        if reserve > capacity {
            return Err(BudgetError::ReserveTooLarge { budget: name, reserve, capacity });
        }
        Ok(Arc::new_cyclic(|me: &Weak<Self>| Self {
            name,
            capacity,
            reserve,
            state: Mutex::new(State {
                used: 0,
                next_id: 0,
                waiting: NeedQueue::new(),
                waiting_bytes: 0,
                granted: HashSet::new(),
            }),
            me: Weak::clone(me) as Weak<dyn Reconsider>,
        }))
    }

    /// Asks for `bytes`. The place in the queue is taken now, not at the first poll; dropping the
    /// future gives it up. The urgency is read at every grant, so it may change while waiting.
    ///
    /// The future fails at once when `bytes` is larger than the whole budget.
    pub fn acquire(self: &Arc<Self>, bytes: u64, urgency: &Urgency) -> Acquire {
        if bytes > self.capacity {
            return Acquire { budget: Arc::clone(self), bytes, ticket: None };
        }
        urgency.listen(&self.me);
        let id = self.change(|state| {
            let id = state.next_id;
            state.next_id += 1;
            state.waiting.insert(id, urgency, Waiter { bytes, waker: None });
            state.waiting_bytes += bytes;
            id
        });
        Acquire { budget: Arc::clone(self), bytes, ticket: Some((id, urgency.clone())) }
    }

    /// The setting that holds this budget.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Bytes of the whole budget.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// What is used and waited for now.
    #[must_use]
    pub fn stats(&self) -> BudgetStats {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        BudgetStats {
            capacity: self.capacity,
            reserve: self.reserve,
            used: state.used,
            waiting: state.waiting.len(),
            waiting_bytes: state.waiting_bytes,
        }
    }

    /// Changes the state, grants what can be granted then, and wakes outside the lock: a waker may
    /// run code that comes back here.
    fn change<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut state);
        let woken = state.grant(self.capacity, self.reserve);
        drop(state);
        woken.into_iter().for_each(Waker::wake);
        result
    }

    fn give_back(&self, bytes: u64) {
        if bytes > 0 {
            self.change(|state| state.used -= bytes);
        }
    }
}

impl Reconsider for Budget {
    fn reconsider(&self) {
        self.change(|_| ());
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Budget").field("name", &self.name).field("stats", &self.stats()).finish()
    }
}

impl State {
    /// Serves the queue from its front, as long as the front fits.
    fn grant(&mut self, capacity: u64, reserve: u64) -> Vec<Waker> {
        let mut woken = Vec::new();
        while let Some((id, urgency, waiter)) = self.waiting.front() {
            let limit = if urgency.is_head() { capacity } else { capacity - reserve };
            if waiter.bytes > limit.saturating_sub(self.used) {
                break;
            }
            let urgency = urgency.clone();
            if let Some(waiter) = self.waiting.remove(id, &urgency) {
                self.used += waiter.bytes;
                self.waiting_bytes -= waiter.bytes;
                self.granted.insert(id);
                woken.extend(waiter.waker);
            }
        }
        woken
    }
}

/// A request that waits for its [`Permit`]; made by [`Budget::acquire`].
#[must_use = "the permit comes from awaiting this"]
pub struct Acquire {
    budget: Arc<Budget>,
    bytes: u64,
    /// Place in the queue; none once the permit is out, or for a request that is too large.
    ticket: Option<(u64, Urgency)>,
}

impl Future for Acquire {
    type Output = Result<Permit, BudgetError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some((id, urgency)) = &self.ticket else {
            return Poll::Ready(Err(BudgetError::TooLarge {
                budget: self.budget.name,
                asked: self.bytes,
                capacity: self.budget.capacity,
            }));
        };
        let waker = context.waker().clone();
        let old_waker = {
            let mut state = self.budget.state.lock().unwrap_or_else(PoisonError::into_inner);
            if state.granted.remove(id) {
                None
            } else {
                // Handed out of the lock: dropping a waker may run code that comes back here.
                Some(state.waiting.get_mut(*id, urgency).and_then(|w| w.waker.replace(waker)))
            }
        };
        match old_waker {
            Some(_) => Poll::Pending,
            None => {
                self.ticket = None;
                Poll::Ready(Ok(Permit { budget: Arc::clone(&self.budget), bytes: self.bytes }))
            }
        }
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        if let Some((id, urgency)) = self.ticket.take() {
            let bytes = self.bytes;
            let _waiter = self.budget.change(|state| {
                if state.granted.remove(&id) {
                    state.used -= bytes;
                    None
                } else {
                    let waiter = state.waiting.remove(id, &urgency);
                    if waiter.is_some() {
                        state.waiting_bytes -= bytes;
                    }
                    waiter
                }
            });
        }
    }
}

/// Bytes of a [`Budget`], given back when dropped.
#[derive(Debug)]
#[must_use = "dropping a permit gives its bytes back"]
pub struct Permit {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Permit {
    /// Bytes held.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Gives back what is held above `bytes`; never grows.
    pub fn shrink_to(&mut self, bytes: u64) {
        let surplus = self.bytes.saturating_sub(bytes);
        self.bytes -= surplus;
        self.budget.give_back(surplus);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.budget.give_back(self.bytes);
    }
}

#[cfg(test)]
mod tests;
