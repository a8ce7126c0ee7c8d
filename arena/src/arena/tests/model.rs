//! Random sequences against the rules written down naively.

use proptest::prelude::*;

use super::*;

const CAPACITY: usize = 24;
const URGENCIES: usize = 4;

#[derive(Clone, Debug)]
enum Step {
    Reserve {
        pages: usize,
        urgency: usize,
    },
    /// Takes the next step of its life: begin, or finish.
    Advance(usize),
    Lease(usize),
    EndLease(usize),
    Served(usize),
    Wanted {
        which: usize,
        urgency: usize,
    },
    Drop(usize),
    Urgency {
        which: usize,
        value: u64,
    },
    Head {
        which: usize,
        head: bool,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let which = || any::<usize>();
    let urgency = || 0..URGENCIES;
    let step = prop_oneof![
        6 => (1usize..14, urgency()).prop_map(|(pages, urgency)| Step::Reserve { pages, urgency }),
        8 => which().prop_map(Step::Advance),
        3 => which().prop_map(Step::Lease),
        3 => which().prop_map(Step::EndLease),
        2 => which().prop_map(Step::Served),
        1 => (which(), urgency()).prop_map(|(which, urgency)| Step::Wanted { which, urgency }),
        2 => which().prop_map(Step::Drop),
        1 => (urgency(), 0u64..4).prop_map(|(which, value)| Step::Urgency { which, value }),
        1 => (urgency(), any::<bool>()).prop_map(|(which, head)| Step::Head { which, head }),
    ];
    prop::collection::vec(step, 1..120)
}

/// What the arena gave out, if the owner still has it.
enum Handle {
    Waiting(Reserve),
    Reserved(Reservation),
    Filling(crate::RegionWriter),
    Ready(Region),
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Waiting,
    Empty,
    Filling,
    Ready,
    Void,
}

struct Entry {
    handle: Handle,
    leases: Vec<RegionLease>,
    pages: usize,
    urgency: usize,
    state: State,
    served: bool,
    used_at: usize,
}

struct Model {
    entries: Vec<Entry>,
    urgencies: Vec<Urgency>,
    clock: usize,
}

impl Model {
    fn rank(&self, urgency: usize) -> (bool, u64, usize) {
        let cell = &self.urgencies[urgency];
        (!cell.is_head(), cell.get(), urgency)
    }

    fn free(&self) -> usize {
        let held = |entry: &&Entry| !matches!(entry.state, State::Waiting | State::Void);
        CAPACITY - self.entries.iter().filter(held).map(|entry| entry.pages).sum::<usize>()
    }

    /// In the order in which they would be given up for `requester`.
    fn victims(&self, requester: (bool, u64, usize)) -> Vec<usize> {
        let unleased = |index: &usize| {
            let entry = &self.entries[*index];
            entry.state == State::Empty || (entry.state == State::Ready && entry.leases.is_empty())
        };
        let (mut served, mut wanted): (Vec<_>, Vec<_>) =
            (0..self.entries.len()).filter(unleased).partition(|index| self.entries[*index].served);
        served.sort_by_key(|index| self.entries[*index].used_at);
        wanted.retain(|index| self.rank(self.entries[*index].urgency) > requester);
        wanted.sort_by_key(|index| {
            let entry = &self.entries[*index];
            let rank = std::cmp::Reverse(self.rank(entry.urgency));
            (rank, entry.state != State::Empty, std::cmp::Reverse(*index))
        });
        served.into_iter().chain(wanted).collect()
    }

    fn grant(&mut self) {
        loop {
            let waiting = (0..self.entries.len()).filter(|i| self.entries[*i].state == State::Waiting);
            let Some(front) = waiting.min_by_key(|i| (self.rank(self.entries[*i].urgency), *i)) else {
                return;
            };
            let pages = self.entries[front].pages;
            let victims = self.victims(self.rank(self.entries[front].urgency));
            let gained: usize = victims.iter().map(|i| self.entries[*i].pages).sum();
            if self.free() + gained < pages {
                return;
            }
            for victim in victims {
                if self.free() >= pages {
                    break;
                }
                self.entries[victim].state = State::Void;
            }
            self.entries[front].state = State::Empty;
        }
    }

    fn tick(&mut self) -> usize {
        self.clock += 1;
        self.clock
    }

