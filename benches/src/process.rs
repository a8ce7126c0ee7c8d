//! Takes a command, gives a process that ends with this one, and its CPU time and memory.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde_json::Value;

use crate::dataset::Dataset;
use crate::figures::now;
use crate::http1;

/// A worker that has not read a small data set by then never will.
const READY_WITHIN: Duration = Duration::from_secs(120);

/// A process on the other end of two pipes; killed and reaped when dropped.
pub struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Process {
    /// Starts it.
    ///
    /// # Errors
    /// No such program.
    pub fn start(command: &mut Command) -> anyhow::Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", command.get_program().display()))?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(input), Some(output)) => Ok(Self { child, input, output: BufReader::new(output) }),
            _ => bail!("a child process has no pipes"),
        }
    }

    /// The next line it prints.
    ///
    /// # Errors
    /// It has ended.
    pub fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            bail!("a child process ended early: {}", self.child.wait()?);
        }
        Ok(line.trim_end().to_owned())
    }

    /// Writes one line, reads one line.
    ///
    /// # Errors
    /// It has ended, or does not answer in JSON.
    pub fn ask(&mut self, question: &Value) -> anyhow::Result<Value> {
        writeln!(self.input, "{question}")?;
        self.input.flush()?;
        Ok(serde_json::from_str(&self.line()?)?)
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Seconds of CPU time of all its threads, ended ones too, user and kernel; in steps of 10 ms.
    ///
    /// # Errors
    /// It has ended.
    pub fn cpu_seconds(&self) -> anyhow::Result<f64> {
        cpu_seconds(self.id())
    }

    /// Seconds of CPU time of its living threads, by their name without its number.
    ///
    /// # Errors
    /// It has ended.
    pub fn cpu_by_thread(&self) -> anyhow::Result<BTreeMap<String, f64>> {
        let mut by_name = BTreeMap::new();
        for entry in std::fs::read_dir(format!("/proc/{}/task", self.id()))? {
            let folder = entry?.path();
            // A thread may end between the listing and the reading.
            let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap_or_default();
            let nanoseconds = read("schedstat").split(' ').next().and_then(|text| text.parse::<f64>().ok());
            let name =
                read("comm").trim_end().trim_end_matches(|c: char| c.is_ascii_digit() || c == '-').to_owned();
            *by_name.entry(name).or_default() += nanoseconds.unwrap_or(0.0) / 1e9;
        }
        Ok(by_name)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only for a process that has ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Seconds of CPU time of all threads of a process, ended ones too, user and kernel; in steps of 10 ms.
///
/// # Errors
/// It has ended.
pub fn cpu_seconds(process: u32) -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    // Fields 14 and 15 of proc_pid_stat(5), counted from the one after the name.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let field = |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok());
    let (user, system) = field(11).zip(field(12)).context("a process status of another form")?;
    Ok((user + system) / rustix::param::clock_ticks_per_second() as f64)
}

/// Bytes of private and of shared memory that a process holds.
///
/// # Errors
/// It has ended.
pub fn resident(process: u32) -> anyhow::Result<(u64, u64)> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.trim().trim_end_matches(" kB").parse::<u64>().map(|kib| kib * 1024)
    };
    Ok((field("RssAnon:")?, field("RssShmem:")?))
}

/// A running worker.
pub struct Worker {
    /// The process.
    pub process: Process,
    /// Where it listens.
    pub address: SocketAddr,
    /// When it was started.
    pub started: Instant,
}

/// The worker's program: the one that was named, or the one beside this program.
///
/// # Errors
/// There is none.
pub fn worker_program(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    let beside = std::env::current_exe()?.with_file_name("feedmill-worker");
    let program = named.map_or(beside, Path::to_owned);
    if !program.is_file() {
        bail!(
            "no worker at {}: cargo build --release -p feedmill-worker, or name it with --worker",
            program.display()
        );
    }
    Ok(program)
}

impl Worker {
    /// Starts a worker; it listens, and may still be reading its data.
    ///
    /// # Errors
    /// It does not start.
    pub fn start(
        program: &Path,
        dataset: &Dataset,
        pipeline: &Path,
        threads: usize,
        s3: Option<&str>,
    ) -> anyhow::Result<Self> {
        Self::start_with(program, dataset, pipeline, threads, s3, &[])
    }

    /// The same with variables of the environment.
    ///
    /// # Errors
    /// It does not start.
    pub fn start_with(
        program: &Path,
        dataset: &Dataset,
        pipeline: &Path,
        threads: usize,
        s3: Option<&str>,
        environment: &[(&str, &str)],
    ) -> anyhow::Result<Self> {
        let mut command = Command::new(program);
        command.arg("--pipeline").arg(pipeline).arg("--cache-dir").arg(dataset.cache());
        command.args(["--listen", "127.0.0.1:0", "--exit-with-stdin", "--threads", &threads.to_string()]);
        if let Some(endpoint) = s3 {
            command.args(["--s3-endpoint", endpoint, "--s3-credentials-dir"]).arg(dataset.keys());
        }
        command.envs(environment.iter().copied());
        if std::env::var_os("RUST_LOG").is_none() {
            command.env("RUST_LOG", "warn");
        }
        let started = now();
        let mut process = Process::start(&mut command)?;
        let said: Value = serde_json::from_str(&process.line()?)?;
        let address =
            said["listening"].as_str().context("the worker does not say where it listens")?.parse()?;
        Ok(Self { process, address, started })
    }

    /// Waits until batches can be asked for; gives the connection on which it asked.
    ///
    /// # Errors
    /// It ends, or is not ready within two minutes.
    pub fn ready(&mut self) -> anyhow::Result<http1::Connection> {
        let mut connection = http1::Connection::open(self.address)?;
        while connection.get("/readyz")?.status != 200 {
            if self.started.elapsed() > READY_WITHIN {
                bail!("the worker is not ready after {READY_WITHIN:?}");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(connection)
    }

    /// All metrics, by name with labels.
    ///
    /// # Errors
    /// It has ended.
    pub fn metrics(&self) -> anyhow::Result<BTreeMap<String, f64>> {
        let answer = http1::Connection::open(self.address)?.get("/metrics")?;
        let text = String::from_utf8(answer.body)?;
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let pairs = lines.filter_map(|line| line.rsplit_once(' '));
        Ok(pairs.filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?))).collect())
    }
}
