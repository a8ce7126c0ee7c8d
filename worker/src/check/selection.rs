//! Takes how much is to be looked at, gives which records in which chunks.
//!
//! Records are taken by their number, whatever the streams' order is. A chunk is what one thread works on at a time and
//! what an interrupted check may have to do again.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::order::Permutation;

/// Text of a chunk, about: a tenth of a second of one thread.
const CHUNK_BYTES: u64 = 8 << 20;
/// Bounds of a chunk in records, whatever their length.
const CHUNK_RECORDS: std::ops::RangeInclusive<u64> = 16..=8192;

/// Which records of each data set are looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Selection {
    /// All of them.
    #[default]
    All,
    /// So many from the beginning.
    First(u64),
    /// So many from all over the data set, always the same ones.
    Sample(u64),
}

/// The records of one data set that are looked at, in chunks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chosen {
    selection: Selection,
    /// Records of the data set.
    records: u64,
    /// Records of a chunk.
    chunk: u64,
}

impl Chosen {
    pub(super) fn new(selection: Selection, records: u64, bytes: u64) -> Self {
        let average = (bytes / records.max(1)).max(1);
        let chunk = (CHUNK_BYTES / average).clamp(*CHUNK_RECORDS.start(), *CHUNK_RECORDS.end());
        Self { selection, records, chunk }
    }

    /// How many are looked at.
    pub(super) fn len(&self) -> u64 {
        match self.selection {
            Selection::All => self.records,
            Selection::First(most) | Selection::Sample(most) => most.min(self.records),
        }
    }

    pub(super) fn chunks(&self) -> u64 {
        self.len().div_ceil(self.chunk)
    }

    /// Places among the chosen ones.
    pub(super) fn chunk(&self, number: u64) -> Range<u64> {
        let begin = number.saturating_mul(self.chunk).min(self.len());
        begin..begin.saturating_add(self.chunk).min(self.len())
    }

    /// The numbers of a chunk's records, when they stand in a row.
    pub(super) fn neighbours(&self, number: u64) -> Option<Range<u64>> {
        let in_a_row = !matches!(self.selection, Selection::Sample(most) if most < self.records);
        in_a_row.then(|| self.chunk(number))
    }

    /// The numbers of a chunk's records.
    pub(super) fn numbers(&self, chunk: u64) -> Vec<u64> {
        self.chunk(chunk).map(|place| self.record(place)).collect()
    }

    /// The number of the record at a place.
    pub(super) fn record(&self, place: u64) -> u64 {
        match self.selection {
            Selection::Sample(most) if most < self.records => {
                Permutation::new(self.records, 0, 0, 0).at(place)
            }
            _ => place,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_hold_every_chosen_record_once() {
        for (selection, expected) in [
            (Selection::All, 5000),
            (Selection::First(77), 77),
            (Selection::First(9999), 5000),
            (Selection::Sample(77), 77),
            (Selection::Sample(9999), 5000),
        ] {
            for bytes in [0, 5000 * 300, 5000 << 20] {
                let chosen = Chosen::new(selection, 5000, bytes);
                let mut records: Vec<u64> = (0..chosen.chunks())
                    .flat_map(|number| {
                        let places = chosen.chunk(number);
                        if let Some(range) = chosen.neighbours(number) {
                            assert_eq!(range, places);
                        }
                        places.map(|place| chosen.record(place)).collect::<Vec<_>>()
                    })
                    .collect();
                assert_eq!(records.len() as u64, expected);
                records.sort_unstable();
                records.dedup();
                assert_eq!(records.len() as u64, expected);
                assert!(records.iter().all(|record| *record < 5000));
            }
        }
        assert_eq!(Chosen::new(Selection::All, 0, 0).chunks(), 0);
    }

    #[test]
    fn a_sample_comes_from_all_over() {
        let chosen = Chosen::new(Selection::Sample(100), 1_000_000, 1 << 30);
        let in_first_half = (0..100).filter(|place| chosen.record(*place) < 500_000).count();
        assert!((30..70).contains(&in_first_half), "{in_first_half}");
    }
}
