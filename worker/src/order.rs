//! Takes a position, gives the data set and record that stand there.
//!
//! Nothing here needs memory that grows with the data: an epoch's permutation is a Feistel network
//! over the smallest power of four that holds it, walked until it lands inside (cycle walking).

use twox_hash::XxHash3_64;

/// Rounds of the network. Four make it a good permutation of large domains; the small ones of small
/// data sets want more, and a round costs a nanosecond.
const ROUNDS: usize = 10;

/// A seeded bijection over `0 .. n`.
#[derive(Clone, Debug)]
pub struct Permutation {
    n: u64,
    half_bits: u32,
    keys: [u64; ROUNDS],
}

impl Permutation {
    /// The permutation of `0 .. n` for this seed, epoch and lane. Lanes keep apart the permutations
    /// that one stream needs: of its epochs, and of each data set's fractional part.
    #[must_use]
    pub fn new(n: u64, seed: u64, epoch: u64, lane: u64) -> Self {
        // At least one bit a side; the domain is then at most four times n.
        let bits = 64 - n.saturating_sub(1).leading_zeros();
        let half_bits = bits.div_ceil(2).max(1);
        let mut keys = [0; ROUNDS];
        for (round, key) in keys.iter_mut().enumerate() {
            let mut bytes = [0; 32];
            for (slot, number) in bytes.chunks_exact_mut(8).zip([seed, epoch, lane, round as u64]) {
                slot.copy_from_slice(&number.to_le_bytes());
            }
            *key = XxHash3_64::oneshot(&bytes);
        }
        Self { n, half_bits, keys }
    }

    /// Where `index`, below n, is sent.
    #[must_use]
    pub fn at(&self, index: u64) -> u64 {
        debug_assert!(index < self.n);
        let mut value = index;
        loop {
            value = self.encrypt(value);
            if value < self.n {
                return value;
            }
        }
    }

    /// What is sent to `value`, below n: the inverse of [`Self::at`].
    #[must_use]
    pub fn before(&self, value: u64) -> u64 {
        debug_assert!(value < self.n);
        let mut index = value;
        // The walk of `at` backwards: what it stepped over on its way here lies outside, too.
        loop {
            index = self.decrypt(index);
            if index < self.n {
                return index;
            }
        }
    }

    fn encrypt(&self, value: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for key in self.keys {
            (left, right) = (right, (left ^ mixed(right, key)) & mask);
        }
        (left << self.half_bits) | right
    }

    fn decrypt(&self, value: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for key in self.keys.into_iter().rev() {
            (left, right) = ((right ^ mixed(left, key)) & mask, left);
        }
        (left << self.half_bits) | right
    }
}

/// A round's function: the finaliser of a 64-bit mixer, every input bit reaches every output bit.
fn mixed(half: u64, key: u64) -> u64 {
    let mut mixed = (half ^ key).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^= mixed >> 31;
    mixed.wrapping_mul(0x94d0_49bb_1331_11eb) >> 32
}

/// One data set's part of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Records n of the data set.
    pub records: u64,
    /// Slots of an epoch: `floor(n * percent / 100)`.
    pub slots: u64,
}

impl Share {
    /// The share of a data set of `records` records at `percent`; None when it overflows.
    #[must_use]
    pub fn new(records: u64, percent: u32) -> Option<Self> {
        let slots = u128::from(records) * u128::from(percent) / 100;
        Some(Self { records, slots: u64::try_from(slots).ok()? })
    }
}

/// A record: which data set, and which of its records (0-based over non-blank lines).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RecordId {
    /// Index in the stream's list of data sets.
    pub dataset: usize,
    /// Index in the data set.
    pub record: u64,
}

/// The order of one stream.
#[derive(Clone, Debug)]
pub struct Order {
    seed: u64,
    shuffle: bool,
    shares: Vec<Share>,
    /// `begins[d]` is where data set d's slots begin; the last entry is N.
    begins: Vec<u64>,
}

/// A stream that has nothing to read, or too much to count.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    /// N is zero.
    #[error(
        "an epoch of this stream has no samples: its data sets are empty, or percent leaves nothing of them"
    )]
    Empty,
    /// N is beyond what positions can count.
    #[error("an epoch of this stream has more samples than 2^53")]
    TooLarge,
}

/// Lane of the epochs' permutations; data set d's fractional part has lane d + 1.
const EPOCH_LANE: u64 = 0;

