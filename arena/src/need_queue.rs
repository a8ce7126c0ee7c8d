//! Takes items with their urgencies, gives them back in the order of need.
//!
//! Urgencies change while items wait, so nothing is kept sorted by them. Items are grouped by
//! urgency cell (one per range) instead: looking for the front reads one number per group, not one
//! per item.

use std::collections::BTreeMap;

use crate::urgency::{Rank, Urgency};

/// Items in groups, one group per urgency cell; inside a group first come, first served.
pub(crate) struct NeedQueue<T> {
    groups: BTreeMap<u64, Group<T>>,
    items: usize,
}

struct Group<T> {
    urgency: Urgency,
    items: BTreeMap<u64, T>,
}

impl<T> NeedQueue<T> {
    pub(crate) fn new() -> Self {
        Self { groups: BTreeMap::new(), items: 0 }
    }

    /// Adds an item under an id that the caller keeps unique (and growing, for first come, first served).
    pub(crate) fn insert(&mut self, id: u64, urgency: &Urgency, item: T) {
        let group = self
            .groups
            .entry(urgency.ticket())
            .or_insert_with(|| Group { urgency: urgency.clone(), items: BTreeMap::new() });
        if group.items.insert(id, item).is_none() {
            self.items += 1;
        }
    }

    pub(crate) fn remove(&mut self, id: u64, urgency: &Urgency) -> Option<T> {
        let group = self.groups.get_mut(&urgency.ticket())?;
        let item = group.items.remove(&id)?;
        if group.items.is_empty() {
            self.groups.remove(&urgency.ticket());
        }
        self.items -= 1;
        Some(item)
    }

    pub(crate) fn get_mut(&mut self, id: u64, urgency: &Urgency) -> Option<&mut T> {
        self.groups.get_mut(&urgency.ticket())?.items.get_mut(&id)
    }

    /// The most urgent item: its id, its urgency and itself.
    pub(crate) fn front(&self) -> Option<(u64, &Urgency, &T)> {
        let group = self.groups.values().min_by_key(|group| group.urgency.rank())?;
        let (id, item) = group.items.first_key_value()?;
        Some((*id, &group.urgency, item))
    }

    /// The groups less urgent than `rank`, least urgent first.
    pub(crate) fn less_urgent_than(&self, rank: Rank) -> Vec<&BTreeMap<u64, T>> {
        let mut groups: Vec<_> = self
            .groups
            .values()
            .map(|group| (group.urgency.rank(), &group.items))
            .filter(|(theirs, _)| *theirs > rank)
            .collect();
        groups.sort_unstable_by_key(|(theirs, _)| std::cmp::Reverse(*theirs));
        groups.into_iter().map(|(_, items)| items).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.items
    }
}
