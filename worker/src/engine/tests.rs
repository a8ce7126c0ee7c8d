use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use feedmill_arena::{Arena, ArenaSettings};
use feedmill_protocol::bad::RowStatus;
use sample::{SampleMeta, SampleShape};
use tokio::sync::Semaphore;

/// Makes regions of a fixed size once a permit of `gate` is there, and notes the order.
struct Scripted {
    arena: Arc<Arena>,
    gate: Semaphore,
    bytes: usize,
    order: Mutex<Vec<u64>>,
    made: AtomicU64,
    fails: Mutex<HashMap<u64, &'static str>>,
    waiting: AtomicU64,
}

/// Counts a maker that waits, also one whose future is dropped.
struct Waits<'a>(&'a AtomicU64);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Maker for Scripted {
    type Error = &'static str;

    async fn make(&self, key: SampleKey, urgency: &Urgency) -> Result<Sample, &'static str> {
        {
            self.waiting.fetch_add(1, Ordering::SeqCst);
            let _waits = Waits(&self.waiting);
            self.gate.acquire().await.map_err(|_| "closed")?.forget();
        }
        assert_ne!(key.position, 666, "on purpose");
        self.order.lock().unwrap().push(key.position);
        if let Some(error) = self.fails.lock().unwrap().remove(&key.position) {
            return Err(error);
        }
        loop {
            let place = self.arena.reserve(self.bytes, urgency).await.map_err(|_| "too large")?;
            let Ok(mut writer) = place.begin_fill() else { continue };
            writer.as_mut_slice().fill(key.position as u8);
            self.made.fetch_add(1, Ordering::SeqCst);
            let shape = SampleShape { tokens: 0, images: 0, patches: self.bytes, patch_bytes: 1 };
            let meta = SampleMeta {
                sample_index: key.position as i64,
                record_index: 0,
                dataset_index: 0,
                status: RowStatus::Ok,
                shape,
                hash: [key.position as u8; 16],
            };
            return Ok(Sample { meta, bytes: SampleBytes::Region(writer.finish()) });
        }
    }

    fn lost(&self) -> &'static str {
        "lost"
    }
}

const PAGE: usize = 4096;

fn engine(arena_pages: usize, in_flight: u64, open: usize) -> Engine<Scripted> {
    let arena = Arena::create(ArenaSettings { bytes: (arena_pages * PAGE) as u64 }).unwrap();
    let maker = Scripted {
        arena,
        gate: Semaphore::new(open),
        bytes: PAGE,
        order: Mutex::default(),
        made: AtomicU64::new(0),
        fails: Mutex::default(),
        waiting: AtomicU64::new(0),
    };
    let max_range_bytes = (arena_pages * PAGE / 4) as u64;
    let settings = EngineSettings { in_flight, max_ranges: 64, threads: 1, max_range_bytes };
    Engine::new(maker, settings)
}

fn ask(
    engine: &Engine<Scripted>,
    range: std::ops::Range<u64>,
    need_ms: u64,
    job: &'static str,
) -> tokio::task::JoinHandle<Result<Vec<LeasedSample>, EngineError<&'static str>>> {
    let engine = engine.clone();
    tokio::spawn(async move { engine.range(0, range, Duration::from_millis(need_ms), job).await })
}

