//! Plans held against each other.

use feedmill_protocol::plan::Plan;
use pyo3::prelude::*;

use crate::errors;

/// A fact, its value here and its value there, as JSON.
type Difference = (String, Option<String>, Option<String>);

/// [(fact, value here, value there)] of two plans' facts, each given and returned as JSON; None = not there.
#[pyfunction]
pub fn plan_differences(py: Python<'_>, here: &str, there: &str) -> PyResult<Vec<Difference>> {
    let read = |text: &str| {
        serde_json::from_str::<Plan>(text).map_err(|error| errors::config(py, &format!("no plan: {error}")))
    };
    let (here, there) = (read(here)?, read(there)?);
    let text = |value: Option<&serde_json::Value>| value.map(ToString::to_string);
    let differences = here.differences(&there);
    Ok(differences.into_iter().map(|(fact, a, b)| (fact.to_owned(), text(a), text(b))).collect())
}
