//! Why a check cannot go on.

use std::path::PathBuf;

use crate::cpu_pool::Lost;
use crate::make::MakeError;

/// Why a check cannot go on. Nothing of this is a bad record.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// Data that cannot be read, for good.
    #[error("{dataset}: {detail}; {remedy}")]
    Source {
        /// The data set.
        dataset: String,
        /// What happened.
        detail: String,
        /// What to do about it.
        remedy: &'static str,
    },
    /// A fault of ours.
    #[error("{dataset}: the check failed: {detail}")]
    Internal {
        /// The data set.
        dataset: String,
        /// What happened.
        detail: String,
    },
    /// The state of an interrupted check that cannot be read or written.
    #[error("the state {} cannot be used: {reason}", path.display())]
    State {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The state of a check of something else.
    #[error(
        "the state {} is of another check; go on with the same data and options, or remove it to begin anew. What differs:{}",
        path.display(),
        listed(differences)
    )]
    OtherState {
        /// The file.
        path: PathBuf,
        /// What differs, one a line.
        differences: Vec<String>,
    },
    /// The file of bad records.
    #[error("bad records cannot be written to {}", path.display())]
    BadFile {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

fn listed(lines: &[String]) -> String {
    lines.iter().fold(String::new(), |text, line| text + "\n  " + line)
}

impl CheckError {
    pub(super) fn of(dataset: &str, error: MakeError) -> Self {
        let dataset = dataset.to_owned();
        match error {
            MakeError::Source { detail, remedy } => Self::Source { dataset, detail, remedy },
            MakeError::Internal(detail) | MakeError::TooLarge { detail } => {
                Self::Internal { dataset, detail }
            }
            other => Self::Internal { dataset, detail: other.problem(0).detail },
        }
    }

    pub(super) fn lost(dataset: &str, lost: Lost) -> Self {
        Self::Internal { dataset: dataset.to_owned(), detail: lost.to_string() }
    }
}
