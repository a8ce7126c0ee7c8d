//! What a fleet does beside fetching: who is asked, who is found silent or late, who is found at all.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use feedmill_client::{ClientError, Endpoint, Fleet, FleetSettings, Puller, PullerSettings};
use feedmill_protocol::http::problem_kind;
use feedmill_protocol::placement::FEWEST_ASKED;
use feedmill_protocol::position::Range;
use feedmill_protocol::ranks::RankLayout;
use feedmill_protocol::report::WorkerState;
use support::{Act, STREAM, Worker, fleet, frame, plan, settings};

/// Longer than any test: what happens within it did not happen by this time-out.
const FOR_EVER: Duration = Duration::from_secs(600);

fn puller_settings(window: usize) -> PullerSettings {
    PullerSettings {
        stream: STREAM.into(),
        layout: RankLayout::new(4, 1, 2).unwrap(),
        rank: 0,
        consumed: 32,
        stop: None,
        window,
        plan: Some(plan().digest()),
    }
}

/// PING finds nobody, silence does.
fn silence_counts(workers: &[&Worker]) -> FleetSettings {
    let mut settings = settings(workers);
    settings.timeouts.keep_alive_interval = FOR_EVER;
    settings.timeouts.keep_alive_timeout = FOR_EVER;
    settings.timeouts.control = FOR_EVER;
    settings.timeouts.silence = Duration::from_millis(200);
    settings.load_every = Some(Duration::from_millis(50));
    settings
}

async fn read(puller: &mut Puller, batches: usize) -> Vec<feedmill_client::Batch> {
    let mut read = Vec::new();
    for _ in 0..batches {
        read.push(puller.next().await.unwrap().unwrap());
    }
    read
}

#[tokio::test]
async fn all_ranges_of_a_frozen_worker_are_asked_of_others_and_it_is_asked_again_when_it_wakes() {
    let frozen = Worker::start(|_| Act::Hold).await;
    let well = Worker::start(|_| Act::Batch).await;
    let fleet = Fleet::new(silence_counts(&[&frozen, &well])).unwrap();
    let mut puller = Puller::new(fleet.clone(), puller_settings(8)).unwrap();
    let reading = tokio::spawn(async move {
        let batches = read(&mut puller, 20).await;
        (puller, batches)
    });
    frozen.until("half a window", |log| log.held.len() >= 2 && log.load_asked > 0).await;
    let held = frozen.log(|log| log.held.len());
    frozen.freeze();
    let (puller, batches) = reading.await.unwrap();
    assert!(batches.iter().all(|batch| *batch.worker() == well.endpoint()));
    assert!(fleet.stats().silenced >= held as u64, "{:?}", fleet.stats());
    let asked = frozen.requests();
    assert_eq!(
        well.log(|log| log.seen.iter().filter(|seen| seen.deaths > 0).count()),
        0,
        "silent is not dead"
    );

    frozen.thaw();
    let mut puller = puller;
    let reading = tokio::spawn(async move { while puller.next().await.unwrap().is_some() {} });
    frozen.until("a request after it woke", |log| log.seen.len() > asked).await;
    reading.abort();
}

#[tokio::test]
async fn a_late_range_is_asked_of_a_second_worker_and_the_first_one_loses_it() {
    // Whoever is asked first for this range holds it.
    let first = Arc::new(AtomicBool::new(true));
    let script = || {
        let first = Arc::clone(&first);
        move |seen: &support::Seen| match seen.range.start() == 48 && first.swap(false, Ordering::SeqCst) {
            true => Act::Hold,
            false => Act::Batch,
        }
    };
    let workers = [Worker::start(script()).await, Worker::start(script()).await];
    let mut hedging = settings(&workers.each_ref());
    hedging.hedge = true;
    let fleet = Fleet::new(hedging).unwrap();
    let mut puller = Puller::new(fleet.clone(), puller_settings(1)).unwrap();
    for batch in read(&mut puller, 20).await {
        assert_eq!(batch.bytes(), frame(batch.range(), plan().digest()));
    }
    let stats = fleet.stats();
    assert!(stats.hedges_won == 1 && stats.hedged == 1, "{stats:?}");
    let late = workers.iter().find(|worker| worker.log(|log| log.held.len() + log.cancelled > 0)).unwrap();
    late.until("the late one is taken back", |log| log.cancelled == 1).await;
}

