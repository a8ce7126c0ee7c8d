use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use bytes::Bytes;
use futures_util::FutureExt;

use super::*;
use crate::{ChunkLease, JoinError, Region, RegionLease, RegionWriter, Revoked};

const PAGE: usize = 4096;

fn arena(pages: usize) -> Arc<Arena> {
    Arena::create(ArenaSettings {
        bytes: (pages * PAGE) as u64,
    })
    .unwrap()
}

/// The reservation, which must be granted at once.
fn reserve(arena: &Arc<Arena>, len: usize, urgency: &Urgency) -> Reservation {
    arena
        .reserve(len, urgency)
        .now_or_never()
        .expect("granted at once")
        .unwrap()
}

fn write(arena: &Arc<Arena>, len: usize, urgency: &Urgency, byte: u8) -> Region {
    let mut writer = reserve(arena, len, urgency).begin_fill().unwrap();
    writer.as_mut_slice().fill(byte);
    writer.finish()
}

fn is_waiting(reserve: &mut Reserve) -> bool {
    reserve
        .poll_unpin(&mut Context::from_waker(Waker::noop()))
        .is_pending()
}

#[test]
fn a_region_goes_from_reserved_to_read_and_back_to_nothing() {
    let arena = arena(8);
    let urgency = Urgency::new(1);
    let reservation = reserve(&arena, 5000, &urgency);
    assert_eq!((reservation.len(), arena.stats().empty), (5000, 2 * 4096));
    let mut writer = reservation.begin_fill().unwrap();
    assert_eq!(arena.stats().filling, 2 * 4096);
    writer.as_mut_slice().copy_from_slice(&[7; 5000]);
    assert_eq!(writer.as_slice(), [7; 5000]);
    let region = writer.finish();
    assert_eq!(arena.stats().ready, 2 * 4096);
    let lease = region.lease().unwrap();
    assert_eq!(arena.stats().leased, 2 * 4096);
    assert_eq!(*lease, [7; 5000]);
    drop(lease);
    assert_eq!(arena.stats().ready, 2 * 4096);
    drop(region);
    let stats = arena.stats();
    assert_eq!(
        (stats.empty, stats.filling, stats.ready, stats.leased),
        (0, 0, 0, 0)
    );
    assert_eq!(
        stats.committed,
        2 * 4096,
        "pages are kept for the next region"
    );
}
