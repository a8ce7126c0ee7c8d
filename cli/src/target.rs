//! Takes a file or a worker's address, gives batches and samples: in process, or from that worker.

use std::path::Path;

use anyhow::{Context as _, anyhow};
use feedmill_client::{Endpoint, Pass};
use feedmill_protocol::http::{PATH_PLAN, batch_path, picture_path, sample_path};
use feedmill_protocol::position::Range;
use feedmill_worker::in_process::{InProcess, Options};
use serde_json::Value;

use crate::args::{AccessArguments, StorageArguments};
use crate::scratch::Scratch;
use crate::storage::Storage;
use crate::usage::Usage;
use crate::{http, pipeline};

/// Where batches come from.
pub enum Target {
    /// A worker.
    Worker(Endpoint, Pass),
    /// A pipeline, in this process.
    Pipeline(Box<Local>),
}

/// A pipeline in this process, and what it needs for as long as it lives.
pub struct Local {
    worker: InProcess,
    datasets: Vec<String>,
    _storage: Option<Storage>,
    _cache: Scratch,
}

impl Local {
    /// The worker that makes its batches.
    pub fn worker(&self) -> &InProcess {
        &self.worker
    }
}

impl Target {
    /// Opens what `text` names; a pipeline must have the stream.
    ///
    /// # Errors
    /// A malformed address, a file that is no pipeline, data that cannot be read.
    pub async fn open(
        text: &str,
        stream: &str,
        storage: &StorageArguments,
        access: &AccessArguments,
    ) -> anyhow::Result<Self> {
        if text.contains("://") {
            if !storage.embedded_s3.is_empty() {
                return Err(Usage::of(anyhow!(
                    "--embedded-s3 goes with a pipeline, not with a worker's address"
                )));
            }
            return Ok(Self::Worker(
                text.parse().map_err(|error: feedmill_client::ClientError| Usage::of(error))?,
                access.pass().map_err(Usage::of)?,
            ));
        }
        let pipeline = pipeline::read(Path::new(text), stream).map_err(Usage::of)?;
        let datasets = pipeline::dataset_names(&pipeline, stream);
        let storage = Storage::start(&storage.embedded_s3).await?;
        let cache = Scratch::new("manifests").context("cannot make a folder for manifests")?;
        let options = Options {
            threads: None,
            cache_dir: Some(cache.path().to_owned()),
            s3_endpoint: storage.as_ref().map(Storage::endpoint),
            s3_credentials_dir: storage.as_ref().map(Storage::keys),
            sandbox: feedmill_worker::sandbox(),
        };
        let worker = InProcess::open(pipeline, options).await?;
        Ok(Self::Pipeline(Box::new(Local { worker, datasets, _storage: storage, _cache: cache })))
    }

    /// The names of a stream's data sets, in order; none when a worker does not tell.
    ///
    /// # Errors
    /// A worker that cannot be reached.
    pub async fn dataset_names(&self, stream: &str) -> anyhow::Result<Vec<String>> {
        let (endpoint, pass) = match self {
            Self::Pipeline(local) => return Ok(local.datasets.clone()),
            Self::Worker(endpoint, pass) => (endpoint, pass),
        };
        let plans: Value = serde_json::from_slice(&http::get(endpoint, pass, PATH_PLAN).await?)
            .with_context(|| format!("{endpoint} answers {PATH_PLAN} with something else than JSON"))?;
        let names = plans["streams"][stream]["datasets"].as_array();
        Ok(names.map_or_else(Vec::new, |names| {
            names.iter().map(|name| name.as_str().unwrap_or_default().to_owned()).collect()
        }))
    }

    /// The frame of a range.
    ///
    /// # Errors
    /// What a worker answers instead.
    pub async fn batch(&self, stream: &str, range: Range, stop: Option<u64>) -> anyhow::Result<Vec<u8>> {
        match self {
            Self::Worker(endpoint, pass) => {
                Ok(http::get(endpoint, pass, &batch_path(stream, range, stop)).await?.into())
            }
            Self::Pipeline(local) => {
                let frame = local.worker.batch(stream, range, stop).await;
                frame.map_err(|problem| http::describe(&problem))
            }
        }
    }

    /// A picture of the sample at a position, put together again from its patches, as PNG.
    ///
    /// # Errors
    /// What a worker answers instead.
    pub async fn picture(&self, stream: &str, position: u64, number: usize) -> anyhow::Result<Vec<u8>> {
        match self {
            Self::Worker(endpoint, pass) => {
                Ok(http::get(endpoint, pass, &picture_path(stream, position, number)).await?.into())
            }
            Self::Pipeline(local) => {
                let picture = local.worker.picture(stream, position, number).await;
                picture.map_err(|problem| http::describe(&problem))
            }
        }
    }

    /// What stands at a position, as a person sees it.
    ///
    /// # Errors
    /// What a worker answers instead.
    pub async fn sample(&self, stream: &str, position: u64) -> anyhow::Result<Value> {
        match self {
            Self::Worker(endpoint, pass) => {
                let path = sample_path(stream, position);
                serde_json::from_slice(&http::get(endpoint, pass, &path).await?)
                    .with_context(|| format!("{endpoint} answers {path} with something else than JSON"))
            }
            Self::Pipeline(local) => {
                let sample = local.worker.sample(stream, position).await;
                sample.map_err(|problem| http::describe(&problem))
            }
        }
    }
}
