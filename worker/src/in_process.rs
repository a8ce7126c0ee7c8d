//! The same streams without a server: for looking at data on one machine.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use feedmill_access::GuardFiles;
use feedmill_protocol::http::Problem;
use feedmill_protocol::pipeline::ValidatedPipeline;
use feedmill_protocol::plan::PlanDigest;
use feedmill_protocol::position::Range;
use serde_json::Value;

use crate::app::{Loaded, Machinery};
use crate::make::patch_bytes;
use crate::serve::answer::not_found;
pub use crate::serve::original::Original;
use crate::serve::{frame, look, original, person, range_samples};
use crate::settings::{Settings, cpu_quota};
use crate::suspect::Sandbox;

/// How it is run.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Threads for CPU work; None = the CPU quota.
    pub threads: Option<usize>,
    /// Folder for downloaded manifests; None = the system's folder for temporary files.
    pub cache_dir: Option<PathBuf>,
    /// S3 server, instead of the pipeline's.
    pub s3_endpoint: Option<String>,
    /// Folder with S3 keys.
    pub s3_credentials_dir: Option<PathBuf>,
    /// Where pictures are made that may take more memory than they announce; by default here.
    pub sandbox: Sandbox,
}

impl Options {
    /// The same as a worker's settings.
    pub(crate) fn settings(self, threads: usize) -> Settings {
        Settings {
            name: "in-process".into(),
            listen: ([127, 0, 0, 1], 0).into(),
            access: GuardFiles::default(),
            threads,
            cache_dir: self.cache_dir.unwrap_or_else(std::env::temp_dir),
            s3_endpoint: self.s3_endpoint,
            s3_credentials: self.s3_credentials_dir,
            s3_ca_file: None,
            plan_dir: None,
            drain: Duration::ZERO,
            exit_with_stdin: false,
            sandbox: self.sandbox,
        }
    }
}

/// A worker without a server.
pub struct InProcess {
    loaded: Loaded,
    _machinery: Machinery,
}

impl InProcess {
    /// Reads manifests and processor.
    ///
    /// # Errors
    /// What a worker would refuse to start with.
    pub async fn open(pipeline: ValidatedPipeline, options: Options) -> anyhow::Result<Self> {
        let threads = options.threads.unwrap_or_else(cpu_quota);
        let settings = options.settings(threads);
        let machinery = Machinery::new(pipeline, &settings)?;
        let loaded = machinery.load(|_, _| {}).await.context("cannot read the pipeline's data")?;
        Ok(Self { loaded, _machinery: machinery })
    }

    /// Names of the streams.
    #[must_use]
    pub fn streams(&self) -> Vec<&str> {
        self.loaded.streams().iter().map(|stream| stream.name.as_str()).collect()
    }

    /// Plan digest and samples per epoch of a stream.
    #[must_use]
    pub fn plan(&self, stream: &str) -> Option<(PlanDigest, u64)> {
        let (_, stream) = self.loaded.stream(stream)?;
        Some((stream.digest, stream.order.samples_per_epoch()))
    }

    /// The compact frame of a range, as a worker would serve it.
    ///
    /// # Errors
    /// What a worker would answer.
    pub async fn batch(&self, stream: &str, range: Range, stop: Option<u64>) -> Result<Vec<u8>, Problem> {
        let rows = range_samples(&self.loaded, stream, range, stop, Duration::ZERO, "").await?;
        let (_, stream) = self.loaded.stream(stream).ok_or_else(|| not_found("no such stream"))?;
        let chunks = frame::chunks(&rows, patch_bytes(stream), stream.digest, range, None, &());
        Ok(chunks.into_iter().fold(Vec::new(), |mut bytes, chunk| {
            bytes.extend_from_slice(&chunk);
            bytes
        }))
    }

    /// A picture of a sample, put together again from its patches, as PNG. The first is number 0.
    ///
    /// # Errors
    /// What a worker would answer.
    pub async fn picture(&self, stream: &str, position: u64, number: usize) -> Result<Vec<u8>, Problem> {
        look::png(&self.loaded, stream, position, number).await
    }

    /// The facts of a stream's plan by name.
    #[must_use]
    pub fn facts(&self, stream: &str) -> Option<Value> {
        let (_, stream) = self.loaded.stream(stream)?;
        serde_json::to_value(&stream.plan).ok()
    }

    /// The record at a position as a chat template reads it, and its pictures' files; None where no record stands.
    ///
    /// # Errors
    /// What a worker would answer.
    pub async fn original(&self, stream: &str, position: u64) -> Result<Option<Original>, Problem> {
        original::original(&self.loaded, stream, position).await
    }

    /// One sample as a person sees it.
    ///
    /// # Errors
    /// What a worker would answer.
    pub async fn sample(&self, stream: &str, position: u64) -> Result<Value, Problem> {
        person::sample(&self.loaded, stream, position).await
    }
}