impl Order {
    /// The order over these shares.
    ///
    /// # Errors
    /// No samples at all, or more than can be counted.
    pub fn new(seed: u64, shuffle: bool, shares: Vec<Share>) -> Result<Self, OrderError> {
        let mut begins = vec![0u64];
        let mut total = 0u64;
        for share in &shares {
            total = total
                .checked_add(share.slots)
                .filter(|total| *total <= feedmill_protocol::position::POSITION_END)
                .ok_or(OrderError::TooLarge)?;
            begins.push(total);
        }
        if total == 0 {
            return Err(OrderError::Empty);
        }
        Ok(Self { seed, shuffle, shares, begins })
    }

    /// N: positions in one epoch.
    #[must_use]
    pub fn samples_per_epoch(&self) -> u64 {
        self.begins[self.shares.len()]
    }

    /// The epoch of a position.
    #[must_use]
    pub fn epoch(&self, position: u64) -> u64 {
        position / self.samples_per_epoch()
    }

    /// The epoch-space index that the order assigns to a position: what stands in `sample_index`.
    #[must_use]
    pub fn assigned(&self, position: u64) -> u64 {
        let n = self.samples_per_epoch();
        let (epoch, index) = (position / n, position % n);
        if self.shuffle { Permutation::new(n, self.seed, epoch, EPOCH_LANE).at(index) } else { index }
    }

    /// The `k`-th candidate, from 1, to stand in for a bad record at a position: an epoch-space index
    /// `xxh3_64(seed u64le, position u64le, k u32le) mod N` (preprocessing rules §8).
    #[must_use]
    pub fn substitute(&self, position: u64, k: u32) -> u64 {
        let mut bytes = [0; 20];
        bytes[..8].copy_from_slice(&self.seed.to_le_bytes());
        bytes[8..16].copy_from_slice(&position.to_le_bytes());
        bytes[16..].copy_from_slice(&k.to_le_bytes());
        XxHash3_64::oneshot(&bytes) % self.samples_per_epoch()
    }

    /// The record behind an epoch-space index, below N, in this epoch. Whole passes over a data set come
    /// first, then a seeded subset for the fraction, another one each epoch.
    #[must_use]
    pub fn record(&self, epoch: u64, index: u64) -> RecordId {
        // Empty shares begin where the next one does; the last begin at or below index is its own.
        let dataset = self.begins.partition_point(|begin| *begin <= index) - 1;
        let share = self.shares[dataset];
        let slot = index - self.begins[dataset];
        let (pass, within) = (slot / share.records, slot % share.records);
        let whole_passes = share.slots / share.records;
        let record = if pass < whole_passes || !self.shuffle {
            within
        } else {
            Permutation::new(share.records, self.seed, epoch, dataset as u64 + 1).at(within)
        };
        RecordId { dataset, record }
    }

    /// The positions of an epoch to which the order assigns a record, at most `most` of them, in no order: one for
    /// each whole pass over its data set, and perhaps one more for the fraction. None for a record that is not there,
    /// and for positions past the last one.
    #[must_use]
    pub fn positions(&self, epoch: u64, id: RecordId, most: usize) -> Vec<u64> {
        let n = self.samples_per_epoch();
        let (Some(share), Some(begin)) = (self.shares.get(id.dataset), self.begins.get(id.dataset)) else {
            return Vec::new();
        };
        if id.record >= share.records {
            return Vec::new();
        }
        let whole_passes = share.slots / share.records;
        let within = if self.shuffle {
            Permutation::new(share.records, self.seed, epoch, id.dataset as u64 + 1).before(id.record)
        } else {
            id.record
        };
        let fraction = (within < share.slots % share.records).then_some(within);
        let order = self.shuffle.then(|| Permutation::new(n, self.seed, epoch, EPOCH_LANE));
        (0..whole_passes)
            .map(|pass| pass * share.records + id.record)
            .chain(fraction.map(|within| whole_passes * share.records + within))
            .map(|slot| begin + slot)
            .map(|index| order.as_ref().map_or(index, |order| order.before(index)))
            .filter_map(|index| epoch.checked_mul(n)?.checked_add(index))
            .filter(|position| *position < feedmill_protocol::position::POSITION_END)
            .take(most)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn the_order_is_pinned() {
        let order = Order::new(42, true, vec![Share::new(1000, 100).unwrap()]).unwrap();
        let first: Vec<u64> = (0..8).map(|position| order.assigned(position)).collect();
        assert_eq!(
            first,
            [483, 957, 364, 930, 694, 536, 661, 962],
            "changing the order changes every plan: raise component.order"
        );
    }

    #[test]
    fn nothing_to_read_is_refused() {
        let empty = Order::new(1, true, vec![Share::new(1, 50).unwrap(), Share::new(0, 100).unwrap()]);
        assert_eq!(empty.map(|_| ()), Err(OrderError::Empty));
        assert_eq!(Share::new(u64::MAX, 200), None);
        let large = Order::new(1, true, vec![Share::new(1 << 53, 100).unwrap(); 2]);
        assert_eq!(large.map(|_| ()), Err(OrderError::TooLarge));
    }

    /// A permutation that left neighbours together would show here: how often i+1 follows i.
    #[test]
    fn neighbours_are_torn_apart() {
        let permutation = Permutation::new(10_000, 7, 0, 0);
        let follows =
            (0..9_999u64).filter(|i| permutation.at(*i + 1) == permutation.at(*i).wrapping_add(1)).count();
        assert!(follows < 10, "{follows} of 10,000 neighbours stayed together");
        let even = (0..5_000u64).filter(|i| permutation.at(*i).is_multiple_of(2)).count();
        assert!((2_300..2_700).contains(&even), "{even} even ones in the first half");
    }

    proptest! {
        #[test]
        fn it_is_a_bijection(n in 1u64..3000, seed: u64, epoch: u64) {
            let permutation = Permutation::new(n, seed, epoch, 0);
            let mut seen: Vec<u64> = (0..n).map(|i| permutation.at(i)).collect();
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..n).collect::<Vec<_>>());
        }

