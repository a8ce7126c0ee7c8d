//! Takes a pipeline, gives worker processes on free ports of 127.0.0.1; they end when this process ends.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use feedmill_client::Endpoint;
use serde::Deserialize;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::output::tell;

/// So many lines of a worker's log are kept, to be shown when it ends unasked.
const LOG_LINES: usize = 20;

/// A worker that was asked to end finishes what it has within this; then it is killed.
const DRAIN: Duration = Duration::from_secs(5);

/// What all workers are started with.
#[derive(Clone, Debug)]
pub struct WorkerSettings {
    /// The pipeline's file.
    pub pipeline: PathBuf,
    /// Threads for CPU work.
    pub threads: u32,
    /// Each worker has a folder below it for manifests.
    pub cache: PathBuf,
    /// Address and keys of an S3 server in the pipeline's place.
    pub s3: Option<(String, PathBuf)>,
    /// Show what they log.
    pub verbose: bool,
}

/// A worker has ended.
#[derive(Debug)]
pub struct Ended {
    /// Which of them.
    pub index: usize,
    /// Its name.
    pub name: String,
    /// How.
    pub status: ExitStatus,
    /// The last lines of its log.
    pub log: String,
}

impl Ended {
    /// An end that nobody asked for, as an error.
    pub fn unasked(&self) -> anyhow::Error {
        anyhow!("worker {} ended ({}); its last lines were:\n{}", self.name, self.status, self.log)
    }
}

/// The worker processes.
pub struct Workers {
    settings: WorkerSettings,
    processes: Vec<Process>,
    /// Processes started so far in places after the first time.
    replaced: u32,
    /// Places opened so far.
    opened: u32,
    /// Processes that finish what they have and end.
    leaving: Vec<Process>,
    ended: mpsc::UnboundedReceiver<Ended>,
    ends: mpsc::UnboundedSender<Ended>,
}

struct Process {
    name: String,
    endpoint: Endpoint,
    orders: mpsc::UnboundedSender<Order>,
    life: JoinHandle<()>,
}

#[derive(Clone, Copy, Debug)]
enum Order {
    Drain,
    Kill,
}

/// What a worker prints as soon as it listens.
#[derive(Deserialize)]
struct Announcement {
    listening: std::net::SocketAddr,
}

impl Workers {
    /// Starts `count` workers, all at once, and waits until they listen; they read manifests after that.
    ///
    /// # Errors
    /// A worker that ends at once, with the last lines of its log.
    pub async fn start(settings: WorkerSettings, count: u32) -> anyhow::Result<Self> {
        let (ends, ended) = mpsc::unbounded_channel();
        let mut workers = Self {
            settings,
            processes: Vec::new(),
            replaced: 0,
            opened: count,
            leaving: Vec::new(),
            ended,
            ends,
        };
        let starting: Vec<Starting> = (0..count as usize)
            .map(|index| workers.spawn(index, format!("w{index}")))
            .collect::<anyhow::Result<_>>()?;
        for starting in starting {
            let process = starting.listening(workers.ends.clone()).await?;
            workers.processes.push(process);
        }
        Ok(workers)
    }

    /// Where they listen, by index.
    pub fn endpoints(&self) -> Vec<Endpoint> {
        self.processes.iter().map(|process| process.endpoint.clone()).collect()
    }

    /// Where they listen and what they are called, by index.
    pub fn names(&self) -> Vec<(Endpoint, String)> {
        self.processes.iter().map(|process| (process.endpoint.clone(), process.name.clone())).collect()
    }

    /// The next end of a worker. Dropping the future loses nothing.
    pub async fn next_end(&mut self) -> Ended {
        match self.ended.recv().await {
            Some(ended) => ended,
            // `ends` is kept beside it, so the channel never closes.
            None => std::future::pending().await,
        }
    }

    /// SIGKILL for one of them.
    pub fn kill(&self, index: usize) {
        if let Some(process) = self.processes.get(index) {
            // A worker that has ended already takes no orders.
            let _ = process.orders.send(Order::Kill);
        }
    }

    /// Starts another one in the place of one that has ended, on a new port.
    ///
    /// # Errors
    /// As for [`Workers::start`].
    pub async fn replace(&mut self, index: usize) -> anyhow::Result<()> {
        self.replaced += 1;
        let name = format!("w{index}+{}", self.replaced);
        let process = self.spawn(index, name)?.listening(self.ends.clone()).await?;
        self.processes[index] = process;
        Ok(())
    }

    /// Opens so many further places, all at once.
    ///
    /// # Errors
    /// As for [`Workers::start`].
    pub async fn add(&mut self, count: u32) -> anyhow::Result<()> {
        let mut starting = Vec::new();
        for _ in 0..count {
            starting.push(self.spawn(self.processes.len() + starting.len(), format!("w{}", self.opened))?);
            self.opened += 1;
        }
        for starting in starting {
            let process = starting.listening(self.ends.clone()).await?;
            self.processes.push(process);
        }
        Ok(())
    }

    /// Closes the newest places: their workers finish what they have. Nobody may be sent to them any more, so this is called after they
    /// have been taken off every list, and they end `after` that has been read; gives their names.
    pub fn retire(&mut self, count: usize, after: Duration) -> Vec<String> {
        let kept = self.processes.len().saturating_sub(count).max(1);
        let leaving = self.processes.split_off(kept.min(self.processes.len()));
        for process in &leaving {
            let orders = process.orders.clone();
            tokio::spawn(async move {
                tokio::time::sleep(after).await;
                // It may have ended by itself.
                let _ = orders.send(Order::Drain);
            });
        }
        let names = leaving.iter().map(|process| process.name.clone()).collect();
        self.leaving.extend(leaving);
        names
    }

