//! Takes whole batches, gives places for them in slabs: files of one size that other processes map once for
//! reading. What is resident never exceeds the settings' bytes.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use crate::memory::SharedMemory;
use crate::need_queue::NeedQueue;
use crate::slab_ledger::{Found, Place, SlabLedger};
use crate::slab_region::{Held, SlabWriter};
use crate::urgency::{Reconsider, Urgency};

/// Why slabs could not be made, or a place not given.
#[derive(Debug, thiserror::Error)]
pub enum SlabError {
    /// Not even one slab fits.
    #[error("{bytes} bytes of shared memory are less than one slab of {slab} bytes; raise the memory")]
    TooSmall {
        /// Bytes asked for.
        bytes: u64,
        /// Bytes of a slab.
        slab: u64,
    },
    /// The place can never be given.
    #[error("a batch of {asked} bytes is larger than a slab of {slab} bytes; raise the largest batch")]
    TooLarge {
        /// Bytes asked for.
        asked: u64,
        /// Bytes of a slab.
        slab: u64,
    },
    /// The system gave no shared memory.
    #[error("the system gives no shared memory for a slab of {slab} bytes: {reason}")]
    Memory {
        /// Bytes of a slab.
        slab: u64,
        /// What it said.
        reason: String,
    },
}

/// How slabs are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlabSettings {
    /// Bytes of all slabs together; rounded down to whole slabs.
    pub bytes: u64,
    /// Bytes of one slab, rounded up to whole pages: the largest batch.
    pub slab_bytes: u64,
}

/// What slabs look like at one moment, in bytes of whole pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlabStats {
    /// Bytes that may be resident.
    pub capacity: u64,
    /// Bytes of the slabs that exist.
    pub made: u64,
    /// Bytes being written.
    pub filling: u64,
    /// Bytes complete and not leased.
    pub idle: u64,
    /// Bytes being read.
    pub leased: u64,
    /// Requests that wait for a place.
    pub waiting: usize,
    /// Complete batches that were given up, so far.
    pub evictions: u64,
}

/// Shared memory for whole batches.
///
/// Places are given in the order of need, and nobody overtakes the most urgent request, however small. A batch that
/// nobody leases stays until its place is needed.
pub struct Slabs {
    pub(crate) page: u64,
    slab_bytes: usize,
    most_slabs: usize,
    state: Mutex<State>,
    me: Weak<dyn Reconsider>,
}

pub(crate) struct State {
    pub(crate) ledger: SlabLedger,
    slabs: Vec<Arc<Slab>>,
    next_id: u64,
    waiting: NeedQueue<Waiter>,
    /// Granted or failed, and not polled since.
    settled: HashMap<u64, Result<Place, SlabError>>,
}

struct Waiter {
    pages: u64,
    waker: Option<Waker>,
}

/// One file and this process's mapping of it.
pub(crate) struct Slab {
    pub(crate) memory: SharedMemory,
    /// Where the part begins that nobody has written yet.
    pub(crate) fresh_from: AtomicUsize,
}

impl Slabs {
    /// Slabs, none of them made yet.
    ///
    /// # Errors
    /// Not even one fits.
    pub fn create(settings: SlabSettings) -> Result<Arc<Self>, SlabError> {
        let page = rustix::param::page_size() as u64;
        let slab_pages = settings.slab_bytes.div_ceil(page).max(1);
        let too_small = || SlabError::TooSmall { bytes: settings.bytes, slab: settings.slab_bytes };
        let slab_bytes = slab_pages.checked_mul(page).and_then(|bytes| usize::try_from(bytes).ok());
        let slab_bytes = slab_bytes.ok_or_else(too_small)?;
        let most_slabs = usize::try_from(settings.bytes / slab_bytes as u64).unwrap_or(usize::MAX);
        if most_slabs == 0 {
            return Err(too_small());
        }
        Ok(Arc::new_cyclic(|me: &Weak<Self>| Self {
            page,
            slab_bytes,
            most_slabs,
            state: Mutex::new(State {
                ledger: SlabLedger::new(slab_pages, most_slabs),
                slabs: Vec::new(),
                next_id: 0,
                waiting: NeedQueue::new(),
                settled: HashMap::new(),
            }),
            me: Weak::clone(me) as Weak<dyn Reconsider>,
        }))
    }

    /// Asks for a place of `len` bytes. Its turn is taken now, not at the first poll; dropping the future gives it
    /// up.
    pub fn reserve(self: &Arc<Self>, len: usize, urgency: &Urgency) -> SlabReserve {
        if len > self.slab_bytes {
            return SlabReserve { slabs: Arc::clone(self), len, ticket: None };
        }
        urgency.listen(&self.me);
        // An empty batch has a page, too: every place is one of its own.
        let pages = (len as u64).div_ceil(self.page).max(1);
        let id = self.change(|state| {
            let id = state.next_id;
            state.next_id += 1;
            state.waiting.insert(id, urgency, Waiter { pages, waker: None });
            id
        });
        SlabReserve { slabs: Arc::clone(self), len, ticket: Some((id, urgency.clone())) }
    }

