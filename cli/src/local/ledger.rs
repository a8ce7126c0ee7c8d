//! Takes the rows that ranks got, gives whether each position came exactly once, and the chain over them.
//!
//! Ranks make steps together, so a step's rows are held until it is sealed and then only counted: memory does not grow with the run.

use std::collections::BTreeMap;

use feedmill_protocol::bad::{BadClass, RowStatus};
use feedmill_protocol::frame::{BatchView, SampleView};
use feedmill_protocol::hash::{HashChain, SampleHash};
use feedmill_protocol::position::Range;
use serde::Serialize;

/// So many positions of a kind of fault are named; more are counted.
const NAMED: usize = 5;

/// One row as a rank got it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Where in the stream.
    pub position: u64,
    /// The hash that came with it.
    pub hash: SampleHash,
    /// Whether it is that of the bytes that came.
    pub hash_holds: bool,
    /// What it is.
    pub status: RowStatus,
    /// Index of the record's data set; -1 for filler and stubs.
    pub dataset: i32,
    /// Index of the record that stands there; -1 for filler and stubs.
    pub record: i64,
    /// Bytes that the model's own processor makes of it, see [`reference_bytes`].
    pub reference_bytes: u64,
}

/// The rows of a batch that was asked for as `range`. Every hash is computed again from the bytes.
pub fn rows(range: Range, batch: &BatchView<'_>) -> Vec<Row> {
    let row = |(position, sample): (u64, &SampleView<'_>)| Row {
        position,
        hash: sample.hash,
        hash_holds: sample.computed_hash() == sample.hash,
        status: sample.status,
        dataset: sample.dataset_index,
        record: sample.record_index,
        reference_bytes: reference_bytes(sample.patches.len(), sample.tokens.len(), sample.grids.len()),
    };
    // Rows beyond the range would be positions that nobody asked for; the ledger counts them as twice.
    (range.start()..).zip(batch.samples()).map(row).collect()
}

/// Bytes of the tensors that Hugging Face's processor gives for one sample, without padding: `pixel_values` f32 with two temporal slots
/// for each of our `patch_bytes`, `input_ids`, `attention_mask` and `labels` i64, `image_grid_thw` i64.
pub fn reference_bytes(patch_bytes: usize, tokens: usize, images: usize) -> u64 {
    (patch_bytes * 2 * 4 + tokens * 3 * 8 + images * 3 * 8) as u64
}

/// Positions at which something does not hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Faults {
    /// How many.
    pub count: u64,
    /// The first few.
    pub first: Vec<u64>,
}

impl Faults {
    fn add(&mut self, position: u64) {
        self.count += 1;
        if self.first.len() < NAMED {
            self.first.push(position);
        }
    }
}

/// Rows that a fault of their record changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BadRows {
    /// Rows in which another record stands.
    pub replaced: u64,
    /// Rows without loss.
    pub without_loss: u64,
    /// The first few of them.
    pub first: Vec<BadRow>,
}

/// One such row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BadRow {
    /// Where in the stream.
    pub position: u64,
    /// Data set and record, 0-based over its non-blank lines, that stand there; None for a row without loss.
    pub stands_in: Option<(i32, i64)>,
}

/// What came, position by position.
#[derive(Debug)]
pub struct Ledger {
    stop: u64,
    sealed: u64,
    open: BTreeMap<u64, Row>,
    count: Counts,
}

/// What a ledger has counted.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Positions below the trainer's end that came.
    pub samples: u64,
    /// Filler rows at or past it.
    pub filler: u64,
    /// Positions that did not come.
    pub missing: Faults,
    /// Positions that came again, or that nobody had asked for.
    pub twice: Faults,
    /// Rows whose hash is not that of their bytes.
    pub wrong_hash: Faults,
    /// Filler below the trainer's end, or something else past it.
    pub misplaced_filler: Faults,
    /// Bad rows by class.
    pub bad: BTreeMap<BadClass, BadRows>,
    /// The chain over the positions below the trainer's end.
    pub chain: HashChain,
}

impl Ledger {
    /// A ledger of positions from 0 on; rows at or past `stop` must be filler.
    pub fn new(stop: u64) -> Self {
        Self { stop, sealed: 0, open: BTreeMap::new(), count: Counts::default() }
    }

    /// Rows came.
    pub fn add(&mut self, rows: &[Row]) {
        for row in rows {
            if row.position < self.sealed || self.open.contains_key(&row.position) {
                self.count.twice.add(row.position);
                continue;
            }
            self.open.insert(row.position, *row);
        }
    }

    /// All rows below `end` must be here.
    pub fn seal(&mut self, end: u64) {
        for position in self.sealed..end {
            match self.open.remove(&position) {
                Some(row) => self.count.take(&row, self.stop),
                None => self.count.missing.add(position),
            }
        }
        self.sealed = self.sealed.max(end);
    }

