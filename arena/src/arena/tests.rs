use std::sync::Arc;
use std::task::{Context, Waker};

use bytes::Bytes;
use futures_util::FutureExt;

use super::*;
use crate::{ChunkLease, JoinError, Region, RegionLease, Revoked};

mod model;
mod stress;

const PAGE: usize = 4096;

fn arena(pages: usize) -> Arc<Arena> {
    Arena::create(ArenaSettings { bytes: (pages * PAGE) as u64 }).unwrap()
}

/// The reservation, which must be granted at once.
fn reserve(arena: &Arc<Arena>, len: usize, urgency: &Urgency) -> Reservation {
    arena.reserve(len, urgency).now_or_never().expect("granted at once").unwrap()
}

fn write(arena: &Arc<Arena>, len: usize, urgency: &Urgency, byte: u8) -> Region {
    let mut writer = reserve(arena, len, urgency).begin_fill().unwrap();
    writer.as_mut_slice().fill(byte);
    writer.finish()
}

/// A region of one page.
fn page(arena: &Arc<Arena>, urgency: &Urgency) -> Region {
    write(arena, PAGE, urgency, 1)
}

fn poll(reserve: &mut Reserve) -> Option<Reservation> {
    match reserve.poll_unpin(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(reservation) => Some(reservation.unwrap()),
        Poll::Pending => None,
    }
}

fn assert_nothing_held(arena: &Arena) {
    let stats = arena.stats();
    let held = (stats.empty, stats.filling, stats.ready, stats.leased, stats.waiting);
    assert_eq!(held, (0, 0, 0, 0, 0));
    assert!(stats.committed <= stats.capacity);
}

#[test]
fn a_region_goes_from_reserved_to_read_and_back_to_nothing() {
    let arena = arena(8);
    let two_pages = 2 * PAGE as u64;
    let reservation = reserve(&arena, 5000, &Urgency::new(1));
    assert_eq!((reservation.len(), arena.stats().empty), (5000, two_pages));
    let mut writer = reservation.begin_fill().unwrap();
    assert_eq!(arena.stats().filling, two_pages);
    writer.as_mut_slice().fill(7);
    assert_eq!(writer.as_slice(), [7; 5000]);
    let region = writer.finish();
    assert_eq!(arena.stats().ready, two_pages);
    let lease = region.lease().unwrap();
    assert_eq!(arena.stats().leased, two_pages);
    assert_eq!(*lease, [7; 5000]);
    drop(lease);
    assert_eq!(arena.stats().ready, two_pages);
    drop(region);
    assert_nothing_held(&arena);
    assert_eq!(arena.stats().committed, two_pages, "pages are kept for the next region");
}

#[test]
fn a_lease_becomes_bytes_without_a_copy_and_outlives_everything() {
    let arena = arena(8);
    let region = write(&arena, 100, &Urgency::new(1), 9);
    let lease = region.lease().unwrap();
    let address = lease.as_ptr();
    let bytes = Bytes::from_owner(lease);
    assert_eq!(bytes.as_ptr(), address);
    drop(region);
    drop(arena);
    assert_eq!(bytes.slice(10..20), [9; 10][..]);
}

#[test]
fn a_leased_region_whose_owner_is_gone_is_freed_with_its_last_lease() {
    let arena = arena(1);
    let urgency = Urgency::new(1);
    let region = page(&arena, &urgency);
    let (one, two) = (region.lease().unwrap(), region.lease().unwrap());
    drop(region);
    let mut waiting = arena.reserve(1, &urgency);
    drop(one);
    assert!(poll(&mut waiting).is_none());
    assert_eq!(*two, [1; PAGE]);
    drop(two);
    assert!(poll(&mut waiting).is_some());
    assert_nothing_held(&arena);
}

