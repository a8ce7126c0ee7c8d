//! A batch as it came.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use feedmill_protocol::bad::RowStatus;
use feedmill_protocol::frame::{BatchView, FrameError};
use feedmill_protocol::plan::PlanDigest;
use feedmill_protocol::position::Range;

use crate::buffer::Buffer;
use crate::settings::Endpoint;

/// A batch: one frame in one buffer, checked.
#[derive(Clone, Debug)]
pub struct Batch {
    pub(crate) bytes: BatchBytes,
    pub(crate) range: Range,
    pub(crate) plan: PlanDigest,
    pub(crate) worker: Endpoint,
    pub(crate) timings: Timings,
    pub(crate) counts: Counts,
}

/// What is in the rows of a batch, counted when it came: where trainers ask, nothing needs to be parsed again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Tokens of all rows.
    pub tokens: usize,
    /// Tokens of the longest row.
    pub longest: usize,
    /// Tokens whose prediction is learnt: those but the first of each row whose loss flag is set.
    pub supervised: usize,
    /// Rows past the trainer's end.
    pub filler: usize,
    /// Rows whose record cannot be used: another one stands there, or its own without loss.
    pub bad: usize,
    /// Of each row, the index of its data set; one below 0 is none.
    pub datasets: Vec<i32>,
}

impl Counts {
    pub(crate) fn of(view: &BatchView<'_>) -> Self {
        let mut counts = Self::default();
        for sample in view.samples() {
            counts.tokens += sample.tokens.len();
            counts.longest = counts.longest.max(sample.tokens.len());
            counts.supervised += sample.loss_mask.iter().skip(1).filter(|flag| **flag == 1).count();
            counts.filler += usize::from(sample.status == RowStatus::Filler);
            counts.bad += usize::from(sample.status.class().is_some());
            counts.datasets.push(sample.dataset_index);
        }
        counts
    }
}

/// Where a batch's bytes lie. Clones share them.
#[derive(Clone)]
pub(crate) enum BatchBytes {
    /// In memory of this process.
    Own(Arc<Buffer>),
    /// In an agent's slab, until the last clone is gone.
    Lent(Arc<dyn AsRef<[u8]> + Send + Sync>),
}

impl From<Buffer> for BatchBytes {
    fn from(bytes: Buffer) -> Self {
        Self::Own(Arc::new(bytes))
    }
}

impl fmt::Debug for BatchBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own(bytes) => write!(f, "{} bytes", bytes.len()),
            Self::Lent(bytes) => write!(f, "{} bytes of an agent", (**bytes).as_ref().len()),
        }
    }
}

/// Where the time of a batch went. Only the attempt that gave it counts in the first three.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// Waiting for the connection and a place on it.
    pub queued: Duration,
    /// From the request to the head of the answer.
    pub head: Duration,
    /// From the head to the last byte.
    pub body: Duration,
    /// From the first attempt's begin to the last byte.
    pub total: Duration,
    /// Attempts that gave nothing before.
    pub failures: u32,
}

impl Batch {
    /// The rows. Parses the frame's header again (microseconds); patches are borrowed, never copied.
    ///
    /// # Errors
    /// None in a batch that came from a fleet: it was checked when it came.
    pub fn view(&self) -> Result<BatchView<'_>, FrameError> {
        BatchView::parse(self.bytes())
    }

    /// The frame.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match &self.bytes {
            BatchBytes::Own(bytes) => bytes,
            BatchBytes::Lent(bytes) => (**bytes).as_ref(),
        }
    }

    /// The frame, given away; copied where it is shared with a clone or lent by an agent.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        match self.bytes {
            BatchBytes::Own(bytes) => Arc::unwrap_or_clone(bytes).into_vec(),
            BatchBytes::Lent(bytes) => (*bytes).as_ref().to_vec(),
        }
    }

    /// The positions in it.
    #[must_use]
    pub fn range(&self) -> Range {
        self.range
    }

    /// The plan it was made by.
    #[must_use]
    pub fn plan(&self) -> PlanDigest {
        self.plan
    }

    /// The worker that made it.
    #[must_use]
    pub fn worker(&self) -> &Endpoint {
        &self.worker
    }

    /// What is in its rows.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Where the time went.
    #[must_use]
    pub fn timings(&self) -> Timings {
        self.timings
    }
}