/// Every first request is late; second ones are earned by 33 of them.
#[tokio::test]
async fn second_requests_are_bounded_however_late_all_are() {
    let slow = |_: &support::Seen| Act::Hold;
    let workers = [Worker::start(slow).await, Worker::start(slow).await];
    let mut hedging = settings(&workers.each_ref());
    hedging.hedge = true;
    let fleet = Fleet::new(hedging).unwrap();
    let mut puller = Puller::new(fleet.clone(), puller_settings(1)).unwrap();
    for number in 0..12u64 {
        let range = Range::new(32 + number * 2, 34 + number * 2).unwrap();
        let late = number >= 8;
        let mut waiting = std::pin::pin!(puller.next());
        let mut released = false;
        loop {
            let held = workers.iter().any(|worker| worker.log(|log| log.held.contains(&range)));
            if held && !released && (!late || fleet.stats().hedged > 0) {
                workers.iter().for_each(|worker| worker.release(range));
                released = true;
            }
            tokio::select! {
                biased;
                batch = &mut waiting => break assert_eq!(batch.unwrap().unwrap().range(), range),
                () = tokio::task::yield_now() => {}
            }
        }
    }
    let stats = fleet.stats();
    assert_eq!(stats.hedged, 1, "{stats:?}");
    assert!(stats.ranges < 33);
}

#[tokio::test]
async fn a_worker_that_says_it_drains_is_not_asked() {
    let workers = [Worker::start(|_| Act::Batch).await, Worker::start(|_| Act::Batch).await];
    let mut settings = settings(&workers.each_ref());
    settings.load_every = Some(Duration::from_millis(10));
    let fleet = Fleet::new(settings).unwrap();
    let mut puller = Puller::new(fleet, puller_settings(1)).unwrap();
    read(&mut puller, 10).await;
    let before = workers[0].requests();
    assert!(before > 0);
    workers[0].says(|status| status.state = WorkerState::Draining);
    let known = workers[0].log(|log| log.load_asked);
    while workers[0].log(|log| log.load_asked) < known + 3 {
        read(&mut puller, 1).await;
    }
    let before = workers[0].requests();
    read(&mut puller, 20).await;
    assert_eq!(workers[0].requests(), before);
}

#[tokio::test]
async fn an_overloaded_worker_is_left_to_others() {
    let workers = [Worker::start(|_| Act::Batch).await, Worker::start(|_| Act::Batch).await];
    // More than this rank asks of the other one between two questions.
    workers[0].says(|status| status.work_ahead = u64::MAX / 2);
    let mut settings = settings(&workers.each_ref());
    settings.load_every = Some(Duration::from_millis(10));
    let fleet = Fleet::new(settings).unwrap();
    let mut puller = Puller::new(fleet, puller_settings(1)).unwrap();
    // Who is asked again has been heard; what was under way by then is read before the count.
    while workers.iter().any(|worker| worker.log(|log| log.load_asked) < 2) {
        read(&mut puller, 1).await;
    }
    read(&mut puller, 20).await;
    let before = workers[0].requests();
    read(&mut puller, 20).await;
    assert_eq!(workers[0].requests(), before);
}

#[tokio::test]
async fn a_rank_reports_while_it_starves_and_says_farewell() {
    let worker = Worker::start(|_| Act::Hold).await;
    let mut settings = settings(&[&worker]);
    settings.report_every = Some(Duration::from_millis(20));
    let mut puller = Puller::new(Fleet::new(settings).unwrap(), puller_settings(3)).unwrap();
    let reading = tokio::spawn(async move { puller.next().await.map(|_| ()) });
    worker.until("reports", |log| log.reports.len() >= 3).await;
    worker.log(|log| {
        let last = log.reports.last().unwrap();
        assert!(last.waiting_ms > 0 && last.ready == 0 && !last.farewell, "{last:?}");
        assert!(log.reports.windows(2).all(|pair| pair[0].sequence < pair[1].sequence));
    });
    reading.abort();
    worker.until("a farewell", |log| log.reports.last().is_some_and(|report| report.farewell)).await;
}

