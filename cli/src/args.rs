//! The command line as it is typed, and what follows from it.

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use feedmill_client::{AccessError, Pass, PassSettings, TokenSource};
use feedmill_protocol::position::Range;
use feedmill_protocol::ranks::{LayoutError, RankLayout};

use crate::step::StepArguments;
use crate::storage::BucketFolder;

/// Keeps GPUs fed: records and pictures from S3 become exactly the tensors that the model's own processor makes.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Runs a whole training's data on this machine: workers, ranks that pull in lock step, a summary
    ///
    /// Worker processes are started on free ports of 127.0.0.1, and ranks read from them as a training would: in lock step, each step
    /// taking the time that is given. Ends with 1 when a promise did not hold: a position missing or there twice, a hash that is not
    /// that of its sample, a chain of hashes that differs.
    Local(LocalArguments),
    /// Fetches one batch and says what is in it
    Get(GetArguments),
    /// Shows what stands at a position: text, what of it is learnt, pictures, and why another record stands in
    Show(ShowArguments),
    /// Reads all of a pipeline's data and says what is in it, before GPUs wait for it
    ///
    /// Every record of every data set goes through what makes samples. Ends with 0; with 1 when more records are bad than --max-bad
    /// allows; with 2 when there is no report: a pipeline or data that cannot be read, too many requests.
    Check(CheckArguments),
    /// Holds samples against the Hugging Face processor that is installed here
    ///
    /// Ends with 1 when a record differs, and says where first; with 2 when nothing could be compared.
    Verify(VerifyArguments),
    /// Says in which facts two plans differ; ends with 1 when they do
    Diff(DiffArguments),
    /// Shows the pipelines of a Kubernetes cluster, again and again; of one its workers and ranks as well
    ///
    /// Asks kubectl, so it sees what kubectl sees. Linked as `kubectl-feedmill` into PATH it is `kubectl feedmill top`. Without a terminal
    /// it prints once.
    Top(TopArguments),
    /// A worker process
    #[command(hide = true)]
    Worker(feedmill_worker::WorkerArgs),
}

/// `feedmill top`.
#[derive(Clone, Debug, Args)]
pub struct TopArguments {
    /// A pipeline [default: all]
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
    /// Its namespace [default: that of kubectl's context]
    #[arg(short, long, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// Pipelines of all namespaces
    #[arg(short = 'A', long, conflicts_with_all = ["name", "namespace"])]
    pub all_namespaces: bool,
    /// A context of the kubeconfig
    #[arg(long, value_name = "CONTEXT")]
    pub context: Option<String>,
    /// Prints everything once, as JSON
    #[arg(long)]
    pub json: bool,
    /// How often it is looked
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub every: u64,
}

/// `feedmill local`.
#[derive(Clone, Debug, Args)]
pub struct LocalArguments {
    /// The pipeline, YAML
    #[arg(value_name = "FILE")]
    pub pipeline: PathBuf,
    /// Worker processes
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub workers: u32,
    /// Data-parallel ranks
    #[arg(long, value_name = "D", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub ranks: u64,
    /// Samples of one optimizer step over all ranks [default: one micro batch for each rank]
    #[arg(long, value_name = "G")]
    pub global_batch: Option<u64>,
    /// Samples in one batch of a rank
    #[arg(long, value_name = "m", default_value_t = 4)]
    pub micro_batch: u64,
    /// How long a rank computes in each step
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 100)]
    pub step_ms: u64,
    /// From this step on it computes so long; may be given again
    #[arg(long, value_name = "MILLISECONDS@STEP", value_parser = StepChange::parse)]
    pub then_step_ms: Vec<StepChange>,
    /// Steps to make
    #[arg(long, value_name = "S", conflicts_with = "epochs")]
    pub steps: Option<NonZeroU64>,
    /// Epochs to read, the last step padded with filler rows [default: 1]
    #[arg(long, value_name = "E")]
    pub epochs: Option<NonZeroU64>,
    /// Batches that each rank has asked for or in hand
    #[arg(long, value_name = "W", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub window: u32,
    /// The stream to read
    #[arg(long, value_name = "NAME", default_value = "train")]
    pub stream: String,
    /// Threads for CPU work in each worker [default: this machine's cores, shared out]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads_per_worker: Option<u32>,
    /// Starts and ends workers by what ranks report; --workers is only the first number
    #[arg(long)]
    pub autoscale: bool,
    /// Fewest workers
    #[arg(long, value_name = "N", requires = "autoscale", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub min_workers: u32,
    /// Most workers [default: this machine's cores]
    #[arg(long, value_name = "N", requires = "autoscale", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub max_workers: Option<u32>,
    /// One decision in so long; growing takes 1 to 3 of these, shrinking 30
    #[arg(long, value_name = "MILLISECONDS", requires = "autoscale", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(100..=600_000))]
    pub scaling_window_ms: u64,
    /// Kills one worker half-way and starts another in its place; the bytes must not change
    #[arg(long)]
    pub kill_worker: bool,
    /// Afterwards reads the same positions once more, from one worker that nobody disturbs, and compares
    #[arg(long)]
    pub check: bool,
    /// Writes the summary as JSON too
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Only the workers, for trainers of this machine: says where they are and goes on until Ctrl-C
    #[arg(long, conflicts_with_all = [
        "ranks", "global_batch", "micro_batch", "step_ms", "then_step_ms", "steps", "epochs", "window", "kill_worker", "check", "json",
    ])]
    pub serve: bool,
    /// Where --serve writes the workers' addresses, one a line, for Loader("file:FILE"); again when one has died or they are another
    /// number [default: a temporary file, which it names]
    #[arg(long, value_name = "FILE", requires = "serve")]
    pub workers_file: Option<PathBuf>,
    /// Shows what workers log
    #[arg(long, short)]
    pub verbose: bool,
    /// Where the data is.
    #[command(flatten)]
    pub storage: StorageArguments,
}

