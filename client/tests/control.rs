//! Plans, status and reports over the control connections.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

use feedmill_client::{ClientError, FleetSettings, Puller, PullerSettings};
use feedmill_protocol::ranks::RankLayout;
use support::{Act, STREAM, Warnings, Worker, fleet, plan};

#[tokio::test]
async fn a_plan_is_asked_for_until_a_worker_is_ready() {
    let starting = Worker::start_with(plan(), None, 3, |_| Act::Batch).await;
    let mut gone = Worker::start(|_| Act::Batch).await;
    gone.kill();
    let fleet = fleet(&[&starting, &gone]);
    let found = fleet.plan(STREAM).await.unwrap();
    assert_eq!((found.plan, found.samples_per_epoch), (plan().digest(), 1000));
    assert_eq!(found.facts, plan());
    assert_eq!(found.worker, starting.endpoint());
    let error = fleet.plan("eval").await.unwrap_err();
    assert!(matches!(error, ClientError::UnknownStream { .. }), "{error}");
    assert!(error.to_string().contains("it has: train"), "{error}");
}

#[tokio::test]
async fn a_plan_that_nobody_gives_is_an_error_with_its_history() {
    let mut gone = Worker::start(|_| Act::Batch).await;
    gone.kill();
    let mut settings = support::settings(&[&gone]);
    settings.timeouts.total = std::time::Duration::from_millis(100);
    settings.timeouts.warning = std::time::Duration::from_millis(50);
    let fleet = feedmill_client::Fleet::new(settings).unwrap();
    let warnings = Warnings::default();
    let told = warnings.hear();
    let error = fleet.plan(STREAM).await.unwrap_err();
    drop(told);
    assert!(warnings.all().iter().any(|text| text.contains("still waiting for the plan")), "{warnings:?}");
    assert!(matches!(error, ClientError::NoAnswer { .. }), "{error}");
    assert!(error.to_string().contains(&gone.endpoint().to_string()), "{error}");
}

/// It was said seven times that a frame had an invalid size.
#[tokio::test]
async fn a_port_that_speaks_http_1_is_said_to_be_no_worker() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
            let _ = socket.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n").await;
            // Closed before all is read the answer would be lost.
            while socket.read(&mut [0; 1024]).await.is_ok_and(|read| read > 0) {}
        }
    });
    let mut settings = FleetSettings::new("run-1", vec![address.into()]);
    settings.timeouts = support::settings(&[]).timeouts;
    settings.timeouts.total = std::time::Duration::from_millis(500);
    let error = feedmill_client::Fleet::new(settings).unwrap().plan(STREAM).await.unwrap_err().to_string();
    assert!(error.contains(&format!("http://{address} ")), "{error}");
    assert_eq!(error.matches("it does not speak HTTP/2; is it a feedmill worker?").count(), 1, "{error}");
}

/// The message named neither the agent nor what was tried.
#[tokio::test]
async fn an_agent_that_is_frozen_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("agent.sock");
    // Connections are made and nobody takes them, as of a process that was stopped.
    let _frozen = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let mut settings = FleetSettings::new("run-1", Vec::new());
    settings.agent = Some(socket.clone());
    settings.timeouts.total = std::time::Duration::from_millis(200);
    settings.timeouts.warning = std::time::Duration::from_millis(100);
    let fleet = feedmill_client::Fleet::new(settings).unwrap();
    let error = fleet.plan(STREAM).await.unwrap_err();
    assert!(matches!(&error, ClientError::Agent { socket: named, .. } if *named == socket), "{error}");
    let text = format!("the agent at {} has not answered for 200 ms: ", socket.display());
    assert!(error.to_string().starts_with(&text), "{error}");
}

#[tokio::test]
async fn every_worker_is_asked_for_its_status() {
    let well = Worker::start(|_| Act::Batch).await;
    let frozen = Worker::start(|_| Act::Batch).await;
    frozen.freeze();
    let answers = fleet(&[&well, &frozen]).status().await;
    assert_eq!(answers.len(), 2);
    for (endpoint, status) in answers {
        match status {
            Ok(status) => {
                assert_eq!(endpoint, well.endpoint());
                assert_eq!(status.streams[STREAM].plan, plan().digest().to_string());
            }
            Err(error) => {
                assert_eq!(endpoint, frozen.endpoint());
                assert!(matches!(error, ClientError::Control { .. }), "{error}");
            }
        }
    }
}

#[tokio::test]
async fn ranks_report_to_one_home_and_to_the_next_when_it_is_away() {
    let mut workers = [
        Worker::start(|_| Act::Batch).await,
        Worker::start(|_| Act::Batch).await,
        Worker::start(|_| Act::Batch).await,
    ];
    // Two handles as two processes would have them.
    let fleets = [fleet(&workers.each_ref()), fleet(&workers.each_ref())];
    let mut pullers = Vec::new();
    for (rank, fleet) in (0u64..).zip(&fleets) {
        let settings = PullerSettings {
            stream: STREAM.into(),
            layout: RankLayout::new(8, 2, 4).unwrap(),
            rank,
            consumed: 16,
            stop: None,
            window: 2,
            plan: Some(plan().digest()),
        };
        let mut puller = Puller::new(fleet.clone(), settings).unwrap();
        puller.next().await.unwrap();
        fleet.report(&puller.meter().report()).await.unwrap();
        pullers.push(puller);
    }
    let homes: Vec<usize> = (0..3).filter(|i| workers[*i].log(|log| !log.reports.is_empty())).collect();
    assert_eq!(homes.len(), 1);
    let home = homes[0];
    workers[home].log(|log| {
        let ranks: Vec<_> = log.reports.iter().map(|report| (report.rank, report.size)).collect();
        assert_eq!(ranks, [(0, 2), (1, 2)]);
        let first = &log.reports[0];
        assert_eq!((first.sequence, first.consumed, first.target), (1, 16, 2));
        assert_eq!(first.plan, plan().digest().to_string());
    });
    workers[home].kill();
    for (puller, fleet) in pullers.iter_mut().zip(&fleets) {
        fleet.report(&puller.meter().report()).await.unwrap();
    }
    let others: Vec<usize> =
        (0..3).filter(|i| *i != home && workers[*i].log(|log| log.reports.len() == 2)).collect();
    assert_eq!(others.len(), 1);
}
