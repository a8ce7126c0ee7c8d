//! Takes a ready region, gives its bytes for as long as somebody reads them.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::arena::Arena;

/// A region held in place for reading. It can outlive its [`Region`](crate::Region), and it can be
/// made a `Bytes` without a copy: `Bytes::from_owner(lease)`.
#[must_use = "dropping a lease lets the region go"]
pub struct RegionLease {
    arena: Arc<Arena>,
    id: u64,
    offset: usize,
    len: usize,
}

impl RegionLease {
    /// For a lease that the ledger has counted.
    pub(crate) fn new(arena: Arc<Arena>, id: u64, offset: usize, len: usize) -> Self {
        Self { arena, id, offset, len }
    }

    /// Where the region begins in the arena's file, for another process that reads it by reference.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.offset
    }
}

impl Deref for RegionLease {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the region is Ready: its writer is gone, so nobody writes. The ledger counts this
        // lease, so the extent is neither handed out again nor returned before the drop below.
        unsafe { self.arena.memory.bytes(self.offset, self.len) }
    }
}

impl AsRef<[u8]> for RegionLease {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for RegionLease {
    fn drop(&mut self) {
        self.arena.change(|ledger| ledger.end_lease(self.id));
    }
}

impl fmt::Debug for RegionLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegionLease")
            .field("offset", &self.offset)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// Leases whose bytes follow each other in the arena, read as one slice.
///
/// Regions begin on page boundaries, so only those that fill their last page (and in their size
/// class the whole slot) have a neighbour that follows directly.
#[must_use = "dropping a lease lets the regions go"]
#[derive(Debug)]
pub struct ChunkLease {
    /// Never empty.
    first: RegionLease,
    rest: Vec<RegionLease>,
    len: usize,
}

impl ChunkLease {
    /// Joins neighbours: as few chunks as possible, bytes in the order of `leases`.
    pub fn join(leases: impl IntoIterator<Item = RegionLease>) -> Vec<Self> {
        let mut chunks: Vec<Self> = Vec::new();
        for lease in leases {
            match chunks.last_mut() {
                Some(chunk) if chunk.is_followed_by(&lease) => {
                    chunk.len += lease.len;
                    chunk.rest.push(lease);
                }
                _ => chunks.push(Self { len: lease.len, first: lease, rest: Vec::new() }),
            }
        }
        chunks
    }

    fn is_followed_by(&self, lease: &RegionLease) -> bool {
        Arc::ptr_eq(&self.first.arena, &lease.arena) && self.first.offset + self.len == lease.offset
    }
}

impl Deref for ChunkLease {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `join` adds only leases of the same arena that begin where the chunk ends, so
        // every byte of the range is covered by one of them, and each is as readable as alone.
        unsafe { self.first.arena.memory.bytes(self.first.offset, self.len) }
    }
}

impl AsRef<[u8]> for ChunkLease {
    fn as_ref(&self) -> &[u8] {
        self
    }
}