/// Where the data is, when it is not where the pipeline says.
#[derive(Clone, Debug, Args)]
pub struct StorageArguments {
    /// Serves a folder as S3 from this process: its subfolders are the buckets, or with BUCKET= it is that bucket itself
    #[arg(long, value_name = "[BUCKET=]FOLDER")]
    pub embedded_s3: Vec<BucketFolder>,
}

/// What workers are shown, and whom this command trusts.
#[derive(Clone, Debug, Default, Args)]
pub struct AccessArguments {
    /// File whose first line is the workers' bearer token
    #[arg(long, value_name = "FILE", env = "FEEDMILL_TOKEN_FILE")]
    pub token_file: Option<PathBuf>,
    /// Authorities that workers' certificates must be signed by, PEM [default: those of this machine]
    #[arg(long, value_name = "FILE", env = "FEEDMILL_CA_FILE")]
    pub ca_file: Option<PathBuf>,
}

impl AccessArguments {
    /// What goes with requests to workers.
    ///
    /// # Errors
    /// A file that cannot be read or used.
    pub fn pass(&self) -> Result<Pass, AccessError> {
        Pass::new(PassSettings {
            token: self.token_file.clone().map(TokenSource::File),
            authorities: self.ca_file.clone(),
        })
    }
}

/// `feedmill get`.
#[derive(Clone, Debug, Args)]
pub struct GetArguments {
    /// A pipeline, or http://HOST:PORT or https:// of a worker; a file needs no server
    #[arg(value_name = "FILE|URL")]
    pub target: String,
    /// Positions START-END, the end not included
    #[arg(value_name = "RANGE", required_unless_present = "step", conflicts_with = "step")]
    pub range: Option<Range>,
    /// A step instead.
    #[command(flatten)]
    pub step: StepArguments,
    /// The stream to read
    #[arg(long, value_name = "NAME", default_value = "train")]
    pub stream: String,
    /// The trainer's end; rows at or past it are filler
    #[arg(long, value_name = "POSITION")]
    pub stop: Option<u64>,
    /// Writes the batch as a safetensors file
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// What workers are shown.
    #[command(flatten)]
    pub access: AccessArguments,
    /// Where the data is.
    #[command(flatten)]
    pub storage: StorageArguments,
}

/// `feedmill show`.
#[derive(Clone, Debug, Args)]
pub struct ShowArguments {
    /// A pipeline, or http://HOST:PORT or https:// of a worker; a file needs no server
    #[arg(value_name = "FILE|URL")]
    pub target: String,
    /// The position
    #[arg(value_name = "POSITION", required_unless_present = "step", conflicts_with = "step")]
    pub position: Option<u64>,
    /// All positions of a step instead.
    #[command(flatten)]
    pub step: StepArguments,
    /// Writes a page to look at instead: pictures as the model gets them, tokens, reasons; it needs no worker
    #[arg(long, value_name = "OUT")]
    pub html: Option<PathBuf>,
    /// Positions in that page, this one and those that follow [default: 1]
    #[arg(long, value_name = "N", requires = "html", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub count: Option<u16>,
    /// The stream to look into
    #[arg(long, value_name = "NAME", default_value = "train")]
    pub stream: String,
    /// What workers are shown.
    #[command(flatten)]
    pub access: AccessArguments,
    /// Where the data is.
    #[command(flatten)]
    pub storage: StorageArguments,
}

