//! Takes reservations and what becomes of them, gives grants, evictions and revocations in the
//! order of need. Pure: it books pages and asks a function to return them, it touches no memory.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::task::Waker;

use rustix::io::Errno;

use crate::arena::ArenaStats;
use crate::extent::{Extent, Extents};
use crate::need_queue::NeedQueue;
use crate::urgency::{Rank, Urgency};

/// One in so many pages is kept free while there are served regions to give up: with some free
/// slots to choose from, reuse keeps twice as many pages resident (see the module `extent`).
const SPARE: u64 = 32;

/// How far a region has come. Leased is `Ready` with a lease count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Reserved, nothing invested: may be revoked.
    Empty,
    /// Being written: runs to its end.
    Filling,
    /// Complete and fixed: may be evicted unless leased.
    Ready,
}

/// All regions of an arena.
pub(crate) struct Ledger {
    extents: Extents,
    regions: HashMap<u64, Record>,
    waiting: NeedQueue<Waiter>,
    waiting_pages: u64,
    /// Evictable by anybody: ready, served, not leased; least recently used first.
    served: BTreeMap<u64, u64>,
    /// Evictable by the more urgent: empty, or ready, not served and not leased.
    wanted: NeedQueue<Victim>,
    /// Reservations that could not be granted because returning pages failed.
    failed: HashMap<u64, Errno>,
    /// To wake once the lock is released.
    pub(crate) woken: Vec<Waker>,
    next_id: u64,
    clock: u64,
    totals: ArenaStats,
}

struct Record {
    extent: Extent,
    /// Pages at the extent's end that were not resident when it was handed out.
    growth: u64,
    urgency: Urgency,
    phase: Phase,
    /// The reservation, writer or region still exists; without it the record lives by its leases.
    owned: bool,
    leases: usize,
    served: bool,
    used_at: u64,
    /// Wants to hear of a revocation.
    watcher: Option<Waker>,
}

struct Waiter {
    pages: u64,
    waker: Option<Waker>,
}

#[derive(Clone, Copy)]
struct Victim {
    pages: u64,
    empty: bool,
}

/// What a waiting reservation sees when it looks.
pub(crate) enum Progress {
    /// Not granted; the replaced waker is dropped outside the lock.
    Waiting(#[expect(dead_code, reason = "only carried out of the lock")] Option<Waker>),
    /// Granted, at this extent; its last pages, this many, are not resident yet.
    Granted(Extent, u64),
    /// Granted, and already revoked.
    Revoked,
    /// Returning pages failed.
    Failed(Errno),
}

impl Ledger {
    pub(crate) fn new(extents: Extents) -> Self {
        Self {
            extents,
            regions: HashMap::new(),
            waiting: NeedQueue::new(),
            waiting_pages: 0,
            served: BTreeMap::new(),
            wanted: NeedQueue::new(),
            failed: HashMap::new(),
            woken: Vec::new(),
            next_id: 0,
            clock: 0,
            totals: ArenaStats::default(),
        }
    }

    /// Queues a reservation; the answer is its id.
    pub(crate) fn reserve(&mut self, pages: u64, urgency: &Urgency) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.waiting.insert(id, urgency, Waiter { pages, waker: None });
        self.waiting_pages += pages;
        id
    }

    /// Where a reservation stands; leaves the waker when it still waits.
    pub(crate) fn progress(&mut self, id: u64, urgency: &Urgency, waker: Waker) -> Progress {
        if let Some(record) = self.regions.get(&id) {
            return Progress::Granted(record.extent, record.growth);
        }
        if let Some(waiter) = self.waiting.get_mut(id, urgency) {
            return Progress::Waiting(waiter.waker.replace(waker));
        }
        self.failed.remove(&id).map_or(Progress::Revoked, Progress::Failed)
    }

    /// Forgets a reservation that nobody claimed. The waker is dropped outside the lock.
    pub(crate) fn cancel(&mut self, id: u64, urgency: &Urgency) -> Option<Waker> {
        if let Some(waiter) = self.waiting.remove(id, urgency) {
            self.waiting_pages -= waiter.pages;
            return waiter.waker;
        }
        self.failed.remove(&id);
        self.let_go(id)
    }