#[test]
fn what_can_never_be_granted_is_an_error_at_once() {
    let arena = arena(2);
    let error = arena.reserve(2 * PAGE + 1, &Urgency::new(0)).now_or_never().unwrap().unwrap_err();
    assert!(matches!(error, ArenaError::TooLarge { asked: 8193, capacity: 8192 }), "{error}");
    let error = arena.reserve(usize::MAX, &Urgency::new(0)).now_or_never().unwrap().unwrap_err();
    assert!(matches!(error, ArenaError::TooLarge { .. }), "{error}");
    assert_eq!(arena.stats().waiting, 0);
    for bytes in [0, 4095, 1 << 46, 1 << 49, u64::MAX] {
        assert!(Arena::create(ArenaSettings { bytes }).is_err(), "{bytes} bytes");
    }
}

#[test]
fn a_large_arena_costs_nothing_until_it_is_used() {
    let arena = Arena::create(ArenaSettings { bytes: 256 << 30 }).unwrap();
    drop(page(&arena, &Urgency::new(0)));
    let file = std::fs::File::from(arena.inheritable_fd().unwrap());
    let blocks = std::os::unix::fs::MetadataExt::blocks(&file.metadata().unwrap());
    assert_eq!(blocks * 512, PAGE as u64);
}

#[test]
fn a_region_without_bytes_is_a_region() {
    let arena = arena(2);
    let region = write(&arena, 0, &Urgency::new(0), 0);
    assert!(region.is_empty() && region.lease().unwrap().is_empty());
}

#[test]
fn served_regions_go_first_and_the_least_recently_used_of_them() {
    let arena = arena(4);
    let urgency = Urgency::new(5);
    let [idle, first, second, third] = [9, 5, 5, 5].map(|value| page(&arena, &Urgency::new(value)));
    second.mark_served();
    first.mark_served();
    third.mark_served();
    // Read again: now the second is the latest used.
    drop(second.lease());
    let mut taken = Vec::new();
    for (expected, name) in [(&first, "first"), (&third, "third"), (&second, "second"), (&idle, "idle")] {
        assert!(!expected.is_void(), "{name} was evicted too early");
        taken.push(reserve(&arena, 1, &urgency));
        assert!(expected.is_void() && expected.lease().is_none(), "{name} was not evicted");
    }
    assert_eq!(arena.stats().evictions, 4);
    assert!(!idle.mark_served() && !idle.mark_wanted(&urgency), "void regions stay void");
}

#[test]
fn of_the_wanted_regions_the_least_urgent_go_first_and_only_to_the_more_urgent() {
    let arena = arena(3);
    let [seven, nine, eight] = [7, 9, 8].map(|value| page(&arena, &Urgency::new(value)));
    let urgency = Urgency::new(7);
    let one = reserve(&arena, 1, &urgency);
    assert_eq!((nine.is_void(), eight.is_void()), (true, false));
    let two = reserve(&arena, 1, &urgency);
    assert!(eight.is_void());
    // The last one has the same value and is older: it is more urgent.
    let mut three = arena.reserve(1, &urgency);
    assert!(poll(&mut three).is_none());
    assert!(!seven.is_void());
    urgency.set(6);
    assert!(poll(&mut three).is_some());
    assert!(seven.is_void());
    drop((one, two));
}

#[test]
fn what_is_wanted_again_is_protected_again() {
    let arena = arena(1);
    let region = page(&arena, &Urgency::new(9));
    region.mark_served();
    let soon = Urgency::new(1);
    assert!(region.mark_wanted(&soon));
    let mut waiting = arena.reserve(1, &Urgency::new(2));
    assert!(poll(&mut waiting).is_none());
    soon.set(3);
    assert!(poll(&mut waiting).is_some(), "less urgent now");
    assert!(region.is_void());
}

#[test]
fn nothing_is_evicted_for_a_grant_that_must_wait_anyway() {
    let arena = arena(4);
    let region = page(&arena, &Urgency::new(9));
    let writer = reserve(&arena, 3 * PAGE, &Urgency::new(9)).begin_fill().unwrap();
    let mut waiting = arena.reserve(2 * PAGE, &Urgency::new(1));
    assert!(poll(&mut waiting).is_none());
    assert!(!region.is_void(), "it would not have been enough");
    drop(writer);
    assert!(poll(&mut waiting).is_some());
    assert!(!region.is_void(), "it was not needed");
}