/// `feedmill diff`.
#[derive(Clone, Debug, Args)]
pub struct DiffArguments {
    /// A plan.json that a loader wrote beside a checkpoint, a pipeline, or http://HOST:PORT or https:// of a worker
    #[arg(value_name = "PLAN")]
    pub before: String,
    /// The other one
    #[arg(value_name = "PLAN")]
    pub after: String,
    /// The stream, where a worker has several
    #[arg(long, value_name = "NAME", default_value = "train")]
    pub stream: String,
    /// What workers are shown.
    #[command(flatten)]
    pub access: AccessArguments,
    /// Where the data is.
    #[command(flatten)]
    pub storage: StorageArguments,
}

/// `feedmill check`.
#[derive(Clone, Debug, Args)]
pub struct CheckArguments {
    /// The pipeline, YAML
    #[arg(value_name = "FILE")]
    pub pipeline: PathBuf,
    /// Reads every picture's header from storage: lengths of samples, sizes, missing and foreign files
    #[arg(long)]
    pub images: bool,
    /// Decodes every pixel, exactly as a worker does; finds cut and damaged pictures, too
    #[arg(long)]
    pub decode: bool,
    /// Looks at the first N records of each data set
    #[arg(long, value_name = "N", conflicts_with = "sample")]
    pub limit: Option<NonZeroU64>,
    /// Looks at N records from all over each data set, always the same ones
    #[arg(long, value_name = "N")]
    pub sample: Option<NonZeroU64>,
    /// Share of a stream's samples that may be bad
    #[arg(long, value_name = "FRACTION", default_value_t = 0.01, value_parser = fraction)]
    pub max_bad: f64,
    /// Does not look for records that stand twice
    #[arg(long)]
    pub no_duplicates: bool,
    /// Refuses to make more requests at S3
    #[arg(long, value_name = "N", default_value_t = 10_000_000)]
    pub max_requests: u64,
    /// Makes the requests that are announced without asking
    #[arg(long, short)]
    pub yes: bool,
    /// Requests in flight at once
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub requests: Option<u32>,
    /// Threads for CPU work [default: this machine's cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
    /// Keeps how far it is in this file, and goes on from it when it is there; removed at the end
    #[arg(long, value_name = "FILE")]
    pub state: Option<PathBuf>,
    /// Writes all bad records to this file, one JSON object a line
    #[arg(long, value_name = "FILE")]
    pub bad: Option<PathBuf>,
    /// Writes the report as JSON; - is standard output, instead of the text
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Writes the report as a page; it shows the text of some bad records
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Where the data is.
    #[command(flatten)]
    pub storage: StorageArguments,
}

/// `feedmill verify`.
#[derive(Clone, Debug, Args)]
pub struct VerifyArguments {
    /// The pipeline, YAML
    #[arg(value_name = "FILE")]
    pub pipeline: PathBuf,
    /// The checkpoint's folder, as `AutoTokenizer.from_pretrained` takes it
    #[arg(long, value_name = "DIR")]
    pub processor: PathBuf,
    /// The stream to read
    #[arg(long, value_name = "NAME", default_value = "train")]
    pub stream: String,
    /// How many positions to compare
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..))]
    pub records: u64,
    /// The first position
    #[arg(long, value_name = "POSITION", default_value_t = 0)]
    pub position: u64,
    /// A Python with transformers, torch, torchvision and Pillow
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    pub python: PathBuf,
    /// Says everything as one line of JSON
    #[arg(long)]
    pub json: bool,
    /// Where the data is.
    #[command(flatten)]
    pub storage: StorageArguments,
}

fn fraction(text: &str) -> Result<f64, String> {
    let share: f64 = text.parse().map_err(|_| "write a number from 0 to 1".to_owned())?;
    if (0.0..=1.0).contains(&share) { Ok(share) } else { Err("must be from 0 to 1".into()) }
}

/// Another time for steps, from one of them on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepChange {
    /// How long a rank computes.
    pub ms: u64,
    /// In which step for the first time.
    pub from: u64,
}

impl StepChange {
    fn parse(text: &str) -> Result<Self, String> {
        let parts = text.split_once('@').and_then(|(ms, from)| Some((ms.parse().ok()?, from.parse().ok()?)));
        let (ms, from) = parts.ok_or("write MILLISECONDS@STEP, such as 400@100")?;
        Ok(Self { ms, from })
    }
}

impl LocalArguments {
    /// `G`, `D` and `m`.
    ///
    /// # Errors
    /// Numbers that do not divide.
    pub fn layout(&self) -> Result<RankLayout, LayoutError> {
        let wave = self.ranks.saturating_mul(self.micro_batch);
        RankLayout::new(self.global_batch.unwrap_or(wave), self.ranks, self.micro_batch)
    }

