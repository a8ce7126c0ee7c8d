//! Errors of the client as Python has them: one class for each thing that a trainer may do about it.

use feedmill_client::{AccessError, ClientError, Fault};
use feedmill_protocol::course::CourseError;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// An error of the class `name` in `feedmill.errors`.
pub fn named(py: Python<'_>, name: &str, message: &str) -> PyErr {
    raised(py, name, message, |_| Ok(()))
}

fn raised(
    py: Python<'_>,
    name: &str,
    message: &str,
    fill: impl FnOnce(&Bound<'_, PyDict>) -> PyResult<()>,
) -> PyErr {
    let make = || {
        let details = PyDict::new(py);
        fill(&details)?;
        let class = py.import("feedmill.errors")?.getattr(name)?;
        class.call((message,), Some(&details))
    };
    match make() {
        Ok(error) => PyErr::from_value(error),
        // The package is not whole; the message still says what happened.
        Err(_) => PyRuntimeError::new_err(message.to_owned()),
    }
}

/// A loader that was closed, by this thread or another one.
pub fn closed(py: Python<'_>) -> PyErr {
    named(py, "FeedmillError", "the loader is closed")
}

/// A loader that another thread is using now.
pub fn in_use(py: Python<'_>) -> PyErr {
    config(py, "two threads use one loader at once; give each rank's loader to one thread")
}

/// A setting that makes no sense.
pub fn config(py: Python<'_>, message: &str) -> PyErr {
    named(py, "ConfigError", message)
}

/// A file of tokens or authorities that cannot be used.
pub fn access(py: Python<'_>, error: &AccessError) -> PyErr {
    let reason = std::error::Error::source(error).map(|source| format!(": {source}")).unwrap_or_default();
    config(py, &format!("{error}{reason}"))
}

/// Steps, skips or an end that contradict each other.
pub fn course(py: Python<'_>, error: &CourseError) -> PyErr {
    config(py, &error.to_string())
}

/// What the client gave up with, for this rank.
pub fn client(py: Python<'_>, error: &ClientError, rank: Option<u64>) -> PyErr {
    let says_it = matches!(error, ClientError::TimedOut { .. });
    let at_rank = rank.filter(|_| !says_it).map(|rank| format!("rank {rank}: ")).unwrap_or_default();
    let message = format!("{at_rank}{error}");
    let name = match error {
        ClientError::OtherPlan { .. } => "PlanChanged",
        ClientError::Agent { .. } => "AgentUnreachable",
        ClientError::TimedOut { .. } | ClientError::NoAnswer { .. } => "WorkersUnreachable",
        ClientError::LethalSample { .. } => "BadSamples",
        ClientError::RunMismatch { .. } => "RunMismatch",
        ClientError::Refused { fault, .. } => match fault.as_ref() {
            Fault::Status { status: 422, .. } => "BadSamples",
            _ => "WorkerRefused",
        },
        ClientError::Denied { .. } => "AccessDenied",
        ClientError::Control { .. } | ClientError::Malformed { .. } => "WorkerRefused",
        ClientError::Endpoint { .. }
        | ClientError::Setting { .. }
        | ClientError::Course(_)
        | ClientError::UnknownStream { .. } => "ConfigError",
        _ => "FeedmillError",
    };
    raised(py, name, &message, |details| {
        details.set_item("rank", rank)?;
        match error {
            ClientError::Refused { stream, range, worker, fault } => {
                details.set_item("stream", stream)?;
                details.set_item("range", range.to_string())?;
                details.set_item("worker", worker.to_string())?;
                details.set_item("reason", fault.to_string())
            }
            ClientError::OtherPlan { stream, range, expected, workers } => {
                details.set_item("stream", stream)?;
                details.set_item("range", range.to_string())?;
                details.set_item("worker", workers.first().map(|other| other.worker.to_string()))?;
                details.set_item("reason", format!("the trainer reads by plan {expected}"))
            }
            ClientError::TimedOut { stream, range, history, .. } => {
                details.set_item("stream", stream)?;
                details.set_item("range", range.to_string())?;
                details.set_item("worker", history.attempts().last().map(|last| last.worker.to_string()))?;
                details.set_item("reason", history.to_string())
            }
            ClientError::LethalSample { stream, range, problem, .. } => {
                details.set_item("stream", stream)?;
                details.set_item("range", range.to_string())?;
                details.set_item("reason", &problem.detail)
            }
            ClientError::RunMismatch { worker, problem, .. } => {
                details.set_item("worker", worker.to_string())?;
                details.set_item("reason", &problem.detail)
            }
            ClientError::NoAnswer { history, .. } => {
                details.set_item("worker", history.attempts().last().map(|last| last.worker.to_string()))?;
                details.set_item("reason", history.to_string())
            }
            ClientError::Agent { reason, .. } => details.set_item("reason", reason),
            ClientError::Denied { worker, fault } | ClientError::Control { worker, fault, .. } => {
                details.set_item("worker", worker.to_string())?;
                details.set_item("reason", fault.to_string())
            }
            ClientError::Malformed { worker, reason, .. } => {
                details.set_item("worker", worker.to_string())?;
                details.set_item("reason", reason)
            }
            _ => Ok(()),
        }
    })
}
