//! Takes reservations, gives regions of shared memory in the order of need.

use std::fmt;
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};

use crate::extent::{Extent, Extents};
use crate::ledger::{Ledger, Progress};
use crate::memory::SharedMemory;
use crate::region::{Held, Reservation};
use crate::urgency::{Reconsider, Urgency};

/// The unit of allocation, unless the system's pages are larger.
const SMALLEST_PAGE: usize = 4096;

/// Why an arena could not be made, or a reservation not granted.
#[derive(Debug, thiserror::Error)]
pub enum ArenaError {
    /// The arena has not even one page.
    #[error("arena: {bytes} bytes are less than one page; raise arena")]
    TooSmall {
        /// Bytes asked for.
        bytes: u64,
    },
    /// The kernel gave no shared memory of that size.
    #[error(
        "arena: no shared memory of {space} bytes of address space for {bytes} bytes of data; raise the limit of address space (ulimit -v) or lower arena"
    )]
    Memory {
        /// Bytes that may be resident.
        bytes: u64,
        /// Bytes of address space needed for them.
        space: u64,
        /// What the kernel said.
        source: io::Error,
    },
    /// The reservation can never be granted.
    #[error(
        "arena: a region of {asked} bytes is larger than the whole arena of {capacity} bytes; raise arena"
    )]
    TooLarge {
        /// Bytes asked for.
        asked: u64,
        /// Bytes of the whole arena.
        capacity: u64,
    },
    /// Unused pages could not be returned to the system to make room for others.
    #[error("arena: the system did not take back unused pages")]
    Punch {
        /// What the kernel said.
        source: io::Error,
    },
}

/// How an arena is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaSettings {
    /// Bytes that may be resident at once; rounded down to whole pages.
    pub bytes: u64,
}

/// What an arena looks like at one moment. Bytes count whole pages, as the budget does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArenaStats {
    /// Bytes that may be resident.
    pub capacity: u64,
    /// Bytes that are resident or promised: all regions, and free pages kept for reuse.
    pub committed: u64,
    /// Bytes reserved and not begun.
    pub empty: u64,
    /// Bytes being written.
    pub filling: u64,
    /// Bytes complete and not leased.
    pub ready: u64,
    /// Bytes being read.
    pub leased: u64,
    /// Reservations that wait.
    pub waiting: usize,
    /// Bytes they wait for.
    pub waiting_bytes: u64,
    /// Ready regions that were given up, so far.
    pub evictions: u64,
    /// Reservations that were taken back before they were begun, so far.
    pub revocations: u64,
    /// Times that free pages were returned to the system, so far.
    pub punches: u64,
    /// Bytes of them.
    pub punched_bytes: u64,
}

/// Shared memory for samples; see the crate's documentation for the states of a region.
///
/// One memfd, mapped once, much larger in addresses than in bytes: what is resident never exceeds
/// the settings' bytes. Dropping handles in any order is safe; the memory goes with the last one.
pub struct Arena {
    pub(crate) memory: SharedMemory,
    page: usize,
    ledger: Mutex<Ledger>,
    me: Weak<dyn Reconsider>,
}

impl Arena {
    /// Makes an arena. Nothing of it is resident yet.
    ///
    /// # Errors
    /// Less than a page asked for, or the kernel refuses the file or its mapping.
    pub fn create(settings: ArenaSettings) -> Result<Arc<Self>, ArenaError> {
        let page = rustix::param::page_size().max(SMALLEST_PAGE);
        let pages = settings.bytes / page as u64;
        if pages == 0 {
            return Err(ArenaError::TooSmall { bytes: settings.bytes });
        }
        // 2^36 pages of 4 KiB are 256 TiB, more than can be mapped; below it nothing overflows.
        let extents = (pages < 1 << 36).then(|| Extents::new(pages));
        let space = extents.as_ref().map_or(u64::MAX, |extents| extents.space() * page as u64);
        let refused = |source| ArenaError::Memory { bytes: settings.bytes, space, source };
        let (Some(extents), Ok(length)) = (extents, usize::try_from(space)) else {
            return Err(refused(io::Error::from(io::ErrorKind::OutOfMemory)));
        };
        let memory = SharedMemory::create(length).map_err(refused)?;
        Ok(Arc::new_cyclic(|me: &Weak<Self>| Self {
            memory,
            page,
            ledger: Mutex::new(Ledger::new(extents)),
            me: Weak::clone(me) as Weak<dyn Reconsider>,
        }))
    }

