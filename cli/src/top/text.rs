//! Takes a reading and the one before, gives the table.

use std::time::Duration;

use super::reading::{Pipeline, Rank, Reading, Worker};
use crate::table::{align, bytes, count, printable};

/// The table of a reading; rates come from the reading before, which was made so long before it.
pub fn table(reading: &Reading, before: Option<&Reading>, ago: Duration) -> String {
    let mut text = pipelines(&reading.pipelines);
    if let [pipeline] = reading.pipelines.as_slice()
        && !pipeline.workers.is_empty()
    {
        let old = before.and_then(|before| before.pipelines.first());
        text.push('\n');
        text.push_str(&workers(&pipeline.workers, old.map_or(&[], |old| &old.workers), ago));
        if !pipeline.reports.is_empty() {
            text.push('\n');
            text.push_str(&ranks(&pipeline.reports));
        }
    }
    text
}

fn row(cells: &[&str]) -> Vec<String> {
    cells.iter().map(|cell| printable(cell)).collect()
}

fn share(permille: Option<i64>) -> String {
    permille.map_or("-".into(), |permille| format!("{:.1} %", permille as f64 / 10.0))
}

fn pipelines(pipelines: &[Pipeline]) -> String {
    if pipelines.is_empty() {
        return "no pipelines\n".into();
    }
    let mut rows =
        vec![row(&["NAMESPACE", "NAME", "READY", "REASON", "WORKERS", "NODES", "RANKS", "WAIT", "QUEUE"])];
    rows.extend(pipelines.iter().map(|of| {
        row(&[
            &of.namespace,
            &of.name,
            &of.ready,
            &of.reason,
            &format!("{}/{}", of.ready_workers, of.wanted_workers),
            &of.nodes.to_string(),
            &of.ranks.to_string(),
            &share(of.wait_permille),
            &of.queue_fill_percent.map_or("-".into(), |percent| format!("{percent} %")),
        ])
    }));
    let mut text = align(&rows);
    let ill = |of: &&Pipeline| (of.ready != "True" || of.degraded) && !of.message.is_empty();
    for of in pipelines.iter().filter(ill) {
        text.push_str(&format!("{}/{}: {}\n", of.namespace, of.name, printable(&of.message)));
    }
    text
}

fn workers(workers: &[Worker], before: &[Worker], ago: Duration) -> String {
    let mut rows =
        vec![row(&["WORKER", "NODE", "STATE", "SAMPLES", "SAMPLES/S", "SENT", "AHEAD", "READY", "BAD"])];
    rows.extend(workers.iter().map(|worker| {
        let Some(status) = &worker.status else { return row(&[&worker.pod, &worker.node, worker.state()]) };
        let old = before.iter().find(|old| old.pod == worker.pod).and_then(|old| old.status.as_ref());
        let rate = old.map(|old| status.samples.saturating_sub(old.samples) as f64 / ago.as_secs_f64());
        row(&[
            &worker.pod,
            &worker.node,
            worker.state(),
            &count(status.samples),
            &rate.map_or("-".into(), |rate| format!("{rate:.1}")),
            &bytes(status.bytes_out as f64),
            &count(status.work_ahead),
            &count(status.ready),
            &count(status.bad.values().sum()),
        ])
    }));
    let mut text = align(&rows);
    for worker in workers {
        let of = worker.status.iter().flat_map(|status| status.doing.iter().chain(&status.problems));
        for words in of {
            text.push_str(&format!("{}: {}\n", worker.pod, printable(words)));
        }
    }
    text
}

fn ranks(ranks: &[Rank]) -> String {
    let mut rows = vec![row(&["RUN", "STREAM", "RANK", "WAIT", "IN HAND", "CONSUMED", "REPORTED"])];
    rows.extend(ranks.iter().map(|rank| {
        row(&[
            &rank.run,
            &rank.stream,
            &format!("{}/{}", rank.rank, rank.size),
            &share(rank.wait_permille.map(i64::from)),
            &format!("{}/{}", rank.ready, rank.target),
            &count(rank.consumed),
            &format!("{} s ago", rank.age_ms / 1000),
        ])
    }));
    align(&rows)
}
