//! Takes arguments, gives settings: two types, so that nothing unchecked is read later.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use feedmill_protocol::pipeline::{Pipeline, ValidatedPipeline};

use crate::suspect::Sandbox;

/// Arguments of a worker.
#[derive(Args, Clone, Debug)]
pub struct WorkerArgs {
    /// The DataPipeline document
    #[arg(long, value_name = "FILE")]
    pub pipeline: PathBuf,
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8470")]
    pub listen: SocketAddr,
    /// A name that is unique in the fleet [default: the host name]
    #[arg(long)]
    pub name: Option<String>,
    /// Threads for CPU work [default: the CPU quota]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Folder for downloaded manifests [default: the system's folder for temporary files]
    #[arg(long, value_name = "FOLDER")]
    pub cache_dir: Option<PathBuf>,
    /// S3 server, instead of the pipeline's
    #[arg(long, value_name = "URL")]
    pub s3_endpoint: Option<String>,
    /// Folder with access-key-id, secret-access-key and perhaps session-token
    #[arg(long, value_name = "FOLDER")]
    pub s3_credentials_dir: Option<PathBuf>,
    /// How long requests may still run after SIGTERM
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub drain_seconds: u64,
    /// End when standard input is closed, so as not to outlive a parent
    #[arg(long)]
    pub exit_with_stdin: bool,
}

/// Checked settings of a worker.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Its name.
    pub name: String,
    /// Where to listen.
    pub listen: SocketAddr,
    /// Threads for CPU work.
    pub threads: usize,
    /// Folder for downloaded manifests.
    pub cache_dir: PathBuf,
    /// S3 server, instead of the pipeline's.
    pub s3_endpoint: Option<String>,
    /// Folder with S3 keys.
    pub s3_credentials: Option<PathBuf>,
    /// How long requests may still run after SIGTERM.
    pub drain: Duration,
    /// End when standard input is closed.
    pub exit_with_stdin: bool,
    /// Where pictures are made that may kill whoever decodes them.
    pub sandbox: Sandbox,
}

/// Arguments that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The file cannot be read.
    #[error("cannot read the pipeline {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The file is no pipeline.
    #[error("{} is no DataPipeline: {reason}", path.display())]
    Yaml {
        /// The file.
        path: PathBuf,
        /// What is wrong, with line and column.
        reason: String,
    },
    /// The pipeline contradicts itself.
    #[error("{} contradicts itself:{}", path.display(), listed(fields))]
    Fields {
        /// The file.
        path: PathBuf,
        /// Each wrong field with its reason.
        fields: Vec<String>,
    },
    /// The cache folder.
    #[error("--cache-dir {} is no folder", path.display())]
    CacheDir {
        /// The folder.
        path: PathBuf,
    },
}

fn listed(fields: &[String]) -> String {
    fields.iter().fold(String::new(), |text, field| text + "\n  " + field)
}

/// Reads and checks a pipeline document.
///
/// # Errors
/// The file cannot be read, is no pipeline, or contradicts itself.
pub fn read_pipeline(path: &Path) -> Result<ValidatedPipeline, SettingsError> {
    let at = || path.to_owned();
    let text = std::fs::read_to_string(path).map_err(|source| SettingsError::Read { path: at(), source })?;
    let pipeline: Pipeline = serde_saphyr::from_str(&text)
        .map_err(|error| SettingsError::Yaml { path: at(), reason: error.to_string() })?;
    pipeline.validate().map_err(|errors| SettingsError::Fields {
        path: at(),
        fields: errors.iter().map(ToString::to_string).collect(),
    })
}

impl Settings {
    /// Checks arguments and fills in what was left out.
    ///
    /// # Errors
    /// A cache folder that is none.
    pub fn new(args: &WorkerArgs) -> Result<Self, SettingsError> {
        let cache_dir = args.cache_dir.clone().unwrap_or_else(std::env::temp_dir);
        if !cache_dir.is_dir() {
            return Err(SettingsError::CacheDir { path: cache_dir });
        }
        let name = args.name.clone().or_else(host_name).unwrap_or_else(|| "worker".into());
        Ok(Self {
            name,
            listen: args.listen,
            threads: args.threads.map_or_else(cpu_quota, usize::from),
            cache_dir,
            s3_endpoint: args.s3_endpoint.clone(),
            s3_credentials: args.s3_credentials_dir.clone(),
            drain: Duration::from_secs(args.drain_seconds),
            exit_with_stdin: args.exit_with_stdin,
            sandbox: Sandbox::default(),
        })
    }
}

/// Whole CPUs that the cgroup's quota and the affinity mask allow, at least one.
#[must_use]
pub fn cpu_quota() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn host_name() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}
