//! Takes a puller, gives a training's rank: it pulls its micro batches, checks them, computes for a while, and waits for the others.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use feedmill_client::{Batch, ClientError, Endpoint, Puller};
use feedmill_protocol::ranks::RankLayout;
use tokio::sync::{Barrier, watch};
use tokio::time::Instant;

use super::ledger::{self, Ledger};
use super::pace::Pace;
use crate::clock;

/// What all ranks have got; each writes into it.
#[derive(Debug)]
pub struct Board {
    /// Position by position.
    pub ledger: Ledger,
    /// Step by step.
    pub pace: Pace,
    /// Rows of all batches.
    pub rows: u64,
    /// Bytes that the model's own processor makes of all rows.
    pub reference_bytes: u64,
    /// Bytes of all batches.
    pub bytes: u64,
    /// Batches.
    pub batches: u64,
    /// Batches that another worker gave after an attempt had failed.
    pub moved: u64,
    /// Batches of each worker.
    pub served: BTreeMap<Endpoint, u64>,
    /// When each rank had its first batch, counted from the start of the workers.
    pub first_batch: BTreeMap<u64, Duration>,
    begun: Instant,
    step_began: Instant,
}

impl Board {
    /// An empty board. `begun` is when the workers were started; ranks start now.
    pub fn new(stop: u64, begun: Instant, now: Instant) -> Self {
        Self {
            ledger: Ledger::new(stop),
            pace: Pace::default(),
            rows: 0,
            reference_bytes: 0,
            bytes: 0,
            batches: 0,
            moved: 0,
            served: BTreeMap::new(),
            first_batch: BTreeMap::new(),
            begun,
            step_began: now,
        }
    }

    fn got(&mut self, rank: u64, batch: &Batch, rows: &[ledger::Row], now: Instant) {
        self.ledger.add(rows);
        self.rows += rows.len() as u64;
        self.reference_bytes += rows.iter().map(|row| row.reference_bytes).sum::<u64>();
        self.bytes += batch.bytes().len() as u64;
        self.batches += 1;
        self.moved += u64::from(batch.timings().failures > 0);
        *self.served.entry(batch.worker().clone()).or_default() += 1;
        self.first_batch.entry(rank).or_insert(now - self.begun);
    }

    fn made(&mut self, step: u64, layout: RankLayout, now: Instant) {
        self.ledger.seal((step + 1) * layout.global_batch());
        self.pace.made(step, now - self.step_began);
        self.step_began = now;
    }
}

/// A board that ranks share.
pub type SharedBoard = Arc<Mutex<Board>>;

/// Locks; what the lock guards is whole between any two statements, so a panic elsewhere harms nothing.
pub fn lock(board: &Mutex<Board>) -> MutexGuard<'_, Board> {
    board.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One rank.
pub struct RankRun {
    /// Its batches.
    pub puller: Puller,
    /// Its number.
    pub rank: u64,
    /// Global batch, ranks, micro batch.
    pub layout: RankLayout,
    /// Steps to make.
    pub steps: u64,
    /// How long it computes in each.
    pub step_time: Arc<dyn Fn(u64) -> Duration + Send + Sync>,
    /// Where it writes down what it got.
    pub board: SharedBoard,
    /// Where ranks wait for each other.
    pub barrier: Arc<Barrier>,
    /// Steps that all ranks have made.
    pub made: Arc<watch::Sender<u64>>,
}

impl RankRun {
    /// Makes all steps.
    ///
    /// # Errors
    /// A batch that cannot be had, or one that contradicts itself.
    pub async fn run(mut self) -> Result<(), RankError> {
        let micro_batches = self.layout.micro_batches_per_step();
        for step in 0..self.steps {
            let share = (self.step_time)(step).div_f64(micro_batches as f64);
            let mut wait = Duration::ZERO;
            for _ in 0..micro_batches {
                let asked = clock::now();
                let batch = self.puller.next().await.map_err(|source| self.error(step, source))?;
                let batch = batch.ok_or(RankError::Ended { rank: self.rank, step })?;
                let now = clock::now();
                wait += now - asked;
                // Hashing takes well under a millisecond for a megabyte, so it needs no thread of its own.
                let view = batch.view().map_err(|source| RankError::Frame { rank: self.rank, source })?;
                let rows = ledger::rows(batch.range(), &view);
                lock(&self.board).got(self.rank, &batch, &rows, now);
                tokio::time::sleep(share).await;
            }
            lock(&self.board).pace.waited(step, wait);
            // As a collective does: nobody goes on before everybody is here.
            if self.barrier.wait().await.is_leader() {
                lock(&self.board).made(step, self.layout, clock::now());
                self.made.send_replace(step + 1);
            }
        }
        // Says that the last batch has been used; there is none after it.
        match self.puller.next().await {
            Ok(None) => Ok(()),
            Ok(Some(_)) => Err(RankError::Surplus { rank: self.rank }),
            Err(source) => Err(self.error(self.steps, source)),
        }
    }

    fn error(&self, step: u64, source: ClientError) -> RankError {
        RankError::Client { rank: self.rank, step, source: Box::new(source) }
    }
}

/// Why a rank cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum RankError {
    /// A batch cannot be had.
    #[error("rank {rank}, step {step}: {source}")]
    Client {
        /// Which rank.
        rank: u64,
        /// In which step.
        step: u64,
        /// Why.
        source: Box<ClientError>,
    },
    /// A batch contradicts itself.
    #[error("rank {rank}: {source}")]
    Frame {
        /// Which rank.
        rank: u64,
        /// How.
        source: feedmill_protocol::frame::FrameError,
    },
    /// The stream ended too early.
    #[error("rank {rank}: no batch for step {step}, although the trainer's end has not come")]
    Ended {
        /// Which rank.
        rank: u64,
        /// In which step.
        step: u64,
    },
    /// The stream went on too far.
    #[error("rank {rank}: a batch came after the trainer's end")]
    Surplus {
        /// Which rank.
        rank: u64,
    },
}
