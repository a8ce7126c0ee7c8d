//! Tokens and TLS between real workers and those who ask them: the command, and a trainer's client under rotation.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

use std::path::{Path, PathBuf};

use feedmill_client::{
    ClientError, Endpoint, Fault, Fleet, FleetSettings, Pass, PassSettings, Puller, PullerSettings,
    TokenSource,
};
use feedmill_protocol::ranks::RankLayout;
use feedmill_testkit::certificates::{Authority, Certificate, Validity};

use support::{Worker, feedmill, pipeline_over_files, said};

const OLD: &str = "old-token-0123456789abcdef";
const NEW: &str = "new-token-0123456789abcdef";

/// A folder with a pipeline, an authority, and files of tokens.
struct Place {
    folder: tempfile::TempDir,
    pipeline: String,
    authority: Authority,
}

impl Place {
    fn new() -> Self {
        let (folder, pipeline) = pipeline_over_files("seed", "seed");
        Self { folder, pipeline, authority: Authority::new() }
    }

    fn file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    fn worker(&self, tokens: &Path, certificate: Option<&Certificate>) -> Worker {
        let mut arguments = vec!["--token-file", tokens.to_str().unwrap(), "--threads", "1"];
        if let Some(files) = certificate {
            let (certificate, key) = (files.certificate.to_str().unwrap(), files.key.to_str().unwrap());
            arguments.extend(["--tls-cert", certificate, "--tls-key", key]);
        }
        Worker::start_with(&self.pipeline, &arguments)
    }

    fn pass(&self, token: Option<&Path>) -> Pass {
        let token = token.map(|path| TokenSource::File(path.to_owned()));
        Pass::new(PassSettings { token, authorities: Some(self.authority.file()) }).unwrap()
    }
}

/// The worker by a name that its certificate has.
fn by_name(worker: &Worker) -> String {
    worker.url.replace("127.0.0.1", "localhost")
}

#[test]
fn the_command_shows_its_token_and_checks_who_answers() {
    let place = Place::new();
    let tokens = place.file("tokens", &format!("{NEW}\r\n{OLD}\r\n"));
    let wrong = place.file("wrong", "another-token-0123456789");
    let empty = place.file("empty", "\n");
    let names = ["localhost", "127.0.0.1"];
    let good = place.authority.sign("good", &names, Validity::Now);
    let past = place.authority.sign("past", &names, Validity::Past);
    let alone = place.authority.self_signed("alone", &names);
    let other = place.authority.sign("other", &["elsewhere.test"], Validity::Now);
    let workers = [Some(&good), Some(&past), Some(&alone), Some(&other), None]
        .map(|certificate| place.worker(&tokens, certificate));
    let [good, past, alone, other, plain] = workers.each_ref().map(by_name);
    let cleartext = good.replace("https://", "http://");
    let secret = plain.replace("http://", "https://");
    let authority = place.authority.file();
    let (tokens, ca) = (tokens.to_str().unwrap(), authority.to_str().unwrap());
    let (wrong, empty) = (wrong.to_str().unwrap(), empty.to_str().unwrap());
    let with = ["--token-file", tokens, "--ca-file", ca];
    let cases: [(&str, &[&str], Option<&str>); 12] = [
        (&good, &with, None),
        (&plain, &with, None),
        (&plain, &["--token-file", tokens], None),
        (&good, &["--ca-file", ca], Some("wants a token")),
        (&good, &["--token-file", wrong, "--ca-file", ca], Some("not admitted")),
        (&good, &["--token-file", empty, "--ca-file", ca], Some("has no token")),
        (&good, &["--token-file", tokens, "--ca-file", tokens], Some("BEGIN CERTIFICATE")),
        (&past, &with, Some("renew")),
        (&alone, &with, Some("--ca-file")),
        (&other, &with, Some("localhost")),
        (&cleartext, &with, Some("https://")),
        (&secret, &with, Some("speaks no TLS")),
    ];
    // Workers over TLS were not waited for.
    while !feedmill().args(["get", &good, "0-1"]).args(with).output().unwrap().status.success() {}
    for (target, arguments, refused) in cases {
        let output = feedmill().args(["get", target, "0-2"]).args(arguments).output().unwrap();
        let text = said(&output);
        match refused {
            None => assert!(
                output.status.success() && text.contains("range 0-2"),
                "{target} {arguments:?}: {text}"
            ),
            Some(part) => {
                assert!(!output.status.success(), "{target} {arguments:?}: {text}");
                assert!(text.contains(part), "{target} {arguments:?}: {part} is not in {text}");
            }
        }
        assert!(!text.contains(&OLD[..12]) && !text.contains(&NEW[..12]), "{text}");
    }
    for words in [["show", &good, "0"].as_slice(), &["diff", &good, &plain]] {
        let mut command = feedmill();
        command.args(words).env("FEEDMILL_TOKEN_FILE", tokens).env("FEEDMILL_CA_FILE", ca);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", said(&output));
    }
}

fn puller(workers: &[&Worker], pass: Pass) -> Puller {
    let endpoints = workers.iter().map(|worker| by_name(worker).parse::<Endpoint>().unwrap()).collect();
    let fleet = Fleet::new(FleetSettings { pass, ..FleetSettings::new("security", endpoints) }).unwrap();
    let settings = PullerSettings {
        stream: "train".into(),
        layout: RankLayout::new(4, 1, 4).unwrap(),
        rank: 0,
        consumed: 0,
        stop: None,
        window: 4,
        plan: None,
    };
    Puller::new(fleet, settings).unwrap()
}

