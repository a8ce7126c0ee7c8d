//! Takes lengths, gives buffers, and takes them back for the next batch.
//!
//! A batch has megabytes, and fresh memory costs more than receiving into it: the kernel hands out every page of it anew, and takes
//! it back page by page when the batch is dropped, which in a Python process happens under Python's lock. (Measured with batches of
//! 25 MB: 0.7 CPU seconds a GB without this, 0.25 with.)

use std::collections::TryReserveError;
use std::fmt;
use std::ops::Deref;
use std::sync::{Mutex, TryLockError};

/// Bytes kept for the next batches, in this process. A rank in step has as many batches in hand as it asks for ahead, and gives one
/// back for each that comes, so few are kept; the bound is for windows that shrink, and for loaders that come one after another, as
/// those of evaluations do: with 256 MiB the next one paid for fresh memory whenever more than that had been in hand.
const MOST_KEPT: usize = 512 << 20;

/// Lengths are rounded up to an eighth of the next power of two, so that batches that differ a little fit into each other's buffers.
const STEPS: usize = 8;

/// Shorter buffers are left to the allocator, which keeps them by itself.
const WORTH_KEEPING: usize = 1 << 20;

/// One for the process. Never waited for: who does not get it at once allocates, and frees, as if it were not there. (A fork may
/// leave it locked for ever in the child.)
static KEPT: Mutex<Kept> = Mutex::new(Kept::none());

/// A batch's bytes. Gives its memory back when it is dropped.
#[derive(Clone)]
pub(crate) struct Buffer(Vec<u8>);

impl Buffer {
    /// Room for `length` bytes; none in it yet.
    pub(crate) fn with_room(length: usize) -> Result<Self, TryReserveError> {
        if let Some(bytes) = with_kept(|kept| kept.take(length)).flatten() {
            return Ok(Self(bytes));
        }
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(rounded(length))?;
        Ok(Self(bytes))
    }

    /// Adds bytes at the end.
    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// The bytes, given away.
    pub(crate) fn into_vec(mut self) -> Vec<u8> {
        std::mem::take(&mut self.0)
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.0);
        if bytes.capacity() >= WORTH_KEEPING {
            with_kept(|kept| kept.put(bytes));
        }
    }
}

fn with_kept<T>(work: impl FnOnce(&mut Kept) -> T) -> Option<T> {
    match KEPT.try_lock() {
        Ok(mut kept) => Some(work(&mut kept)),
        Err(TryLockError::Poisoned(kept)) => Some(work(&mut kept.into_inner())),
        Err(TryLockError::WouldBlock) => None,
    }
}

fn rounded(length: usize) -> usize {
    if length < WORTH_KEEPING {
        return length;
    }
    let step = (length.checked_next_power_of_two().unwrap_or(length) / STEPS).max(1);
    length.checked_next_multiple_of(step).unwrap_or(length)
}

/// Buffers that nobody has.
struct Kept {
    free: Vec<Vec<u8>>,
    bytes: usize,
}

impl Kept {
    const fn none() -> Self {
        Self { free: Vec::new(), bytes: 0 }
    }

    /// The smallest that has room and no more than twice as much.
    fn take(&mut self, length: usize) -> Option<Vec<u8>> {
        let fits = |capacity: usize| capacity >= length && capacity / 2 <= length;
        let places = self.free.iter().enumerate().filter(|(_, bytes)| fits(bytes.capacity()));
        let (place, _) = places.min_by_key(|(_, bytes)| bytes.capacity())?;
        let mut bytes = self.free.swap_remove(place);
        self.bytes -= bytes.capacity();
        bytes.clear();
        Some(bytes)
    }

    /// Keeps it; the ones that came first go where that is too much.
    fn put(&mut self, bytes: Vec<u8>) {
        if bytes.capacity() > MOST_KEPT {
            return;
        }
        self.bytes += bytes.capacity();
        self.free.push(bytes);
        while self.bytes > MOST_KEPT && !self.free.is_empty() {
            self.bytes -= self.free.remove(0).capacity();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn a_buffer_is_taken_where_it_fits_and_not_where_it_wastes() {
        let mut kept = Kept::none();
        for mebibytes in [8, 20, 12] {
            kept.put(Vec::with_capacity(mebibytes * MIB));
        }
        assert!(kept.take(21 * MIB).is_none(), "no room");
        assert!(kept.take(3 * MIB).is_none(), "more than twice as long");
        assert!(kept.take(11 * MIB).is_some_and(|bytes| bytes.capacity() == 12 * MIB), "the smallest");
        assert!(kept.take(11 * MIB).is_some_and(|bytes| bytes.capacity() == 20 * MIB));
        assert!(kept.take(11 * MIB).is_none());
        assert_eq!(kept.bytes, 8 * MIB);
    }

    #[test]
    fn a_taken_buffer_is_empty() {
        let mut kept = Kept::none();
        kept.put(vec![7; 2 * MIB]);
        assert!(kept.take(2 * MIB).is_some_and(|bytes| bytes.is_empty()));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut kept = Kept::none();
        for _ in 0..100 {
            kept.put(Vec::with_capacity(10 * MIB));
            assert!(kept.bytes <= MOST_KEPT);
            assert_eq!(kept.bytes, kept.free.iter().map(Vec::capacity).sum::<usize>());
        }
        let most = MOST_KEPT / (10 * MIB);
        assert_eq!(kept.free.len(), most);
        kept.put(Vec::with_capacity(MOST_KEPT + 1));
        assert_eq!(kept.free.len(), most, "one that is too long alone drives nothing out");
    }

    #[test]
    fn lengths_that_differ_a_little_have_one_size() {
        assert_eq!(rounded(100), 100);
        assert_eq!(rounded(25 * MIB), 28 * MIB);
        assert_eq!(rounded(27 * MIB + 5), 28 * MIB);
        for length in [MIB, MIB + 1, 3 * MIB, 31 * MIB, usize::MAX] {
            assert!(rounded(length) >= length);
            assert!(rounded(length) - length <= length / 4);
        }
    }
}
