//! Takes requests for places in slabs, gives places, and says what is given up for them: whole batches that are
//! idle, least recently used first. Pure: it books pages, it touches no memory.
//!
//! A sealed file cannot return pages to the system, so slabs are made when needed and then reused for ever. A place
//! lies in one slab; only the batches that stand in the way of it are given up.

use std::collections::{BTreeMap, HashMap};

/// Places at once. A text-only batch may take a single page, so bytes alone would not bound the tables.
const MOST_PLACES: usize = 65_536;

/// Pages of one slab that hold one batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) slab: usize,
    pub(crate) start: u64,
    pub(crate) pages: u64,
}

/// Where a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Booked.
    Place(Place),
    /// A slab must be made first.
    NewSlab,
    /// Everything is held.
    Nothing,
}

/// How many pages are in which state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pages {
    pub(crate) filling: u64,
    pub(crate) idle: u64,
    pub(crate) leased: u64,
}

pub(crate) struct SlabLedger {
    slab_pages: u64,
    most_slabs: usize,
    /// Of each slab, where free extents begin and how many pages they have.
    free: Vec<BTreeMap<u64, u64>>,
    places: HashMap<u64, Record>,
    /// Complete, owned and not leased, by when they were last used.
    idle: BTreeMap<u64, u64>,
    clock: u64,
    pages: Pages,
    evictions: u64,
}

#[derive(Clone, Copy)]
struct Record {
    place: Place,
    complete: bool,
    /// Its writer or region exists; without it the place lives by its leases.
    owned: bool,
    leases: usize,
    used_at: u64,
}

impl SlabLedger {
    pub(crate) fn new(slab_pages: u64, most_slabs: usize) -> Self {
        Self {
            slab_pages,
            most_slabs,
            free: Vec::new(),
            places: HashMap::new(),
            idle: BTreeMap::new(),
            clock: 0,
            pages: Pages::default(),
            evictions: 0,
        }
    }

    pub(crate) fn slabs(&self) -> usize {
        self.free.len()
    }

    pub(crate) fn pages(&self) -> Pages {
        self.pages
    }

    pub(crate) fn evictions(&self) -> u64 {
        self.evictions
    }

    /// A slab was made.
    pub(crate) fn add_slab(&mut self) {
        self.free.push(BTreeMap::from([(0, self.slab_pages)]));
    }

    /// No more slabs than there are: the system refused one.
    pub(crate) fn stop_growing(&mut self) {
        self.most_slabs = self.free.len();
    }

    /// Books `pages` under an id that was never used.
    pub(crate) fn take(&mut self, id: u64, pages: u64) -> Found {
        if self.places.len() >= MOST_PLACES {
            let Some(oldest) = self.idle.first_key_value().map(|(_, oldest)| *oldest) else {
                return Found::Nothing;
            };
            self.evict(oldest);
        }
        let (slab, start) = match best_fit(&self.free, pages) {
            Some(found) => found,
            None if self.free.len() < self.most_slabs => return Found::NewSlab,
            None => match self.make_way(pages) {
                Some(found) => found,
                None => return Found::Nothing,
            },
        };
        if let Some(free) = self.free.get_mut(slab)
            && let Some(found) = free.remove(&start)
            && found > pages
        {
            free.insert(start + pages, found - pages);
        }
        let place = Place { slab, start, pages };
        self.put(id, Record { place, complete: false, owned: true, leases: 0, used_at: 0 });
        Found::Place(place)
    }

    /// Gives up what stands in the way of `pages`, as little recently used as can be.
    fn make_way(&mut self, pages: u64) -> Option<(usize, u64)> {
        if self.idle.is_empty() {
            return None;
        }
        let mut scratch = self.free.clone();
        let (slab, start) = self.idle.values().find_map(|id| {
            let place = self.places.get(id)?.place;
            let (start, length) = give(scratch.get_mut(place.slab)?, place);
            (length >= pages).then_some((place.slab, start))
        })?;
        let in_the_way = |place: Place| {
            place.slab == slab && place.start < start + pages && start < place.start + place.pages
        };
        let victims: Vec<u64> = self
            .idle
            .values()
            .filter(|id| self.places.get(id).is_some_and(|record| in_the_way(record.place)))
            .copied()
            .collect();
        for victim in victims {
            self.evict(victim);
        }
        Some((slab, start))
    }

