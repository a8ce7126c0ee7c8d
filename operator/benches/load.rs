//! The operator as a process of its own, against the API server of its tests and loopback workers that answer as real ones do: how much memory
//! and CPU it takes, how many writes it makes when nothing happens, and how many requests after a restart.
//!
//! `cargo bench -p feedmill-operator --bench load` prints lines for people and one JSON line. Workers are asked on port 8470, which must be
//! free; each has an address of its own in 127.0.0.0/8. Where the port is taken, `unshare -n` gives another one (`ip link set lo up` in it).
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on fails here")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::get;
use axum::{Json, Router};
use clap::Parser;
use feedmill_protocol::http::{DEFAULT_PORT, PATH_STATUS};
use feedmill_protocol::report::{KeptReport, RankReport, StreamStatus, WorkerState, WorkerStatus};
use serde_json::{Value, json};
use support::{DEPLOYMENTS, NAMESPACE, PIPELINES, PODS, Server, pipeline};
use tokio::net::TcpListener;

/// Ranks of each training; they report to eight of its workers.
const RANKS: u32 = 64;
const HOMES: u32 = 8;
const PLAN: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// How much.
#[derive(Parser)]
struct Arguments {
    /// Pipelines of the first part, every other one in mode Internal
    #[arg(long, default_value_t = 100)]
    pipelines: usize,
    /// Workers of each
    #[arg(long, default_value_t = 20)]
    workers: u32,
    /// Pipelines of the second part, of one worker each, whose size people decide
    #[arg(long, default_value_t = 500)]
    restart: usize,
    /// How long the first part is measured
    #[arg(long, default_value_t = 120)]
    seconds: u64,
    /// Says that it is a benchmark; cargo does
    #[arg(long, hide = true)]
    bench: bool,
}

/// Every request to the API server: when, how, where.
#[derive(Clone, Default)]
struct Asked(Arc<Mutex<Vec<(Instant, Method, String)>>>);

impl Asked {
    /// All but those about leases since then, writes alone or reads too.
    fn since(&self, since: Instant, writes: bool) -> Vec<Instant> {
        let all = self.0.lock().unwrap();
        let of = all.iter().filter(|(at, method, path)| {
            *at >= since && !path.contains("/leases") && (!writes || method != Method::GET)
        });
        of.map(|(at, ..)| *at).collect()
    }
}

