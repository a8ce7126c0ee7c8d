//! The window: how much is outstanding, in which order it comes out, what it says of itself.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

use std::time::Duration;

use feedmill_client::{BatchRequest, ClientError, ExpectedPlan, Fleet, Puller, PullerSettings};
use feedmill_protocol::course::{Course, LastStep, Skips};
use feedmill_protocol::position::{POSITION_END, Range};
use feedmill_protocol::ranks::RankLayout;
use proptest::prelude::*;
use support::{Act, STREAM, Worker, fleet, frame, plan, settings};

fn one_rank(window: usize, batches: u64) -> PullerSettings {
    PullerSettings {
        stream: STREAM.into(),
        layout: RankLayout::new(4, 1, 2).unwrap(),
        rank: 0,
        consumed: 0,
        stop: Some(batches * 2),
        window,
        plan: None,
    }
}

/// Where the workers of these tests agree that a run begins.
fn from_step_8(window: usize) -> PullerSettings {
    PullerSettings { consumed: 32, stop: Some(80), ..one_rank(window, 0) }
}

fn range_of(number: u64) -> Range {
    Range::new(number * 2, number * 2 + 2).unwrap()
}

#[tokio::test]
async fn the_window_fills_and_is_never_exceeded() {
    let worker = Worker::start(|_| Act::Hold).await;
    let mut puller = Puller::new(fleet(&[&worker]), one_rank(5, 20)).unwrap();
    let meter = puller.meter();
    let (taken, mut counts) = tokio::sync::mpsc::unbounded_channel();
    let reading = tokio::spawn(async move {
        while let Some(batch) = puller.next().await.unwrap() {
            taken.send(batch.range()).unwrap();
        }
    });
    worker.until("a full window", |log| log.held.len() == 5).await;
    assert_eq!((meter.stats().outstanding, meter.stats().ready), (5, 0));
    // The last four of the window are there, the first is not: nothing comes out, nothing more is asked.
    for number in 1..5 {
        worker.release(range_of(number));
    }
    worker.until("four answers", |log| log.active == 1).await;
    while meter.stats().ready < 4 {
        tokio::task::yield_now().await;
    }
    assert_eq!((meter.stats().outstanding, worker.requests()), (1, 5));
    assert!(counts.try_recv().is_err());
    // A full queue that nobody can take from is an empty one to whoever sizes the fleet.
    assert_eq!(meter.report().ready, 0);
    worker.release(range_of(0));
    worker.until("the next five", |log| log.seen.len() == 10).await;
    for number in 5..20 {
        worker.release(range_of(number));
    }
    reading.await.unwrap();
    for number in 0..20 {
        assert_eq!(counts.recv().await, Some(range_of(number)));
    }
    assert_eq!(worker.log(|log| log.most_active), 5);
    assert_eq!(worker.requests(), 20);
}

#[tokio::test]
async fn a_dropped_puller_takes_its_requests_back() {
    let worker = Worker::start(|_| Act::Hold).await;
    let mut puller = Puller::new(fleet(&[&worker]), one_rank(7, 100)).unwrap();
    {
        let mut waiting = std::pin::pin!(puller.next());
        tokio::select! {
            _ = &mut waiting => panic!("nothing was released"),
            () = worker.until("a full window", |log| log.active == 7) => {}
        }
    }
    drop(puller);
    worker.until("seven resets", |log| log.cancelled == 7 && log.active == 0).await;
}

/// A step of 4 is skipped, the steps after it are of 2: what stands in the new course is not asked again.
#[tokio::test]
async fn another_course_keeps_what_it_has_in_common() {
    let worker = Worker::start(|_| Act::Batch).await;
    let mut puller = Puller::new(fleet(&[&worker]), one_rank(4, 9)).unwrap();
    let meter = puller.meter();
    let mut taken = Vec::new();
    for _ in 0..2 {
        taken.push(puller.next().await.unwrap().unwrap().range());
    }
    while meter.stats().ready < 4 {
        tokio::task::yield_now().await;
    }
    let mut course = Course::new(1, 0, 2, 4)
        .unwrap()
        .skipping(Skips::new([Range::new(8, 12).unwrap()]).unwrap())
        .until(Some(18), LastStep::Pad);
    assert!(course.add_step(4).unwrap());
    puller.follow(course);
    assert_eq!((meter.stats().ready, meter.stats().outstanding, meter.stats().consumed), (2, 0, 4));
    for _ in 0..2 {
        taken.push(puller.next().await.unwrap().unwrap().range());
    }
    assert!(puller.next().await.unwrap().is_none(), "how it goes on is not known");
    assert_eq!(meter.stats().consumed, 8);
    while puller.course_mut().add_step(2).unwrap() {}
    while let Some(batch) = puller.next().await.unwrap() {
        taken.push(batch.range());
    }
    assert_eq!(taken, [0, 1, 2, 3, 6, 7, 8].map(range_of));
    assert_eq!(meter.stats().consumed, 14);
    let mut asked = worker.log(|log| log.seen.iter().map(|seen| seen.range).collect::<Vec<_>>());
    asked.sort_unstable();
    assert_eq!(asked, [0, 1, 2, 3, 4, 5, 6, 7, 8].map(range_of), "each once");
}

