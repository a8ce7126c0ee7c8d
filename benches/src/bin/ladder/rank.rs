//! Takes a rung and positions, gives how long a rank trained and how long it waited. Training is sleeping: a GPU's work takes no CPU.

use std::collections::VecDeque;
use std::io::{BufRead as _, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use anyhow::Context as _;
use feedmill_benches::figures::now;
use feedmill_benches::process::{Process, cpu_seconds};
use feedmill_benches::roles;
use feedmill_client::{Endpoint, Fleet, FleetSettings, Puller, PullerSettings};
use feedmill_protocol::position::Range;
use feedmill_protocol::ranks::RankLayout;
use feedmill_worker::in_process::{InProcess, Options};
use feedmill_worker::settings::read_pipeline;
use serde_json::{Value, json};

use crate::coordinator::Layout;
use crate::rungs::Rung;

/// The role's name.
pub const ROLE: &str = "ladder-rank";

/// What a rank is told when it is started.
pub struct Place<'a> {
    /// Which of them.
    pub rank: u64,
    /// How many there are.
    pub ranks: u64,
    /// Samples in a batch.
    pub micro_batch: u64,
    /// The pipeline, and where its storage is.
    pub pipeline: &'a std::path::Path,
    /// Folder for downloaded manifests.
    pub cache: &'a std::path::Path,
    /// Endpoint of the S3 server.
    pub s3: &'a str,
    /// Folder with keys for it.
    pub keys: &'a std::path::Path,
    /// The coordinator.
    pub coordinator: SocketAddr,
    /// The worker.
    pub worker: SocketAddr,
}

/// Starts a rank; it answers questions.
pub fn start(place: &Place<'_>) -> anyhow::Result<Process> {
    let argument = json!({
        "rank": place.rank, "ranks": place.ranks, "micro_batch": place.micro_batch,
        "pipeline": place.pipeline, "cache": place.cache, "s3": place.s3, "keys": place.keys,
        "coordinator": place.coordinator, "worker": place.worker,
    });
    roles::start(ROLE, &argument.to_string())
}

/// What a rank is asked: batches of a rung from a position on, the first ones not counted.
pub fn question(rung: Rung, first: u64, warm: u64, batches: u64, step: Duration) -> Value {
    json!({"rung": rung.number(), "first": first, "warm": warm, "batches": batches, "step_s": step.as_secs_f64()})
}

struct Me {
    rank: u64,
    layout: RankLayout,
    place: Value,
}

/// Plays the role until standard input is closed.
pub fn play(argument: &str) -> anyhow::Result<()> {
    let place: Value = serde_json::from_str(argument)?;
    let number = |name: &str| place[name].as_u64().with_context(|| format!("no {name}"));
    let (rank, ranks, micro_batch) = (number("rank")?, number("ranks")?, number("micro_batch")?);
    let layout = RankLayout::new(ranks * micro_batch, ranks, micro_batch)?;
    let me = Me { rank, layout, place };
    for line in std::io::stdin().lock().lines() {
        let question: Value = serde_json::from_str(&line?)?;
        println!("{}", me.train(&question)?);
    }
    Ok(())
}

/// Where batches come from: the next one, or nothing to be had any more.
type Next<'a> = Box<dyn FnMut() -> anyhow::Result<usize> + 'a>;

impl Me {
    fn train(&self, question: &Value) -> anyhow::Result<Value> {
        let number = |name: &str| question[name].as_u64().with_context(|| format!("no {name}"));
        let (first, warm, batches) = (number("first")?, number("warm")?, number("batches")?);
        let step = Duration::from_secs_f64(question["step_s"].as_f64().context("no step_s")?);
        let rung = Rung::of(number("rung")?)?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let ranges =
            (0..warm + batches).map(|step| self.range(first, step)).collect::<anyhow::Result<_>>()?;
        let mut next = self.source(rung, ranges, first, &runtime)?;
        let (mut waited, mut trained, mut bytes, mut used) = (0.0, 0.0, 0, 0.0);
        for number in 0..warm + batches {
            if number == warm {
                used = cpu_seconds(std::process::id())?;
            }
            let asked = now();
            let received = next()?;
            let waiting = asked.elapsed();
            let began = now();
            std::thread::sleep(step);
            if number >= warm {
                waited += waiting.as_secs_f64();
                trained += began.elapsed().as_secs_f64();
                bytes += received;
            }
        }
        let used = cpu_seconds(std::process::id())? - used;
        Ok(json!({"waited": waited, "trained": trained, "bytes": bytes, "cpu": used}))
    }

