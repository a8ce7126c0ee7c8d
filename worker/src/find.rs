//! Takes a record's id, or its place in a data set, gives the positions of an epoch at which the order puts it.
//!
//! Where a record lies is known of its number and its line; its id is only known to the record, so records are read one
//! after another. That is done in steps, so that whoever searches sees how far it is and can end it.

use std::collections::VecDeque;
use std::sync::Arc;

use feedmill_source::{Manifest, RecordReadError};
use feedmill_text::record::record_id;
use serde::{Deserialize, Serialize};

use crate::order::RecordId;
use crate::stream::{Records, Stream, line_of};

/// Records of one step: some milliseconds.
const STEP_RECORDS: u64 = 8192;
/// And their bytes, the last one's apart.
const STEP_BYTES: usize = 8 << 20;
/// An id should stand once; of one that stands everywhere the first records are enough.
const MAX_FOUND: usize = 100;
/// A record may stand ten thousand times in an epoch; a person wants one of them.
const MAX_POSITIONS: usize = 100;

/// What is looked for, as it stands in a query.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Query {
    /// The record's own id.
    pub id: Option<String>,
    /// The data set; needed for `line` and `record`.
    pub dataset: Option<String>,
    /// 1-based physical line.
    pub line: Option<u64>,
    /// 0-based number over non-blank lines.
    pub record: Option<u64>,
    /// The epoch whose positions are given; 0 by default.
    pub epoch: Option<u64>,
}

/// A query that asks for nothing that could be found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// Nothing, or too much.
    #[error("ask for an id, or for a dataset and one of its line and record")]
    What,
    /// The id of a row is known to the row alone, and rows are not read one after another.
    #[error(
        "rows of Parquet files are not searched by id: ask for the line, which is the row of data set {dataset:?}"
    )]
    Rows {
        /// The data set.
        dataset: String,
    },
    /// No such data set.
    #[error("stream {stream} has no data set {dataset:?}; it has {known}")]
    Dataset {
        /// The stream.
        stream: String,
        /// What was asked for.
        dataset: String,
        /// What there is.
        known: String,
    },
}

/// A record that was looked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Found {
    /// Its data set.
    pub dataset: String,
    /// Its number, 0-based over non-blank lines.
    pub record_index: u64,
    /// Its 1-based physical line.
    pub line: u64,
    /// The epoch.
    pub epoch: u64,
    /// Where the order puts it in this epoch, rising; none when this epoch leaves it out. At most 100.
    pub positions: Vec<u64>,
}

/// How far a search is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// What this step found.
    pub found: Vec<Found>,
    /// Records looked at so far.
    pub scanned: u64,
    /// Records to look at.
    pub of: u64,
    /// Why nothing was found, where that is known.
    pub why: Option<String>,
    /// Nothing is left to do.
    pub over: bool,
    /// It ended early, because enough was found.
    pub more: bool,
}

enum Wanted {
    Id(String),
    Line(u64),
    Record(u64),
}

/// A search that goes on step by step.
pub struct Search {
    stream: Arc<Stream>,
    wanted: Wanted,
    epoch: u64,
    /// Data sets that are still to be looked through, and the next record in the first of them.
    left: VecDeque<usize>,
    next: u64,
    scanned: u64,
    of: u64,
    found: usize,
}

impl Search {
    /// A search that has not begun; reads nothing.
    ///
    /// # Errors
    /// See [`QueryError`].
    pub fn new(stream: &Arc<Stream>, query: Query) -> Result<Self, QueryError> {
        let dataset = query.dataset.map(|name| {
            let index = stream.datasets.iter().position(|dataset| dataset.name == name);
            index.ok_or_else(|| {
                let known: Vec<&str> = stream.datasets.iter().map(|set| set.name.as_str()).collect();
                QueryError::Dataset { stream: stream.name.clone(), dataset: name, known: known.join(", ") }
            })
        });
        let dataset = dataset.transpose()?;
        let wanted = match (query.id, query.line, query.record, dataset) {
            (Some(id), None, None, _) => Wanted::Id(id),
            (None, Some(line), None, Some(_)) => Wanted::Line(line),
            (None, None, Some(record), Some(_)) => Wanted::Record(record),
            _ => return Err(QueryError::What),
        };
        let left: VecDeque<usize> = match dataset {
            Some(index) => [index].into(),
            None => (0..stream.datasets.len()).collect(),
        };
        if matches!(wanted, Wanted::Id(_)) {
            let rows = left.iter().filter_map(|index| stream.datasets.get(*index));
            if let Some(set) = rows.into_iter().find(|set| set.records.manifest().is_none()) {
                return Err(QueryError::Rows { dataset: set.name.clone() });
            }
        }
        let of = match wanted {
            Wanted::Id(_) => left.iter().map(|index| records(stream, *index)).sum(),
            Wanted::Line(_) | Wanted::Record(_) => 1,
        };
        Ok(Self {
            stream: Arc::clone(stream),
            wanted,
            epoch: query.epoch.unwrap_or(0),
            left,
            next: 0,
            scanned: 0,
            of,
            found: 0,
        })
    }

