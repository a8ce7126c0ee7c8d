//! Bad records met so far, counted and listed.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use feedmill_protocol::bad::BadClass;
use serde::Serialize;

use super::Fault;
use crate::order::RecordId;

/// So many different records are listed; more are only counted.
const MAX_LISTED: usize = 10_000;

/// One bad record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BadRecord {
    /// Index of the stream.
    #[serde(skip)]
    pub stream: usize,
    /// Name of the data set.
    pub dataset: String,
    /// The 1-based physical line.
    pub line: u64,
    /// Its class.
    pub class: BadClass,
    /// The object, when one is at fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// What is wrong.
    pub detail: String,
    /// What to do about it.
    pub remedy: &'static str,
    /// How often it was met.
    pub times: u64,
}

/// Counts and a list, bounded.
#[derive(Debug, Default)]
pub struct BadLog(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    counts: BTreeMap<(String, BadClass), u64>,
    listed: BTreeMap<(usize, RecordId), BadRecord>,
    unlisted: u64,
}

impl BadLog {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A record could not be used. Logged once per record, without its text.
    pub fn met(&self, stream: usize, id: RecordId, dataset: &str, fault: &Fault) {
        let mut inner = self.lock();
        *inner.counts.entry((dataset.to_owned(), fault.class)).or_default() += 1;
        if let Some(record) = inner.listed.get_mut(&(stream, id)) {
            record.times += 1;
            return;
        }
        if inner.listed.len() >= MAX_LISTED {
            inner.unlisted += 1;
            return;
        }
        let record = BadRecord {
            stream,
            dataset: dataset.to_owned(),
            line: fault.line,
            class: fault.class,
            key: fault.key.clone(),
            detail: fault.detail.clone(),
            remedy: fault.class.remedy(),
            times: 1,
        };
        inner.listed.insert((stream, id), record);
        drop(inner);
        tracing::warn!(
            dataset,
            line = fault.line,
            class = fault.class.name(),
            key = fault.key.as_deref().unwrap_or_default(),
            "bad record"
        );
    }

    /// How often each class was met in each data set.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<(String, BadClass), u64> {
        self.lock().counts.clone()
    }

    /// Different bad records by class, over all data sets.
    #[must_use]
    pub fn by_class(&self) -> BTreeMap<BadClass, u64> {
        let mut counts = BTreeMap::new();
        for record in self.lock().listed.values() {
            *counts.entry(record.class).or_default() += 1;
        }
        counts
    }

    /// The records, by stream, data set and record; and how often a record was met that is not listed.
    #[must_use]
    pub fn list(&self) -> (Vec<BadRecord>, u64) {
        let inner = self.lock();
        (inner.listed.values().cloned().collect(), inner.unlisted)
    }
}