#[test]
fn reservations_not_begun_are_revoked_for_the_more_urgent() {
    let arena = arena(2);
    let (soon, later) = (Urgency::new(1), Urgency::new(2));
    let begun = reserve(&arena, PAGE, &later).begin_fill().unwrap();
    let empty = reserve(&arena, PAGE, &later);
    let mut revocation = empty.revocation();
    assert!((&mut revocation).now_or_never().is_none());
    let first = reserve(&arena, PAGE, &soon);
    assert!(empty.is_revoked());
    assert!(revocation.now_or_never().is_some());
    assert_eq!(empty.begin_fill().unwrap_err(), Revoked);
    assert_eq!(arena.stats().revocations, 1);
    // What was begun runs to its end, and what is as urgent is not revoked.
    let mut second = arena.reserve(PAGE, &soon);
    assert!(poll(&mut second).is_none());
    let region = begun.finish();
    assert!(poll(&mut second).is_some());
    assert!(region.is_void() && !first.is_revoked());
}

#[test]
fn a_reservation_revoked_before_anybody_looked_says_so() {
    let arena = arena(1);
    let mut unseen = arena.reserve(PAGE, &Urgency::new(2));
    let urgent = reserve(&arena, PAGE, &Urgency::new(1));
    let reservation = poll(&mut unseen).unwrap();
    assert_eq!(reservation.begin_fill().unwrap_err(), Revoked);
    drop(urgent);
    assert_nothing_held(&arena);
}

#[test]
fn a_stream_of_small_reservations_does_not_starve_a_large_urgent_one() {
    let arena = arena(64);
    let (soon, later) = (Urgency::new(1), Urgency::new(2));
    // Everything is leased, so nothing can be taken from anybody.
    let mut leases: Vec<RegionLease> = (0..64).map(|_| page(&arena, &later).lease().unwrap()).collect();
    let mut large = arena.reserve(60 * PAGE, &soon);
    let mut stream = Vec::new();
    for ended in 1..=60 {
        stream.push(arena.reserve(PAGE, &later));
        leases.pop();
        assert!(stream.iter_mut().all(|small| poll(small).is_none()), "overtaken");
        if ended < 60 {
            assert!(poll(&mut large).is_none());
        }
    }
    let reservation = poll(&mut large).expect("60 pages are free");
    drop(reservation);
    assert_eq!(stream.iter_mut().filter_map(poll).count(), 60);
}

#[test]
fn two_ranges_in_one_arena_never_block_each_other() {
    // Each needs the whole arena in four parts, both are as urgent: the older cell goes first.
    let arena = arena(4);
    let ranges = [Urgency::new(0), Urgency::new(0)];
    let mut regions: [Vec<Region>; 2] = Default::default();
    let mut waiting: [Option<Reserve>; 2] = [None, None];
    for step in 0..20 {
        let range = (step + 1) % 2;
        if regions[range].len() == 4 {
            continue;
        }
        regions[range].retain(|region| !region.is_void());
        let mut reserve = waiting[range].take().unwrap_or_else(|| arena.reserve(PAGE, &ranges[range]));
        match poll(&mut reserve) {
            Some(reservation) => regions[range].push(reservation.begin_fill().unwrap().finish()),
            None => waiting[range] = Some(reserve),
        }
    }
    assert_eq!(regions[0].iter().filter(|region| region.lease().is_some()).count(), 4);
}

#[test]
fn heads_come_first() {
    let arena = arena(1);
    let held = page(&arena, &Urgency::new(0)).lease().unwrap();
    let (soon, head) = (Urgency::new(1), Urgency::new(2));
    let (mut one, mut two) = (arena.reserve(1, &soon), arena.reserve(1, &head));
    head.set_head(true);
    drop(held);
    assert!(poll(&mut one).is_none());
    assert!(poll(&mut two).is_some());
}

#[test]
fn dropped_reservations_leave_the_queue() {
    let arena = arena(2);
    let urgency = Urgency::new(1);
    let held = reserve(&arena, PAGE, &urgency);
    let blocking = arena.reserve(2 * PAGE, &urgency);
    let mut behind = arena.reserve(PAGE, &urgency);
    let stats = arena.stats();
    assert_eq!((stats.waiting, stats.waiting_bytes), (2, 3 * PAGE as u64));
    assert!(poll(&mut behind).is_none());
    drop(blocking);
    assert!(poll(&mut behind).is_some());
    drop(held);
    // Granted, but dropped before anybody looked.
    drop(arena.reserve(PAGE, &urgency));
    assert_nothing_held(&arena);
}

