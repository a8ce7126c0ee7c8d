//! Takes a place in a slab, gives a batch that is complete and fixed, and its bytes for as long as somebody reads
//! them.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::slabs::{Slab, Slabs};

/// The one owner of a place; dropping it gives the place back, at once or with its last lease.
pub(crate) struct Held {
    pub(crate) slabs: Arc<Slabs>,
    pub(crate) slab: Arc<Slab>,
    pub(crate) id: u64,
    pub(crate) number: usize,
    pub(crate) offset: usize,
    pub(crate) len: usize,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.slabs.change(|state| state.ledger.let_go(self.id));
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held")
            .field("slab", &self.number)
            .field("offset", &self.offset)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// A place being written. Dropping it gives the place back.
///
/// The bytes are those of some earlier batch at first: write all of them.
#[derive(Debug)]
#[must_use = "dropping a writer gives its place back"]
pub struct SlabWriter {
    held: Held,
}

impl SlabWriter {
    pub(crate) fn new(held: Held) -> Self {
        Self { held }
    }

    /// The bytes to write. Pages that are not resident yet are made so here, which may take a millisecond for some
    /// megabytes: call it where the work is done.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        let Held { slab, offset, len, .. } = &self.held;
        let end = offset + len;
        let fresh_from = slab.fresh_from.fetch_max(end, Ordering::Relaxed).max(*offset);
        // Populating starts on a page; one that is resident in part costs nothing.
        let fresh_from = fresh_from - fresh_from % self.held.slabs.page as usize;
        slab.memory.populate(fresh_from, end.saturating_sub(fresh_from));
        // SAFETY: the place is not complete and this is its only owner, so nobody else reads or writes it: places
        // never overlap, and leases, here and in other processes, exist only of complete ones.
        unsafe { slab.memory.bytes_mut(*offset, *len) }
    }

    /// The batch is complete: from now on its bytes never change.
    pub fn finish(self) -> SlabRegion {
        self.held.slabs.change(|state| state.ledger.complete(self.held.id));
        SlabRegion { held: self.held }
    }
}

/// A complete batch. Dropping it frees the place, at once or with its last lease.
#[derive(Debug)]
#[must_use = "dropping a region gives its place back"]
pub struct SlabRegion {
    held: Held,
}

impl SlabRegion {
    /// Whether its place was given up.
    #[must_use]
    pub fn is_void(&self) -> bool {
        !self.held.slabs.look(|state| state.ledger.exists(self.held.id))
    }

    /// Holds the bytes in place for reading, here and in other processes; none when the place was given up.
    #[must_use]
    pub fn lease(&self) -> Option<SlabLease> {
        let held = &self.held;
        let leased = held.slabs.look(|state| state.ledger.lease(held.id));
        leased.then(|| SlabLease {
            slabs: Arc::clone(&held.slabs),
            slab: Arc::clone(&held.slab),
            id: held.id,
            number: held.number,
            offset: held.offset,
            len: held.len,
        })
    }
}

/// A batch held in place for reading. It can outlive its [`SlabRegion`].
#[must_use = "dropping a lease lets the batch go"]
pub struct SlabLease {
    slabs: Arc<Slabs>,
    slab: Arc<Slab>,
    id: u64,
    number: usize,
    offset: usize,
    len: usize,
}

impl SlabLease {
    /// Which slab it lies in.
    #[must_use]
    pub fn slab(&self) -> usize {
        self.number
    }

    /// Where in the slab it begins.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.offset
    }
}

impl Deref for SlabLease {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the place is complete: its writer is gone, so nobody writes. The ledger counts this lease, so the
        // place is not given to anybody else before the drop below.
        unsafe { self.slab.memory.bytes(self.offset, self.len) }
    }
}

impl AsRef<[u8]> for SlabLease {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for SlabLease {
    fn drop(&mut self) {
        self.slabs.change(|state| state.ledger.end_lease(self.id));
    }
}

impl fmt::Debug for SlabLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlabLease")
            .field("slab", &self.number)
            .field("offset", &self.offset)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}
