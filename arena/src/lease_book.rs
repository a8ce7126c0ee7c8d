//! Takes the leases given to readers, gives those that a reader has held too long. Pure: time is an
//! argument, measured from any moment that stays the same.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

/// Every reader gets this long, however little it reads (design of the lease deadline: 10 s).
const GRACE: Duration = Duration::from_secs(10);

/// And must read at least this fast on average: below 10 MB/s a reader holds memory that others
/// need, and a batch would arrive too late to be of use.
const BYTES_PER_SECOND: u64 = 10_000_000;

/// Names an open lease in a [`LeaseBook`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseId(u64);

/// The deadlines of all open leases: 10 s and 1 s more per 10 MB.
#[derive(Debug, Default)]
pub struct LeaseBook {
    next: u64,
    deadlines: HashMap<LeaseId, Duration>,
    by_deadline: BTreeSet<(Duration, LeaseId)>,
}

impl LeaseBook {
    /// A book without leases.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens a lease of `bytes` at time `now`.
    pub fn open(&mut self, now: Duration, bytes: u64) -> LeaseId {
        let id = LeaseId(self.next);
        self.next += 1;
        let nanoseconds_per_byte = 1_000_000_000 / BYTES_PER_SECOND;
        let reading = Duration::from_nanos(bytes.saturating_mul(nanoseconds_per_byte));
        let deadline = now.saturating_add(GRACE).saturating_add(reading);
        self.deadlines.insert(id, deadline);
        self.by_deadline.insert((deadline, id));
        id
    }

    /// Closes a lease; false when it was not open.
    pub fn close(&mut self, id: LeaseId) -> bool {
        match self.deadlines.remove(&id) {
            Some(deadline) => self.by_deadline.remove(&(deadline, id)),
            None => false,
        }
    }

    /// The open leases whose deadline is before `now`, the latest last. They stay open until closed.
    #[must_use]
    pub fn overdue(&self, now: Duration) -> Vec<LeaseId> {
        let late = self.by_deadline.iter().take_while(|(deadline, _)| *deadline < now);
        late.map(|(_, id)| *id).collect()
    }

    /// When the next lease becomes overdue.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        self.by_deadline.first().map(|(deadline, _)| *deadline)
    }

    /// Open leases.
    #[must_use]
    pub fn open_leases(&self) -> usize {
        self.deadlines.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn deadline_is_ten_seconds_and_one_per_ten_megabytes() {
        for (bytes, allowed) in [(0, 10_000), (10_000_000, 11_000), (48_000_000, 14_800), (1_000_000, 10_100)]
        {
            let mut book = LeaseBook::new();
            let id = book.open(seconds(100), bytes);
            let deadline = seconds(100) + Duration::from_millis(allowed);
            assert_eq!(book.next_deadline(), Some(deadline), "{bytes} bytes");
            assert_eq!(book.overdue(deadline), []);
            assert_eq!(book.overdue(deadline + Duration::from_nanos(1)), [id]);
        }
    }

    #[test]
    fn overdue_lists_until_closed_and_in_order_of_deadline() {
        let mut book = LeaseBook::new();
        let large = book.open(seconds(0), 100_000_000);
        let small = book.open(seconds(1), 0);
        let fast = book.open(seconds(0), 0);
        assert!(book.close(fast));
        assert!(!book.close(fast));
        assert_eq!(book.overdue(seconds(15)), [small]);
        assert_eq!(book.overdue(seconds(60)), [small, large]);
        assert_eq!(book.overdue(seconds(60)), [small, large]);
        assert!(book.close(small) && book.close(large));
        assert_eq!(book.overdue(seconds(60)), []);
        assert_eq!((book.open_leases(), book.next_deadline()), (0, None));
    }

    #[test]
    fn absurd_sizes_and_times_do_not_overflow() {
        let mut book = LeaseBook::new();
        let id = book.open(Duration::MAX, u64::MAX);
        assert_eq!(book.next_deadline(), Some(Duration::MAX));
        assert_eq!(book.overdue(Duration::MAX), []);
        assert!(book.close(id));
    }
}
