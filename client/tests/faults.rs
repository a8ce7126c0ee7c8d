//! Whatever single workers do, every rank gets the same batches in the same order.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use feedmill_client::{Batch, ClientError, Fault, Fleet, Puller, PullerSettings};
use feedmill_protocol::http::problem_kind;
use feedmill_protocol::position::Range;
use feedmill_protocol::ranks::RankLayout;
use support::{Act, STREAM, Seen, Worker, fleet, frame, other_plan, plan, settings};

fn puller_settings(rank: u64) -> PullerSettings {
    PullerSettings {
        stream: STREAM.into(),
        layout: RankLayout::new(16, 2, 4).unwrap(),
        rank,
        consumed: 32,
        stop: Some(32 + 160),
        window: 6,
        plan: Some(plan().digest()),
    }
}

async fn drain(puller: &mut Puller) -> Vec<Batch> {
    let mut batches = Vec::new();
    while let Some(batch) = puller.next().await.unwrap() {
        batches.push(batch);
    }
    batches
}

/// Both ranks read to the end beside each other; every byte is as it must be, every position comes once.
async fn two_ranks_read_everything(fleet: &Fleet) -> Vec<Batch> {
    let mut first = Puller::new(fleet.clone(), puller_settings(0)).unwrap();
    let mut second = Puller::new(fleet.clone(), puller_settings(1)).unwrap();
    let (first, second) = tokio::join!(drain(&mut first), drain(&mut second));
    for batches in [&first, &second] {
        assert!(batches.windows(2).all(|pair| pair[0].range() < pair[1].range()));
    }
    let batches: Vec<Batch> = first.into_iter().chain(second).collect();
    let mut positions = Vec::new();
    for batch in &batches {
        assert_eq!(batch.bytes(), frame(batch.range(), plan().digest()));
        positions.extend(batch.range().positions());
    }
    positions.sort_unstable();
    assert_eq!(positions, (32..192).collect::<Vec<_>>());
    batches
}

/// The act for the first request for every third range, wherever it goes; batches else.
fn first_time(act: Act) -> impl Fn(&Seen) -> Act + Clone {
    let met: Arc<Mutex<HashSet<Range>>> = Arc::default();
    move |seen| {
        let third = (seen.range.start() / 4).is_multiple_of(3);
        if third && met.lock().unwrap().insert(seen.range) { act.clone() } else { Act::Batch }
    }
}

#[tokio::test]
async fn each_fault_of_an_answer_costs_one_more_request_and_no_byte() {
    let acts = [
        Act::NotNow(Some(0), problem_kind::FULL),
        Act::Problem(500, problem_kind::INTERNAL),
        Act::Problem(502, "about:blank"),
        Act::PlainStatus(500),
        Act::PlainStatus(302),
        Act::PlainStatus(200),
        Act::ResetMidBody,
        Act::ShortBody,
        Act::LongBody,
        Act::AbsurdLength,
        Act::OtherRange,
        Act::Corrupt,
        Act::OtherPatches,
        Act::OtherContentType,
        Act::NoPlanHeader,
        Act::OtherFormat,
    ];
    for act in acts {
        let script = first_time(act.clone());
        let workers = [
            Worker::start(script.clone()).await,
            Worker::start(script.clone()).await,
            Worker::start(script).await,
        ];
        let mut settings = settings(&workers.each_ref());
        settings.verify_hashes = true;
        let batches = two_ranks_read_everything(&Fleet::new(settings).unwrap()).await;
        let requests: usize = workers.iter().map(Worker::requests).sum();
        // 40 ranges; numbers 8..48 hold 13 multiples of three.
        assert_eq!(requests, 40 + 13, "{act:?}");
        let failures: u32 = batches.iter().map(|batch| batch.timings().failures).sum();
        assert_eq!(failures, 13, "{act:?}");
    }
}

/// All faults of one worker, for good: the others make its part.
#[tokio::test]
async fn a_worker_that_never_gives_a_batch_costs_only_requests() {
    let bad = Worker::start(|seen| match seen.number % 3 {
        0 => Act::Problem(500, problem_kind::INTERNAL),
        1 => Act::ResetMidBody,
        _ => Act::Corrupt,
    })
    .await;
    let (one, two) = (Worker::start(|_| Act::Batch).await, Worker::start(|_| Act::Batch).await);
    two_ranks_read_everything(&fleet(&[&bad, &one, &two])).await;
    assert_eq!(one.requests() + two.requests(), 40);
    assert!((1..=40).contains(&bad.requests()));
}

