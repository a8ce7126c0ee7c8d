//! Pulls ranges of a stream from a fleet of workers, in order, whatever happens to single workers.
//!
//! ```text
//! puller ─► fleet ─► choice ─► attempt ─► member ─► line ─► link ─► answer ─► batch
//!    └─► tally  └─► control (who)         (health)  (turn)  (h2)   (checks)
//! ```
//!
//! A window of ranges is kept outstanding ahead of the trainer: asking early is the prefetch. Every
//! range is asked of the worker that striping names; when that one fails, another makes the same bytes.
#![forbid(unsafe_code)]

/// One rank's batches in order, a window of them outstanding.
mod puller;
/// What a rank's queue looks like: pace, waiting, steps, and the report of it.
mod tally;

/// What makes an answer a batch.
mod answer;
/// One request for one batch at one worker.
mod attempt;
/// A batch as it came.
mod batch;
/// Memory of batches, kept for the next ones.
mod buffer;
/// Which worker is asked next.
mod choice;
/// Plans, status and reports over connections of their own.
mod control;
/// The workers of a stream, and one range fetched from whichever of them can.
mod fleet;
/// Places on a connection, by urgency.
mod line;
/// One HTTP/2 connection to a worker, opened when needed.
mod link;
/// One worker: its connections, and whether it is well.
mod member;

/// The one place where a clock is read and a die is thrown.
mod chance;
/// What went wrong, and with whom.
mod error;
/// Why one attempt at a worker gave nothing, and what follows from it.
mod fault;
/// Where workers are, bounds and times.
mod settings;

pub use batch::{Batch, Timings};
pub use control::StreamPlan;
pub use error::{Attempt, ClientError, Disagreement, History};
pub use fault::Fault;
pub use fleet::{BatchRequest, ExpectedPlan, Fleet};
pub use puller::{Puller, PullerSettings};
pub use settings::{Endpoint, FleetSettings, Timeouts};
pub use tally::{Meter, PullerStats};
