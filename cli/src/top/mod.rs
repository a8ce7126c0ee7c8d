//! Takes kubectl's answers, gives a table of a cluster's pipelines, again and again; of one its workers and ranks too.

/// What kubectl is asked.
mod kubectl;
/// Objects, and what is shown of them.
mod reading;
/// The table.
mod text;

use std::io::IsTerminal as _;
use std::time::Duration;

use tokio::task::JoinSet;

use crate::args::TopArguments;
use crate::clock;
use crate::output;
use crate::table::printable;
use kubectl::Kubectl;
use reading::{List, Pipeline, Reading, Worker};

/// Workers that are asked at once: each is a process of kubectl.
const AT_ONCE: usize = 8;
/// Workers that are asked of one pipeline; of larger fleets the table would not fit a screen.
const MOST_WORKERS: usize = 64;

/// Runs `feedmill top`.
///
/// # Errors
/// kubectl cannot be asked, or the pipeline does not exist.
pub async fn run(arguments: &TopArguments) -> anyhow::Result<()> {
    let kubectl = Kubectl::new(arguments);
    if arguments.json {
        let reading = read(&kubectl, arguments).await?;
        return output::print(&format!("{}\n", serde_json::to_string_pretty(&reading)?));
    }
    let every = Duration::from_secs(arguments.every);
    let reading = read(&kubectl, arguments).await?;
    let mut shown = text::table(&reading, None, every);
    if !std::io::stdout().is_terminal() {
        return output::print(&shown);
    }
    let mut before = (clock::now(), reading);
    let mut failed = String::new();
    // One for all turns: what comes while kubectl runs ends it as well.
    let interrupted = tokio::signal::ctrl_c();
    tokio::pin!(interrupted);
    loop {
        // Home, the table, and away with what is below it: nothing flickers.
        output::print(&format!("\x1b[H\x1b[2J{shown}{failed}"))?;
        let next = async {
            tokio::time::sleep(every).await;
            read(&kubectl, arguments).await
        };
        let read = tokio::select! {
            read = next => read,
            _ = &mut interrupted => return Ok(()),
        };
        match read {
            Ok(reading) => {
                let now = clock::now();
                shown = text::table(&reading, Some(&before.1), now.duration_since(before.0));
                (before, failed) = ((now, reading), String::new());
            }
            // What was seen last stays, with why it is no newer; the next one may be answered.
            Err(error) => failed = format!("\nnot read again: {}\n", printable(&format!("{error:#}"))),
        }
    }
}

async fn read(kubectl: &Kubectl, arguments: &TopArguments) -> anyhow::Result<Reading> {
    let mut words = vec!["get", "datapipelines.feedmill.dev", "-o", "json"];
    match (&arguments.namespace, arguments.all_namespaces) {
        (Some(namespace), _) => words.extend(["-n", namespace]),
        (None, true) => words.push("-A"),
        (None, false) => {}
    }
    let Some(name) = &arguments.name else {
        let list: List = kubectl.json(&words).await?;
        return Ok(Reading { pipelines: list.items.iter().map(Pipeline::read).collect() });
    };
    words.insert(2, name);
    let pipeline = Pipeline::read(&kubectl.json(&words).await?);
    let selector = format!("feedmill.dev/pipeline={name}");
    let pods: List =
        kubectl.json(&["get", "pods", "-o", "json", "-n", &pipeline.namespace, "-l", &selector]).await?;
    let workers: Vec<Worker> = pods.items.iter().filter_map(Worker::read).take(MOST_WORKERS).collect();
    let workers = ask(kubectl, &pipeline.namespace, workers).await;
    Ok(Reading { pipelines: vec![pipeline.with_workers(workers)] })
}

/// Asks workers, through the API server, what they do. One that does not answer is silent.
async fn ask(kubectl: &Kubectl, namespace: &str, workers: Vec<Worker>) -> Vec<Worker> {
    let mut asked = JoinSet::new();
    let mut all = Vec::new();
    for mut worker in workers {
        if asked.len() >= AT_ONCE {
            all.extend(asked.join_next().await.and_then(Result::ok));
        }
        let (kubectl, path) = (kubectl.clone(), worker.status_path(namespace));
        asked.spawn(async move {
            worker.status = kubectl.json(&["get", "--raw", &path]).await.ok();
            worker
        });
    }
    all.extend(asked.join_all().await);
    all.sort_by(|a: &Worker, b| (&a.node, &a.pod).cmp(&(&b.node, &b.pod)));
    all
}
