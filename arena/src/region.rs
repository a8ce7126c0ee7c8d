//! Takes a granted reservation, gives a region that is complete and fixed.

use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use crate::arena::Arena;
use crate::lease::RegionLease;
use crate::urgency::Urgency;

/// The one owner of a region, whatever its state; dropping it gives the region back. It is moved
/// from a reservation to its writer and to the region, so at any time only one of them exists.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) arena: Arc<Arena>,
    pub(crate) id: u64,
    pub(crate) offset: usize,
    pub(crate) len: usize,
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(watcher) = self.arena.change(|ledger| ledger.let_go(self.id)) {
            watcher.wake();
        }
    }
}

/// The reservation was taken back for something more urgent before it was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the reservation was taken back for something more urgent; reserve again")]
pub struct Revoked;

/// A place that is reserved and not begun (Empty). Something more urgent may take it back.
#[derive(Debug)]
#[must_use = "dropping a reservation gives its place back"]
pub struct Reservation {
    held: Held,
    /// Offset and length of what is not resident yet.
    fresh: (usize, usize),
}

impl Reservation {
    pub(crate) fn new(held: Held, fresh: (usize, usize)) -> Self {
        Self { held, fresh }
    }

    /// Bytes reserved.
    #[must_use]
    pub fn len(&self) -> usize {
        self.held.len
    }

    /// Whether the region has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.len == 0
    }

    /// Whether it was taken back.
    #[must_use]
    pub fn is_revoked(&self) -> bool {
        !self.held.arena.look(|ledger| ledger.exists(self.held.id))
    }

    /// Completes when the reservation is taken back or begun. Only the latest task that polls is
    /// woken.
    pub fn revocation(&self) -> Revocation {
        Revocation { arena: Arc::clone(&self.held.arena), id: self.held.id }
    }

    /// Begins to write: from now on nothing takes the place away, so wait for nothing that others
    /// hold until it is finished or dropped. The place is made resident here, which may take a
    /// millisecond for some megabytes: call it where the work is done.
    ///
    /// # Errors
    /// The reservation was taken back.
    pub fn begin_fill(self) -> Result<RegionWriter, Revoked> {
        let Self { held, fresh: (offset, len) } = self;
        let (begun, watcher) = held.arena.look(|ledger| ledger.begin(held.id));
        if let Some(watcher) = watcher {
            watcher.wake();
        }
        if !begun {
            return Err(Revoked);
        }
        held.arena.memory.populate(offset, len);
        Ok(RegionWriter { held })
    }
}

/// Completes when a reservation is taken back; made by [`Reservation::revocation`].
#[derive(Debug)]
#[must_use = "it tells nothing unless polled"]
pub struct Revocation {
    arena: Arc<Arena>,
    id: u64,
}

impl Future for Revocation {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let waker = context.waker().clone();
        let (gone, _old) = self.arena.look(|ledger| ledger.watch(self.id, waker));
        if gone { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// A region being written (Filling). Dropping it, also by a panic, gives the place back.
///
/// The bytes are those of some earlier region at first: write all of them.
#[derive(Debug)]
#[must_use = "dropping a writer gives its place back"]
pub struct RegionWriter {
    held: Held,
}

impl RegionWriter {
    /// Where the region begins in the arena's file, for a child process that writes into it. The
    /// child must have ended before the writer is used, finished or dropped.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.held.offset
    }

    /// Bytes of the region.
    #[must_use]
    pub fn len(&self) -> usize {
        self.held.len
    }

    /// Whether the region has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.len == 0
    }

    /// What is written so far.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the region is in state Filling and this is its only owner, so its bytes are
        // written through `&mut self` only; it is not freed while `held` lives.
        unsafe { self.held.arena.memory.bytes(self.held.offset, self.held.len) }
    }

    /// The bytes to write.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` excludes every other access; extents of live regions
        // never overlap, and leases exist only of finished regions.
        unsafe { self.held.arena.memory.bytes_mut(self.held.offset, self.held.len) }
    }

    /// Cuts the region into parts that threads of their own write, of these lengths from the
    /// beginning; what is left over can be written after [`SplitWriter::join`].
    ///
    /// # Errors
    /// The lengths are more than the region has; the writer comes back.
    pub fn split(self, lengths: &[usize]) -> Result<(SplitWriter, Vec<RegionPart>), Self> {
        let sum = lengths.iter().try_fold(0usize, |sum, length| sum.checked_add(*length));
        if sum.is_none_or(|sum| sum > self.held.len) {
            return Err(self);
        }
        let shared = Arc::new(Shared { completed: AtomicUsize::new(0), held: self.held });
        let mut offset = shared.held.offset;
        let parts = lengths
            .iter()
            .map(|len| {
                let part = RegionPart { shared: Arc::clone(&shared), offset, len: *len };
                offset += len;
                part
            })
            .collect();
        Ok((SplitWriter { shared, parts: lengths.len() }, parts))
    }

    /// The region is complete: from now on its bytes never change.
    pub fn finish(self) -> Region {
        self.held.arena.change(|ledger| ledger.finish(self.held.id));
        Region { held: self.held }
    }
}