    fn range(&self, first: u64, step: u64) -> anyhow::Result<Range> {
        let micro_batch = self.layout.micro_batch();
        let start = first + (step * self.layout.ranks() + self.rank) * micro_batch;
        Ok(Range::new(start, start + micro_batch)?)
    }

    fn text(&self, name: &str) -> anyhow::Result<&str> {
        self.place[name].as_str().with_context(|| format!("no {name}"))
    }

    fn source<'a>(
        &self,
        rung: Rung,
        ranges: VecDeque<Range>,
        first: u64,
        runtime: &'a tokio::runtime::Runtime,
    ) -> anyhow::Result<Next<'a>> {
        match rung {
            Rung::Serial => self.serial(ranges, runtime),
            Rung::Concurrent | Rung::Window => self.coordinated(ranges, rung.ahead(), Layout::Tensors),
            Rung::BytesAside => self.coordinated(ranges, rung.ahead(), Layout::Bytes),
            Rung::Reference => self.referenced(rung.ahead(), first, runtime),
        }
    }

    /// One sample after another, in the trainer.
    fn serial<'a>(
        &self,
        mut ranges: VecDeque<Range>,
        runtime: &'a tokio::runtime::Runtime,
    ) -> anyhow::Result<Next<'a>> {
        let options = Options {
            threads: Some(1),
            cache_dir: Some(PathBuf::from(self.text("cache")?)),
            s3_endpoint: Some(self.text("s3")?.to_owned()),
            s3_credentials_dir: Some(PathBuf::from(self.text("keys")?)),
            ..Options::default()
        };
        let pipeline = read_pipeline(self.text("pipeline")?.as_ref())?;
        let own = runtime.block_on(InProcess::open(pipeline, options))?;
        Ok(Box::new(move || {
            let range = ranges.pop_front().context("no more ranges")?;
            let mut bytes = 0;
            for position in range.start()..range.end() {
                let one = own.batch("train", Range::new(position, position + 1)?, None);
                let made = runtime.block_on(one).map_err(|problem| anyhow::anyhow!(problem.detail))?;
                bytes += made.len();
            }
            Ok(bytes)
        }))
    }

    /// Whole batches, through the coordinator; `ahead` of them asked for before they are needed.
    fn coordinated<'a>(
        &self,
        ranges: VecDeque<Range>,
        ahead: usize,
        layout: Layout,
    ) -> anyhow::Result<Next<'a>> {
        let mut asking = TcpStream::connect(self.text("coordinator")?.parse::<SocketAddr>()?)?;
        asking.set_nodelay(true)?;
        let mut answers = asking.try_clone()?;
        // Read as they come, as a queue in the trainer does; the ranges outstanding bound it.
        let (queue, come) = mpsc::channel::<Vec<u8>>();
        std::thread::spawn(move || -> std::io::Result<()> {
            loop {
                let mut length = [0; 8];
                answers.read_exact(&mut length)?;
                let mut batch = vec![0; u64::from_be_bytes(length) as usize];
                answers.read_exact(&mut batch)?;
                if queue.send(batch).is_err() {
                    return Ok(());
                }
            }
        });
        let (mut left, mut asked) = (ranges, 0);
        let mut ask_until = move |count: usize| -> anyhow::Result<()> {
            while asked < count
                && let Some(range) = left.pop_front()
            {
                asking.write_all(&range.start().to_be_bytes())?;
                asking.write_all(&range.end().to_be_bytes())?;
                asking.write_all(&[layout as u8])?;
                asked += 1;
            }
            Ok(())
        };
        let mut taken = 0;
        Ok(Box::new(move || {
            ask_until(taken + ahead.max(1))?;
            let batch = come.recv().context("the coordinator is gone")?;
            taken += 1;
            ask_until(taken + ahead)?;
            Ok(batch.len())
        }))
    }

    /// From the worker's shared memory, by Feedmill's own client.
    fn referenced<'a>(
        &self,
        ahead: usize,
        first: u64,
        runtime: &'a tokio::runtime::Runtime,
    ) -> anyhow::Result<Next<'a>> {
        let worker = Endpoint::from(self.text("worker")?.parse::<SocketAddr>()?);
        let fleet = Fleet::new(FleetSettings::new("ladder", vec![worker]))?;
        let settings = PullerSettings {
            stream: "train".into(),
            layout: self.layout,
            rank: self.rank,
            consumed: first,
            stop: None,
            window: ahead,
            plan: None,
        };
        let _inside = runtime.enter();
        let mut puller = Puller::new(fleet, settings)?;
        Ok(Box::new(move || {
            let batch = runtime.block_on(puller.next())?.context("the stream has an end")?;
            Ok(batch.bytes().len())
        }))
    }
}