#[tokio::test]
async fn a_killed_worker_is_replaced_and_asked_again_when_it_is_back() {
    let mut workers = [Worker::start(|_| Act::Hold).await, Worker::start(|_| Act::Batch).await];
    let fleet = fleet(&[&workers[0], &workers[1]]);
    let mut puller = Puller::new(fleet.clone(), puller_settings(0)).unwrap();
    let reading = tokio::spawn(async move { drain(&mut puller).await });
    workers[0].until("a request at the one to be killed", |log| log.active > 0).await;
    workers[0].kill();
    assert_eq!(reading.await.unwrap().len(), 20);
    let died_under = workers[0].requests();
    assert!(died_under <= 6, "no more than the window: {died_under}");
    let told = workers[1].log(|log| log.seen.iter().filter(|seen| seen.deaths == 1).count());
    // One more than it saw may have been on the way to it.
    assert!(
        told >= died_under && told <= 6,
        "the next worker hears of each range that one died under: {told}"
    );

    workers[0].restart().await;
    // It is looked after while ranges are fetched, and takes its part again.
    let mut second = Puller::new(fleet, PullerSettings { stop: None, ..puller_settings(1) }).unwrap();
    let reading = tokio::spawn(async move { while second.next().await.unwrap().is_some() {} });
    workers[0].until("a request after the restart", |log| log.seen.len() > died_under).await;
    reading.abort();
}

#[tokio::test]
async fn a_frozen_worker_is_found_by_ping() {
    let frozen = Worker::start(|_| Act::Hold).await;
    let well = Worker::start(|_| Act::Batch).await;
    let fleet = fleet(&[&frozen, &well]);
    let mut puller = Puller::new(fleet, puller_settings(0)).unwrap();
    let reading = tokio::spawn(async move { drain(&mut puller).await });
    frozen.until("a request at the one to be frozen", |log| log.active > 0).await;
    frozen.freeze();
    let batches = reading.await.unwrap();
    assert_eq!(batches.len(), 20);
    assert!(batches.iter().all(|batch| *batch.worker() == well.endpoint()));
}

#[tokio::test]
async fn a_worker_that_accepts_and_never_speaks_is_passed_over() {
    let silent = Worker::start(|_| Act::Batch).await;
    silent.freeze();
    let well = Worker::start(|_| Act::Batch).await;
    two_ranks_read_everything(&fleet(&[&silent, &well])).await;
    assert_eq!((silent.requests(), well.requests()), (0, 40));
}

#[tokio::test]
async fn connections_that_end_in_order_are_opened_again_without_a_lost_range() {
    for limit in [1, 3, 7] {
        let workers = [
            Worker::start_with(plan(), Some(limit), 0, |_| Act::Batch).await,
            Worker::start_with(plan(), Some(limit), 0, |_| Act::Batch).await,
        ];
        two_ranks_read_everything(&fleet(&workers.each_ref())).await;
        let requests: usize = workers.iter().map(Worker::requests).sum();
        assert_eq!(requests, 40, "a request that was not taken is not seen twice");
        let connections: usize = workers.iter().map(|w| w.log(|log| log.connections)).sum();
        assert!(connections > 2, "{connections}");
    }
}

#[tokio::test]
async fn nothing_is_asked_before_retry_after_is_over() {
    let worker = Worker::start(|seen| match seen.number {
        0 => Act::NotNow(Some(1), problem_kind::NOT_READY),
        _ => Act::Batch,
    })
    .await;
    let mut puller =
        Puller::new(fleet(&[&worker]), PullerSettings { window: 1, ..puller_settings(0) }).unwrap();
    let batch = puller.next().await.unwrap().unwrap();
    let asked = |log: &support::Log| {
        let same = log.seen.iter().filter(|seen| seen.range == batch.range());
        same.count()
    };
    assert_eq!(worker.log(asked), 2, "the refused one and its repetition");
    assert!(batch.timings().total.as_millis() >= 1000);
}

#[tokio::test]
async fn a_draining_worker_is_left_to_the_others() {
    let draining = Worker::start(|_| Act::NotNow(Some(10), problem_kind::DRAINING)).await;
    let well = Worker::start(|_| Act::Batch).await;
    two_ranks_read_everything(&fleet(&[&draining, &well])).await;
    assert_eq!(well.requests(), 40);
    assert!(draining.requests() <= 12, "at most both windows: {}", draining.requests());
}