#[tokio::test]
async fn a_rank_that_is_closed_has_said_farewell() {
    let workers = [Worker::start(|_| Act::Batch).await, Worker::start(|_| Act::Batch).await];
    let mut settings = settings(&workers.each_ref());
    settings.report_every = Some(FOR_EVER);
    let mut puller = Puller::new(Fleet::new(settings).unwrap(), puller_settings(3)).unwrap();
    puller.wait_ready().await.unwrap();
    puller.close().await;
    for worker in &workers {
        let told = worker.log(|log| log.reports.last().map(|report| report.farewell));
        assert_eq!(told, Some(true), "each that may have heard of it");
    }
}

#[tokio::test]
async fn ready_is_a_batch_in_hand_and_ranks_that_agree() {
    let worker = Worker::start(|_| Act::Batch).await;
    let mut puller = Puller::new(fleet(&[&worker]), puller_settings(2)).unwrap();
    puller.wait_ready().await.unwrap();
    puller.wait_ready().await.unwrap();
    assert!(puller.stats().ready >= 1);
    assert_eq!((puller.stats().batches, puller.stats().waited), (0, Duration::ZERO));
    worker.log(|log| {
        assert_eq!(log.reports.len(), 1, "announced once");
        let begin = log.reports[0].begin.clone().unwrap();
        assert_eq!((begin.global_batch, begin.micro_batch, begin.consumed), (4, 2, 32));
        assert_eq!(
            (begin.skips.as_deref(), begin.end.unwrap().position),
            (Some(""), puller_settings(2).stop)
        );
    });
    assert_eq!(read(&mut puller, 1).await[0].range().start(), 32);

    let other = PullerSettings { consumed: 64, ..puller_settings(2) };
    let mut puller = Puller::new(fleet(&[&worker]), other).unwrap();
    let error = puller.wait_ready().await.unwrap_err();
    assert!(matches!(error, ClientError::RunMismatch { .. }), "{error}");
    let problem = error.problem().unwrap();
    assert_eq!(problem.kind, problem_kind::RUN_MISMATCH);
    assert!(error.to_string().contains(&problem.detail), "{error}");
}

#[tokio::test]
async fn a_rank_that_is_there_twice_is_an_error_of_a_read_and_loses_nothing() {
    let worker = Worker::start(|_| Act::Batch).await;
    let mut settings = settings(&[&worker]);
    settings.report_every = Some(Duration::from_millis(5));
    let mut puller = Puller::new(Fleet::new(settings).unwrap(), puller_settings(2)).unwrap().sole();
    let mut expected = read(&mut puller, 1).await[0].range().end();
    worker.refuse_reports(true);
    let error = loop {
        match puller.next().await {
            Ok(batch) => expected = batch.unwrap().range().end(),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, ClientError::RunMismatch { .. }), "{error}");
    worker.refuse_reports(false);
    let told = worker.log(|log| log.reports.len());
    // The first of them may have been under way when that changed.
    worker.until("reports that are taken", |log| log.reports.len() > told + 2).await;
    let next = read(&mut puller, 1).await;
    assert_eq!(next[0].range().start(), expected);
    let process = worker.log(|log| log.reports[0].process.clone());
    assert_eq!(process.split('/').nth(1), Some(&*std::process::id().to_string()), "{process}");
}

#[tokio::test]
async fn a_first_range_that_nobody_makes_is_an_error_before_the_first_step() {
    let worker = Worker::start(|seen| match seen.number {
        0 => Act::Problem(422, problem_kind::BAD_SAMPLE),
        _ => Act::Batch,
    })
    .await;
    let mut puller = Puller::new(fleet(&[&worker]), puller_settings(1)).unwrap();
    let error = puller.wait_ready().await.unwrap_err();
    assert!(matches!(error, ClientError::Refused { .. }), "{error}");
    puller.wait_ready().await.unwrap();
    assert_eq!(read(&mut puller, 1).await[0].range().start(), 32);
}

