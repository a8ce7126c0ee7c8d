//! Who waits for what, in the order of need.
//!
//! Time is an argument. A range's key is when it is needed, later by what its job has too much: with
//! several jobs, each may have its share of all waiting samples before the others go first.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use feedmill_arena::Urgency;
use tokio::task::AbortHandle;

use super::sample::SampleBytes;
use super::{SampleKey, Slot, SlotState};

/// Microseconds since the engine's start, then a number of its own: unique, and first come first.
pub(crate) type RangeKey = (u64, u64);

/// Until samples have been timed: a 0.9-megapixel photograph on one core.
const FIRST_GUESS_MICROSECONDS: f64 = 4_000.0;

pub(crate) struct Table<E> {
    entries: HashMap<SampleKey, Entry<E>>,
    ranges: BTreeMap<RangeKey, Vec<SampleKey>>,
    /// Waiting samples of each job that has any.
    jobs: HashMap<String, u64>,
    waiting: u64,
    /// Finished samples that nobody waits for, by when they were last used.
    idle: BTreeMap<u64, SampleKey>,
    max_remembered: usize,
    head: Option<RangeKey>,
    next: u64,
    /// Moving average of the time that making one sample takes.
    microseconds_a_sample: f64,
    making: u64,
    ready: u64,
}

struct Entry<E> {
    slot: Arc<Slot<E>>,
    wanted: BTreeSet<RangeKey>,
    task: Option<AbortHandle>,
    finished: bool,
    /// Its key in the table's `idle`.
    idle: Option<u64>,
}