    /// Goes on for some milliseconds. Blocks on the disk: call it from a thread that may.
    ///
    /// # Errors
    /// A manifest that cannot be read any more.
    pub fn step(&mut self) -> Result<Step, RecordReadError> {
        let mut step = Step { of: self.of, ..Step::default() };
        if let Some(dataset) = self.left.front().copied() {
            match &self.wanted {
                Wanted::Id(id) => {
                    let id = id.clone();
                    self.scan(dataset, &id, &mut step)?;
                }
                Wanted::Line(line) => {
                    let at = match self.stream.datasets.get(dataset).map(|set| &set.records) {
                        Some(Records::Manifest(manifest)) => at_line(manifest, *line)?,
                        Some(Records::Table(table)) => line.checked_sub(1).filter(|row| *row < table.len()),
                        None => None,
                    };
                    step.found.extend(at.map(|record| self.found(dataset, record, *line)));
                }
                Wanted::Record(record) => {
                    let records = self.stream.datasets.get(dataset).map(|set| &set.records);
                    if let Some(line) = records.map_or(Ok(None), |records| records.line_of(*record))? {
                        step.found.push(self.found(dataset, *record, line));
                    }
                }
            }
            if !matches!(self.wanted, Wanted::Id(_)) {
                if step.found.is_empty() {
                    step.why = self.nothing_there(dataset)?;
                }
                self.scanned = 1;
                self.left.clear();
            }
        }
        self.found += step.found.len();
        step.scanned = self.scanned;
        step.more = self.found >= MAX_FOUND && !self.left.is_empty();
        step.over = self.left.is_empty() || step.more;
        Ok(step)
    }

    /// Looks at the next records of a data set.
    fn scan(&mut self, dataset: usize, id: &str, step: &mut Step) -> Result<(), RecordReadError> {
        let stream = Arc::clone(&self.stream);
        let manifest = stream.datasets.get(dataset).and_then(|set| set.records.manifest());
        let Some(manifest) = manifest else { return Ok(()) };
        let (mut looked, mut bytes) = (0, 0);
        for record in manifest.records(self.next..u64::MAX) {
            match record {
                Ok(record) => {
                    bytes += record.bytes.len();
                    if record_id(&record.bytes).as_deref() == Some(id) {
                        step.found.push(self.found(dataset, self.next, record.line));
                    }
                }
                // Nobody knows its id.
                Err(error) if error.is_bad_record() => {}
                Err(error) => return Err(error),
            }
            looked += 1;
            self.next += 1;
            let enough = self.found + step.found.len() >= MAX_FOUND;
            if looked >= STEP_RECORDS || bytes >= STEP_BYTES || enough {
                break;
            }
        }
        self.scanned += looked;
        if self.next >= manifest.len() {
            self.left.pop_front();
            self.next = 0;
        }
        Ok(())
    }

    fn found(&self, dataset: usize, record: u64, line: u64) -> Found {
        let mut positions =
            self.stream.order.positions(self.epoch, RecordId { dataset, record }, MAX_POSITIONS);
        positions.sort_unstable();
        let name = self.stream.datasets.get(dataset).map(|dataset| dataset.name.clone());
        Found { dataset: name.unwrap_or_default(), record_index: record, line, epoch: self.epoch, positions }
    }

    /// Where the numbers that can be asked for end, for whoever asked for another one.
    fn nothing_there(&self, dataset: usize) -> Result<Option<String>, RecordReadError> {
        let Some(dataset) = self.stream.datasets.get(dataset) else { return Ok(None) };
        let (name, count) = (&dataset.name, dataset.records.len());
        Ok(match (&self.wanted, dataset.records.last_line()?) {
            (Wanted::Line(line), Some(last)) if (1..=last).contains(line) => {
                Some(format!("line {line} of {name} has no record: it is blank"))
            }
            (Wanted::Line(line), Some(last)) => Some(format!(
                "there is no line {line}: data set {name} has {count} records, the last one on line {last}; lines begin with 1"
            )),
            (Wanted::Record(record), Some(_)) => Some(format!(
                "there is no record {record}: data set {name} has {count} records, 0 to {}",
                count.saturating_sub(1)
            )),
            _ => None,
        })
    }
}

fn records(stream: &Stream, dataset: usize) -> u64 {
    stream.datasets.get(dataset).map_or(0, |dataset| dataset.records.len())
}

/// The first record that begins in a line. Lines rise with records, so halving finds it in some reads.
fn at_line(manifest: &Manifest, line: u64) -> Result<Option<u64>, RecordReadError> {
    let (mut low, mut high) = (0, manifest.len());
    while low < high {
        let middle = low + (high - low) / 2;
        if line_of(manifest, middle)? < line { low = middle + 1 } else { high = middle }
    }
    let there = low < manifest.len() && line_of(manifest, low)? == line;
    Ok(there.then_some(low))
}