async fn noted(State(asked): State<Asked>, request: Request, next: Next) -> Response {
    let what = (now(), request.method().clone(), request.uri().path().to_owned());
    asked.0.lock().unwrap().push(what);
    next.run(request).await
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
fn now() -> Instant {
    Instant::now()
}

/// A worker's answer: its training goes on, and wants neither more nor fewer.
async fn answered(State(begun): State<Instant>, headers: HeaderMap) -> Json<WorkerStatus> {
    let host = headers.get("host").and_then(|host| host.to_str().ok()).unwrap_or_default();
    let address: Ipv4Addr = host.split(':').next().unwrap_or_default().parse().unwrap();
    let [_, high, low, worker] = address.octets();
    let (number, worker) = (u32::from(high) * 256 + u32::from(low), u32::from(worker) - 1);
    let seconds = now().duration_since(begun).as_secs();
    let stream = StreamStatus { plan: PLAN.into(), samples_per_epoch: 1_000_000 };
    let report = |rank: u32| KeptReport {
        age_ms: 1000,
        report: RankReport {
            run: format!("run-{number}"),
            stream: "train".into(),
            plan: PLAN.into(),
            rank,
            size: RANKS,
            process: String::new(),
            ready: 3,
            target: 4,
            waiting_ms: 0,
            wait_ms: 0,
            step_ms: 2000,
            waited_ms: 0,
            computed_ms: seconds * 1000,
            trained: seconds * 256,
            quickest_us: 1_000_000,
            quickest_samples: 256,
            consumed: seconds * 256,
            sequence: seconds / 2 + 1,
            farewell: false,
            begin: None,
        },
    };
    let reports = if worker < HOMES {
        (worker..RANKS).step_by(HOMES as usize).map(report).collect()
    } else {
        Vec::new()
    };
    Json(WorkerStatus {
        worker: format!("{number}-{worker}"),
        version: env!("CARGO_PKG_VERSION").into(),
        state: WorkerState::Ready,
        doing: None,
        cores: 4,
        streams: BTreeMap::from([("train".to_owned(), stream)]),
        work_ahead: 10,
        ready: 5,
        batches: seconds,
        samples: seconds * 16,
        bytes_out: seconds << 20,
        bytes_in: seconds << 20,
        // As much of four cores as a fleet of the right size has to do.
        busy_ms: seconds * 3300,
        bad: BTreeMap::new(),
        problems: Vec::new(),
        reports,
        agent: None,
    })
}

/// The API server on a port of its own, and how an operator gets there.
struct Cluster {
    server: Server,
    asked: Asked,
    folder: tempfile::TempDir,
}

impl Cluster {
    async fn start() -> Self {
        let (server, asked) = (Server::start(), Asked::default());
        let router = server.router().layer(from_fn_with_state(asked.clone(), noted));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        let folder = tempfile::tempdir().unwrap();
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "here",
            "clusters": [{"name": "here", "cluster": {"server": format!("http://{address}")}}],
            "users": [{"name": "me", "user": {}}],
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
        });
        std::fs::write(folder.path().join("config"), config.to_string()).unwrap();
        Self { server, asked, folder }
    }

    fn operator(&self) -> Operator {
        let log = std::fs::File::create(self.folder.path().join("log")).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_feedmill-operator"))
            .args([
                "run",
                "--worker-image=worker:1",
                "--identity=me",
                "--without-nodes",
                "--listen=127.0.0.1:0",
            ])
            .args(["--own-namespace", NAMESPACE])
            .env("KUBECONFIG", self.folder.path().join("config"))
            .env("RUST_LOG", "warn")
            // As the chart has it.
            .env("MALLOC_ARENA_MAX", "1")
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        Operator(child)
    }

    /// Makes pipelines; every other one in mode Internal, if any, each of which writes what it learnt once a minute.
    fn put(&self, pipelines: usize, workers: u32, is_scaled: bool) {
        for number in 0..pipelines {
            let scaling = json!({"mode": "Internal", "minReplicas": 1, "maxReplicas": 2 * workers});
            let mut spec = json!({"replicas": workers});
            if is_scaled && number % 2 == 1 {
                spec["autoscaling"] = scaling;
            }
            self.server.put(PIPELINES, pipeline(&format!("p{number}"), &spec));
        }
    }

    /// Waits until all Deployments are there, and makes their pods.
    async fn deploy(&self, pipelines: usize, workers: u32) {
        for number in 0..pipelines {
            let name = format!("p{number}");
            self.until(|server| server.replicas(&name) == Some(i64::from(workers))).await;
            let [high, low] = u16::try_from(number).unwrap().to_be_bytes();
            let deployment = self.server.get(DEPLOYMENTS, &format!("{name}-worker")).unwrap();
            for worker in 0..workers {
                let mut pod = deployment["spec"]["template"].clone();
                pod["metadata"]["name"] = format!("{name}-{worker}").into();
                pod["metadata"]["namespace"] = NAMESPACE.into();
                pod["spec"]["nodeName"] = format!("n{}", worker % 10).into();
                let address = Ipv4Addr::new(127, high, low, u8::try_from(worker + 1).unwrap());
                pod["status"] = json!({"phase": "Running", "podIP": address.to_string(),
                    "conditions": [{"type": "Ready", "status": "True"}]});
                self.server.put(PODS, pod);
            }
            self.server.whole(&format!("{name}-worker"), i64::from(workers));
        }
        for number in 0..pipelines {
            let name = format!("p{number}");
            self.until(|server| server.reason(&name, "PlanConsistent").as_deref() == Some("PlansAgree"))
                .await;
        }
    }

    async fn until(&self, holds: impl Fn(&Server) -> bool) {
        while !holds(&self.server) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until nothing has been written for so long, and says since when.
    async fn quiet(&self, seconds: u64, since: Instant) -> Instant {
        loop {
            let last = self.asked.since(since, true).into_iter().max().unwrap_or(since);
            if now().duration_since(last) > Duration::from_secs(seconds) {
                return last;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

/// A running operator.
struct Operator(Child);

impl Operator {
    /// Memory in MB: all of it, what of it is no mapped file, such as the program itself, and the most there ever was.
    fn memory(&self) -> [f64; 3] {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        ["VmRSS:", "RssAnon:", "VmHWM:"].map(|what| {
            let line = text.lines().find_map(|line| line.strip_prefix(what)).unwrap();
            let kibibytes: f64 = line.trim().trim_end_matches(" kB").parse().unwrap();
            kibibytes * 1024.0 / 1e6
        })
    }

    /// Seconds of CPU time so far.
    fn cpu(&self) -> f64 {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap();
        let fields: Vec<&str> = text.rsplit(") ").next().unwrap().split(' ').collect();
        // utime and stime, in the hundredths of a second that Linux has here on every architecture.
        fields[11..13].iter().map(|ticks| ticks.parse::<f64>().unwrap()).sum::<f64>() / 100.0
    }

    /// Ends it as Kubernetes does: it gives its lease back.
    fn stop(mut self) {
        let ended = Command::new("kill").arg(self.0.id().to_string()).status().unwrap();
        assert!(ended.success() && self.0.wait().unwrap().success());
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The most in any second.
fn busiest(times: &[Instant]) -> usize {
    let within = |from: Instant| {
        times.iter().filter(|at| **at >= from && **at < from + Duration::from_secs(1)).count()
    };
    times.iter().map(|from| within(*from)).max().unwrap_or_default()
}

fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or_default()
}

async fn steady(arguments: &Arguments) -> Value {
    let cluster = Cluster::start().await;
    cluster.put(arguments.pipelines, arguments.workers, true);
    let operator = cluster.operator();
    cluster.deploy(arguments.pipelines, arguments.workers).await;
    // The last status of each is written within 15 seconds.
    tokio::time::sleep(Duration::from_secs(20)).await;
    let (since, cpu) = (now(), operator.cpu());
    let mut most = [0.0_f64; 2];
    for _ in 0..arguments.seconds {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let [all, own, _] = operator.memory();
        most = [most[0].max(all), most[1].max(own)];
    }
    let minutes = now().duration_since(since).as_secs_f64() / 60.0;
    let writes = cluster.asked.since(since, true).len() as f64 / minutes / arguments.pipelines as f64;
    let requests = cluster.asked.since(since, false).len() as f64 / minutes / 60.0;
    let used = (operator.cpu() - cpu) / (minutes * 60.0) * 100.0;
    let reporting = cluster.server.all(PIPELINES);
    let reporting = reporting.iter().filter(|object| object["status"]["scaling"]["reportingRanks"] == RANKS);
    let reporting = reporting.count();
    println!(
        "{} pipelines x {} workers, {RANKS} ranks each ({reporting} seen): {:.1} MB, {:.1} of them its own, {used:.1} % of a core, \
         {writes:.3} writes a minute and pipeline, {requests:.2} requests/s, load {:.1}",
        arguments.pipelines,
        arguments.workers,
        most[0],
        most[1],
        load(),
    );
    let figures = json!({"pipelines": arguments.pipelines, "workers": arguments.workers, "pipelines_with_all_ranks": reporting,
        "rss_mb": most[0], "rss_anon_mb": most[1], "cpu_percent": used, "writes_a_minute_and_pipeline": writes, "requests_a_second": requests, "load": load()});
    operator.stop();
    figures
}

async fn restart(arguments: &Arguments) -> Value {
    let cluster = Cluster::start().await;
    cluster.put(arguments.restart, 1, false);
    let first = cluster.operator();
    cluster.deploy(arguments.restart, 1).await;
    cluster.quiet(10, now()).await;
    first.stop();
    let since = now();
    let second = cluster.operator();
    // It has begun when it has asked for something.
    while cluster.asked.since(since, true).is_empty() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let last = cluster.quiet(20, since).await;
    let asked = cluster.asked.since(since, false);
    let (most, took) = (busiest(&asked), last.duration_since(since).as_secs_f64());
    let [all, own, ever] = second.memory();
    println!(
        "{} pipelines after a restart: at most {most} requests in a second, {} in all within {took:.0} s, {all:.1} MB, {own:.1} of them \
         its own, {ever:.1} at most, load {:.1}",
        arguments.restart,
        asked.len(),
        load(),
    );
    let figures = json!({"pipelines": arguments.restart, "most_requests_in_a_second": most, "requests": asked.len(), "seconds": took,
        "rss_mb": all, "rss_anon_mb": own, "rss_most_mb": ever, "load": load()});
    second.stop();
    figures
}

fn main() {
    let arguments = Arguments::parse();
    assert!(Path::new("/proc/self/stat").exists(), "figures of processes come from /proc");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = TcpListener::bind(("0.0.0.0", DEFAULT_PORT)).await.unwrap();
        let workers = Router::new().route(PATH_STATUS, get(answered)).with_state(now());
        tokio::spawn(async move { axum::serve(listener, workers).await.unwrap() });
        let steady = steady(&arguments).await;
        let restart = restart(&arguments).await;
        println!("{}", json!({"bench": "operator_load", "steady": steady, "restart": restart}));
    });
}
