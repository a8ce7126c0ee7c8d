//! Takes a number (smaller is sooner), gives a place in every queue that the number's owner waits in.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Something that grants by urgency and must look again when an urgency changes.
pub(crate) trait Reconsider: Send + Sync {
    /// Grants whatever can be granted now.
    fn reconsider(&self);
}

/// How soon something is needed. Clones share one cell, so changing it moves everything that was
/// asked for with it, also what already waits.
///
/// Smaller is more urgent; the unit is the caller's (microseconds until needed, say). Two cells
/// with the same value are ordered by their age, so that two ranges never hold half of the arena
/// each and wait for each other. A cell flagged as head comes before all that are not.
#[derive(Clone)]
pub struct Urgency(Arc<Cell>);

struct Cell {
    value: AtomicU64,
    head: AtomicBool,
    /// Age of the cell: the tie breaker, and the key of its group in a queue.
    ticket: u64,
    listeners: Mutex<Vec<Weak<dyn Reconsider>>>,
}

/// The order of need; smaller is more urgent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    not_head: bool,
    value: u64,
    ticket: u64,
}

impl Urgency {
    /// The value of what nobody waits for: everything else comes first.
    pub const IDLE: u64 = u64::MAX;

    /// A new cell, not flagged as head.
    #[must_use]
    pub fn new(value: u64) -> Self {
        static NEXT_TICKET: AtomicU64 = AtomicU64::new(0);
        Self(Arc::new(Cell {
            value: AtomicU64::new(value),
            head: AtomicBool::new(false),
            ticket: NEXT_TICKET.fetch_add(1, Ordering::Relaxed),
            listeners: Mutex::new(Vec::new()),
        }))
    }

    /// The present value.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.value.load(Ordering::Acquire)
    }

    /// Changes the value for all clones; queues that hold something of this cell look again.
    pub fn set(&self, value: u64) {
        if self.0.value.swap(value, Ordering::AcqRel) != value {
            self.notify();
        }
    }

    /// Whether this is the head: first in every queue, and allowed to draw on the reserve of a
    /// [`Budget`](crate::Budget).
    #[must_use]
    pub fn is_head(&self) -> bool {
        self.0.head.load(Ordering::Acquire)
    }

    /// Makes this the head, or an ordinary one again. Meant for the most urgent range; several
    /// heads are ordered by their values.
    pub fn set_head(&self, head: bool) {
        if self.0.head.swap(head, Ordering::AcqRel) != head {
            self.notify();
        }
    }

    pub(crate) fn rank(&self) -> Rank {
        Rank { not_head: !self.is_head(), value: self.get(), ticket: self.0.ticket }
    }

    pub(crate) fn ticket(&self) -> u64 {
        self.0.ticket
    }

    /// Registers who must look again on a change. Call it before queueing: a change in between is
    /// then seen either by the queueing itself or by the notification.
    pub(crate) fn listen(&self, listener: &Weak<dyn Reconsider>) {
        let mut listeners = self.0.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        if !listeners.iter().any(|known| known.ptr_eq(listener)) {
            listeners.retain(|known| known.strong_count() > 0);
            listeners.push(Weak::clone(listener));
        }
    }

    fn notify(&self) {
        let listeners: Vec<_> = {
            let listeners = self.0.listeners.lock().unwrap_or_else(PoisonError::into_inner);
            listeners.iter().filter_map(Weak::upgrade).collect()
        };
        for listener in listeners {
            listener.reconsider();
        }
    }
}

impl fmt::Debug for Urgency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Urgency")
            .field("value", &self.get())
            .field("head", &self.is_head())
            .finish_non_exhaustive()
    }
}