#[tokio::test]
async fn a_connection_never_carries_more_streams_than_its_window_bears() {
    let worker = Worker::start(|_| Act::Hold).await;
    let fleet = fleet(&[&worker]);
    let mut pullers: Vec<Puller> = (0..2)
        .map(|rank| {
            let settings =
                PullerSettings { layout: RankLayout::new(4, 2, 2).unwrap(), rank, ..one_rank(20, 100) };
            Puller::new(fleet.clone(), settings).unwrap()
        })
        .collect();
    let [first, second] = &mut pullers[..] else { unreachable!() };
    let reading = async { tokio::join!(first.next(), second.next()) };
    let full = async {
        worker.until("a full connection", |log| log.active == 15).await;
        // One rank has all places; the other's first range is the most urgent in line.
        for number in [0, 1] {
            worker.release(range_of(number));
        }
        worker.until("the next two in line", |log| log.seen.len() == 17).await;
    };
    tokio::join!(full, async {
        let (first, second) = reading.await;
        first.unwrap().unwrap();
        second.unwrap().unwrap();
    });
    // One for batches, one for questions.
    assert_eq!(worker.log(|log| (log.most_active, log.connections)), (15, 2));
}

#[tokio::test]
async fn dropping_a_call_in_mid_wait_loses_nothing() {
    let worker = Worker::start(|_| Act::Hold).await;
    let mut puller = Puller::new(fleet(&[&worker]), one_rank(3, 6)).unwrap();
    for number in 0..6 {
        for _ in 0..3 {
            tokio::select! {
                biased;
                _ = puller.next() => panic!("nothing was released"),
                () = tokio::task::yield_now() => {}
            }
        }
        worker.release(range_of(number));
        let batch = puller.next().await.unwrap().unwrap();
        assert_eq!(batch.range(), range_of(number));
    }
    assert!(puller.next().await.unwrap().is_none());
    assert!(puller.next().await.unwrap().is_none());
    assert_eq!(worker.requests(), 6);
}

#[tokio::test]
async fn requests_say_who_asks_how_urgently_and_where_the_trainer_ends() {
    let worker = Worker::start(|_| Act::Batch).await;
    let mut puller = Puller::new(fleet(&[&worker]), one_rank(4, 100)).unwrap();
    puller.next().await.unwrap().unwrap();
    worker.until("the first window", |log| log.seen.len() >= 4).await;
    worker.log(|log| {
        let needs: Vec<u64> = log.seen[..4].iter().map(|seen| seen.need).collect();
        assert_eq!(needs[0], 0, "the first is waited for");
        assert!(needs.windows(2).all(|pair| pair[0] < pair[1]), "{needs:?}");
        assert!(log.seen.iter().all(|seen| seen.run == "run-1/0" && seen.query == "stop=200"));
    });
    puller.next().await.unwrap().unwrap();
    worker.until("a request after the first answer", |log| log.seen.len() >= 6).await;
    let digest = plan().digest().to_string();
    assert_eq!(worker.log(|log| log.seen[5].plan.clone()), Some(digest));
}

#[tokio::test]
async fn the_last_step_is_whole_and_then_comes_no_more() {
    let worker = Worker::start(|_| Act::Batch).await;
    // 5 positions after 8 make two steps of 4: the second is padded with filler by the worker.
    let settings = PullerSettings { consumed: 8, stop: Some(13), ..one_rank(16, 0) };
    let mut puller = Puller::new(fleet(&[&worker]), settings).unwrap();
    let mut starts = Vec::new();
    while let Some(batch) = puller.next().await.unwrap() {
        starts.push(batch.range().start());
    }
    assert_eq!(starts, [8, 10, 12, 14]);
    assert_eq!((puller.stats().consumed, puller.stats().steps), (16, 2));
}

#[tokio::test]
async fn the_last_position_is_read_and_then_it_is_an_error() {
    let worker = Worker::start(|_| Act::Batch).await;
    let settings = PullerSettings { consumed: POSITION_END - 4, stop: None, ..one_rank(3, 0) };
    let mut puller = Puller::new(fleet(&[&worker]), settings.clone()).unwrap();
    for _ in 0..2 {
        puller.next().await.unwrap().unwrap();
    }
    assert!(puller.next().await.is_err());
    let beyond = PullerSettings { consumed: POSITION_END, ..settings };
    assert!(Puller::new(fleet(&[&worker]), beyond).is_err());
}

