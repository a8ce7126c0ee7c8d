//! Takes what a run has counted, gives whether its promises held, and a summary for people and for programs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use feedmill_protocol::ranks::RankLayout;
use serde::Serialize;
use serde_json::{Value, json};

use super::autoscale::Scaled;
use super::bad::BadRecord;
use super::interrupt::Interruption;
use super::ledger::{Counts, Faults};
use super::pace::{Pace, STEPS_AFTER_MARK};
use crate::table::{bytes, seconds};

/// So many bad records are listed for people; the JSON has all.
const LISTED: usize = 20;

/// What is known of a run when it is over.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The pipeline's name.
    pub pipeline: String,
    /// The stream.
    pub stream: String,
    /// The plan.
    pub plan: String,
    /// Positions in an epoch.
    pub samples_per_epoch: u64,
    /// Global batch, ranks, micro batch.
    pub layout: RankLayout,
    /// Worker processes.
    pub workers: u32,
    /// The trainer's end.
    pub stop: u64,
    /// Steps to be made.
    pub steps: u64,
    /// How long a rank computes in each.
    pub step_time: Duration,
    /// Position by position.
    pub counts: Counts,
    /// Step by step.
    pub pace: Pace,
    /// Rows of all batches, those of a step that was not made included.
    pub rows: u64,
    /// Bytes of all batches.
    pub bytes: u64,
    /// Bytes that the model's own processor makes of all rows.
    pub reference_bytes: u64,
    /// Batches.
    pub batches: u64,
    /// Batches that another worker gave after an attempt had failed.
    pub moved: u64,
    /// Batches of each worker, by name.
    pub served: BTreeMap<String, u64>,
    /// From the start of the workers to the first batch at the last rank.
    pub first_batch: Option<Duration>,
    /// Names of the stream's data sets.
    pub datasets: Vec<String>,
    /// Bad records that workers list.
    pub bad_records: BTreeSet<BadRecord>,
    /// The worker that was killed.
    pub killed: Option<Killed>,
    /// Workers that ended unasked and were replaced.
    pub lost_workers: u64,
    /// How the number of workers was decided.
    pub scaled: Option<Scaled>,
    /// The same positions from one undisturbed worker, or why they could not be read.
    pub check: Option<Result<Counts, String>>,
    /// The signal that ended it.
    pub interrupted: Option<Interruption>,
    /// Why a rank could not go on.
    pub failure: Option<String>,
}

/// A worker that was killed on purpose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Killed {
    /// Which.
    pub worker: String,
    /// In which step.
    pub step: u64,
    /// Batches that had been asked again before, while workers started.
    pub moved_before: u64,
}

/// Something that must hold, and whether it did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Promise {
    /// What.
    pub promise: String,
    /// Whether.
    pub kept: bool,
}

impl Facts {
    /// Positions that must have come.
    fn expected(&self) -> u64 {
        self.stop.min(self.pace.steps.saturating_mul(self.layout.global_batch()))
    }

    /// What must hold.
    pub fn promises(&self) -> Vec<Promise> {
        let counts = &self.counts;
        let mut promises = Vec::new();
        let mut promise = |kept: bool, good: String, bad: String| {
            promises.push(Promise { promise: if kept { good } else { bad }, kept });
        };
        if let Some(failure) = &self.failure {
            promise(false, String::new(), format!("every rank made every step: {failure}"));
        }
        let once = counts.missing.count == 0 && counts.twice.count == 0 && counts.samples == self.expected();
        let faults = [("missing", &counts.missing), ("came twice", &counts.twice)];
        promise(
            once,
            format!("every position came exactly once: {} of {}", counts.samples, self.expected()),
            format!(
                "every position exactly once: {} of {} came{}",
                counts.samples,
                self.expected(),
                named(&faults)
            ),
        );
        promise(
            counts.wrong_hash.count == 0,
            "every sample's hash is that of its bytes, computed again by the ranks".into(),
            format!("every sample's hash is that of its bytes{}", named(&[("differ", &counts.wrong_hash)])),
        );
        promise(
            counts.misplaced_filler.count == 0,
            format!("filler stands past the end and nowhere else: {} rows", counts.filler),
            format!(
                "filler past the end and nowhere else{}",
                named(&[("are not so", &counts.misplaced_filler)])
            ),
        );
        let chain = counts.chain.hex();
        match &self.check {
            Some(Ok(again)) => promise(
                again.chain == counts.chain,
                format!(
                    "the chain of {} hashes, {chain}, equals that of one undisturbed worker",
                    counts.chain.length()
                ),
                format!(
                    "the chain of {} hashes, {chain}, is not that of one undisturbed worker: {} hashes, {}",
                    counts.chain.length(),
                    again.chain.length(),
                    again.chain.hex()
                ),
            ),
            Some(Err(error)) => {
                promise(
                    false,
                    String::new(),
                    format!("one undisturbed worker gives the same: it could not be read: {error}"),
                );
            }
            None => {}
        }
        promises
    }