async fn until(condition: impl Fn() -> bool) {
    while !condition() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_range_gives_its_samples_in_order_and_ranges_share_work() {
    let engine = engine(64, 8, 100);
    let (one, two) = (ask(&engine, 0..4, 0, "a"), ask(&engine, 2..6, 0, "a"));
    let positions = |samples: &[LeasedSample]| -> Vec<i64> {
        samples.iter().map(|sample| sample.meta.sample_index).collect()
    };
    let (one, two) = (one.await.unwrap().unwrap(), two.await.unwrap().unwrap());
    assert_eq!((positions(&one), positions(&two)), (vec![0, 1, 2, 3], vec![2, 3, 4, 5]));
    assert!(two.iter().all(|s| s.patches().iter().all(|b| i64::from(*b) == s.meta.sample_index)));
    assert_eq!(engine.maker().made.load(Ordering::SeqCst), 6, "positions 2 and 3 were made twice");
    // What is remembered is not made again.
    ask(&engine, 1..3, 0, "b").await.unwrap().unwrap();
    assert_eq!(engine.maker().made.load(Ordering::SeqCst), 6);
    assert_eq!(engine.stats().ranges, 0);
}

#[tokio::test]
async fn what_is_needed_sooner_is_made_first() {
    let engine = engine(64, 1, 0);
    let head = ask(&engine, 0..1, 0, "a");
    until(|| engine.stats().ranges == 1).await;
    let late = ask(&engine, 5..9, 60_000, "a");
    until(|| engine.stats().ranges == 2).await;
    let soon = ask(&engine, 10..12, 1_000, "a");
    // The head's sample has the only place.
    until(|| engine.stats().ranges == 3 && engine.maker().waiting.load(Ordering::SeqCst) == 1).await;
    engine.maker().gate.add_permits(100);
    for range in [head, soon, late] {
        range.await.unwrap().unwrap();
    }
    let order = engine.maker().order.lock().unwrap().clone();
    let place = |position| order.iter().position(|p| *p == position).unwrap();
    let soon = place(10).max(place(11));
    assert!([5, 6, 7, 8].iter().all(|late| soon < place(*late)), "{order:?}");
}

#[tokio::test]
async fn work_that_nobody_waits_for_is_dropped() {
    let engine = engine(64, 8, 0);
    let forsaken = ask(&engine, 0..4, 0, "a");
    until(|| engine.maker().waiting.load(Ordering::SeqCst) == 4).await;
    forsaken.abort();
    assert!(forsaken.await.unwrap_err().is_cancelled());
    until(|| engine.maker().waiting.load(Ordering::SeqCst) == 0).await;
    let stats = engine.stats();
    assert_eq!((stats.ranges, stats.making, stats.in_flight), (0, 0, 0));
}

#[tokio::test]
async fn a_failure_reaches_every_range_that_wants_the_sample_and_is_not_remembered() {
    let engine = engine(64, 8, 0);
    engine.maker().fails.lock().unwrap().insert(2, "broken");
    let (one, two) = (ask(&engine, 0..4, 0, "a"), ask(&engine, 2..3, 0, "b"));
    until(|| engine.stats().ranges == 2).await;
    engine.maker().gate.add_permits(100);
    let broken = Some(EngineError::Sample { position: 2, error: "broken" });
    assert_eq!(one.await.unwrap().err(), broken);
    assert_eq!(two.await.unwrap().err(), broken);
    ask(&engine, 2..3, 0, "b").await.unwrap().unwrap();
}

/// More ranges than the arena holds, all at once: each comes, in bounded memory, whatever is evicted.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_arena_smaller_than_what_waits_starves_nobody() {
    let engine = engine(16, 6, usize::MAX >> 4);
    let ranges: Vec<_> = (0..60u64)
        .map(|i| {
            let asked = ask(&engine, i * 4..i * 4 + 4, 60_000 - i * 1000, "a");
            // What is read is given back at once, as a connection does.
            tokio::spawn(async move { asked.await.unwrap().unwrap()[0].meta.sample_index })
        })
        .collect();
    for (i, range) in ranges.into_iter().enumerate() {
        assert_eq!(range.await.unwrap(), i as i64 * 4);
        assert!(engine.maker().arena.stats().committed <= 16 * PAGE as u64);
    }
}

#[tokio::test]
async fn a_range_over_a_quarter_of_the_arena_is_refused() {
    let engine = engine(16, 6, 100);
    let error = ask(&engine, 0..5, 0, "a").await.unwrap().unwrap_err();
    assert!(matches!(error, EngineError::TooLarge { limit, .. } if limit == 4 * PAGE as u64));
}

#[tokio::test]
async fn too_many_ranges_are_refused_not_queued() {
    let engine = engine(64, 1, 0);
    let waiting: Vec<_> = (0..64).map(|i| ask(&engine, i..i + 1, 0, "a")).collect();
    until(|| engine.stats().ranges == 64).await;
    let error = ask(&engine, 100..101, 0, "a").await.unwrap().unwrap_err();
    assert_eq!(error, EngineError::Full(64));
    for range in waiting {
        range.abort();
    }
}

/// A logger that panicked in a sample's task used to leave every range that wanted it waiting for ever.
#[tokio::test]
async fn a_task_that_panics_fails_its_ranges_instead_of_hanging_them() {
    let engine = engine(64, 8, 100);
    let error = ask(&engine, 665..668, 0, "a").await.unwrap().unwrap_err();
    assert_eq!(error, EngineError::Sample { position: 666, error: "lost" });
    let again = ask(&engine, 666..667, 0, "a").await.unwrap().unwrap_err();
    assert_eq!(again, EngineError::Sample { position: 666, error: "lost" });
    ask(&engine, 667..668, 0, "a").await.unwrap().unwrap();
}

/// Remembering used to count answers instead of samples, so a hot range was forgotten now and then.
#[tokio::test]
async fn a_hot_range_is_never_forgotten_however_often_it_is_read() {
    let engine = engine(64, 8, 1_000_000);
    for _ in 0..MAX_REMEMBERED + 10 {
        engine.range(0, 0..1, Duration::ZERO, "a").await.unwrap();
    }
    assert_eq!(engine.maker().made.load(Ordering::SeqCst), 1);
    assert_eq!(engine.stats().ready, 1);
}

/// A job that asks for everything at once does not stand before another job's first range.
#[tokio::test]
async fn a_greedy_job_does_not_starve_another() {
    let engine = engine(256, 1, 0);
    let greedy: Vec<_> = (0..40).map(|i| ask(&engine, i..i + 1, 0, "greedy")).collect();
    until(|| engine.stats().ranges == 40).await;
    let modest = ask(&engine, 1000..1001, 0, "modest");
    until(|| engine.stats().ranges == 41).await;
    let more: Vec<_> = (100..120).map(|i| ask(&engine, i..i + 1, 0, "greedy")).collect();
    until(|| engine.stats().ranges == 61).await;
    engine.maker().gate.add_permits(1000);
    modest.await.unwrap().unwrap();
    for range in greedy.into_iter().chain(more) {
        range.await.unwrap().unwrap();
    }
    let order = engine.maker().order.lock().unwrap().clone();
    let place = |position| order.iter().position(|p| *p == position).unwrap();
    assert!((100..120).all(|late| place(1000) < place(late)), "{order:?}");
}
