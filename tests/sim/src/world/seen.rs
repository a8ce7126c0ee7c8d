//! What whoever decides sees: workers' answers, with the reports of the ranks.

use std::collections::BTreeMap;

use feedmill_protocol::report::{KeptReport, WorkerState, WorkerStatus};

use super::{Life, World};
use crate::policy::{Policy, View};

/// A worker forgets reports after so long.
const REPORT_LIFE: f64 = 600.0;

impl World<'_> {
    pub(super) fn count(&self, life: Life) -> u32 {
        self.workers.iter().filter(|worker| worker.life == life).count() as u32
    }

    pub(super) fn view(&self) -> View<'_> {
        View { now: self.now, trace: self.trace, wanted: self.wanted, ready: self.count(Life::Ready) }
    }

    pub(super) fn scrape(&mut self, policy: &mut dyn Policy) {
        let now = self.now;
        self.reports.retain(|_, (at, _)| now - *at < REPORT_LIFE);
        let mut kept: Vec<KeptReport> = self
            .reports
            .values()
            .map(|(at, report)| KeptReport { age_ms: ((now - at) * 1000.0) as u64, report: report.clone() })
            .collect();
        let statuses: Vec<(String, WorkerStatus)> = self
            .workers
            .iter()
            .enumerate()
            .filter(|(_, worker)| worker.life == Life::Ready)
            .map(|(index, worker)| {
                let half_done = worker.making.map_or(0.0, |(_, _, begun)| now - begun);
                let waiting = worker.queue.len() + usize::from(worker.making.is_some());
                let status = WorkerStatus {
                    worker: format!("w{index:06}"),
                    version: String::new(),
                    state: WorkerState::Ready,
                    doing: None,
                    cores: self.trace.shape.cores,
                    streams: BTreeMap::new(),
                    work_ahead: waiting as u64 * self.trace.shape.micro_batch,
                    ready: 0,
                    batches: worker.batches,
                    samples: worker.samples,
                    bytes_out: 0,
                    bytes_in: 0,
                    busy_ms: (worker.busy_ms + half_done * 1000.0 * f64::from(self.trace.shape.cores)) as u64,
                    bad: BTreeMap::new(),
                    problems: Vec::new(),
                    agent: None,
                    reports: std::mem::take(&mut kept),
                };
                (status.worker.clone(), status)
            })
            .collect();
        policy.scrape(&statuses, now);
        self.history.wanted.push(self.wanted);
        self.history.ready.push(statuses.len() as u32);
    }
}
