use super::*;
use crate::mapped::MappedSlab;
use crate::{SlabLease, SlabRegion};
use futures_util::FutureExt;

const SLAB: u64 = 1 << 20;

fn slabs(count: u64) -> Arc<Slabs> {
    Slabs::create(SlabSettings { bytes: count * SLAB, slab_bytes: SLAB }).unwrap()
}

fn stored(slabs: &Arc<Slabs>, bytes: &[u8]) -> SlabRegion {
    let reserved = slabs.reserve(bytes.len(), &Urgency::new(0)).now_or_never().expect("there is room");
    let mut writer = reserved.unwrap();
    writer.as_mut_slice().copy_from_slice(bytes);
    writer.finish()
}

#[test]
fn a_batch_is_read_here_and_through_a_readers_mapping() {
    let slabs = slabs(2);
    let text: Vec<u8> = (0..10_000u32).flat_map(u32::to_le_bytes).collect();
    let regions = [stored(&slabs, &text), stored(&slabs, b"second"), stored(&slabs, b"")];
    let leases: Vec<SlabLease> = regions.iter().map(|region| region.lease().unwrap()).collect();
    assert_eq!((&*leases[0], &*leases[1], leases[2].len()), (&*text, &b"second"[..], 0));
    for lease in &leases {
        let mapped = MappedSlab::map(slabs.reader_fd(lease.slab()).unwrap(), SLAB).unwrap();
        let region = mapped.region(lease.offset() as u64, lease.len() as u64).unwrap();
        assert_eq!(&*region, &**lease);
        assert_eq!(lease.offset() % 4096, 0);
    }
    // A mapping outlives whoever made the slab.
    let mapped = MappedSlab::map(slabs.reader_fd(0).unwrap(), SLAB).unwrap();
    let region = mapped.region(leases[0].offset() as u64, text.len() as u64).unwrap();
    drop((regions, leases, slabs, mapped));
    assert_eq!(&*region, &*text);
}

#[test]
fn a_range_outside_the_slab_is_no_region() {
    let slabs = slabs(1);
    let _region = stored(&slabs, b"x");
    let mapped = MappedSlab::map(slabs.reader_fd(0).unwrap(), SLAB).unwrap();
    for (offset, len) in [(SLAB, 1), (0, SLAB + 1), (u64::MAX, 1), (1, u64::MAX)] {
        assert!(mapped.region(offset, len).is_none(), "{offset} {len}");
    }
    assert!(mapped.region(SLAB, 0).is_some());
}

#[test]
fn a_file_of_another_size_or_without_seals_is_not_mapped() {
    let slabs = slabs(1);
    let _region = stored(&slabs, b"x");
    for bytes in [0, SLAB - 4096, SLAB + 4096, u64::MAX] {
        let error = MappedSlab::map(slabs.reader_fd(0).unwrap(), bytes).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{bytes}");
    }
    let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("unsealed", flags).unwrap();
    rustix::fs::ftruncate(&file, SLAB).unwrap();
    assert!(MappedSlab::map(file, SLAB).unwrap_err().to_string().contains("sealed"));
}

/// What a reader has in its hands must not let it change what others read.
#[test]
fn a_reader_can_neither_write_nor_cut_nor_map_for_writing() {
    use std::os::unix::fs::FileExt;
    let slabs = slabs(1);
    let region = stored(&slabs, b"kept");
    let lease = region.lease().unwrap();
    let file = std::fs::File::from(slabs.reader_fd(0).unwrap());
    assert!(file.write_at(b"lost", lease.offset() as u64).is_err());
    assert!(file.set_len(0).is_err() && file.set_len(2 * SLAB).is_err());
    let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    assert!(rustix::fs::fallocate(&file, flags, 0, 4096).is_err());
    // By its path in /proc it can be opened for writing, and still not written.
    use std::os::fd::AsRawFd;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    if let Ok(again) = std::fs::File::options().read(true).write(true).open(path) {
        assert!(again.write_at(b"lost", lease.offset() as u64).is_err());
    }
    use rustix::mm::{MapFlags, ProtFlags};
    let writable = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a mapping at an address of the kernel's choice, of nothing that is used here.
    let mapped =
        unsafe { rustix::mm::mmap(std::ptr::null_mut(), 4096, writable, MapFlags::SHARED, &file, 0) };
    assert!(mapped.is_err());
    // SAFETY: as above; it is read-only, and nothing of it is read.
    let mapped = unsafe {
        rustix::mm::mmap(std::ptr::null_mut(), 4096, ProtFlags::READ, MapFlags::SHARED, &file, 0).unwrap()
    };
    // SAFETY: the range is that mapping, which nothing refers to.
    let changed = unsafe {
        rustix::mm::mprotect(mapped, 4096, rustix::mm::MprotectFlags::READ | rustix::mm::MprotectFlags::WRITE)
    };
    assert!(changed.is_err(), "a read-only mapping was made writable");
    assert_eq!(&*lease, b"kept");
}

#[test]
fn places_are_given_in_the_order_of_need_and_nobody_overtakes() {
    let slabs = slabs(1);
    let held = stored(&slabs, &vec![1; SLAB as usize]);
    let lease = held.lease().unwrap();
    let urgencies = [Urgency::new(5), Urgency::new(1)];
    let mut small = slabs.reserve(1, &urgencies[0]);
    let mut large = slabs.reserve(SLAB as usize, &urgencies[1]);
    assert!((&mut small).now_or_never().is_none() && (&mut large).now_or_never().is_none());
    assert_eq!(slabs.stats().waiting, 2);
    drop(lease);
    // The batch that nobody leases any more makes way; the small request is less urgent and waits on.
    let writer = (&mut large).now_or_never().expect("its turn").unwrap();
    assert!(held.is_void() && held.lease().is_none());
    assert!((&mut small).now_or_never().is_none());
    drop(writer);
    assert!((&mut small).now_or_never().is_some());
    assert_eq!(slabs.stats(), SlabStats { capacity: SLAB, made: SLAB, evictions: 1, ..slabs.stats() });
}

#[test]
fn a_request_that_is_dropped_leaves_nothing_behind() {
    let slabs = slabs(1);
    let all = SLAB as usize;
    // Granted and never taken.
    drop(slabs.reserve(all, &Urgency::new(0)));
    // Waiting.
    let writer = slabs.reserve(all, &Urgency::new(0)).now_or_never().unwrap().unwrap();
    drop(slabs.reserve(all, &Urgency::new(0)));
    drop(writer);
    assert!(slabs.reserve(all, &Urgency::new(0)).now_or_never().is_some());
    assert_eq!(slabs.stats().filling, 0);
}

#[test]
fn sizes_that_never_fit_are_refused() {
    let error = Slabs::create(SlabSettings { bytes: SLAB - 1, slab_bytes: SLAB }).unwrap_err();
    assert!(matches!(error, SlabError::TooSmall { .. }));
    assert!(Slabs::create(SlabSettings { bytes: u64::MAX, slab_bytes: u64::MAX }).is_err());
    let slabs = slabs(2);
    let error = slabs.reserve(SLAB as usize + 1, &Urgency::new(0)).now_or_never().unwrap().unwrap_err();
    assert!(matches!(error, SlabError::TooLarge { .. }), "{error}");
}