    /// Threads of each worker, when the machine has so many cores.
    pub fn threads(&self, cores: usize) -> u32 {
        // A fleet that may grow has workers of one thread: so it can grow by one core.
        let most = if self.autoscale { u32::MAX } else { self.workers };
        let share = u32::try_from(cores).unwrap_or(u32::MAX) / most;
        self.threads_per_worker.unwrap_or(share.max(1))
    }

    /// As often as `usual`, and at least so many times in a window that decides how many workers there are.
    pub fn every(&self, times: u32, usual: Duration) -> Duration {
        let window = Duration::from_millis(self.scaling_window_ms);
        if self.autoscale { usual.min(window / times) } else { usual }
    }

    /// How long a rank computes in a step.
    pub fn step_time(&self, step: u64) -> Duration {
        let change =
            self.then_step_ms.iter().filter(|change| change.from <= step).max_by_key(|change| change.from);
        Duration::from_millis(change.map_or(self.step_ms, |change| change.ms))
    }

    /// The trainer's end: so many steps, or so many epochs of `samples_per_epoch` positions.
    ///
    /// # Errors
    /// More positions than there are.
    pub fn stop(&self, layout: RankLayout, samples_per_epoch: u64) -> Result<u64, anyhow::Error> {
        let (count, each) = match (self.steps, self.epochs) {
            (Some(steps), _) => (steps.get(), layout.global_batch()),
            (None, epochs) => (epochs.map_or(1, NonZeroU64::get), samples_per_epoch),
        };
        let stop = count.saturating_mul(each);
        let whole = stop.div_ceil(layout.global_batch()).checked_mul(layout.global_batch());
        match whole {
            Some(whole) if whole <= feedmill_protocol::position::POSITION_END => Ok(stop),
            _ => anyhow::bail!(
                "{count} x {each} positions is past position 2^53, the last one; ask for fewer steps or epochs"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    fn local(words: &[&str]) -> LocalArguments {
        let words = ["feedmill", "local", "p.yaml"].iter().chain(words);
        match Arguments::try_parse_from(words).unwrap().command {
            Command::Local(arguments) => arguments,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_command_line_is_well_formed() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn steps_and_epochs_give_the_trainers_end() {
        let cases: [(&[&str], u64, Option<u64>); 6] = [
            (&[], 594, Some(594)),
            (&["--epochs", "3"], 594, Some(1782)),
            (&["--steps", "10"], 594, Some(80)),
            (&["--steps", "10", "--ranks", "4", "--global-batch", "32"], 594, Some(320)),
            (&["--epochs", "9007199254740993"], 594, None),
            (&["--epochs", "1"], (1 << 53) - 1, Some((1 << 53) - 1)),
        ];
        for (words, per_epoch, expected) in cases {
            let arguments = local(words);
            let stop = arguments.stop(arguments.layout().unwrap(), per_epoch).ok();
            assert_eq!(stop, expected, "{words:?}");
        }
    }

    #[test]
    fn cores_are_shared_out_and_every_worker_has_one() {
        assert_eq!(local(&[]).threads(16), 8);
        assert_eq!(local(&["--workers", "5"]).threads(2), 1);
        assert_eq!(local(&["--threads-per-worker", "3"]).threads(16), 3);
    }

    #[test]
    fn steps_take_as_long_as_the_last_change_before_them_says() {
        let arguments = local(&["--step-ms", "5", "--then-step-ms", "400@100", "--then-step-ms", "30@20"]);
        let times = [0, 19, 20, 99, 100, 5000].map(|step| arguments.step_time(step).as_millis());
        assert_eq!(times, [5, 5, 30, 30, 400, 400]);
    }

    #[test]
    fn nonsense_is_a_usage_error() {
        for words in [
            &["local", "p.yaml", "--workers", "0"][..],
            &["local", "p.yaml", "--steps", "0"],
            &["local", "p.yaml", "--steps", "1", "--epochs", "1"],
            &["local", "p.yaml", "--then-step-ms", "400"],
            &["local", "p.yaml", "--max-workers", "4"],
            &["local", "p.yaml", "--serve", "--steps", "1"],
            &["local", "p.yaml", "--serve", "--ranks", "2"],
            &["local", "p.yaml", "--workers-file", "w"],
            &["get", "p.yaml", "5-4"],
            &["get", "p.yaml"],
            &["show", "p.yaml", "-1"],
            &["local", "p.yaml", "--embedded-s3", "=x"],
            &["check", "p.yaml", "--max-bad", "2"],
            &["check", "p.yaml", "--max-bad", "NaN"],
            &["check", "p.yaml", "--limit", "5", "--sample", "5"],
        ] {
            let words = ["feedmill"].iter().chain(words);
            assert_eq!(Arguments::try_parse_from(words).unwrap_err().exit_code(), 2);
        }
        assert!(local(&["--global-batch", "9"]).layout().is_err());
    }
}