/// Whether a worker admits a token by now.
async fn admits(worker: &Worker, pass: &Pass) -> bool {
    let fleet = FleetSettings {
        pass: pass.clone(),
        ..FleetSettings::new("look", vec![by_name(worker).parse().unwrap()])
    };
    match Fleet::new(fleet).unwrap().plan("train").await {
        Ok(_) => true,
        Err(ClientError::Denied { .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

/// Tokens and certificates change on both sides while batches flow, and none of them fails or is missing.
#[tokio::test(flavor = "multi_thread")]
async fn rotation_under_load_costs_no_batch() {
    let place = Place::new();
    let theirs = [place.file("tokens-0", OLD), place.file("tokens-1", OLD)];
    let certificates = ["a", "b"].map(|name| place.authority.sign(name, &["localhost"], Validity::Now));
    let next = place.authority.sign("next", &["localhost"], Validity::Now);
    let workers = [0, 1].map(|index| place.worker(&theirs[index], Some(&certificates[index])));
    let ours = place.file("ours", OLD);
    let mut puller = puller(&[&workers[0], &workers[1]], place.pass(Some(&ours)));
    let (old, new) = (place.file("old", OLD), place.file("new", NEW));
    let (old, new) = (place.pass(Some(&old)), place.pass(Some(&new)));
    let mut position = 0;
    let mut pull = async || {
        let batch = puller.next().await.unwrap().unwrap();
        assert_eq!(batch.range().start(), position);
        position = batch.range().end();
    };
    for _ in 0..8 {
        pull().await;
    }
    // The new token is added first, then clients change, then the old one goes.
    for tokens in &theirs {
        std::fs::write(tokens, format!("{NEW}\n{OLD}\n")).unwrap();
    }
    for worker in &workers {
        while !admits(worker, &new).await {
            pull().await;
        }
    }
    std::fs::write(&ours, format!("{NEW}\n")).unwrap();
    for (tokens, certificate) in theirs.iter().zip(&certificates) {
        std::fs::write(tokens, NEW).unwrap();
        std::fs::copy(&next.certificate, &certificate.certificate).unwrap();
        std::fs::copy(&next.key, &certificate.key).unwrap();
    }
    for worker in &workers {
        while admits(worker, &old).await {
            pull().await;
        }
    }
    for _ in 0..16 {
        pull().await;
    }
}

/// A token that no worker admits ends the call with the worker and the remedy, not the range: with the right one it comes.
#[tokio::test(flavor = "multi_thread")]
async fn a_denied_rank_goes_on_where_it_was_once_it_has_the_token() {
    let place = Place::new();
    let tokens = place.file("tokens", NEW);
    let worker = place.worker(&tokens, None);
    let ours = place.file("ours", OLD);
    let mut puller = puller(&[&worker], place.pass(Some(&ours)));
    for _ in 0..2 {
        let error = puller.next().await.unwrap_err();
        let text = error.to_string();
        let ClientError::Denied { fault, .. } = &error else { panic!("{error:?}") };
        assert!(matches!(fault.as_ref(), Fault::Denied { status: 401, .. }), "{error:?}");
        assert!(text.contains(&worker.url) && text.contains("add the new one"), "{text}");
        assert!(!text.contains(&OLD[..12]), "{text}");
    }
    std::fs::write(&ours, NEW).unwrap();
    let batch = loop {
        // Ranges that were asked for before fail as they were asked.
        match puller.next().await {
            Ok(batch) => break batch.unwrap(),
            Err(error) => assert!(matches!(error, ClientError::Denied { .. }), "{error}"),
        }
    };
    assert_eq!(batch.range().start(), 0);
}

/// A worker with an old token file or certificate is passed over while others admit the rank.
#[tokio::test(flavor = "multi_thread")]
async fn one_worker_that_admits_nobody_costs_no_batch() {
    let place = Place::new();
    let (theirs, ours) = (place.file("theirs", NEW), place.file("ours", OLD));
    let past = place.authority.sign("past", &["localhost"], Validity::Past);
    let denying = place.worker(&theirs, None);
    let expired = place.worker(&ours, Some(&past));
    let good = place.worker(&ours, None);
    let mut puller = puller(&[&denying, &expired, &good], place.pass(Some(&ours)));
    for number in 0..12 {
        let batch = puller.next().await.unwrap().unwrap();
        let port = by_name(&good).parse::<Endpoint>().unwrap().port();
        assert_eq!((batch.range().start(), batch.worker().port()), (4 * number, port));
    }
}

/// Cleartext to a worker over TLS, and the other way round, is said at once: no time-out, and no data in the clear.
#[tokio::test(flavor = "multi_thread")]
async fn the_wrong_scheme_is_said_at_once() {
    let place = Place::new();
    let tokens = place.file("tokens", OLD);
    let certificate = place.authority.sign("worker", &["localhost"], Validity::Now);
    let (secured, plain) = (place.worker(&tokens, Some(&certificate)), place.worker(&tokens, None));
    let cases = [
        (by_name(&secured).replace("https://", "http://"), "write https://"),
        (by_name(&plain).replace("http://", "https://"), "write http://"),
    ];
    for (address, part) in cases {
        let endpoint = address.parse::<Endpoint>().unwrap();
        let pass = place.pass(Some(&tokens));
        let fleet =
            Fleet::new(FleetSettings { pass, ..FleetSettings::new("scheme", vec![endpoint]) }).unwrap();
        let error = fleet.plan("train").await.unwrap_err();
        assert!(matches!(error, ClientError::Denied { .. }) && error.to_string().contains(part), "{error}");
    }
}