#[tokio::test]
async fn a_worker_with_another_plan_is_left_out() {
    let acts = [Act::OtherPlan(other_plan().digest()), Act::BatchOfPlan(other_plan().digest())];
    for act in acts {
        let other = Worker::start(move |_| act.clone()).await;
        let (one, two) = (Worker::start(|_| Act::Batch).await, Worker::start(|_| Act::Batch).await);
        two_ranks_read_everything(&fleet(&[&other, &one, &two])).await;
        assert_eq!(one.requests() + two.requests(), 40);
        assert!((1..=12).contains(&other.requests()), "{}", other.requests());
    }
}

/// Nobody asks a worker that is left out, so its restart must be noticed without a request.
#[tokio::test]
async fn a_worker_that_comes_back_with_the_right_plan_is_asked_again() {
    let mut other = Worker::start(|seen| match seen.number {
        0 => Act::OtherPlan(other_plan().digest()),
        _ => Act::Batch,
    })
    .await;
    let well = Worker::start(|_| Act::Batch).await;
    let fleet = fleet(&[&other, &well]);
    let endless = PullerSettings { stop: None, window: 1, ..puller_settings(0) };
    let mut puller = Puller::new(fleet, endless).unwrap();
    for _ in 0..20 {
        puller.next().await.unwrap();
    }
    assert_eq!(other.requests(), 1, "left out after its first answer");
    other.kill();
    other.restart().await;
    let reading = tokio::spawn(async move { while puller.next().await.unwrap().is_some() {} });
    other.until("a batch after the restart", |log| log.seen.len() > 1).await;
    reading.abort();
}