#[derive(Debug)]
struct Shared {
    completed: AtomicUsize,
    held: Held,
}

/// A region whose parts are being written elsewhere; made by [`RegionWriter::split`].
#[derive(Debug)]
#[must_use = "dropping it gives the place back once all parts are gone"]
pub struct SplitWriter {
    shared: Arc<Shared>,
    parts: usize,
}

/// Why the parts of a region do not make a whole.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// Some parts are still being written; try again with the writer.
    #[error("parts of the region are still being written")]
    Unfinished(SplitWriter),
    /// A part was dropped without being completed (its work failed); the region is given back.
    #[error("{missing} parts of the region were given up")]
    GivenUp {
        /// How many.
        missing: usize,
    },
}

impl SplitWriter {
    /// Makes one writer of it again, after all parts were completed.
    ///
    /// # Errors
    /// A part is still being written, or was given up.
    pub fn join(self) -> Result<RegionWriter, JoinError> {
        let Self { shared, parts } = self;
        match Arc::try_unwrap(shared) {
            Err(shared) => Err(JoinError::Unfinished(Self { shared, parts })),
            Ok(Shared { completed, held }) => match parts - completed.into_inner() {
                0 => Ok(RegionWriter { held }),
                missing => Err(JoinError::GivenUp { missing }),
            },
        }
    }
}

/// One part of a region, written by whoever owns it.
#[derive(Debug)]
#[must_use = "a part that is dropped counts as given up; complete it"]
pub struct RegionPart {
    shared: Arc<Shared>,
    offset: usize,
    len: usize,
}

impl RegionPart {
    /// The part is written.
    pub fn complete(self) {
        self.shared.completed.fetch_add(1, Ordering::Relaxed);
    }
}

impl Deref for RegionPart {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: parts of a region are disjoint and each is made once, so this one's bytes are
        // written through `&mut self` only. The region stays in state Filling while `shared`
        // lives: finishing needs a RegionWriter, which `join` makes only when no part is left.
        unsafe { self.shared.held.arena.memory.bytes(self.offset, self.len) }
    }
}

impl DerefMut for RegionPart {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` excludes every other access.
        unsafe { self.shared.held.arena.memory.bytes_mut(self.offset, self.len) }
    }
}

/// A complete region (Ready). Dropping it frees the place, at once or with its last lease.
#[derive(Debug)]
#[must_use = "dropping a region gives its place back"]
pub struct Region {
    held: Held,
}

impl Region {
    /// Bytes of the region.
    #[must_use]
    pub fn len(&self) -> usize {
        self.held.len
    }

    /// Whether the region has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.len == 0
    }

    /// Whether the region was evicted: it can only be dropped and made again.
    #[must_use]
    pub fn is_void(&self) -> bool {
        !self.held.arena.look(|ledger| ledger.exists(self.held.id))
    }

    /// Holds the bytes in place for reading; none when the region was evicted. Lease the regions
    /// of a batch when all of them are ready: a lease cannot be evicted, by nobody.
    #[must_use]
    pub fn lease(&self) -> Option<RegionLease> {
        let held = &self.held;
        held.arena
            .look(|ledger| ledger.lease(held.id))
            .then(|| RegionLease::new(Arc::clone(&held.arena), held.id, held.offset, held.len))
    }

    /// Nobody waits for the region any more. It stays as long as nobody needs its place; of the
    /// served ones the least recently used goes first. False when it was evicted.
    pub fn mark_served(&self) -> bool {
        self.held.arena.change(|ledger| ledger.mark_served(self.held.id))
    }

    /// Somebody waits for the region: only what is more urgent than `urgency` evicts it from now
    /// on. False when it was evicted before.
    pub fn mark_wanted(&self, urgency: &Urgency) -> bool {
        self.held.arena.listen(urgency);
        self.held.arena.change(|ledger| ledger.mark_wanted(self.held.id, urgency))
    }
}