    /// Bytes of one slab: of each file, and of the largest batch.
    #[must_use]
    pub fn slab_bytes(&self) -> usize {
        self.slab_bytes
    }

    /// Bytes that may be resident.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.most_slabs as u64 * self.slab_bytes as u64
    }

    /// A descriptor of a slab's file, for a process that reads it. It cannot be written through it.
    ///
    /// # Errors
    /// No such slab, or no descriptor left.
    pub fn reader_fd(&self, slab: usize) -> io::Result<OwnedFd> {
        let slab = self.look(|state| state.slabs.get(slab).cloned());
        slab.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?.memory.reader_fd()
    }

    /// What is used and waited for now.
    #[must_use]
    pub fn stats(&self) -> SlabStats {
        self.look(|state| {
            let pages = state.ledger.pages();
            SlabStats {
                capacity: self.capacity(),
                made: state.slabs.len() as u64 * self.slab_bytes as u64,
                filling: pages.filling * self.page,
                idle: pages.idle * self.page,
                leased: pages.leased * self.page,
                waiting: state.waiting.len(),
                evictions: state.ledger.evictions(),
            }
        })
    }

    pub(crate) fn look<R>(&self, look: impl FnOnce(&mut State) -> R) -> R {
        look(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes the state, gives the places that can be given then, and wakes outside the lock.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut state);
        let woken = state.grant(self.slab_bytes);
        drop(state);
        woken.into_iter().for_each(Waker::wake);
        result
    }
}

impl State {
    /// Serves the waiting requests from the front, as long as the front gets its place.
    fn grant(&mut self, slab_bytes: usize) -> Vec<Waker> {
        let mut woken = Vec::new();
        while let Some((id, urgency, waiter)) = self.waiting.front() {
            let (pages, urgency) = (waiter.pages, urgency.clone());
            let settled = match self.ledger.take(id, pages) {
                Found::Place(place) => Ok(place),
                Found::Nothing => break,
                Found::NewSlab => match SharedMemory::create_for_readers(slab_bytes) {
                    Ok(memory) => {
                        self.slabs.push(Arc::new(Slab { memory, fresh_from: AtomicUsize::new(0) }));
                        self.ledger.add_slab();
                        continue;
                    }
                    // With the slabs there are it goes on, in less memory.
                    Err(_) if self.ledger.slabs() > 0 => {
                        self.ledger.stop_growing();
                        continue;
                    }
                    Err(error) => {
                        Err(SlabError::Memory { slab: slab_bytes as u64, reason: error.to_string() })
                    }
                },
            };
            let waiter = self.waiting.remove(id, &urgency);
            self.settled.insert(id, settled);
            woken.extend(waiter.and_then(|waiter| waiter.waker));
        }
        woken
    }
}

impl Reconsider for Slabs {
    fn reconsider(&self) {
        self.change(|_| ());
    }
}

impl fmt::Debug for Slabs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slabs").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

/// A request that waits for its place; made by [`Slabs::reserve`].
#[must_use = "the place comes from awaiting this"]
pub struct SlabReserve {
    slabs: Arc<Slabs>,
    len: usize,
    /// Id and urgency; none once the place is out, or for one that is too large.
    ticket: Option<(u64, Urgency)>,
}

impl Future for SlabReserve {
    type Output = Result<SlabWriter, SlabError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some((id, urgency)) = &self.ticket else {
            let (asked, slab) = (self.len as u64, self.slabs.slab_bytes as u64);
            return Poll::Ready(Err(SlabError::TooLarge { asked, slab }));
        };
        let (id, waker) = (*id, context.waker().clone());
        let (settled, _old) = self.slabs.look(|state| match state.settled.remove(&id) {
            Some(Ok(place)) => (Some(Ok((place, state.slabs.get(place.slab).cloned()))), None),
            Some(Err(error)) => (Some(Err(error)), None),
            None => (None, state.waiting.get_mut(id, urgency).and_then(|waiter| waiter.waker.replace(waker))),
        });
        let Some(settled) = settled else {
            return Poll::Pending;
        };
        self.ticket = None;
        Poll::Ready(settled.and_then(|(place, slab)| {
            // A place lies in a slab that was made.
            let Some(slab) = slab else {
                return Err(SlabError::Memory {
                    slab: self.slabs.slab_bytes as u64,
                    reason: "the slab is not there".into(),
                });
            };
            // Within a mapping, whose length is a usize.
            let offset = (place.start * self.slabs.page) as usize;
            let slabs = Arc::clone(&self.slabs);
            Ok(SlabWriter::new(Held { slabs, slab, id, number: place.slab, offset, len: self.len }))
        }))
    }
}

impl Drop for SlabReserve {
    fn drop(&mut self) {
        if let Some((id, urgency)) = self.ticket.take() {
            let _waiter = self.slabs.change(|state| {
                state.settled.remove(&id);
                state.ledger.let_go(id);
                state.waiting.remove(id, &urgency)
            });
        }
    }
}

#[cfg(test)]
mod tests;