    /// Serves the waiting reservations from the front, as long as the front gets its pages.
    /// `punch` returns an extent to the system.
    pub(crate) fn grant(&mut self, mut punch: impl FnMut(Extent) -> Result<(), Errno>) {
        while let Some((id, urgency, waiter)) = self.waiting.front() {
            let (pages, urgency) = (waiter.pages, urgency.clone());
            let lacking = pages.saturating_sub(self.extents.available());
            if lacking == 0 {
                self.spare(pages);
            } else {
                // All or nothing: evicting for a grant that must wait anyway only loses work.
                let Some(victims) = self.victims(lacking, urgency.rank()) else {
                    break;
                };
                for victim in victims {
                    self.evict(victim);
                }
            }
            let Some(plan) = self.extents.plan(pages) else {
                break;
            };
            let punched = plan.punches.iter().try_for_each(|extent| {
                self.totals.punches += 1;
                self.totals.punched_bytes += extent.pages;
                punch(*extent)
            });
            let waiter = self.waiting.remove(id, &urgency);
            self.waiting_pages -= pages;
            match punched {
                Ok(()) => {
                    self.extents.apply(&plan);
                    self.add(
                        id,
                        Record {
                            extent: plan.extent,
                            growth: plan.growth,
                            urgency,
                            phase: Phase::Empty,
                            owned: true,
                            leases: 0,
                            served: false,
                            used_at: 0,
                            watcher: None,
                        },
                    );
                }
                // Nothing was booked, so at worst more pages count as resident than are.
                Err(errno) => {
                    self.failed.insert(id, errno);
                }
            }
            self.woken.extend(waiter.and_then(|waiter| waiter.waker));
        }
    }

    /// Gives up served regions until some pages more than `pages` are free.
    fn spare(&mut self, pages: u64) {
        let wish = pages + self.extents.capacity() / SPARE;
        while self.extents.available() < wish
            && let Some((_, id)) = self.served.first_key_value()
        {
            self.evict(*id);
        }
    }

    /// Regions to give up for `lacking` pages: served ones, least recently used first, then those
    /// less urgent than the requester, least urgent first. None when they are not enough.
    fn victims(&self, lacking: u64, requester: Rank) -> Option<Vec<u64>> {
        if lacking > self.totals.empty + self.totals.ready {
            return None;
        }
        let mut victims = Vec::new();
        let mut freed = 0;
        for id in self.served.values() {
            if freed >= lacking {
                return Some(victims);
            }
            freed += self.regions.get(id).map_or(0, |record| record.extent.pages);
            victims.push(*id);
        }
        for group in self.wanted.less_urgent_than(requester) {
            let mut members: Vec<_> = group.iter().map(|(id, victim)| (*id, *victim)).collect();
            // Where nothing is lost first, then what was asked for last.
            members.sort_unstable_by_key(|(id, victim)| (!victim.empty, Reverse(*id)));
            for (id, victim) in members {
                if freed >= lacking {
                    return Some(victims);
                }
                freed += victim.pages;
                victims.push(id);
            }
        }
        (freed >= lacking).then_some(victims)
    }

    fn evict(&mut self, id: u64) {
        if let Some(record) = self.remove(id) {
            if record.phase == Phase::Empty {
                self.totals.revocations += 1;
            } else {
                self.totals.evictions += 1;
            }
            self.woken.extend(record.watcher);
        }
    }

    /// Empty → Filling; false when the reservation was revoked. The watcher is woken outside the lock.
    pub(crate) fn begin(&mut self, id: u64) -> (bool, Option<Waker>) {
        let mut watcher = None;
        let found = self.change(id, |record| {
            record.phase = Phase::Filling;
            watcher = record.watcher.take();
        });
        (found, watcher)
    }

    /// Filling → Ready.
    pub(crate) fn finish(&mut self, id: u64) {
        self.change(id, |record| record.phase = Phase::Ready);
    }

    /// The reservation, writer or region is gone: frees the region, at once or with its last lease.
    pub(crate) fn let_go(&mut self, id: u64) -> Option<Waker> {
        let leased = self.regions.get(&id)?.leases > 0;
        if leased {
            self.change(id, |record| record.owned = false);
            None
        } else {
            self.remove(id)?.watcher
        }
    }

