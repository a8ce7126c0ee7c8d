//! Which positions are suspected, which records are known to kill. Bounded, and nothing is read from a clock.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::engine::SampleKey;
use crate::order::RecordId;

/// So many positions are suspected at once; the oldest are forgotten first. A thousand ranges of 64.
const MAX_SUSPECTED: usize = 65_536;
/// So many records are known to kill; with more, only the child protects, again and again.
const MAX_LETHAL: usize = 4_096;

/// How a record killed the process that made it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// The 1-based physical line of the record.
    pub line: u64,
    /// The object that was at work, when it is one.
    pub key: Option<String>,
    /// How the process ended, in words.
    pub how: String,
}

/// What a worker suspects and what it knows.
#[derive(Debug, Default)]
pub struct Suspects {
    state: Mutex<State>,
    /// Child processes started.
    pub children: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    suspected: HashSet<SampleKey>,
    /// The suspected, oldest first.
    order: VecDeque<SampleKey>,
    lethal: BTreeMap<(usize, RecordId), Evidence>,
}

impl Suspects {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Workers have died under these.
    pub fn suspect(&self, keys: impl IntoIterator<Item = SampleKey>) {
        let mut state = self.lock();
        for key in keys {
            if !state.suspected.insert(key) {
                continue;
            }
            state.order.push_back(key);
            if state.order.len() > MAX_SUSPECTED
                && let Some(oldest) = state.order.pop_front()
            {
                state.suspected.remove(&oldest);
            }
        }
    }

    /// Whether workers have died under this position.
    #[must_use]
    pub fn is_suspected(&self, key: SampleKey) -> bool {
        self.lock().suspected.contains(&key)
    }

    /// A record of a stream has killed the child that made it.
    pub fn convict(&self, stream: usize, id: RecordId, evidence: Evidence) {
        let mut state = self.lock();
        if state.lethal.len() < MAX_LETHAL {
            state.lethal.entry((stream, id)).or_insert(evidence);
        }
    }

    /// How a record killed, if it did: nobody makes it again.
    #[must_use]
    pub fn evidence(&self, stream: usize, id: RecordId) -> Option<Evidence> {
        self.lock().lethal.get(&(stream, id)).cloned()
    }

    /// Records known to kill.
    #[must_use]
    pub fn lethal(&self) -> u64 {
        self.lock().lethal.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(position: u64) -> SampleKey {
        SampleKey { stream: 0, position }
    }

    #[test]
    fn the_oldest_suspicion_is_forgotten_first_and_memory_is_bounded() {
        let suspects = Suspects::default();
        let most = MAX_SUSPECTED as u64;
        suspects.suspect((0..most).map(key));
        suspects.suspect((0..4).map(key));
        assert!(suspects.is_suspected(key(0)));
        suspects.suspect([key(most), key(most + 1)]);
        let known: Vec<bool> =
            [0, 1, 2, most + 1].map(|position| suspects.is_suspected(key(position))).into();
        assert_eq!(known, [false, false, true, true]);
        assert_eq!(suspects.lock().suspected.len(), MAX_SUSPECTED);
    }

    #[test]
    fn the_first_evidence_against_a_record_is_kept() {
        let suspects = Suspects::default();
        let id = RecordId { dataset: 0, record: 7 };
        let evidence = |how: &str| Evidence { line: 8, key: None, how: how.into() };
        suspects.convict(1, id, evidence("first"));
        suspects.convict(1, id, evidence("second"));
        assert_eq!(suspects.evidence(1, id).unwrap().how, "first");
        assert_eq!(suspects.evidence(0, id), None, "another stream");
        assert_eq!(suspects.lethal(), 1);
    }
}