    /// Forgets a worker that was retired and has ended; false when it was none.
    pub fn left(&mut self, name: &str) -> bool {
        let before = self.leaving.len();
        self.leaving.retain(|process| process.name != name);
        self.leaving.len() < before
    }

    /// Lets all finish what they have, and waits until they are gone.
    pub async fn stop(self) {
        for process in &self.processes {
            let _ = process.orders.send(Order::Drain);
        }
        for mut process in self.processes.into_iter().chain(self.leaving) {
            if tokio::time::timeout(DRAIN + Duration::from_secs(1), &mut process.life).await.is_err() {
                tracing::warn!(worker = process.name, "does not end by itself and is killed");
                let _ = process.orders.send(Order::Kill);
                let _ = process.life.await;
            }
        }
    }

    fn spawn(&self, index: usize, name: String) -> anyhow::Result<Starting> {
        let settings = &self.settings;
        let cache = settings.cache.join(&name);
        std::fs::create_dir(&cache).with_context(|| format!("cannot make the folder {}", cache.display()))?;
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let mut command = Command::new(program);
        command.arg("worker").arg("--pipeline").arg(&settings.pipeline);
        command.args(["--listen", "127.0.0.1:0", "--exit-with-stdin", "--name", &name]);
        command.args(["--threads", &settings.threads.to_string()]);
        command.args(["--drain-seconds", &DRAIN.as_secs().to_string()]);
        command.arg("--cache-dir").arg(cache);
        if let Some((endpoint, keys)) = &settings.s3 {
            command.args(["--s3-endpoint", endpoint]).arg("--s3-credentials-dir").arg(keys);
        }
        // They are this process's own: what the environment says of other workers is not theirs.
        for name in ["FEEDMILL_TOKEN_FILE", "FEEDMILL_TLS_CERT", "FEEDMILL_TLS_KEY"] {
            command.env_remove(name);
        }
        // A group of its own: Ctrl-C reaches this process, which ends its workers in order.
        command.process_group(0).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("cannot start worker {name}"))?;
        let stdin = child.stdin.take();
        let log = Log::default();
        let reading = child.stderr.take().map(|stderr| {
            let prefix = settings.verbose.then(|| name.clone());
            tokio::spawn(log.clone().read(stderr, prefix))
        });
        Ok(Starting { index, name, child, _stdin: stdin, log, reading })
    }
}

/// A process that does not listen yet.
struct Starting {
    index: usize,
    name: String,
    child: Child,
    /// Closed when this process ends, however it ends; then the worker ends too. Waiting for a child would close it if it were still the
    /// child's.
    _stdin: Option<ChildStdin>,
    log: Log,
    reading: Option<JoinHandle<()>>,
}

impl Starting {
    async fn listening(mut self, ends: mpsc::UnboundedSender<Ended>) -> anyhow::Result<Process> {
        let stdout = self.child.stdout.take().context("a worker without stdout")?;
        let mut lines = BufReader::new(stdout).lines();
        let first =
            lines.next_line().await.with_context(|| format!("cannot read from worker {}", self.name))?;
        let Some(first) = first else {
            return Err(self.over().await?.unasked());
        };
        let announcement: Announcement = serde_json::from_str(&first)
            .with_context(|| format!("worker {} does not say where it listens but {first:?}", self.name))?;
        // Nothing more is expected; what comes must not fill the pipe.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        let (orders, taken) = mpsc::unbounded_channel();
        let name = self.name.clone();
        let life = tokio::spawn(async move {
            match self.live(taken).await {
                // Nobody listens any more when everything ends.
                Ok(ended) => drop(ends.send(ended)),
                Err(error) => tracing::error!(%error, "lost track of a worker"),
            }
        });
        Ok(Process { name, endpoint: announcement.listening.into(), orders, life })
    }

    /// Obeys orders until the process has ended.
    async fn live(mut self, mut orders: mpsc::UnboundedReceiver<Order>) -> anyhow::Result<Ended> {
        loop {
            let order = tokio::select! {
                status = self.child.wait() => {
                    status?;
                    return self.over().await;
                }
                order = orders.recv() => order,
            };
            match order {
                Some(Order::Kill) => self.child.start_kill()?,
                Some(Order::Drain) => self.terminate()?,
                // Nobody can order anything any more.
                None => self.child.start_kill()?,
            }
        }
    }

    fn terminate(&self) -> anyhow::Result<()> {
        // The id is there as long as the process has not been waited for, so it is no other process's.
        let id = self.child.id().and_then(|id| i32::try_from(id).ok());
        if let Some(id) = id.and_then(rustix::process::Pid::from_raw) {
            rustix::process::kill_process(id, rustix::process::Signal::TERM)?;
        }
        Ok(())
    }

    /// Waits for the end and the last of the log.
    async fn over(mut self) -> anyhow::Result<Ended> {
        let status = self.child.wait().await?;
        if let Some(reading) = self.reading.take() {
            // Ends with the process, whose end of the pipe is the only one.
            let _ = reading.await;
        }
        Ok(Ended { index: self.index, name: self.name, status, log: self.log.text() })
    }
}

/// The last lines of a log.
#[derive(Clone, Debug, Default)]
struct Log(Arc<Mutex<VecDeque<String>>>);

impl Log {
    async fn read(self, source: impl AsyncRead + Unpin, prefix: Option<String>) {
        let mut lines = BufReader::new(source).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            if let Some(prefix) = &prefix {
                tell(&format!("{prefix}: {line}"));
            }
            let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if kept.len() == LOG_LINES {
                kept.pop_front();
            }
            kept.push_back(line);
        }
    }

    fn text(&self) -> String {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.is_empty() {
            return "  (it said nothing)".into();
        }
        kept.iter().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
    }
}