    /// Counts one more lease; false when the region was evicted.
    pub(crate) fn lease(&mut self, id: u64) -> bool {
        self.change(id, |record| record.leases += 1)
    }

    /// Counts one lease less; the last one frees a region without an owner.
    pub(crate) fn end_lease(&mut self, id: u64) {
        let now = self.tick();
        self.change(id, |record| {
            record.leases -= 1;
            record.used_at = now;
        });
        if self.regions.get(&id).is_some_and(|record| record.leases == 0 && !record.owned) {
            self.remove(id);
        }
    }

    /// Nobody waits for the region any more; it is kept as long as nobody needs its place.
    pub(crate) fn mark_served(&mut self, id: u64) -> bool {
        let now = self.tick();
        self.change(id, |record| {
            record.served = true;
            record.used_at = now;
        })
    }

    /// Somebody waits for the region, with this urgency from now on.
    pub(crate) fn mark_wanted(&mut self, id: u64, urgency: &Urgency) -> bool {
        self.change(id, |record| {
            record.served = false;
            record.urgency = urgency.clone();
        })
    }

    pub(crate) fn exists(&self, id: u64) -> bool {
        self.regions.contains_key(&id)
    }

    /// Leaves a waker for the revocation; true when the reservation is no more.
    pub(crate) fn watch(&mut self, id: u64, waker: Waker) -> (bool, Option<Waker>) {
        match self.regions.get_mut(&id) {
            Some(record) if record.phase == Phase::Empty => (false, record.watcher.replace(waker)),
            _ => (true, None),
        }
    }

    /// Counts in pages; the arena makes bytes of them.
    pub(crate) fn stats_in_pages(&self) -> ArenaStats {
        ArenaStats {
            capacity: self.extents.capacity(),
            committed: self.extents.committed(),
            waiting: self.waiting.len(),
            waiting_bytes: self.waiting_pages,
            ..self.totals
        }
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Changes a region and moves it to where its new state belongs; false when it does not exist.
    fn change(&mut self, id: u64, change: impl FnOnce(&mut Record)) -> bool {
        let Some(mut record) = self.take_out(id) else {
            return false;
        };
        change(&mut record);
        self.add(id, record);
        true
    }

    fn remove(&mut self, id: u64) -> Option<Record> {
        let record = self.take_out(id)?;
        self.extents.give(record.extent.start);
        Some(record)
    }

    fn add(&mut self, id: u64, record: Record) {
        let pages = record.extent.pages;
        *self.total_of(&record) += pages;
        match record.place() {
            Place::Held => {}
            Place::Served => {
                self.served.insert(record.used_at, id);
            }
            Place::Wanted => {
                let empty = record.phase == Phase::Empty;
                self.wanted.insert(id, &record.urgency, Victim { pages, empty });
            }
        }
        self.regions.insert(id, record);
    }

    fn take_out(&mut self, id: u64) -> Option<Record> {
        let record = self.regions.remove(&id)?;
        let pages = record.extent.pages;
        *self.total_of(&record) -= pages;
        match record.place() {
            Place::Held => {}
            Place::Served => {
                self.served.remove(&record.used_at);
            }
            Place::Wanted => {
                self.wanted.remove(id, &record.urgency);
            }
        }
        Some(record)
    }

    fn total_of(&mut self, record: &Record) -> &mut u64 {
        match record.phase {
            Phase::Empty => &mut self.totals.empty,
            Phase::Filling => &mut self.totals.filling,
            Phase::Ready if record.leases == 0 => &mut self.totals.ready,
            Phase::Ready => &mut self.totals.leased,
        }
    }
}

/// Who may take a region's pages.
enum Place {
    /// Nobody: being written, or leased.
    Held,
    /// Anybody.
    Served,
    /// The more urgent.
    Wanted,
}

impl Record {
    fn place(&self) -> Place {
        match self.phase {
            Phase::Empty => Place::Wanted,
            Phase::Filling => Place::Held,
            Phase::Ready if self.leases > 0 => Place::Held,
            Phase::Ready if self.served => Place::Served,
            Phase::Ready => Place::Wanted,
        }
    }
}