#[tokio::test]
async fn a_plan_that_no_worker_has_is_fatal_and_named() {
    let refuse = |_: &Seen| Act::OtherPlan(other_plan().digest());
    let mut workers = [Worker::start(refuse).await, Worker::start(refuse).await, Worker::start(refuse).await];
    for kill_one in [false, true] {
        if kill_one {
            workers[2].kill();
        }
        let mut puller = Puller::new(fleet(&workers.each_ref()), puller_settings(0)).unwrap();
        let error = puller.next().await.unwrap_err();
        let ClientError::OtherPlan { workers: named, .. } = &error else { panic!("{error}") };
        assert_eq!(named.len(), if kill_one { 2 } else { 3 });
        let text = error.to_string();
        for part in [
            &plan().digest().to_string(),
            &other_plan().digest().to_string(),
            &workers[0].endpoint().to_string(),
            "32-36",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }
}

/// Some workers newer than the client cost requests only; where all are, it is an error at once and no time limit.
#[tokio::test]
async fn a_format_that_every_worker_sends_and_nobody_here_knows_is_fatal() {
    let workers = [Worker::start(|_| Act::OtherFormat).await, Worker::start(|_| Act::OtherFormat).await];
    let mut puller = Puller::new(fleet(&workers.each_ref()), puller_settings(0)).unwrap();
    let error = puller.next().await.unwrap_err();
    assert!(matches!(error, ClientError::Refused { .. }), "{error:?}");
    assert!(error.to_string().contains("\"feedmill-9\" is not known"), "{error}");
    assert!(workers.iter().all(|worker| worker.requests() > 0));
}

/// Without a plan the first batch fixes it, for the answers that are under way as well.
#[tokio::test]
async fn the_first_batch_fixes_the_plan() {
    let hold = Worker::start(|_| Act::Hold).await;
    let other = Worker::start_with(other_plan(), None, 0, |_| Act::Hold).await;
    let fleet = fleet(&[&hold, &other]);
    let mut puller = Puller::new(fleet, PullerSettings { plan: None, ..puller_settings(0) }).unwrap();
    let reading = tokio::spawn(async move {
        let first = puller.next().await.unwrap().unwrap();
        (first, puller)
    });
    // Both have requests that name no plan; then one of the first worker's is answered.
    hold.until("its part", |log| !log.held.is_empty()).await;
    other.until("its part", |log| !log.held.is_empty()).await;
    for worker in [&hold, &other] {
        assert!(worker.log(|log| log.seen.iter().all(|seen| seen.plan.is_none())));
    }
    let at_hold = hold.log(|log| log.held.clone());
    hold.release(at_hold[0]);
    hold.until("the answer", |log| !log.held.contains(&at_hold[0])).await;
    let rest = at_hold.len() - 1;
    // What the other one answers now is refused, and its part comes over.
    for range in other.log(|log| log.held.clone()) {
        other.release(range);
    }
    hold.until("the other one's part", |log| log.held.len() > rest).await;
    for number in 0..48u64 {
        hold.release(Range::new(number * 4, number * 4 + 4).unwrap());
    }
    let (first, puller) = reading.await.unwrap();
    assert_eq!(first.range().to_string(), "32-36");
    assert_eq!(puller.plan(), Some(plan().digest()));
}

#[tokio::test]
async fn refusals_that_all_would_repeat_come_at_once_with_the_workers_words() {
    let cases = [
        (422, problem_kind::BAD_SAMPLE),
        (404, problem_kind::NOT_FOUND),
        (400, problem_kind::BAD_REQUEST),
        (413, problem_kind::TOO_LARGE),
        (502, problem_kind::STORAGE_DENIED),
    ];
    for (status, kind) in cases {
        let refuse = move |seen: &Seen| match seen.range.start() {
            40 => Act::Problem(status, kind),
            _ => Act::Batch,
        };
        let workers = [Worker::start(refuse).await, Worker::start(refuse).await];
        let mut puller = Puller::new(fleet(&workers.each_ref()), puller_settings(0)).unwrap();
        // The batches before come first; the refused one is never passed over.
        assert_eq!(puller.next().await.unwrap().unwrap().range().start(), 32);
        for _ in 0..3 {
            let error = puller.next().await.unwrap_err();
            assert!(matches!(error, ClientError::Refused { .. }), "{error}");
            let problem = error.problem().unwrap();
            assert_eq!((problem.kind.as_str(), problem.line), (kind, Some(17)));
            assert!(error.to_string().contains("40-44"), "{error}");
        }
    }
}

/// One answer is enough: no other worker is asked, and asking again warns whoever is asked.
#[tokio::test]
async fn a_record_that_kills_is_asked_of_one_worker_and_never_without_a_warning_again() {
    let refuse = |seen: &Seen| match seen.range.start() {
        40 => Act::Problem(500, problem_kind::LETHAL_SAMPLE),
        _ => Act::Batch,
    };
    let workers = [Worker::start(refuse).await, Worker::start(refuse).await];
    let mut puller = Puller::new(fleet(&workers.each_ref()), puller_settings(0)).unwrap();
    assert_eq!(puller.next().await.unwrap().unwrap().range().start(), 32);
    for _ in 0..3 {
        let error = puller.next().await.unwrap_err();
        assert!(matches!(error, ClientError::LethalSample { .. }), "{error}");
        assert_eq!(error.problem().unwrap().line, Some(17));
        assert!(error.to_string().contains("40-44"), "{error}");
    }
    drop(puller);
    let mut told: Vec<u32> = Vec::new();
    for worker in &workers {
        let seen = worker.log(|log| log.seen.clone());
        told.extend(seen.iter().filter(|seen| seen.range.start() == 40).map(|seen| seen.deaths));
    }
    told.sort_unstable();
    // Once for each time that the trainer asked, and perhaps once more ahead.
    assert!(told.len() == 3 || told.len() == 4, "{told:?}");
    assert_eq!(told[0], 0);
    assert!(told[1..].iter().all(|deaths| *deaths == 2), "{told:?}");
}

#[tokio::test]
async fn giving_up_tells_the_last_attempts_and_is_not_final() {
    let answers = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let worker = {
        let answers = Arc::clone(&answers);
        Worker::start(move |_| match answers.load(std::sync::atomic::Ordering::SeqCst) {
            true => Act::Batch,
            false => Act::Problem(500, problem_kind::INTERNAL),
        })
        .await
    };
    let mut settings = settings(&[&worker]);
    settings.timeouts.total = std::time::Duration::from_millis(300);
    settings.timeouts.warning = std::time::Duration::from_millis(100);
    let mut puller = Puller::new(Fleet::new(settings).unwrap(), puller_settings(0)).unwrap();
    let error = puller.next().await.unwrap_err();
    let ClientError::TimedOut { history, .. } = &error else { panic!("{error}") };
    assert!(history.count() >= 2);
    let attempt = history.attempts().next().unwrap();
    assert_eq!(attempt.worker, worker.endpoint());
    assert!(matches!(attempt.fault, Fault::Status { status: 500, .. }));
    assert!(error.to_string().contains("32-36"), "{error}");
    answers.store(true, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(puller.next().await.unwrap().unwrap().range().start(), 32);
}

#[tokio::test]
async fn workers_may_come_while_a_range_waits() {
    let worker = Worker::start(|_| Act::Batch).await;
    let fleet = fleet(&[]);
    let mut puller = Puller::new(fleet.clone(), puller_settings(0)).unwrap();
    let reading = tokio::spawn(async move { puller.next().await });
    tokio::task::yield_now().await;
    fleet.set_workers(vec![worker.endpoint(), worker.endpoint()]);
    assert_eq!(fleet.workers(), [worker.endpoint()]);
    assert_eq!(reading.await.unwrap().unwrap().unwrap().range().start(), 32);
}
