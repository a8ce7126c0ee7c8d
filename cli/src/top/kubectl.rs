//! Takes what is asked of a cluster, gives kubectl's answer. It knows contexts, plugins for logins, proxies; all that is not done again here.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde::de::DeserializeOwned;
use tokio::process::Command;

use crate::args::TopArguments;

/// kubectl gives up after this; an API server that answers at all does so in a fraction.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Asks kubectl.
#[derive(Clone, Debug)]
pub struct Kubectl {
    context: Option<String>,
}

impl Kubectl {
    /// With the context that was asked for.
    pub fn new(arguments: &TopArguments) -> Self {
        Self { context: arguments.context.clone() }
    }

    /// What kubectl prints as JSON.
    ///
    /// # Errors
    /// No kubectl, one that ends with an error, an answer that is something else.
    pub async fn json<T: DeserializeOwned>(&self, words: &[&str]) -> anyhow::Result<T> {
        let mut command = Command::new("kubectl");
        if let Some(context) = &self.context {
            command.args(["--context", context]);
        }
        command.arg(format!("--request-timeout={}s", TIMEOUT.as_secs())).args(words);
        command.stdin(Stdio::null()).kill_on_drop(true);
        let output = tokio::time::timeout(TIMEOUT + TIMEOUT, command.output())
            .await
            .context("kubectl does not answer; is the cluster reachable?")?
            .context("cannot start kubectl; is it in PATH?")?;
        if !output.status.success() {
            bail!("kubectl: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        serde_json::from_slice(&output.stdout)
            .with_context(|| format!("kubectl {} gives no such JSON", words.join(" ")))
    }
}
