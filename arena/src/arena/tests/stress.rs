//! Many threads reserve, write, read, evict and drop at once: a fixed number of operations, and
//! every byte that is read is checked.

use std::sync::Mutex;
use std::task::Wake;
use std::thread::{self, Thread};

use super::*;

const THREADS: usize = 8;
const OPERATIONS: usize = 2000;
/// Regions that the threads share.
const SHELVES: usize = 32;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn wait_for<F: Future + Unpin>(mut future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.poll_unpin(&mut context) {
            return output;
        }
        thread::park();
    }
}

fn next(random: &mut u64) -> usize {
    *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    (*random >> 33) as usize
}

/// The first byte says what all others are.
fn assert_whole(bytes: &[u8]) {
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "written while it was leased");
}

fn worker(arena: &Arc<Arena>, shelves: &[Mutex<Option<Region>>], seed: usize) {
    let mut random = seed as u64;
    let mut leases: Vec<RegionLease> = Vec::new();
    for operation in 0..OPERATIONS {
        let shelf = &shelves[next(&mut random) % SHELVES];
        match next(&mut random) % 4 {
            0 => {
                // A waiter holds no leases: what others wait for must end by itself.
                leases.drain(..).for_each(|lease| assert_whole(&lease));
                let urgency = Urgency::new(next(&mut random) as u64 % 100);
                let len = 1 + next(&mut random) % (5 * PAGE);
                let reservation = wait_for(arena.reserve(len, &urgency)).unwrap();
                let Ok(mut writer) = reservation.begin_fill() else {
                    continue;
                };
                writer.as_mut_slice().fill((seed + operation) as u8);
                let region = writer.finish();
                region.mark_served();
                *shelf.lock().unwrap() = Some(region);
            }
            1 => leases.extend(shelf.lock().unwrap().as_ref().and_then(Region::lease)),
            2 if !leases.is_empty() => {
                let lease = leases.swap_remove(next(&mut random) % leases.len());
                assert_whole(&lease);
            }
            _ => drop(shelf.lock().unwrap().take()),
        }
    }
    leases.iter().for_each(|lease| assert_whole(lease));
}

#[test]
fn leases_are_counted_right_by_many_threads() {
    let arena = arena(40);
    let shelves: Vec<_> = (0..SHELVES).map(|_| Mutex::new(None)).collect();
    thread::scope(|scope| {
        for seed in 0..THREADS {
            let (arena, shelves) = (&arena, &shelves);
            scope.spawn(move || worker(arena, shelves, seed));
        }
    });
    drop(shelves);
    assert_nothing_held(&arena);
    assert!(arena.stats().evictions > 0, "the arena was never full: the test proves little");
}

#[test]
fn permits_are_counted_right_by_many_threads() {
    let budget = crate::Budget::new("stress", 100, 20).unwrap();
    thread::scope(|scope| {
        for seed in 0..THREADS {
            let budget = &budget;
            scope.spawn(move || {
                let mut random = seed as u64;
                for _ in 0..OPERATIONS {
                    let urgency = Urgency::new(next(&mut random) as u64 % 10);
                    urgency.set_head(next(&mut random).is_multiple_of(10));
                    let mut permit =
                        wait_for(budget.acquire(next(&mut random) as u64 % 80, &urgency)).unwrap();
                    assert!(budget.stats().used <= 100);
                    permit.shrink_to(next(&mut random) as u64 % 80);
                    urgency.set(next(&mut random) as u64 % 10);
                }
            });
        }
    });
    assert_eq!((budget.stats().used, budget.stats().waiting), (0, 0));
}
