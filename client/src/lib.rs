//! Pulls ranges of a stream from a fleet of workers, in order, whatever happens to single workers.
//!
//! ```text
//! puller ─► pursuit ─► choice ─► attempt ─► member ─► line ─► link ─► answer ─► batch
//!  ├─► window  └─► hedge (who)              (health)  (turn)  (h2)   (checks)
//!  ├─► tally ─► reports ─► control              ▲
//!  ├─► agent (of the node, in the workers' stead: by reference)
//!  └─► fleet ◄─ keeper ─► discovery, load ─► watch
//! ```
//!
//! A window of ranges is kept outstanding ahead of the trainer: asking early is the prefetch. Every
//! range is asked of the worker that striping names; when that one fails, is silent or late, another
//! makes the same bytes.
#![forbid(unsafe_code)]

/// When a range is needed.
mod need;
/// One rank's batches in order, a window of them outstanding.
mod puller;
/// Reports of a rank, for as long as it lives.
mod reports;
/// What a rank's queue looks like: pace, waiting, steps, and the report of it.
mod tally;
/// How many ranges a rank keeps in hand or outstanding.
mod window;

/// The agent of this node: batches by reference, over a Unix socket.
mod agent;
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
/// The workers of a stream.
mod fleet;
/// Whether a worker is well: asked, left alone, probed.
mod health;
/// When a late range is asked of a second worker too.
mod hedge;
/// Places on a connection, by urgency.
mod line;
/// One HTTP/2 connection to a worker, opened when needed.
mod link;
/// One worker: its connections, and what is known of it.
mod member;
/// One range, fetched from whichever worker can make it.
mod pursuit;

/// Where workers are: addresses, names, lists in files.
mod discovery;
/// Looks after a fleet beside its ranks.
mod keeper;
/// How much workers can do and have ahead.
mod load;
/// When a worker was used and heard.
mod watch;

/// The one place where a clock is read and a die is thrown.
mod chance;
/// What went wrong, and with whom.
mod error;
/// Why one attempt at a worker gave nothing, and what follows from it.
mod fault;
/// Where workers are, bounds and times.
mod settings;

/// What the client decides, without clocks or connections: for simulations.
pub mod decisions {
    pub use crate::choice::{Choice, Seen, Standing, choose, point};
    pub use crate::hedge::{Budget, ReadyTimes, due};
    pub use crate::load::{Load, LoadStatus, capacities};
    pub use crate::need::needed_in;
    pub use crate::window::{Bounds, Known, Window};
}

pub use agent::{AgentStats, LocalWire};
pub use batch::{Batch, Counts, Timings};
pub use control::StreamPlan;
pub use discovery::parse_list;
pub use error::{Attempt, ClientError, Disagreement, History};
pub use fault::Fault;
pub use feedmill_access::{AccessError, Pass, PassSettings, TlsFault, Token, TokenError, TokenSource};
pub use fleet::{BatchRequest, ExpectedPlan, Fleet, FleetStats};
pub use puller::{Puller, PullerSettings};
pub use settings::{Endpoint, FleetSettings, Timeouts};
pub use tally::{Meter, PullerStats};
