//! Takes hashes of things, gives how many different ones there are and which came how often, in bounded memory.
//!
//! Every hash is kept while there are few. When there are more than a fixed number, only hashes that begin with a
//! zero bit are kept, then two zero bits, and so on: a fair sample of the *different* things, each with the exact
//! number of its uses (Gibbons, "Distinct sampling", VLDB 2001). What is kept depends only on what was added, never on
//! the order or on how it was split up. Counts are exact up to the fixed number, and estimates above.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Different things that are kept, over all data sets: about 100 MB. Beyond it, of a share of 1 % the standard error is
/// about a hundredth of it.
pub const CAPACITY: usize = 1 << 20;

/// Bytes of an entry in the packed form: hash, data set, uses, first record.
const PACKED: usize = 16 + 4 + 8 + 8;

/// What is known of one thing in one data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// How often it came.
    pub uses: u64,
    /// The lowest record it came in.
    pub first: u64,
}

/// A sample of different things. Merging is associative and commutative.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Distinct {
    capacity: usize,
    /// Hashes that begin with fewer zero bits are not kept.
    level: u32,
    /// (hash, data set) → uses.
    seen: HashMap<(u128, u32), Seen, BuildHasherDefault<Half>>,
}

/// Half of a hash is a hash: its low bits, the data set added. What is kept is decided by the high bits.
#[derive(Default)]
struct Half(u64);

impl Hasher for Half {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u128(&mut self, hash: u128) {
        // The low half.
        self.0 ^= hash as u64;
    }

    fn write_u32(&mut self, set: u32) {
        // An odd number with bits all over: neighbouring data sets are far from each other.
        self.0 = self.0.wrapping_add(u64::from(set).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(u32::from(*byte)));
    }
}

impl Default for Distinct {
    fn default() -> Self {
        Self::new(CAPACITY)
    }
}

impl Distinct {
    /// An empty one that keeps at most `capacity` things.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self { capacity: capacity.max(1), level: 0, seen: HashMap::default() }
    }

    /// Counts one thing of a data set.
    pub fn add(&mut self, hash: u128, set: u32, record: u64) {
        self.put(hash, set, Seen { uses: 1, first: record });
    }

    fn put(&mut self, hash: u128, set: u32, seen: Seen) {
        if hash.leading_zeros() < self.level {
            return;
        }
        let entry = self.seen.entry((hash, set)).or_insert(Seen { uses: 0, first: u64::MAX });
        entry.uses = entry.uses.saturating_add(seen.uses);
        entry.first = entry.first.min(seen.first);
        while self.seen.len() > self.capacity && self.level < 128 {
            self.level += 1;
            let level = self.level;
            self.seen.retain(|(hash, _), _| hash.leading_zeros() >= level);
        }
    }

    /// Adds what another one saw.
    pub fn merge(&mut self, other: Self) {
        if other.level > self.level {
            self.level = other.level;
            let level = self.level;
            self.seen.retain(|(hash, _), _| hash.leading_zeros() >= level);
        }
        for ((hash, set), seen) in other.seen {
            self.put(hash, set, seen);
        }
    }

    /// Whether counts are exact, not estimates.
    #[must_use]
    pub fn exact(&self) -> bool {
        self.level == 0
    }

    /// What one kept thing stands for.
    fn weight(&self) -> u64 {
        1u64.checked_shl(self.level).unwrap_or(u64::MAX)
    }

    /// Different things over all data sets.
    #[must_use]
    pub fn different(&self) -> u64 {
        let mut hashes: Vec<u128> = self.seen.keys().map(|(hash, _)| *hash).collect();
        hashes.sort_unstable();
        hashes.dedup();
        (hashes.len() as u64).saturating_mul(self.weight())
    }

    /// Different things of one data set, and uses beyond the first of each.
    #[must_use]
    pub fn of(&self, set: u32) -> (u64, u64) {
        let mine = self.seen.iter().filter(|((_, of), _)| *of == set);
        let (different, repeated) = mine.fold((0u64, 0u64), |(different, repeated), (_, seen)| {
            (different + 1, repeated.saturating_add(seen.uses.saturating_sub(1)))
        });
        (different.saturating_mul(self.weight()), repeated.saturating_mul(self.weight()))
    }

    /// Kept things of one data set that came at least twice, most used first, at most `most`.
    #[must_use]
    pub fn repeated(&self, set: u32, most: usize) -> Vec<(u128, Seen)> {
        let mut found: Vec<(u128, Seen)> = self
            .seen
            .iter()
            .filter(|((_, of), seen)| *of == set && seen.uses > 1)
            .map(|((hash, _), seen)| (*hash, *seen))
            .collect();
        found.sort_unstable_by_key(|(hash, seen)| (std::cmp::Reverse(seen.uses), seen.first, *hash));
        found.truncate(most);
        found
    }

    /// Different things that stand in two data sets, for each pair of them, the lower number first.
    #[must_use]
    pub fn shared(&self) -> BTreeMap<(u32, u32), u64> {
        let mut places: Vec<(u128, u32)> = self.seen.keys().copied().collect();
        places.sort_unstable();
        let mut pairs = BTreeMap::new();
        for group in places.chunk_by(|left, right| left.0 == right.0) {
            for (index, (_, one)) in group.iter().enumerate() {
                for (_, other) in group.iter().skip(index + 1) {
                    let count: &mut u64 = pairs.entry((*one, *other)).or_default();
                    *count = count.saturating_add(self.weight());
                }
            }
        }
        pairs
    }
}