    /// Whether all of it held.
    pub fn kept(&self) -> bool {
        self.promises().iter().all(|promise| promise.kept)
    }

    /// Samples and bytes in a second of the steps that were made, filler included.
    fn per_second(&self) -> (f64, f64) {
        let rows = self.counts.samples + self.counts.filler;
        let samples = rows as f64 / self.pace.running().as_secs_f64().max(1e-9);
        (samples, samples * self.per_row().0)
    }

    /// Bytes of a row on the wire, and of the processor's fp32 tensors.
    fn per_row(&self) -> (f64, f64) {
        let rows = self.rows.max(1) as f64;
        (self.bytes as f64 / rows, self.reference_bytes as f64 / rows)
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        let (layout, pace, counts) = (self.layout, &self.pace, &self.counts);
        let how = match (&self.failure, self.interrupted) {
            (Some(_), _) => " (a rank could not go on)",
            (None, Some(_)) => " (stopped by a signal)",
            (None, None) => "",
        };
        writeln!(
            out,
            "\nread        {} samples in {} of {} steps{how}, {:.2} epochs of {}",
            counts.samples,
            pace.steps,
            self.steps,
            counts.samples as f64 / self.samples_per_epoch.max(1) as f64,
            self.samples_per_epoch
        )?;
        if let Some(first) = self.first_batch {
            writeln!(
                out,
                "start       {} until every rank had its first batch, from starting the workers",
                seconds(first.as_secs_f64())
            )?;
        }
        if pace.steps > 1 {
            let rank = 100.0 * pace.rank_wait_ratio(layout.ranks());
            write!(
                out,
                "waiting     {:.1} % of the time after the first step, {rank:.1} % for a rank by itself",
                100.0 * pace.wait_ratio()
            )?;
            match pace.longest {
                Some((step, wait)) if !wait.is_zero() => {
                    writeln!(out, "; the longest was {} in step {step}", seconds(wait.as_secs_f64()))?;
                }
                _ => writeln!(out)?,
            }
        }
        let most = layout.global_batch() as f64 / self.step_time.as_secs_f64().max(1e-9);
        write!(
            out,
            "speed       {:.1} samples/s, {:.1} MB/s",
            self.per_second().0,
            self.per_second().1 / 1e6
        )?;
        if self.step_time.is_zero() {
            writeln!(out)?;
        } else {
            writeln!(
                out,
                "; {} ranks that compute {} a step could use {most:.1} samples/s",
                layout.ranks(),
                seconds(self.step_time.as_secs_f64())
            )?;
        }
        let (ours, theirs) = self.per_row();
        writeln!(
            out,
            "per sample  {} on the wire; the processor's fp32 tensors have {}, {:.1} times as much",
            bytes(ours),
            bytes(theirs),
            theirs / ours.max(1.0)
        )?;
        let served: Vec<String> =
            self.served.iter().map(|(name, batches)| format!("{name} {batches}")).collect();
        writeln!(out, "workers     {} batches: {}", self.batches, served.join(", "))?;
        if let Some(Killed { worker, step, moved_before }) = &self.killed {
            writeln!(
                out,
                "killed      worker {worker} by SIGKILL in step {step}; another one took its place"
            )?;
            writeln!(
                out,
                "            {} batches were asked again of another worker, none was lost",
                self.moved.saturating_sub(*moved_before)
            )?;
            writeln!(
                out,
                "            ranks waited {} in that step and the {STEPS_AFTER_MARK} after it",
                seconds(pace.wait_after_mark.as_secs_f64())
            )?;
        }
        if let Some(scaled) = &self.scaled {
            writeln!(out, "autoscale   {scaled}")?;
        }
        if self.lost_workers > 0 {
            writeln!(
                out,
                "lost        {} workers ended by themselves and were replaced; see their logs with --verbose",
                self.lost_workers
            )?;
        }
        self.write_bad(out)?;
        writeln!(out)?;
        if self.rows == 0 && self.kept() {
            // Promises about nothing are kept, and say nothing.
            return writeln!(out, "nothing was read, so nothing was put to the test");
        }
        for promise in self.promises() {
            writeln!(out, "{}  {}", if promise.kept { "kept  " } else { "BROKEN" }, promise.promise)?;
        }
        Ok(())
    }