        /// Far positions cost no more than near ones and stay inside.
        #[test]
        fn huge_domains_stay_inside(n in (1u64 << 40)..(1 << 53), seed: u64, at: u64) {
            prop_assert!(Permutation::new(n, seed, 3, 0).at(at % n) < n);
        }

        /// A record is found at the positions where it stands, and nowhere else.
        #[test]
        fn positions_are_those_where_the_record_stands(
            sets in prop::collection::vec((0u64..40, 1u32..350), 1..5), seed: u64, shuffle: bool, epoch in 0u64..4,
        ) {
            let shares: Vec<Share> = sets.iter().map(|(n, percent)| Share::new(*n, *percent).unwrap()).collect();
            let Ok(order) = Order::new(seed, shuffle, shares) else { return Ok(()) };
            let n = order.samples_per_epoch();
            let mut stand: BTreeMap<RecordId, Vec<u64>> = BTreeMap::new();
            for position in epoch * n..(epoch + 1) * n {
                stand.entry(order.record(epoch, order.assigned(position))).or_default().push(position);
            }
            for (dataset, (records, _)) in sets.into_iter().enumerate() {
                for record in 0..=records {
                    let id = RecordId { dataset, record };
                    let mut found = order.positions(epoch, id, 100);
                    found.sort_unstable();
                    prop_assert_eq!(&found, &stand.remove(&id).unwrap_or_default());
                    prop_assert!(order.positions(epoch, id, 1).len() <= 1);
                }
            }
            let nowhere = RecordId { dataset: 9, record: 0 };
            prop_assert!(order.positions(epoch, nowhere, 9).is_empty());
        }

        /// Also where an epoch has as many samples as positions can count.
        #[test]
        fn the_inverse_leads_back(n in 1u64..(1 << 53), seed: u64, epoch: u64, at: u64) {
            let permutation = Permutation::new(n, seed, epoch, 0);
            prop_assert_eq!(permutation.before(permutation.at(at % n)), at % n);
            prop_assert_eq!(permutation.at(permutation.before(at % n)), at % n);
        }

        /// Each record of each data set comes as often as percent says, the fraction once more for a
        /// subset of the right size.
        #[test]
        fn each_epoch_holds_each_share(
            sets in prop::collection::vec((0u64..40, 1u32..350), 1..5), seed: u64, shuffle: bool, epoch in 0u64..4,
        ) {
            let shares: Vec<Share> = sets.iter().map(|(n, percent)| Share::new(*n, *percent).unwrap()).collect();
            let Ok(order) = Order::new(seed, shuffle, shares) else { return Ok(()) };
            let n = order.samples_per_epoch();
            let mut counts: BTreeMap<RecordId, u64> = BTreeMap::new();
            for position in epoch * n..(epoch + 1) * n {
                prop_assert_eq!(order.epoch(position), epoch);
                *counts.entry(order.record(epoch, order.assigned(position))).or_default() += 1;
            }
            for (dataset, (records, percent)) in sets.into_iter().enumerate() {
                let slots = records * u64::from(percent) / 100;
                let of_set = |id: &RecordId| id.dataset == dataset;
                prop_assert_eq!(counts.iter().filter(|(id, _)| of_set(id)).map(|(_, c)| c).sum::<u64>(), slots);
                for record in 0..records {
                    let count = counts.get(&RecordId { dataset, record }).copied().unwrap_or(0);
                    let whole = slots / records;
                    prop_assert!(count == whole || count == whole + 1, "{} times of {}", count, whole);
                }
            }
        }
    }
}