/// The packed form: what is kept, sorted, as base64. A million entries as JSON objects would be three times as long.
#[derive(Serialize, Deserialize)]
struct Packed {
    capacity: usize,
    level: u32,
    seen: String,
}

impl Serialize for Distinct {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut entries: Vec<_> = self.seen.iter().collect();
        entries.sort_unstable_by_key(|(key, _)| **key);
        let mut bytes = Vec::with_capacity(entries.len() * PACKED);
        for ((hash, set), seen) in entries {
            bytes.extend_from_slice(&hash.to_le_bytes());
            bytes.extend_from_slice(&set.to_le_bytes());
            bytes.extend_from_slice(&seen.uses.to_le_bytes());
            bytes.extend_from_slice(&seen.first.to_le_bytes());
        }
        Packed { capacity: self.capacity, level: self.level, seen: STANDARD_NO_PAD.encode(bytes) }
            .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Distinct {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error as _;
        let packed = Packed::deserialize(deserializer)?;
        let bytes = STANDARD_NO_PAD.decode(packed.seen).map_err(D::Error::custom)?;
        if packed.level > 128 || bytes.len() % PACKED != 0 || packed.capacity > CAPACITY {
            return Err(D::Error::custom("a packed sample of hashes that no version wrote"));
        }
        let mut distinct = Self::new(packed.capacity);
        distinct.level = packed.level;
        for entry in bytes.chunks_exact(PACKED) {
            // The slices have the lengths of the numbers.
            let number = |at: usize| {
                let bytes = entry.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
                u64::from_le_bytes(bytes.unwrap_or_default())
            };
            let hash = (u128::from(number(8)) << 64) | u128::from(number(0));
            let set = entry.get(16..20).and_then(|bytes| bytes.try_into().ok()).unwrap_or_default();
            let seen = Seen { uses: number(20), first: number(28) };
            distinct.put(hash, u32::from_le_bytes(set), seen);
        }
        Ok(distinct)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use twox_hash::XxHash3_128;

    fn of(capacity: usize, things: &[(u32, u64)]) -> Distinct {
        let mut distinct = Distinct::new(capacity);
        for (record, (set, thing)) in things.iter().enumerate() {
            distinct.add(XxHash3_128::oneshot(&thing.to_le_bytes()), *set, record as u64);
        }
        distinct
    }

    proptest! {
        #[test]
        fn how_things_are_split_up_does_not_matter(
            things in prop::collection::vec((0..3u32, 0..60u64), 0..200),
            (one, other) in (0..200usize, 0..200usize),
            capacity in 1..80usize,
        ) {
            let whole = of(capacity, &things);
            let (one, other) = (one.min(things.len()), other.min(things.len()));
            let (begin, end) = (one.min(other), one.max(other));
            let part = |from: usize, to: usize| {
                let mut distinct = Distinct::new(capacity);
                for (record, (set, thing)) in things.iter().enumerate().take(to).skip(from) {
                    distinct.add(XxHash3_128::oneshot(&thing.to_le_bytes()), *set, record as u64);
                }
                distinct
            };
            let mut left = part(0, begin);
            left.merge(part(begin, end));
            left.merge(part(end, things.len()));
            let mut inner = part(end, things.len());
            inner.merge(part(begin, end));
            let mut right = inner;
            right.merge(part(0, begin));
            prop_assert_eq!(&left, &whole);
            prop_assert_eq!(&right, &whole);
            prop_assert!(whole.seen.len() <= capacity);
            let text = serde_json::to_string(&whole).unwrap();
            prop_assert_eq!(serde_json::from_str::<Distinct>(&text).unwrap(), whole);
        }
    }

    #[test]
    fn below_the_capacity_everything_is_exact() {
        let things = [(0, 1), (0, 2), (0, 1), (1, 1), (0, 1), (1, 3)];
        let distinct = of(100, &things);
        assert!(distinct.exact());
        assert_eq!(distinct.different(), 3);
        assert_eq!((distinct.of(0), distinct.of(1)), ((2, 2), (2, 0)));
        let repeated = distinct.repeated(0, 10);
        assert_eq!(repeated.len(), 1);
        assert_eq!(repeated[0].1, Seen { uses: 3, first: 0 });
        assert_eq!(distinct.shared(), BTreeMap::from([((0, 1), 1)]));
    }

    #[test]
    fn above_the_capacity_counts_are_close() {
        let things: Vec<(u32, u64)> = (0..100_000).map(|index| (0, index % 80_000)).collect();
        let distinct = of(4096, &things);
        assert!(!distinct.exact());
        let (different, repeated) = distinct.of(0);
        // Three standard errors of 2048 kept things at least.
        assert!((74_000..86_000).contains(&different), "{different}");
        assert!((17_000..23_500).contains(&repeated), "{repeated}");
    }

    #[test]
    fn a_damaged_packed_form_is_an_error() {
        for text in [
            r#"{"capacity": 4, "level": 0, "seen": "AAAA"}"#,
            r#"{"capacity": 4, "level": 200, "seen": ""}"#,
            r#"{"capacity": 9999999999, "level": 0, "seen": ""}"#,
            r#"{"capacity": 4, "level": 0, "seen": "!"}"#,
        ] {
            assert!(serde_json::from_str::<Distinct>(text).is_err(), "{text}");
        }
    }
}