    /// Asks for a region of `len` bytes. The place in the queue is taken now, not at the first
    /// poll; dropping the future gives it up. The urgency is read at every grant and stays with
    /// the region: a more urgent reservation may revoke or evict it.
    ///
    /// The future fails at once when `len` is larger than the whole arena.
    pub fn reserve(self: &Arc<Self>, len: usize, urgency: &Urgency) -> Reserve {
        // An empty region has a page, too: every region has a place of its own.
        let pages = len.div_ceil(self.page).max(1) as u64;
        if pages > self.capacity() / self.page as u64 {
            return Reserve { arena: Arc::clone(self), len, ticket: None };
        }
        self.listen(urgency);
        let id = self.change(|ledger| ledger.reserve(pages, urgency));
        Reserve { arena: Arc::clone(self), len, ticket: Some((id, urgency.clone())) }
    }

    /// Bytes that may be resident at once.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.look(|ledger| ledger.stats_in_pages().capacity) * self.page as u64
    }

    /// What is used and waited for now.
    #[must_use]
    pub fn stats(&self) -> ArenaStats {
        let pages = self.look(|ledger| ledger.stats_in_pages());
        let page = self.page as u64;
        ArenaStats {
            capacity: pages.capacity * page,
            committed: pages.committed * page,
            empty: pages.empty * page,
            filling: pages.filling * page,
            ready: pages.ready * page,
            leased: pages.leased * page,
            waiting_bytes: pages.waiting_bytes * page,
            punched_bytes: pages.punched_bytes * page,
            ..pages
        }
    }

    /// A descriptor of the arena's file that a child process inherits; see
    /// [`InheritedArena`](crate::InheritedArena). Every child started while it is open gets it, so
    /// pass it as a standard stream of the one child, or close it right after the start.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn inheritable_fd(&self) -> io::Result<OwnedFd> {
        self.memory.inheritable_fd()
    }

    pub(crate) fn listen(&self, urgency: &Urgency) {
        urgency.listen(&self.me);
    }

    /// Reads or changes the ledger where the change cannot let anybody waiting proceed.
    pub(crate) fn look<R>(&self, look: impl FnOnce(&mut Ledger) -> R) -> R {
        look(&mut self.ledger.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes the ledger, grants what can be granted then, and wakes outside the lock: a waker may
    /// run code that comes back here.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut Ledger) -> R) -> R {
        let mut ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut ledger);
        // Pages are returned under the lock, so no grant counts on them before they are gone.
        ledger.grant(|extent| {
            let (offset, len) = self.in_bytes(extent);
            self.memory.punch(offset, len)
        });
        let woken = std::mem::take(&mut ledger.woken);
        drop(ledger);
        for waker in woken {
            waker.wake();
        }
        result
    }

    /// An extent in bytes. It lies in the mapping, whose length is a usize.
    fn in_bytes(&self, extent: Extent) -> (usize, usize) {
        (extent.start as usize * self.page, extent.pages as usize * self.page)
    }
}

impl Reconsider for Arena {
    fn reconsider(&self) {
        self.change(|_| ());
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arena").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

/// A reservation that waits for its place; made by [`Arena::reserve`].
#[must_use = "the reservation comes from awaiting this"]
pub struct Reserve {
    arena: Arc<Arena>,
    len: usize,
    /// Id and urgency; none once the reservation is out, or for one that is too large.
    ticket: Option<(u64, Urgency)>,
}

impl Future for Reserve {
    type Output = Result<Reservation, ArenaError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some((id, urgency)) = &self.ticket else {
            return Poll::Ready(Err(ArenaError::TooLarge {
                asked: self.len as u64,
                capacity: self.arena.capacity(),
            }));
        };
        let (id, waker) = (*id, context.waker().clone());
        let (offset, fresh) = match self.arena.look(|ledger| ledger.progress(id, urgency, waker)) {
            Progress::Waiting(_) => return Poll::Pending,
            Progress::Granted(extent, growth) => {
                let start = extent.start + extent.pages - growth;
                let fresh = Extent { start, pages: growth };
                (self.arena.in_bytes(extent).0, self.arena.in_bytes(fresh))
            }
            // The reservation says so when it is begun.
            Progress::Revoked => (0, (0, 0)),
            Progress::Failed(errno) => {
                self.ticket = None;
                return Poll::Ready(Err(ArenaError::Punch { source: errno.into() }));
            }
        };
        self.ticket = None;
        let held = Held { arena: Arc::clone(&self.arena), id, offset, len: self.len };
        Poll::Ready(Ok(Reservation::new(held, fresh)))
    }
}

impl Drop for Reserve {
    fn drop(&mut self) {
        if let Some((id, urgency)) = self.ticket.take() {
            let _waker = self.arena.change(|ledger| ledger.cancel(id, &urgency));
        }
    }
}

#[cfg(test)]
mod tests;
