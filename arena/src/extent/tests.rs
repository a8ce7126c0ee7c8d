use std::collections::{BTreeMap, HashSet};

use proptest::prelude::*;

use super::*;

fn take(extents: &mut Extents, pages: u64) -> Option<Plan> {
    let plan = extents.plan(pages)?;
    extents.apply(&plan);
    Some(plan)
}

/// What the memory would look like: every page of an extent is touched, every punch forgets pages.
#[derive(Default)]
struct Model {
    resident: HashSet<u64>,
    live: BTreeMap<u64, u64>,
}

impl Model {
    fn check(&self, extents: &Extents) {
        let used: u64 = self.live.values().sum();
        assert_eq!(extents.available(), extents.capacity() - used);
        assert_eq!(extents.committed(), self.resident.len() as u64, "exact, not only a bound");
        assert!(extents.committed() <= extents.capacity());
        let mut end = 0;
        for (start, pages) in &self.live {
            assert!(*start >= end, "extents overlap");
            end = start + pages;
        }
        assert!(end <= extents.space());
    }

    fn take(&mut self, extents: &mut Extents, pages: u64) -> bool {
        let fits = pages > 0 && pages <= extents.available();
        let Some(plan) = take(extents, pages) else {
            assert!(!fits, "{pages} pages were refused, {} are available", extents.available());
            return false;
        };
        assert!(fits);
        for page in plan.punches.iter().flat_map(|punch| punch.start..punch.start + punch.pages) {
            assert!(self.resident.remove(&page), "page {page} was punched without being resident");
            let owner = self.live.range(..=page).next_back();
            assert!(owner.is_none_or(|(start, pages)| page >= start + pages), "used page punched");
        }
        let Extent { start, pages: got } = plan.extent;
        assert_eq!(got, pages);
        self.resident.extend(start..start + pages);
        self.live.insert(start, pages);
        true
    }

    fn give(&mut self, extents: &mut Extents, index: usize) {
        let Some(start) = self.live.keys().nth(index % self.live.len().max(1)).copied() else {
            return;
        };
        extents.give(start);
        self.live.remove(&start);
    }
}

proptest! {
    #[test]
    fn resident_pages_are_counted_exactly_and_every_fitting_request_succeeds(
        capacity in 1u64..200,
        steps in prop::collection::vec((any::<bool>(), 0u64..120, any::<usize>()), 1..200),
    ) {
        let mut extents = Extents::new(capacity);
        let mut model = Model::default();
        for (taking, pages, index) in steps {
            if taking {
                model.take(&mut extents, pages);
            } else {
                model.give(&mut extents, index);
            }
            model.check(&extents);
        }
        while !model.live.is_empty() {
            model.give(&mut extents, 0);
        }
        model.check(&extents);
        prop_assert_eq!(extents.available(), capacity);
        prop_assert!(model.take(&mut extents, capacity), "one extent of everything");
    }
}

#[test]
fn address_space_stays_within_what_a_process_has() {
    const GIB: u64 = 1 << 18;
    for (capacity, at_most) in [(1, 1), (GIB / 4, 65), (4 * GIB, 73), (64 * GIB, 89), (1024 * GIB, 108)] {
        let space = Extents::new(capacity).space();
        assert!(space <= capacity * at_most, "{} times {capacity} pages", space / capacity);
        assert!(space < 128 * 1024 * GIB);
    }
}

#[test]
fn scattered_small_extents_do_not_split_the_space() {
    let capacity = 4096;
    let mut extents = Extents::new(capacity);
    let small: Vec<_> = (0..capacity).map(|_| take(&mut extents, 1).unwrap().extent.start).collect();
    assert!(extents.plan(1).is_none());
    // Every second page stays in use: packed tightly, no two free pages would touch.
    for start in small.iter().step_by(2) {
        extents.give(*start);
    }
    assert!(take(&mut extents, capacity / 2).is_some());
    assert_eq!((extents.available(), extents.committed()), (0, capacity));
}

#[test]
fn warm_slots_are_taken_by_best_fit() {
    let mut extents = Extents::new(100);
    let starts: Vec<_> = [5, 7, 8].map(|pages| take(&mut extents, pages).unwrap().extent.start).to_vec();
    starts.iter().for_each(|start| extents.give(*start));
    for (pages, slot, growth) in [(6, 1, 0), (8, 2, 0), (8, 0, 3)] {
        let plan = take(&mut extents, pages).unwrap();
        assert_eq!((plan.extent.start, plan.growth), (starts[slot], growth), "{pages} pages");
    }
}

#[test]
fn surplus_is_returned_before_idle_slots_and_those_longest_idle_first() {
    let mut extents = Extents::new(60);
    let [eight, two, one] = [8, 2, 1].map(|pages| take(&mut extents, pages).unwrap().extent.start);
    extents.give(eight);
    assert_eq!(take(&mut extents, 5).unwrap().extent.start, eight, "reused, with 3 pages surplus");
    extents.give(two);
    extents.give(one);
    // 11 are resident; 51 more of another class are 2 too many, the surplus suffices.
    let plan = take(&mut extents, 51).unwrap();
    assert_eq!(plan.punches, [Extent { start: eight + 6, pages: 2 }]);
    // All 60 are resident and 4 of them not used: one of surplus, two and one idle.
    extents.give(plan.extent.start);
    let plan = take(&mut extents, 55).unwrap();
    let punched = |start, pages| Extent { start, pages };
    assert_eq!(plan.punches, [punched(eight + 5, 1), punched(two, 2), punched(one, 1)]);
    assert_eq!((extents.available(), extents.committed()), (0, 60));
}

/// Samples of 0.5 to 4 MB through an arena of 256 MB, oldest out first, one in 32 pages kept free:
/// the pages that reuse had to make resident anew.
#[test]
fn most_pages_stay_resident_over_reuse() {
    let mut extents = Extents::new(65_536);
    let mut live = std::collections::VecDeque::new();
    let (mut random, mut taken, mut grown) = (1u64, 0, 0);
    for step in 0..20_000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let pages = 128 + (random >> 33) % 896;
        while extents.available() < pages + 65_536 / 32 {
            extents.give(live.pop_front().unwrap());
        }
        let plan = take(&mut extents, pages).unwrap();
        live.push_back(plan.extent.start);
        if step >= 1000 {
            taken += pages;
            grown += plan.growth;
        }
    }
    assert!(grown * 100 < taken * 20, "{grown} of {taken} pages were made resident anew");
}
