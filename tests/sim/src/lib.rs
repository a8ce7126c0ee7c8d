//! Trainings, workers and autoscalers in virtual time.
//!
//! ```text
//!  trace ─► world (ranks in step, workers with warm-up and deaths, reports) ◄─► policy (ours is the scaler itself)
//!                └─► measure: lost GPU time, worker-hours, ramps ─► page: table, HTML
//! ```
#![forbid(unsafe_code)]

/// What a run lost and cost.
pub mod measure;
/// The table and the page.
pub mod page;
/// Who decides the number of workers.
pub mod policy;
/// What happens to a training.
pub mod trace;
/// Ranks, workers, queues: a discrete-event simulation.
pub mod world;
