//! Feedmill's worker: records and images in, batches of exact tensors out.
//!
//! ```text
//!  pipeline ─► stream ─► order ─► make: record ─► fetch ─► size ─► fill ─► engine ─► serve ─► trainers
//!             manifests           └────────── cpu_pool, arena ──────────┘   order of need
//! ```
//!
//! A worker is stateless: any worker makes any range at any time with the same bytes.

/// The same server filled from other workers, and by reference to this node's processes.
pub mod agent;
/// What a worker is made of.
pub mod app;
/// What is in the data, before it is trained on.
pub mod check;
/// Threads for CPU work, by urgency.
pub mod cpu_pool;
/// From ranges with a need to leased samples.
pub mod engine;
/// Whether a fleet serves by the plan computed here.
mod expected_plan;
/// From a record to its positions.
pub mod find;
/// The same streams without a server.
pub mod in_process;
/// From a position to a finished sample.
pub mod make;
/// What it counts.
pub mod metrics;
/// Which record stands at a position.
pub mod order;
/// What people look at samples with.
pub mod page;
/// What ranks report, and whether they agree.
pub mod reports;
/// A whole process.
mod run;
/// Answers over HTTP.
pub mod serve;
/// Arguments and settings.
pub mod settings;
/// Manifests, processor and plan of each stream.
pub mod stream;
/// Pictures that may kill whoever decodes them.
pub mod suspect;
/// Files that are replaced as a whole.
pub mod whole_file;

pub use run::{child_main, main, main_with, sandbox};
pub use settings::WorkerArgs;
