//! Takes a Python and settings, gives what the processor installed there makes of each record: one line of JSON out, one back.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context as _, bail};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// The other half; with the standard library alone it also compares two saved batches.
pub const SCRIPT: &str = include_str!("verify.py");

/// A running reference; ends when its standard input is closed or it is dropped.
pub struct Reference {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    about: Value,
}

/// Where a record is from, for people.
#[derive(Clone, Debug)]
pub struct Row {
    /// Name of the data set.
    pub dataset: String,
    /// Its 1-based physical line.
    pub line: u64,
}

impl Row {
    /// Of a record as it was sent.
    pub fn of(described: &Value) -> Self {
        let dataset = described["dataset"].as_str().unwrap_or_default().to_owned();
        Self { dataset, line: described["line"].as_u64().unwrap_or_default() }
    }
}

impl Reference {
    /// Starts Python on the script and loads the processor.
    ///
    /// # Errors
    /// No such Python, packages that are missing, a folder without a processor.
    pub async fn start(python: &Path, scratch: &Path, settings: &Value) -> anyhow::Result<Self> {
        let script = scratch.join("verify.py");
        std::fs::write(&script, SCRIPT).with_context(|| format!("cannot write {}", script.display()))?;
        let mut child = Command::new(python)
            .arg(&script)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| {
                format!("cannot start {}; name another Python with --python", python.display())
            })?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("python has no pipes");
        };
        let mut reference = Self { child, input, output: BufReader::new(output), about: Value::Null };
        let answer = reference.ask(settings).await?;
        if let Some(missing) = answer["missing"].as_array() {
            let packages: Vec<&str> = missing.iter().filter_map(Value::as_str).collect();
            bail!(
                "{0} has no {1}; install what is missing with: {0} -m pip install {2}",
                python.display(),
                packages.join(", "),
                packages.join(" ")
            );
        }
        if let Some(reason) = answer["failed"].as_str() {
            bail!("the processor cannot be loaded: {reason}");
        }
        reference.about = answer;
        Ok(reference)
    }

    /// Versions of what it runs.
    pub fn about(&self) -> &Value {
        &self.about
    }

    /// One question, one answer.
    ///
    /// # Errors
    /// It has ended.
    pub async fn ask(&mut self, question: &Value) -> anyhow::Result<Value> {
        let line = format!("{question}\n");
        // A Python that ends at once closes the pipe; what it said first is the better message.
        let sent = self.input.write_all(line.as_bytes()).await;
        let mut answer = String::new();
        if self.output.read_line(&mut answer).await.context("python's answer cannot be read")? == 0 {
            bail!("python ended early: {}; what it said is above", self.child.wait().await?);
        }
        sent.context("python takes no more questions")?;
        serde_json::from_str(&answer).context("python's answer is no JSON")
    }

    /// Lets it end.
    ///
    /// # Errors
    /// It cannot be waited for.
    pub async fn end(mut self) -> anyhow::Result<()> {
        drop(self.input);
        self.child.wait().await.context("python cannot be waited for")?;
        Ok(())
    }
}