#[tokio::test]
async fn a_window_of_0_asks_only_for_what_is_waited_for() {
    let worker = Worker::start(|_| Act::Batch).await;
    let mut puller = Puller::new(fleet(&[&worker]), puller_settings(0)).unwrap();
    for number in 1..=10 {
        read(&mut puller, 1).await;
        assert_eq!((worker.requests(), puller.stats().outstanding), (number, 0));
    }
    assert_eq!(worker.log(|log| log.most_active), 1);
}

#[tokio::test]
async fn a_window_that_finds_its_size_keeps_within_its_bytes() {
    let worker = Worker::start(|_| Act::Batch).await;
    worker.says(|status| status.cores = 1000);
    let bytes = frame(Range::new(32, 34).unwrap(), plan().digest()).len() as u64;
    let mut settings = settings(&[&worker]);
    settings.load_every = Some(Duration::from_millis(10));
    for (batches, expected) in [(3, 3), (100, 100), (0, 1)] {
        let fleet = Fleet::new(settings.clone()).unwrap();
        let puller = Puller::new(fleet, puller_settings(256)).unwrap();
        let mut puller = puller.adapting(batches * bytes + bytes / 2);
        let asked = worker.log(|log| log.load_asked);
        while worker.log(|log| log.load_asked) < asked + 2 {
            read(&mut puller, 1).await;
        }
        read(&mut puller, 2).await;
        assert_eq!(puller.stats().target, expected);
    }
}

/// It owed nothing when it was asked for a word, so nobody missed one; what is asked of it later must not wait until that
/// question has failed.
#[tokio::test]
async fn a_worker_that_froze_while_it_owed_nothing_is_left_as_soon_as_it_owes_something() {
    let frozen = Worker::start(|_| Act::Batch).await;
    let well = Worker::start(|_| Act::Batch).await;
    let fleet = Fleet::new(silence_counts(&[&frozen, &well])).unwrap();
    let mut puller = Puller::new(fleet.clone(), puller_settings(0)).unwrap();
    while frozen.log(|log| log.seen.is_empty() || log.load_asked == 0) {
        read(&mut puller, 1).await;
    }
    frozen.freeze();
    let asked = well.log(|log| log.load_asked);
    well.until("more questions than patience lasts", |log| log.load_asked >= asked + 10).await;
    read(&mut puller, 20).await;
    assert!(fleet.stats().silenced > 0, "{:?}", fleet.stats());
}

#[tokio::test]
async fn a_rank_asks_its_part_of_a_large_fleet() {
    let mut workers = Vec::new();
    for _ in 0..80 {
        workers.push(Worker::start(|_| Act::Batch).await);
    }
    let fleet = fleet(&workers.iter().collect::<Vec<_>>());
    let layout = RankLayout::new(32, 16, 2).unwrap();
    let mut puller = Puller::new(fleet, PullerSettings { layout, ..puller_settings(8) }).unwrap();
    read(&mut puller, 200).await;
    let asked = workers.iter().filter(|worker| worker.requests() > 0).count();
    assert_eq!(asked as u64, FEWEST_ASKED);
}

#[tokio::test]
async fn a_list_in_a_file_is_followed_while_running() {
    let workers = [Worker::start(|_| Act::Batch).await, Worker::start(|_| Act::Batch).await];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("workers");
    let mut settings = settings(&[]);
    settings.lists.push(path.clone());
    settings.timeouts.idle = Duration::from_millis(100);
    let fleet = Fleet::new(settings).unwrap();
    let mut puller = Puller::new(fleet.clone(), puller_settings(1)).unwrap();
    {
        let mut waiting = std::pin::pin!(puller.next());
        tokio::select! {
            _ = &mut waiting => panic!("there is nobody to ask"),
            () = tokio::task::yield_now() => {}
        }
        std::fs::write(&path, format!("{}\n", workers[0].endpoint())).unwrap();
        assert_eq!(*waiting.await.unwrap().unwrap().worker(), workers[0].endpoint());
    }
    std::fs::write(&path, format!("# moved\n{}\n", workers[1].endpoint())).unwrap();
    while read(&mut puller, 1).await[0].worker() == &workers[0].endpoint() {
        tokio::task::yield_now().await;
    }
    assert_eq!(fleet.workers(), [workers[1].endpoint()]);
    drop(puller);
    workers[0].until("connections are closed", |log| log.open == 0).await;
    workers[1].until("connections are closed", |log| log.open == 0).await;
}

