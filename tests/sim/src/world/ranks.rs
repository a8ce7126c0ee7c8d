//! Ranks: they ask ahead, use their batches in order, go into each step together, and report.

use feedmill_protocol::report::RankReport;

use super::{Event, PLAN, Rank, SCRAPE_EVERY, STREAM, Step, World};
use crate::trace::STEP_NOISE;

impl World<'_> {
    pub(super) fn begin(&mut self) {
        self.alive = true;
        let run = self.run;
        self.ranks = vec![Rank::default(); self.trace.shape.ranks];
        self.step = Step { began: self.now, longest: 0.0, done: 0 };
        for rank in 0..self.trace.shape.ranks {
            self.ranks[rank].waiting_since = Some(self.now);
            for batch in 0..self.trace.shape.window as u64 {
                self.at(self.now, Event::Ask { run, rank, batch });
            }
            self.ranks[rank].asked = self.trace.shape.window as u64;
        }
    }

    /// A rank that waits gets its next batch when that is there.
    pub(super) fn hand_out(&mut self, rank: usize) {
        let next = self.ranks[rank].used;
        let Some(since) = self.ranks[rank].waiting_since else { return };
        if !self.ranks[rank].arrived.remove(&next) {
            return;
        }
        let slow = if rank == 0 { self.trace.slow_rank_at(self.now) } else { 1.0 };
        // One noise for all ranks of a step would be a slow step; each has its own share of it.
        let own = self.trace.step_at(self.now) * slow * self.noise(STEP_NOISE / 3.0);
        let now = self.now;
        let state = &mut self.ranks[rank];
        state.waited += now - since;
        state.waiting_since = None;
        state.handed_out_at = Some(now);
        state.used += 1;
        let batch = state.asked;
        state.asked += 1;
        self.step.longest = self.step.longest.max(own);
        self.at(now + own, Event::Computed { run: self.run });
        self.ask(rank, batch);
    }

    pub(super) fn arrive(&mut self) {
        self.step.done += 1;
        if self.step.done < self.trace.shape.ranks {
            return;
        }
        let mut release = self.now;
        if let Some((every, pause)) = self.trace.checkpoint
            && self.now >= self.next_checkpoint
        {
            self.next_checkpoint = self.now + every;
            release += pause;
            self.history.meant -= pause.min(self.trace.seconds - self.now);
        }
        self.at(release, Event::Released { run: self.run });
        // What was computed, over the time that the step took.
        let (began, computed) = (self.step.began, self.step.longest);
        self.history.computed += computed;
        self.history.steps += 1;
        self.spread(began, self.now, computed);
        if release > self.now {
            // A pause is no waiting: as if it had computed.
            self.spread(self.now, release, release - self.now);
        }
    }

    pub(super) fn spread(&mut self, from: f64, to: f64, computed: f64) {
        let density = computed / (to - from).max(1e-9);
        let mut at = from;
        while at < to {
            let bin = (at / SCRAPE_EVERY) as usize;
            let end = ((bin + 1) as f64 * SCRAPE_EVERY).min(to);
            if let Some(share) = self.bins.get_mut(bin) {
                *share += density * (end - at) / SCRAPE_EVERY;
            }
            at = end;
        }
    }

    pub(super) fn release(&mut self) {
        let now = self.now;
        let span = now - self.step.began;
        self.step = Step { began: now, longest: 0.0, done: 0 };
        for rank in 0..self.trace.shape.ranks {
            let state = &mut self.ranks[rank];
            if let Some(handed_out) = state.handed_out_at.take() {
                state.computed += now - handed_out;
                state.last_steps.push_back(now - handed_out);
                if state.last_steps.len() > 3 {
                    state.last_steps.pop_front();
                }
                state.trained += self.trace.shape.ranks as u64 * self.trace.shape.micro_batch;
                state.step_seconds += span;
            }
            state.waiting_since = Some(now);
            self.hand_out(rank);
        }
    }

    pub(super) fn report(&mut self, phase: usize) {
        if !self.alive {
            return;
        }
        let now = self.now;
        for rank in (phase..self.trace.shape.ranks).step_by(8) {
            let state = &mut self.ranks[rank];
            state.sequence += 1;
            let waiting = state.waiting_since.map_or(0.0, |since| now - since);
            let ms = |seconds: f64| (seconds * 1000.0) as u64;
            let report = RankReport {
                run: format!("sim-{}", self.run),
                stream: STREAM.into(),
                plan: PLAN.into(),
                rank: rank as u32,
                size: self.trace.shape.ranks as u32,
                process: String::new(),
                ready: state.arrived.len() as u32,
                target: self.trace.shape.window as u32,
                waiting_ms: ms(waiting),
                wait_ms: 0,
                step_ms: ms(std::mem::take(&mut state.step_seconds)),
                waited_ms: ms(state.waited + waiting),
                computed_ms: ms(state.computed),
                trained: state.trained,
                quickest_us: state
                    .last_steps
                    .iter()
                    .copied()
                    .reduce(f64::min)
                    .map_or(0, |seconds| (seconds * 1e6) as u64),
                quickest_samples: self.trace.shape.ranks as u64 * self.trace.shape.micro_batch,
                consumed: state.trained,
                sequence: state.sequence,
                farewell: false,
                begin: None,
            };
            self.reports.insert((self.run, rank), (now, report));
        }
    }
}