/// What was taken out of the table; dropping it may free memory.
pub(crate) struct Dropped<E>(#[expect(dead_code, reason = "held to be dropped")] Vec<Entry<E>>);

impl<E: Clone> Table<E> {
    pub(crate) fn new(max_remembered: usize) -> Self {
        Self {
            entries: HashMap::new(),
            ranges: BTreeMap::new(),
            jobs: HashMap::new(),
            waiting: 0,
            idle: BTreeMap::new(),
            max_remembered,
            head: None,
            next: 0,
            microseconds_a_sample: FIRST_GUESS_MICROSECONDS,
            making: 0,
            ready: 0,
        }
    }

    pub(crate) fn ranges(&self) -> usize {
        self.ranges.len()
    }

    /// Ranges waiting, samples being made, samples ready.
    pub(crate) fn counts(&self) -> (usize, u64, u64) {
        (self.ranges.len(), self.making, self.ready)
    }

    /// The key of a new range of `samples` for `job`, needed in `need`.
    pub(crate) fn key(
        &mut self,
        now: Duration,
        need: Duration,
        job: &str,
        samples: u64,
        threads: usize,
    ) -> RangeKey {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX / 4);
        let mine = self.jobs.get(job).copied().unwrap_or(0);
        let jobs = self.jobs.len() as u64 + u64::from(mine == 0);
        let share = (self.waiting + samples).div_ceil(jobs.max(1));
        let excess = if jobs > 1 { (mine + samples).saturating_sub(share) } else { 0 };
        let late = excess as f64 * self.microseconds_a_sample / threads as f64;
        self.next += 1;
        let when = micros(now).saturating_add(micros(need)).saturating_add(late as u64);
        // IDLE is what nobody waits for; no key may reach it.
        (when.min(Urgency::IDLE - 1), self.next)
    }

    /// Puts a range in; gives its slots in order, and those that are new and must be made.
    #[expect(clippy::type_complexity, reason = "two lists of the same thing")]
    pub(crate) fn enter(
        &mut self,
        key: RangeKey,
        job: &str,
        keys: &[SampleKey],
    ) -> (Vec<Arc<Slot<E>>>, Vec<Arc<Slot<E>>>) {
        let mut new = Vec::new();
        let mut slots = Vec::with_capacity(keys.len());
        for sample in keys {
            let spent = self.entries.get(sample).is_none_or(|e| e.finished && e.slot.spent());
            if spent {
                let wanted = self.remove(*sample).map(|entry| entry.wanted).unwrap_or_default();
                new.push(self.insert(*sample, wanted));
            }
            if let Some(entry) = self.entries.get_mut(sample) {
                if let Some(used) = entry.idle.take() {
                    self.idle.remove(&used);
                }
                entry.wanted.insert(key);
                entry.place();
                slots.push(Arc::clone(&entry.slot));
            }
        }
        *self.jobs.entry(job.to_owned()).or_default() += keys.len() as u64;
        self.waiting += keys.len() as u64;
        self.ranges.insert(key, keys.to_vec());
        self.update_head();
        (slots, new)
    }

    /// The slot that stands where `old` stood; true when it is new and must be made.
    pub(crate) fn renew(&mut self, old: &Arc<Slot<E>>) -> (Arc<Slot<E>>, bool) {
        match self.entries.get(&old.key) {
            Some(entry) if !(entry.finished && entry.slot.spent()) => (Arc::clone(&entry.slot), false),
            _ => {
                let wanted = self.remove(old.key).map(|entry| entry.wanted).unwrap_or_default();
                let slot = self.insert(old.key, wanted);
                self.update_head();
                (slot, true)
            }
        }
    }

    /// Takes a range out. Samples that nobody waits for any more are dropped if they are not finished,
    /// and remembered if they are.
    pub(crate) fn leave(&mut self, key: RangeKey, job: &str) -> Dropped<E> {
        let mut dropped = Vec::new();
        let Some(keys) = self.ranges.remove(&key) else { return Dropped(dropped) };
        self.waiting -= keys.len() as u64;
        if let Some(count) = self.jobs.get_mut(job) {
            *count -= keys.len() as u64;
            if *count == 0 {
                self.jobs.remove(job);
            }
        }
        let was_head = self.head == Some(key);
        for sample in keys {
            let Some(entry) = self.entries.get_mut(&sample) else { continue };
            if was_head {
                entry.slot.urgency.set_head(false);
            }
            entry.wanted.remove(&key);
            entry.place();
            if !entry.wanted.is_empty() {
                continue;
            }
            if entry.finished && !entry.slot.spent() {
                entry.served();
                self.next += 1;
                entry.idle = Some(self.next);
                self.idle.insert(self.next, sample);
            } else {
                dropped.extend(self.remove(sample));
            }
        }
        self.update_head();
        self.forget(&mut dropped);
        Dropped(dropped)
    }

    /// A slot has been settled after `spent`.
    pub(crate) fn finished(&mut self, slot: &Arc<Slot<E>>, spent: Duration) {
        let sample = spent.as_micros() as f64;
        self.microseconds_a_sample += 0.05 * (sample - self.microseconds_a_sample);
        let Some(entry) = self.entries.get_mut(&slot.key) else { return };
        if !Arc::ptr_eq(&entry.slot, slot) || entry.finished {
            return;
        }
        entry.finished = true;
        entry.task = None;
        self.making -= 1;
        self.ready += 1;
    }

    pub(crate) fn set_task(&mut self, key: SampleKey, task: AbortHandle) {
        if let Some(entry) = self.entries.get_mut(&key)
            && !entry.finished
        {
            entry.task = Some(task);
        }
    }

    fn insert(&mut self, key: SampleKey, wanted: BTreeSet<RangeKey>) -> Arc<Slot<E>> {
        let slot = Arc::new(Slot::new(key));
        let entry = Entry { slot: Arc::clone(&slot), wanted, task: None, finished: false, idle: None };
        entry.place();
        self.entries.insert(key, entry);
        self.making += 1;
        slot
    }

    /// Takes an entry out and ends its task.
    fn remove(&mut self, key: SampleKey) -> Option<Entry<E>> {
        let entry = self.entries.remove(&key)?;
        if let Some(used) = entry.idle {
            self.idle.remove(&used);
        }
        if entry.finished {
            self.ready -= 1;
        } else {
            self.making -= 1;
        }
        if let Some(task) = &entry.task {
            task.abort();
        }
        Some(entry)
    }

    /// Drops the least recently used of what nobody waits for, down to the bound.
    fn forget(&mut self, dropped: &mut Vec<Entry<E>>) {
        while self.idle.len() > self.max_remembered {
            let Some((_, key)) = self.idle.pop_first() else { return };
            dropped.extend(self.remove(key));
        }
    }

    /// The most urgent range is the head: its samples come first everywhere. Its samples are told each
    /// time, since one of them may just have been made anew.
    fn update_head(&mut self) {
        let first = self.ranges.keys().next().copied();
        if first != self.head {
            self.tell(self.head, false);
        }
        self.tell(first, true);
        self.head = first;
    }

    fn tell(&self, range: Option<RangeKey>, head: bool) {
        let keys = range.and_then(|range| self.ranges.get(&range));
        for entry in keys.into_iter().flatten().filter_map(|key| self.entries.get(key)) {
            entry.slot.urgency.set_head(head);
        }
    }
}

impl<E: Clone> Entry<E> {
    /// The urgency of the most urgent range that wants it.
    fn place(&self) {
        let urgency = &self.slot.urgency;
        match self.wanted.first() {
            Some((when, _)) => {
                urgency.set(*when);
                self.with_region(|region| {
                    region.mark_wanted(urgency);
                });
            }
            None => {
                urgency.set_head(false);
                urgency.set(Urgency::IDLE);
            }
        }
    }

    fn served(&self) {
        self.with_region(|region| {
            region.mark_served();
        });
    }

    fn with_region(&self, act: impl FnOnce(&feedmill_arena::Region)) {
        if self.finished
            && let SlotState::Ready(sample) = self.slot.state()
            && let SampleBytes::Region(region) = &sample.bytes
        {
            act(region);
        }
    }
}