    fn step(&mut self, arena: &Arc<Arena>, step: Step) {
        let now = self.tick();
        let count = self.entries.len().max(1);
        let entry = |entries: &'_ mut Vec<Entry>, which: usize| -> Option<usize> {
            (!entries.is_empty()).then_some(which % count)
        };
        match step {
            Step::Reserve { pages, urgency } => self.entries.push(Entry {
                handle: Handle::Waiting(arena.reserve(pages * PAGE - 1, &self.urgencies[urgency])),
                leases: Vec::new(),
                pages,
                urgency,
                state: State::Waiting,
                served: false,
                used_at: 0,
            }),
            Step::Advance(which) => {
                let Some(index) = entry(&mut self.entries, which) else {
                    return;
                };
                let seed = index as u8;
                let entry = &mut self.entries[index];
                entry.handle = match std::mem::replace(&mut entry.handle, Handle::Gone) {
                    Handle::Reserved(reservation) => match reservation.begin_fill() {
                        Ok(mut writer) => {
                            assert_eq!(entry.state, State::Empty);
                            entry.state = State::Filling;
                            writer.as_mut_slice().fill(seed);
                            Handle::Filling(writer)
                        }
                        Err(Revoked) => {
                            assert_eq!(entry.state, State::Void);
                            Handle::Gone
                        }
                    },
                    Handle::Filling(writer) => {
                        entry.state = State::Ready;
                        Handle::Ready(writer.finish())
                    }
                    other => other,
                };
            }
            Step::Lease(which) => {
                let Some(index) = entry(&mut self.entries, which) else {
                    return;
                };
                let entry = &mut self.entries[index];
                if let Handle::Ready(region) = &entry.handle {
                    let lease = region.lease();
                    assert_eq!(lease.is_some(), entry.state == State::Ready);
                    entry.leases.extend(lease);
                }
            }
            Step::EndLease(which) => {
                let Some(index) = entry(&mut self.entries, which) else {
                    return;
                };
                let entry = &mut self.entries[index];
                if entry.leases.pop().is_some() {
                    entry.used_at = now;
                    if entry.leases.is_empty() && matches!(entry.handle, Handle::Gone) {
                        entry.state = State::Void;
                    }
                }
            }
            Step::Served(which) => {
                let Some(index) = entry(&mut self.entries, which) else {
                    return;
                };
                let entry = &mut self.entries[index];
                if let Handle::Ready(region) = &entry.handle {
                    assert_eq!(region.mark_served(), entry.state == State::Ready);
                    (entry.served, entry.used_at) = (true, now);
                }
            }
            Step::Wanted { which, urgency } => {
                let Some(index) = entry(&mut self.entries, which) else {
                    return;
                };
                let entry = &mut self.entries[index];
                if let Handle::Ready(region) = &entry.handle {
                    let wanted = region.mark_wanted(&self.urgencies[urgency]);
                    assert_eq!(wanted, entry.state == State::Ready);
                    (entry.served, entry.urgency) = (false, urgency);
                }
            }
            Step::Drop(which) => {
                let Some(index) = entry(&mut self.entries, which) else {
                    return;
                };
                let entry = &mut self.entries[index];
                entry.handle = Handle::Gone;
                if entry.leases.is_empty() {
                    entry.state = State::Void;
                }
            }
            Step::Urgency { which, value } => self.urgencies[which].set(value),
            Step::Head { which, head } => self.urgencies[which].set_head(head),
        }
    }

    /// What the arena gave equals what the rules give.
    fn check(&mut self, arena: &Arena) {
        let mut extents = Vec::new();
        for (index, entry) in self.entries.iter_mut().enumerate() {
            if let Handle::Waiting(reserve) = &mut entry.handle {
                let reservation = poll(reserve);
                assert_eq!(reservation.is_some(), entry.state != State::Waiting, "entry {index}");
                if let Some(reservation) = reservation {
                    entry.handle = Handle::Reserved(reservation);
                }
            }
            match &entry.handle {
                Handle::Waiting(_) | Handle::Gone => {}
                Handle::Reserved(it) => assert_eq!(it.is_revoked(), entry.state == State::Void),
                Handle::Filling(it) => {
                    assert_eq!(entry.state, State::Filling);
                    extents.push((it.offset(), it.len()));
                    assert!(it.as_slice().iter().all(|byte| *byte == index as u8));
                }
                Handle::Ready(it) => assert_eq!(it.is_void(), entry.state == State::Void),
            }
            for lease in &entry.leases {
                assert!(lease.iter().all(|byte| *byte == index as u8), "a leased region changed");
            }
            extents.extend(entry.leases.first().map(|lease| (lease.offset(), lease.len())));
        }
        extents.sort_unstable();
        assert!(extents.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "overlap");

        let pages = |wanted: &dyn Fn(&Entry) -> bool| {
            let chosen = self.entries.iter().filter(|entry| wanted(entry));
            (chosen.map(|entry| entry.pages).sum::<usize>() * PAGE) as u64
        };
        let stats = arena.stats();
        assert_eq!(stats.empty, pages(&|entry| entry.state == State::Empty));
        assert_eq!(stats.filling, pages(&|entry| entry.state == State::Filling));
        let ready = |entry: &Entry| entry.state == State::Ready && entry.leases.is_empty();
        assert_eq!(stats.ready, pages(&ready));
        assert_eq!(stats.leased, pages(&|entry| !entry.leases.is_empty()));
        assert_eq!(stats.waiting_bytes, pages(&|entry| entry.state == State::Waiting));
        assert!(stats.committed <= stats.capacity);
        assert!(stats.empty + stats.filling + stats.ready + stats.leased <= stats.committed);
    }
}

proptest! {
    #[test]
    fn the_arena_follows_its_rules(steps in steps()) {
        let arena = arena(CAPACITY);
        let mut model = Model {
            entries: Vec::new(),
            urgencies: (0..URGENCIES as u64).map(Urgency::new).collect(),
            clock: 0,
        };
        for step in steps {
            model.step(&arena, step);
            model.grant();
            model.check(&arena);
        }
        drop(model);
        assert_nothing_held(&arena);
    }
}