#[tokio::test]
async fn a_name_is_resolved_and_a_wrong_one_named() {
    let worker = Worker::start(|_| Act::Batch).await;
    let port = worker.endpoint().port();
    let source = format!("http://localhost:{port}");
    let mut settings = FleetSettings::from_sources("run-1", [&*source]).unwrap();
    settings.timeouts = support::settings(&[]).timeouts;
    let fleet = Fleet::new(settings).unwrap();
    assert_eq!(fleet.plan(STREAM).await.unwrap().plan, plan().digest());
    let mut puller = Puller::new(fleet.clone(), puller_settings(1)).unwrap();
    assert_eq!(*read(&mut puller, 1).await[0].worker().server_name(), *"localhost");
    let found = fleet.workers();
    let is_local = |worker: &Endpoint| {
        (worker.server_name(), worker.port()) == ("localhost", port)
            && worker
                .host()
                .trim_matches(['[', ']'])
                .parse::<IpAddr>()
                .is_ok_and(|address| address.is_loopback())
    };
    assert!(!found.is_empty() && found.iter().all(is_local), "{found:?}");

    // Too long a label for any name: no question leaves this machine.
    let name = "x".repeat(70);
    let mut settings = FleetSettings::from_sources("run-1", [&*format!("http://{name}")]).unwrap();
    settings.timeouts.total = Duration::from_secs(2);
    settings.timeouts.warning = Duration::from_secs(1);
    let mut puller = Puller::new(Fleet::new(settings).unwrap(), puller_settings(1)).unwrap();
    let error = puller.next().await.unwrap_err();
    assert!(matches!(error, ClientError::TimedOut { .. }), "{error}");
    assert!(error.to_string().contains(&format!("{name}:8470 gives no worker")), "{error}");
    assert!(error.to_string().contains("for rank 0"), "{error}");
}

/// Without them DATA frames have 16 KiB, and a stream that nobody reads blocks the others.
#[tokio::test]
async fn frames_and_windows_are_asked_for_as_large_as_measured() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let source = format!("http://{}", listener.local_addr().unwrap());
    let mut settings = FleetSettings::from_sources("run-1", [&*source]).unwrap();
    settings.report_every = None;
    let mut puller = Puller::new(Fleet::new(settings).unwrap(), puller_settings(1)).unwrap();
    let reading = tokio::spawn(async move { puller.next().await });
    let mut found = Vec::new();
    // Control connections need no large windows; the first that asks for them is one for batches.
    while found.last() != Some(&(1 << 20, 4 << 20, 64 << 20)) {
        let (mut socket, _) = listener.accept().await.unwrap();
        found.push(greeting(&mut socket).await);
        assert!(found.len() < 8, "{found:?}");
    }
    reading.abort();
}

/// The largest frame, the streams' window and the connection's that a client asks for (RFC 9113, sections 3.4, 6.5 and 6.9).
async fn greeting(socket: &mut tokio::net::TcpStream) -> (u32, u32, u32) {
    use tokio::io::AsyncReadExt as _;
    let mut preface = [0; 24];
    socket.read_exact(&mut preface).await.unwrap();
    assert_eq!(&preface[..14], b"PRI * HTTP/2.0");
    let (mut frame, mut window) = (16 << 10, 65_535);
    loop {
        let mut head = [0; 9];
        socket.read_exact(&mut head).await.unwrap();
        let mut body = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
        socket.read_exact(&mut body).await.unwrap();
        let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap());
        match head[3] {
            4 => {
                for setting in body.chunks(6) {
                    match setting[1] {
                        4 => window = number(&setting[2..]),
                        5 => frame = number(&setting[2..]),
                        _ => {}
                    }
                }
            }
            8 => return (frame, window, 65_535 + number(&body)),
            // A client that wants no more than the protocol gives.
            _ => return (frame, window, 65_535),
        }
    }
}