    fn write_bad(&self, out: &mut String) -> std::fmt::Result {
        let counts = &self.counts;
        let rows = counts.bad_rows();
        if rows == 0 {
            return writeln!(out, "bad rows    none");
        }
        writeln!(
            out,
            "bad rows    {rows} of {} ({:.2} %):",
            counts.samples,
            100.0 * rows as f64 / counts.samples.max(1) as f64
        )?;
        for (class, bad) in &counts.bad {
            let mut stands = Vec::new();
            if bad.replaced > 0 {
                stands.push(format!("another record stands in {}", bad.replaced));
            }
            if bad.without_loss > 0 {
                stands.push(format!("{} without loss", bad.without_loss));
            }
            let example = bad.first.iter().find_map(|row| Some((row.position, row.stands_in?)));
            let example = example.map_or_else(String::new, |(position, (dataset, record))| {
                let name = usize::try_from(dataset).ok().and_then(|index| self.datasets.get(index));
                format!(" (position {position}: {} record {record})", name.map_or("?", String::as_str))
            });
            writeln!(out, "  {:<22} {}{example}", class.name(), stands.join(", "))?;
        }
        if !self.bad_records.is_empty() {
            writeln!(out, "their records:")?;
        }
        for record in self.bad_records.iter().take(LISTED) {
            // Most details name the object themselves.
            let key = record.key.as_ref().filter(|key| !record.detail.contains(*key));
            let key = key.map_or_else(String::new, |key| format!(" {key}:"));
            writeln!(out, "  {} line {}:{key} {}", record.dataset, record.line, record.detail)?;
            writeln!(out, "      {}", record.class.remedy())?;
        }
        if self.bad_records.len() > LISTED {
            writeln!(out, "  and {} more, see --json", self.bad_records.len() - LISTED)?;
        }
        Ok(())
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let (pace, counts) = (&self.pace, &self.counts);
        let (ours, theirs) = self.per_row();
        let check = self.check.as_ref().map(|check| match check {
            Ok(again) => json!({"samples": again.chain.length(), "chain": again.chain.hex()}),
            Err(error) => json!({"error": error}),
        });
        let mut summary = json!({
            "pipeline": self.pipeline,
            "stream": self.stream,
            "plan": self.plan,
            "samples_per_epoch": self.samples_per_epoch,
            "workers": self.workers,
            "ranks": self.layout.ranks(),
            "global_batch": self.layout.global_batch(),
            "micro_batch": self.layout.micro_batch(),
            "step_ms": self.step_time.as_millis() as u64,
            "stop": self.stop,
            "steps": pace.steps,
            "steps_wanted": self.steps,
            "samples": counts.samples,
            "filler": counts.filler,
            "missing": counts.missing,
            "twice": counts.twice,
            "wrong_hash": counts.wrong_hash,
            "misplaced_filler": counts.misplaced_filler,
            "wait_ratio": pace.wait_ratio(),
            "rank_wait_ratio": pace.rank_wait_ratio(self.layout.ranks()),
            "first_wait_s": pace.first_wait.as_secs_f64(),
            "longest_wait_s": pace.longest.map(|(_, wait)| wait.as_secs_f64()),
            "first_batch_s": self.first_batch.map(|first| first.as_secs_f64()),
            "running_s": pace.running().as_secs_f64(),
            "samples_per_second": self.per_second().0,
            "bytes_per_second": self.per_second().1,
            "bytes_per_sample": ours,
            "reference_bytes_per_sample": theirs,
            "batches": self.batches,
            "batches_by_worker": self.served,
            "batches_moved": self.moved,
            "killed": self.killed.as_ref().map(|killed| json!({
                "worker": killed.worker, "step": killed.step, "wait_after_s": pace.wait_after_mark.as_secs_f64(),
            })),
            "lost_workers": self.lost_workers,
            "bad": counts.bad,
            "bad_records": self.bad_records,
            "chain": counts.chain.hex(),
            "check": check,
            "interrupted": self.interrupted.is_some(),
            "failure": self.failure,
            "promises": self.promises(),
            "kept": self.kept(),
        });
        // The macro takes no longer list.
        summary["autoscale"] = json!(self.scaled);
        summary
    }
}

/// `; 3 missing (1, 2, 5)` for each kind that there is.
fn named(kinds: &[(&str, &Faults)]) -> String {
    kinds
        .iter()
        .filter(|(_, faults)| faults.count > 0)
        .map(|(what, faults)| {
            let first: Vec<String> = faults.first.iter().map(u64::to_string).collect();
            let more = if faults.count > first.len() as u64 { ", ..." } else { "" };
            format!("; {} {what} ({}{more})", faults.count, first.join(", "))
        })
        .collect()
}

#[cfg(test)]
mod tests;