    fn evict(&mut self, id: u64) {
        if self.remove(id) {
            self.evictions += 1;
        }
    }

    pub(crate) fn exists(&self, id: u64) -> bool {
        self.places.contains_key(&id)
    }

    /// The batch is complete and may be leased.
    pub(crate) fn complete(&mut self, id: u64) {
        self.change(id, |record| record.complete = true);
    }

    /// Counts one more lease; false when the place was given up.
    pub(crate) fn lease(&mut self, id: u64) -> bool {
        self.change(id, |record| record.leases += 1)
    }

    /// Counts one lease less; the last one frees a place without an owner.
    pub(crate) fn end_lease(&mut self, id: u64) {
        self.change(id, |record| record.leases = record.leases.saturating_sub(1));
        self.drop_when_unheld(id);
    }

    /// The writer or region is gone.
    pub(crate) fn let_go(&mut self, id: u64) {
        self.change(id, |record| record.owned = false);
        self.drop_when_unheld(id);
    }

    fn drop_when_unheld(&mut self, id: u64) {
        if self.places.get(&id).is_some_and(|record| !record.owned && record.leases == 0) {
            self.remove(id);
        }
    }

    fn change(&mut self, id: u64, change: impl FnOnce(&mut Record)) -> bool {
        let Some(mut record) = self.pull(id) else {
            return false;
        };
        change(&mut record);
        self.clock += 1;
        record.used_at = self.clock;
        self.put(id, record);
        true
    }

    fn remove(&mut self, id: u64) -> bool {
        let Some(record) = self.pull(id) else {
            return false;
        };
        if let Some(free) = self.free.get_mut(record.place.slab) {
            give(free, record.place);
        }
        true
    }

    fn put(&mut self, id: u64, record: Record) {
        *self.total_of(&record) += record.place.pages;
        if record.is_idle() {
            self.idle.insert(record.used_at, id);
        }
        self.places.insert(id, record);
    }

    fn pull(&mut self, id: u64) -> Option<Record> {
        let record = self.places.remove(&id)?;
        *self.total_of(&record) -= record.place.pages;
        if record.is_idle() {
            self.idle.remove(&record.used_at);
        }
        Some(record)
    }

    fn total_of(&mut self, record: &Record) -> &mut u64 {
        match (record.complete, record.leases) {
            (false, _) => &mut self.pages.filling,
            (true, 0) => &mut self.pages.idle,
            (true, _) => &mut self.pages.leased,
        }
    }
}

impl Record {
    fn is_idle(&self) -> bool {
        self.complete && self.owned && self.leases == 0
    }
}

/// The smallest free extent that holds `pages`; of equal ones that of the first slab.
fn best_fit(free: &[BTreeMap<u64, u64>], pages: u64) -> Option<(usize, u64)> {
    let all = free
        .iter()
        .enumerate()
        .flat_map(|(slab, extents)| extents.iter().map(move |(start, length)| (*length, slab, *start)));
    let (_, slab, start) = all.filter(|(length, ..)| *length >= pages).min()?;
    Some((slab, start))
}

/// Adds a place to the free extents of its slab, joined with its neighbours; gives the extent it is part of then.
fn give(free: &mut BTreeMap<u64, u64>, place: Place) -> (u64, u64) {
    let (mut start, mut length) = (place.start, place.pages);
    if let Some((before, pages)) = free.range(..start).next_back().map(|(before, pages)| (*before, *pages))
        && before + pages == start
    {
        free.remove(&before);
        (start, length) = (before, pages + length);
    }
    if let Some(pages) = free.remove(&(place.start + place.pages)) {
        length += pages;
    }
    free.insert(start, length);
    (start, length)
}

#[cfg(test)]
mod tests;
