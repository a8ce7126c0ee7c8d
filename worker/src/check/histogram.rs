//! Takes numbers one by one, gives how many lie where, in memory that does not grow with them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Numbers below this have a bucket each.
const EXACT: u64 = 16;
/// Buckets for each doubling above: a bucket is at most an eighth of its lower end wide.
const PER_DOUBLING: u64 = 8;

/// How many numbers lie in which bucket. Merging is associative and commutative.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Histogram {
    /// Number of the bucket → numbers in it.
    buckets: BTreeMap<u32, u64>,
    count: u64,
    sum: u128,
    least: Option<u64>,
    most: Option<u64>,
}

fn bucket(value: u64) -> u32 {
    if value < EXACT {
        // Below 16.
        return value as u32;
    }
    let exponent = value.ilog2();
    let within = (value >> (exponent - 3)) & (PER_DOUBLING - 1);
    // At most 16 + 60 * 8 + 7.
    EXACT as u32 + (exponent - 4) * PER_DOUBLING as u32 + within as u32
}

/// Smallest and largest number of a bucket.
fn bounds(bucket: u32) -> (u64, u64) {
    let bucket = u64::from(bucket);
    if bucket < EXACT {
        return (bucket, bucket);
    }
    let (exponent, within) = ((bucket - EXACT) / PER_DOUBLING + 4, (bucket - EXACT) % PER_DOUBLING);
    let width = 1u64.checked_shl(u32::try_from(exponent - 3).unwrap_or(u32::MAX)).unwrap_or(u64::MAX);
    let low = (PER_DOUBLING + within).saturating_mul(width);
    (low, low.saturating_add(width - 1))
}

impl Histogram {
    /// Counts one number.
    pub fn add(&mut self, value: u64) {
        *self.buckets.entry(bucket(value)).or_default() += 1;
        self.count += 1;
        self.sum += u128::from(value);
        self.least = Some(self.least.map_or(value, |least| least.min(value)));
        self.most = Some(self.most.map_or(value, |most| most.max(value)));
    }

    /// Adds the numbers of another one.
    pub fn merge(&mut self, other: &Self) {
        for (bucket, count) in &other.buckets {
            *self.buckets.entry(*bucket).or_default() += count;
        }
        self.count += other.count;
        self.sum += other.sum;
        self.least = self.least.into_iter().chain(other.least).min();
        self.most = self.most.into_iter().chain(other.most).max();
    }

    /// How many numbers.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// What people want to know, None of no numbers.
    #[must_use]
    pub fn summary(&self) -> Option<Summary> {
        let (least, most) = (self.least?, self.most?);
        Some(Summary {
            count: self.count,
            sum: u64::try_from(self.sum).unwrap_or(u64::MAX),
            mean: self.sum as f64 / self.count as f64,
            min: least,
            p50: self.quantile(0.5),
            p90: self.quantile(0.9),
            p99: self.quantile(0.99),
            max: most,
            buckets: self
                .buckets
                .iter()
                .map(|(bucket, count)| {
                    let (low, high) = bounds(*bucket);
                    Bucket { from: low.max(least), to: high.min(most), count: *count }
                })
                .collect(),
        })
    }

    /// A number that `share` of all are at or below: the upper end of its bucket, so at most an eighth too large.
    fn quantile(&self, share: f64) -> u64 {
        let wanted = (share * self.count as f64).ceil() as u64;
        let mut seen = 0;
        for (bucket, count) in &self.buckets {
            seen += count;
            if seen >= wanted {
                return bounds(*bucket).1.min(self.most.unwrap_or(u64::MAX));
            }
        }
        self.most.unwrap_or(0)
    }
}

/// A histogram as people and programs read it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// How many numbers.
    pub count: u64,
    /// Their sum.
    pub sum: u64,
    /// Their mean.
    pub mean: f64,
    /// The smallest.
    pub min: u64,
    /// Half of them are at or below this, which is at most an eighth too large.
    pub p50: u64,
    /// Nine tenths are at or below this, which is at most an eighth too large.
    pub p90: u64,
    /// 99 % are at or below this, which is at most an eighth too large.
    pub p99: u64,
    /// The largest.
    pub max: u64,
    /// The buckets that are not empty, in order.
    pub buckets: Vec<Bucket>,
}

/// How many numbers lie from `from` to `to`, both included.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Bucket {
    /// Smallest number.
    pub from: u64,
    /// Largest number.
    pub to: u64,
    /// How many.
    pub count: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(values: &[u64]) -> Histogram {
        let mut histogram = Histogram::default();
        values.iter().for_each(|value| histogram.add(*value));
        histogram
    }

    fn numbers() -> impl Strategy<Value = Vec<u64>> {
        prop::collection::vec(prop_oneof![0..40u64, 0..100_000u64, any::<u64>()], 0..50)
    }

    proptest! {
        #[test]
        fn every_number_lies_in_its_narrow_bucket(value: u64) {
            let (low, high) = bounds(bucket(value));
            prop_assert!(low <= value && value <= high);
            prop_assert!(high - low <= low / 8);
            prop_assert!(low == 0 || bucket(low - 1) < bucket(value));
        }

        #[test]
        fn how_numbers_are_split_up_does_not_matter(one in numbers(), other in numbers(), third in numbers()) {
            let whole = of(&[one.clone(), other.clone(), third.clone()].concat());
            let mut left = of(&one);
            left.merge(&of(&other));
            left.merge(&of(&third));
            let mut right = of(&third);
            let mut inner = of(&other);
            inner.merge(&of(&one));
            right.merge(&inner);
            prop_assert_eq!(&left, &whole);
            prop_assert_eq!(&right, &whole);
        }

        #[test]
        fn quantiles_are_close_above(mut values in prop::collection::vec(0..1_000_000u64, 1..200)) {
            let summary = of(&values).summary().unwrap();
            values.sort_unstable();
            for (share, found) in [(0.5, summary.p50), (0.9, summary.p90), (0.99, summary.p99)] {
                let exact = values[((share * values.len() as f64).ceil() as usize - 1).min(values.len() - 1)];
                prop_assert!(found >= exact && found - exact <= exact / 8, "{} for {}", found, exact);
            }
            prop_assert_eq!((summary.min, summary.max), (values[0], values[values.len() - 1]));
            prop_assert_eq!(summary.buckets.iter().map(|bucket| bucket.count).sum::<u64>(), values.len() as u64);
        }
    }
}
