//! Takes a file, gives the checked pipeline in it.

use std::path::{Path, PathBuf};

use feedmill_protocol::pipeline::ValidatedPipeline;
use feedmill_worker::settings::{SettingsError, read_pipeline};

/// Why a file cannot be read as a pipeline with this stream.
#[derive(Debug, thiserror::Error)]
pub enum PipelineError {
    /// It is no pipeline, or contradicts itself.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// It has no stream of this name.
    #[error("{} has no stream {stream:?}; it has {known}; choose one with --stream", path.display())]
    Stream {
        /// Which file.
        path: PathBuf,
        /// What was asked for.
        stream: String,
        /// What there is.
        known: String,
    },
}

/// Reads and checks a pipeline, and that it has the stream.
///
/// # Errors
/// See [`PipelineError`].
pub fn read(path: &Path, stream: &str) -> Result<ValidatedPipeline, PipelineError> {
    let pipeline = read_pipeline(path)?;
    if pipeline.streams.iter().any(|known| known.name == stream) {
        return Ok(pipeline);
    }
    let known: Vec<&str> = pipeline.streams.iter().map(|known| known.name.as_str()).collect();
    Err(PipelineError::Stream { path: path.to_owned(), stream: stream.to_owned(), known: known.join(", ") })
}

/// The names of a stream's data sets, in order.
pub fn dataset_names(pipeline: &ValidatedPipeline, stream: &str) -> Vec<String> {
    let stream = pipeline.streams.iter().find(|known| known.name == stream);
    stream
        .map_or_else(Vec::new, |stream| stream.datasets.iter().map(|dataset| dataset.name.clone()).collect())
}
