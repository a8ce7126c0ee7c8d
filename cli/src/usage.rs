//! Errors that the caller of the command has to mend; they end it with 2, as wrong arguments do.

/// What is wrong with the arguments or the pipeline.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(String);

impl Usage {
    /// An error with everything behind it, as the caller's fault.
    pub fn of(error: impl Into<anyhow::Error>) -> anyhow::Error {
        anyhow::Error::new(Self(format!("{:#}", error.into())))
    }
}
