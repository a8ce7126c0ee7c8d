//! Room for decompressed copies, counted before it is used.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes that all manifests together may take in the cache folder. Clones share the count.
#[derive(Clone, Debug)]
pub struct DiskBudget {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    limit: u64,
    used: AtomicU64,
}

impl DiskBudget {
    /// A budget of `limit` bytes.
    #[must_use]
    pub fn new(limit: u64) -> Self {
        Self { inner: Arc::new(Inner { limit, used: AtomicU64::new(0) }) }
    }

    /// Bytes taken now.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.inner.used.load(Relaxed)
    }

    /// All bytes.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.inner.limit
    }

    pub(crate) fn lease(&self) -> DiskLease {
        DiskLease { budget: self.clone(), bytes: 0 }
    }
}

/// Part of a budget, given back on drop.
#[derive(Debug)]
pub(crate) struct DiskLease {
    budget: DiskBudget,
    bytes: u64,
}

/// The budget does not hold it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NoRoom {
    pub(crate) needed: u64,
    pub(crate) limit: u64,
    pub(crate) used_by_others: u64,
}

impl DiskLease {
    /// Makes the lease hold `bytes` in all; never shrinks it.
    pub(crate) fn grow_to(&mut self, bytes: u64) -> Result<(), NoRoom> {
        let more = bytes.saturating_sub(self.bytes);
        let inner = &self.budget.inner;
        inner
            .used
            .fetch_update(Relaxed, Relaxed, |used| used.checked_add(more).filter(|sum| *sum <= inner.limit))
            .map(|_| self.bytes += more)
            .map_err(|used| NoRoom {
                needed: bytes,
                limit: inner.limit,
                used_by_others: used.saturating_sub(self.bytes),
            })
    }
}

impl Drop for DiskLease {
    fn drop(&mut self) {
        self.budget.inner.used.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_share_one_limit_and_give_back() {
        let budget = DiskBudget::new(100);
        let (mut one, mut other) = (budget.lease(), budget.lease());
        one.grow_to(60).unwrap();
        one.grow_to(50).unwrap();
        other.grow_to(30).unwrap();
        assert_eq!(other.grow_to(41), Err(NoRoom { needed: 41, limit: 100, used_by_others: 60 }));
        assert_eq!(budget.used(), 90);
        drop(one);
        other.grow_to(100).unwrap();
        drop(other);
        assert_eq!(budget.used(), 0);
    }
}
