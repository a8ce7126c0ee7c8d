//! Takes a piece of work, gives the most memory that it had at once, on this thread.
//!
//! Counts what Rust code asks for; libjpeg's own memory is not in it. Without [`Counting`] as the program's
//! allocator every peak is 0.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static LIVE: Cell<i64> = const { Cell::new(0) };
    static PEAK: Cell<i64> = const { Cell::new(0) };
}

/// The system's allocator, counting.
pub struct Counting;

fn count(bytes: i64) {
    // A thread that is ending allocates uncounted.
    let _ = LIVE.try_with(|live| {
        live.set(live.get() + bytes);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live.get())));
    });
}

// SAFETY: every call goes to the system's allocator unchanged; only sizes are counted, in cells that need no
// allocation.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both may exist for a moment.
        count(size as i64);
        count(-(layout.size() as i64));
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.realloc(place, layout, size) }
    }
}

/// Runs the work; gives the most bytes that it had at once beyond those before it, and its result.
pub fn peak_of<T>(work: impl FnOnce() -> T) -> (u64, T) {
    let before = LIVE.get();
    PEAK.set(before);
    let result = work();
    (u64::try_from(PEAK.get() - before).unwrap_or(0), result)
}
