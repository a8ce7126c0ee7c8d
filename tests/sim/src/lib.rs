//! Trainings, workers and autoscalers in virtual time.
//!
//! ```text
//!  trace ─► world (ranks in step, workers with warm-up and deaths, reports) ◄─► policy (ours is the scaler itself)
//!                └─► measure: lost GPU time, worker-hours, ramps ─► goals: the best rival, what is held ─► page: table, HTML
//! ```
#![forbid(unsafe_code)]

/// What happens to a training.
pub mod trace;
/// Who decides the number of workers.
pub mod policy;
/// Ranks, workers, queues: a discrete-event simulation.
pub mod world;
/// What a run lost and cost.
pub mod measure;
/// What it all adds up to, and which goals are held.
pub mod goals;
/// The table and the page.
pub mod page;
