//! Takes workers, gives the bad records that they list, each once.

use std::collections::BTreeSet;

use feedmill_client::{Endpoint, Pass};
use feedmill_protocol::bad::BadClass;
use feedmill_protocol::http::PATH_BAD;
use serde::{Deserialize, Serialize};

use crate::http;

/// A bad record as workers list it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BadRecord {
    /// Its data set.
    pub dataset: String,
    /// The 1-based line.
    pub line: u64,
    /// Its class.
    pub class: BadClass,
    /// The object, when one is at fault.
    pub key: Option<String>,
    /// What is wrong.
    pub detail: String,
}

#[derive(Deserialize)]
struct Listed {
    records: Vec<BadRecord>,
}

/// Adds what the workers list. One that does not answer adds nothing: its rows have been counted all the same.
pub async fn ask(workers: &[Endpoint], all: &mut BTreeSet<BadRecord>) {
    for worker in workers {
        let answer = http::get(worker, &Pass::default(), PATH_BAD).await;
        match answer.map(|body| serde_json::from_slice::<Listed>(&body)) {
            Ok(Ok(listed)) => all.extend(listed.records),
            Ok(Err(error)) => tracing::warn!(%worker, %error, "{PATH_BAD} is answered with something else"),
            Err(error) => tracing::debug!(%worker, "{error:#}"),
        }
    }
}