#[test]
fn a_panic_while_filling_gives_the_region_back() {
    let arena = arena(1);
    let urgency = Urgency::new(1);
    let writer = reserve(&arena, 10, &urgency).begin_fill().unwrap();
    let result = std::thread::spawn(move || {
        let mut writer = writer;
        writer.as_mut_slice()[10] = 1;
    })
    .join();
    assert!(result.is_err());
    assert_nothing_held(&arena);
    assert_eq!(write(&arena, 10, &urgency, 3).lease().as_deref(), Some(&[3; 10][..]));
}

#[test]
fn parts_of_a_region_are_written_by_several_threads() {
    let arena = arena(4);
    let writer = reserve(&arena, 10_000, &Urgency::new(1)).begin_fill().unwrap();
    let writer = writer.split(&[9000, 1001]).expect_err("more than there is");
    let writer = writer.split(&[usize::MAX, 2]).expect_err("more than a number holds");
    let (split, parts) = writer.split(&[5000, 0, 4000]).unwrap();
    let JoinError::Unfinished(split) = split.join().unwrap_err() else { panic!("given up") };
    let threads: Vec<_> = parts
        .into_iter()
        .zip(1..)
        .map(|(mut part, byte)| {
            std::thread::spawn(move || {
                part.fill(byte);
                part.complete();
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let mut writer = split.join().unwrap();
    writer.as_mut_slice()[9000..].fill(9);
    let lease = writer.finish().lease().unwrap();
    assert_eq!((&lease[..5000], &lease[5000..9000]), (&[1; 5000][..], &[3; 4000][..]));
    assert_eq!(lease[9000..], [9; 1000]);
}

#[test]
fn a_part_that_was_given_up_makes_the_region_void() {
    let arena = arena(4);
    let writer = reserve(&arena, 100, &Urgency::new(1)).begin_fill().unwrap();
    let (split, mut parts) = writer.split(&[50, 50]).unwrap();
    parts.remove(0).complete();
    drop(parts);
    assert!(matches!(split.join(), Err(JoinError::GivenUp { missing: 1 })));
    assert_nothing_held(&arena);
}

#[test]
fn neighbours_are_read_as_one_chunk() {
    let arena = arena(8);
    let urgency = Urgency::new(1);
    let regions = [1, 2, 3, 4].map(|byte| write(&arena, PAGE, &urgency, byte));
    let mut leases: Vec<_> = regions.iter().map(|region| region.lease().unwrap()).collect();
    leases.sort_by_key(RegionLease::offset);
    drop(leases.remove(1));
    let expected: Vec<_> = leases.iter().flat_map(|lease| lease.to_vec()).collect();
    let chunks = ChunkLease::join(leases);
    assert_eq!(chunks.iter().map(|chunk| chunk.len()).collect::<Vec<_>>(), [PAGE, 2 * PAGE]);
    assert_eq!(chunks.iter().flat_map(|chunk| chunk.to_vec()).collect::<Vec<_>>(), expected);
    drop(regions);
    drop(chunks);
    assert_nothing_held(&arena);
}

#[test]
fn pages_are_returned_before_others_are_taken() {
    let arena = arena(64);
    let urgency = Urgency::new(1);
    drop(write(&arena, 60 * PAGE, &urgency, 1));
    assert_eq!(arena.stats().committed, 60 * PAGE as u64);
    drop(write(&arena, 10 * PAGE, &urgency, 2));
    let stats = arena.stats();
    assert_eq!((stats.committed, stats.punches), (64 * PAGE as u64, 1));
    assert_eq!(stats.punched_bytes, 6 * PAGE as u64);
    let file = std::fs::File::from(arena.inheritable_fd().unwrap());
    let blocks = std::os::unix::fs::MetadataExt::blocks(&file.metadata().unwrap());
    assert_eq!(blocks * 512, stats.committed, "the kernel counts the same");
}
