use super::*;
use proptest::prelude::*;

fn place(found: Found) -> Place {
    match found {
        Found::Place(place) => place,
        other => panic!("{other:?}"),
    }
}

/// A ledger with all its slabs made.
fn full(slab_pages: u64, slabs: usize) -> SlabLedger {
    let mut ledger = SlabLedger::new(slab_pages, slabs);
    for _ in 0..slabs {
        ledger.add_slab();
    }
    ledger
}

#[test]
fn slabs_are_made_when_needed_and_not_before() {
    let mut ledger = SlabLedger::new(10, 2);
    assert_eq!(ledger.take(0, 6), Found::NewSlab);
    ledger.add_slab();
    assert_eq!(place(ledger.take(0, 6)), Place { slab: 0, start: 0, pages: 6 });
    assert_eq!(place(ledger.take(1, 4)), Place { slab: 0, start: 6, pages: 4 });
    assert_eq!(ledger.take(2, 1), Found::NewSlab);
    ledger.stop_growing();
    assert_eq!(ledger.take(2, 1), Found::Nothing);
    ledger.let_go(0);
    assert_eq!(place(ledger.take(2, 1)), Place { slab: 0, start: 0, pages: 1 });
}

#[test]
fn the_smallest_gap_that_fits_is_taken() {
    let mut ledger = full(10, 1);
    for (id, pages) in [(0, 4), (1, 1), (2, 2), (3, 3)] {
        place(ledger.take(id, pages));
    }
    ledger.let_go(0);
    ledger.let_go(2);
    assert_eq!(place(ledger.take(4, 2)).start, 5);
    assert_eq!(place(ledger.take(5, 2)).start, 0);
}

#[test]
fn what_is_leased_or_being_written_is_never_given_up() {
    let mut ledger = full(10, 1);
    place(ledger.take(0, 5));
    place(ledger.take(1, 5));
    ledger.complete(1);
    assert!(ledger.lease(1));
    assert_eq!(ledger.take(2, 1), Found::Nothing);
    // Without its owner it lives as long as the lease.
    ledger.let_go(1);
    assert_eq!(ledger.take(2, 1), Found::Nothing);
    ledger.end_lease(1);
    assert_eq!(place(ledger.take(2, 1)).start, 5);
    assert!(!ledger.lease(1));
}

#[test]
fn the_longest_unused_goes_first_and_only_what_stands_in_the_way() {
    let mut ledger = full(10, 2);
    for id in 0..4 {
        place(ledger.take(id, 5));
        ledger.complete(id);
    }
    // 0 and 1 lie in one slab, 2 and 3 in the other. Used again: 0.
    assert!(ledger.lease(0));
    ledger.end_lease(0);
    let found = place(ledger.take(4, 5));
    assert_eq!((found.slab, found.start), (0, 5));
    assert!(ledger.exists(0) && !ledger.exists(1) && ledger.exists(2) && ledger.exists(3));
    // Ten pages in a row are in the second slab alone: what is longer unused than those stays where it helps nobody.
    let found = place(ledger.take(5, 10));
    assert_eq!((found.slab, found.start), (1, 0));
    assert!(ledger.exists(0) && !ledger.exists(2) && !ledger.exists(3));
    assert_eq!(ledger.evictions(), 3);
}

#[test]
fn places_are_bounded_in_number() {
    let mut ledger = full(MOST_PLACES as u64 + 10, 1);
    for id in 0..MOST_PLACES as u64 {
        place(ledger.take(id, 1));
    }
    assert_eq!(ledger.take(u64::MAX, 1), Found::Nothing);
    ledger.complete(7);
    assert_eq!(place(ledger.take(u64::MAX, 1)).pages, 1);
    assert!(!ledger.exists(7));
}

#[derive(Clone, Debug)]
enum Step {
    Take(u64),
    Complete(usize),
    Lease(usize),
    EndLease(usize),
    LetGo(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let which = || any::<usize>();
    let step = prop_oneof![
        5 => (1u64..14).prop_map(Step::Take),
        5 => which().prop_map(Step::Complete),
        3 => which().prop_map(Step::Lease),
        3 => which().prop_map(Step::EndLease),
        2 => which().prop_map(Step::LetGo),
    ];
    prop::collection::vec(step, 1..200)
}

proptest! {
    /// Places never overlap, all pages are accounted for, and nothing held is given up.
    #[test]
    fn random_lives_keep_the_books_right(steps in steps()) {
        const PAGES: u64 = 16;
        const SLABS: usize = 3;
        let mut ledger = SlabLedger::new(PAGES, SLABS);
        // Id, complete, leases: what is still owned or leased as far as the user knows.
        let mut known: Vec<(u64, bool, u32, bool)> = Vec::new();
        for (id, step) in (0u64..).zip(steps) {
            match step {
                Step::Take(pages) => loop {
                    match ledger.take(id, pages) {
                        Found::NewSlab => ledger.add_slab(),
                        Found::Nothing => break,
                        Found::Place(place) => {
                            prop_assert_eq!(place.pages, pages);
                            prop_assert!(place.slab < SLABS && place.start + pages <= PAGES);
                            known.push((id, false, 0, true));
                            break;
                        }
                    }
                },
                Step::Complete(which) if !known.is_empty() => {
                    let at = which % known.len();
                    ledger.complete(known[at].0);
                    known[at].1 = true;
                }
                Step::Lease(which) if !known.is_empty() => {
                    let at = which % known.len();
                    if known[at].1 && known[at].3 && ledger.lease(known[at].0) {
                        known[at].2 += 1;
                    }
                }
                Step::EndLease(which) if !known.is_empty() => {
                    let at = which % known.len();
                    if known[at].2 > 0 {
                        ledger.end_lease(known[at].0);
                        known[at].2 -= 1;
                    }
                }
                Step::LetGo(which) if !known.is_empty() => {
                    let at = which % known.len();
                    if known[at].3 {
                        ledger.let_go(known[at].0);
                        known[at].3 = false;
                    }
                }
                _ => {}
            }
            for (id, complete, leases, owned) in &known {
                let held = *leases > 0 || (*owned && !complete);
                prop_assert!(!held || ledger.exists(*id), "{} was given up while held", id);
                prop_assert!(held || *owned || !ledger.exists(*id), "{} is kept for nobody", id);
            }
            let mut cells = vec![[false; PAGES as usize]; ledger.slabs()];
            let taken = ledger.places.values().map(|record| record.place);
            let free = ledger.free.iter().enumerate().flat_map(|(slab, extents)| {
                extents.iter().map(move |(start, pages)| Place { slab, start: *start, pages: *pages })
            });
            for place in taken.chain(free) {
                for page in place.start..place.start + place.pages {
                    let cell = &mut cells[place.slab][page as usize];
                    prop_assert!(!*cell, "page {} of slab {} is there twice", page, place.slab);
                    *cell = true;
                }
            }
            prop_assert!(cells.iter().flatten().all(|cell| *cell), "a page is lost");
            let pages = ledger.pages();
            let held: u64 = ledger.places.values().map(|record| record.place.pages).sum();
            prop_assert_eq!(pages.filling + pages.idle + pages.leased, held);
        }
    }
}