    /// What has been sealed.
    pub fn counts(&self) -> &Counts {
        &self.count
    }
}

impl Counts {
    fn take(&mut self, row: &Row, stop: u64) {
        if !row.hash_holds {
            self.wrong_hash.add(row.position);
        }
        let is_filler = row.status == RowStatus::Filler;
        if is_filler != (row.position >= stop) {
            self.misplaced_filler.add(row.position);
        }
        if row.position >= stop {
            self.filler += 1;
            return;
        }
        self.samples += 1;
        self.chain.push(row.hash);
        let Some(class) = row.status.class() else { return };
        let bad = self.bad.entry(class).or_default();
        let replaced = matches!(row.status, RowStatus::Substituted(_));
        bad.replaced += u64::from(replaced);
        bad.without_loss += u64::from(!replaced);
        if bad.first.len() < NAMED {
            let stands_in = replaced.then_some((row.dataset, row.record));
            bad.first.push(BadRow { position: row.position, stands_in });
        }
    }

    /// Rows that a fault changed.
    pub fn bad_rows(&self) -> u64 {
        self.bad.values().map(|bad| bad.replaced + bad.without_loss).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(position: u64) -> Row {
        Row {
            position,
            hash: [position as u8; 16],
            hash_holds: true,
            status: RowStatus::Ok,
            dataset: 0,
            record: 1,
            reference_bytes: 10,
        }
    }

    fn ledger(stop: u64, rows: &[Row], end: u64) -> Counts {
        let mut ledger = Ledger::new(stop);
        ledger.add(rows);
        ledger.seal(end);
        ledger.counts().clone()
    }

    #[test]
    fn the_chain_is_by_position_whatever_the_order_and_the_steps() {
        let forwards = ledger(4, &[row(0), row(1), row(2), row(3)], 4);
        let mut ledger = Ledger::new(4);
        ledger.add(&[row(1), row(0), row(3)]);
        ledger.seal(2);
        ledger.add(&[row(2)]);
        ledger.seal(4);
        assert_eq!(ledger.counts().chain, forwards.chain);
        assert_eq!(forwards.samples, 4);
        let mut other = [row(0), row(1), row(2), row(3)];
        other[2].hash = [9; 16];
        assert_ne!(super::tests::ledger(4, &other, 4).chain, forwards.chain);
    }

    #[test]
    fn what_does_not_hold_is_counted_and_named() {
        let counts = ledger(4, &[row(0), row(2), row(2)], 4);
        assert_eq!((counts.missing.count, counts.missing.first.as_slice()), (2, &[1, 3][..]));
        assert_eq!(counts.twice.first, [2]);

        let mut late = Ledger::new(4);
        late.add(&[row(0)]);
        late.seal(1);
        late.add(&[row(0)]);
        assert_eq!(late.counts().twice.first, [0]);

        let wrong = Row { hash_holds: false, ..row(1) };
        assert_eq!(ledger(4, &[row(0), wrong], 2).wrong_hash.first, [1]);

        let filler = |position| Row { status: RowStatus::Filler, ..row(position) };
        let counts = ledger(2, &[row(0), filler(1), filler(2), row(3)], 4);
        assert_eq!(counts.misplaced_filler.first, [1, 3]);
        assert_eq!((counts.samples, counts.filler), (2, 2));
        assert_eq!(counts.chain.length(), 2);
    }

    #[test]
    fn bad_rows_are_counted_by_class_and_by_what_stands_there() {
        let class = BadClass::ImageMissing;
        let rows: Vec<Row> = (0..9)
            .map(|position| Row {
                status: match position % 3 {
                    0 => RowStatus::Substituted(class),
                    1 => RowStatus::ZeroLoss(class),
                    _ => RowStatus::Ok,
                },
                ..row(position)
            })
            .collect();
        let counts = ledger(9, &rows, 9);
        let bad = &counts.bad[&class];
        assert_eq!((bad.replaced, bad.without_loss, counts.bad_rows()), (3, 3, 6));
        assert_eq!(bad.first.len(), NAMED);
        assert_eq!(bad.first[0], BadRow { position: 0, stands_in: Some((0, 1)) });
        assert_eq!(bad.first[1], BadRow { position: 1, stands_in: None });
    }

    /// 586 tokens for 0.600 megapixels: 14.7 MB of fp32 for 1.8 MB of u8, as measured for Qwen's processor.
    #[test]
    fn reference_bytes_are_those_of_the_processors_tensors() {
        let patches = 2344;
        let patch_bytes = 3 * 16 * 16;
        assert_eq!(
            reference_bytes(patches * patch_bytes, 640, 1),
            (2344 * 2 * 768 * 4 + 640 * 8 * 3 + 24) as u64
        );
        assert_eq!(reference_bytes(0, 1, 0), 24);
    }
}