#[tokio::test]
async fn settings_that_make_no_sense_are_refused() {
    let fleet = fleet(&[]);
    let rank = PullerSettings { rank: 1, ..one_rank(1, 1) };
    assert!(Puller::new(fleet.clone(), rank).is_err());
    for run in ["", "a b", "a\r\nb"] {
        let mut settings = settings(&[]);
        settings.run = run.into();
        assert!(Fleet::new(settings).is_err(), "{run:?}");
    }
    for stream in ["", "a/../b", "a?b", "a b"] {
        let request = BatchRequest {
            stream: stream.into(),
            range: range_of(0),
            stop: None,
            need: Duration::ZERO,
            rank: 0,
            plan: ExpectedPlan::any(),
            deaths: 0,
        };
        assert!(fleet.fetch(&request).await.is_err(), "{stream:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever order the answers come in, the batches come out in the stream's.
    #[test]
    fn batches_come_in_order_whatever_the_answers_do(
        seed in any::<u64>(), window in 1usize..12, workers in 1usize..4, threads in any::<bool>(),
    ) {
        let runtime = if threads {
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()
        } else {
            tokio::runtime::Builder::new_current_thread().enable_all().build()
        };
        runtime.unwrap().block_on(in_random_order(seed, window, workers));
    }
}

async fn in_random_order(seed: u64, window: usize, count: usize) {
    const BATCHES: u64 = 40;
    let mut workers = Vec::new();
    for _ in 0..count {
        workers.push(Worker::start(|_| Act::Hold).await);
    }
    let fleet = fleet(&workers.iter().collect::<Vec<_>>());
    let mut puller = Puller::new(fleet, one_rank(window, BATCHES)).unwrap();
    let releasing = async {
        let mut random = fastrand::Rng::with_seed(seed);
        loop {
            // As many as can be held without the puller's help; then any of them is answered.
            for _ in 0..random.usize(..50) {
                tokio::task::yield_now().await;
            }
            let held: Vec<(usize, Range)> = (0..workers.len())
                .flat_map(|index| {
                    workers[index].log(|log| log.held.iter().map(|range| (index, *range)).collect::<Vec<_>>())
                })
                .collect();
            if let Some((index, range)) = random.choice(&held) {
                workers[*index].release(*range);
            }
            tokio::task::yield_now().await;
        }
    };
    let reading = async {
        for number in 0..BATCHES {
            let batch = puller.next().await.unwrap().unwrap();
            assert_eq!(batch.range(), range_of(number));
            assert_eq!(batch.bytes(), frame(range_of(number), plan().digest()));
        }
        assert!(puller.next().await.unwrap().is_none());
    };
    tokio::select! {
        () = reading => {}
        () = releasing => unreachable!(),
    }
    let requests: usize = workers.iter().map(Worker::requests).sum();
    assert_eq!(requests as u64, BATCHES);
}

/// A rank that begins starved must not look as if it did not wait.
#[tokio::test]
async fn waiting_for_the_first_batch_counts_where_the_trainer_wants_it() {
    for wants_it in [true, false] {
        let worker = Worker::start(|_| Act::Hold).await;
        let mut puller = Puller::new(fleet(&[&worker]), from_step_8(2)).unwrap();
        let meter = puller.meter();
        let ready = tokio::spawn(async move {
            match wants_it {
                true => puller.wait_first().await.unwrap(),
                false => puller.wait_ready().await.unwrap(),
            }
            puller
        });
        worker.until("a request", |log| !log.held.is_empty()).await;
        let before = meter.stats();
        while wants_it && meter.stats().waiting == before.waiting {
            tokio::task::yield_now().await;
        }
        assert_eq!(meter.stats().waiting > Duration::ZERO, wants_it);
        let waited = meter.stats().waiting;
        worker.release(range_of(16));
        let mut puller = ready.await.unwrap();
        puller.next().await.unwrap().unwrap();
        assert!(meter.stats().waited >= waited);
    }
}

#[tokio::test]
async fn a_rank_that_goes_on_elsewhere_says_so_when_it_is_asked_to_be_ready() {
    let worker = Worker::start(|_| Act::Batch).await;
    let mut puller = Puller::new(fleet(&[&worker]), from_step_8(1)).unwrap();
    puller.wait_ready().await.unwrap();
    puller.wait_ready().await.unwrap();
    puller.next().await.unwrap();
    let mut course = Course::new(1, 0, 2, 40).unwrap().until(Some(80), LastStep::Pad);
    course.go_on(4).unwrap();
    puller.follow(course);
    // Another rank began where it did before, says the worker.
    let error = puller.wait_ready().await.unwrap_err();
    assert!(matches!(error, ClientError::RunMismatch { .. }), "{error}");
    let begins: Vec<u64> = worker.log(|log| {
        log.reports.iter().filter_map(|report| report.begin.as_ref()).map(|begin| begin.consumed).collect()
    });
    assert_eq!(begins, [32, 40]);
}
