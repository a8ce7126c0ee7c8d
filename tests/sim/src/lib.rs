//! Trainings, workers and autoscalers in virtual time.
//!
//! ```text
//!  trace ─► world (ranks in step, workers with warm-up and deaths, reports) ◄─► policy (ours is the scaler itself)
//!                └─► measure: lost GPU time, worker-hours, ramps ─► goals: the best rival, what is held ─► page: table, HTML
//! ```
#![forbid(unsafe_code)]

/// A real run beside a simulated one.
pub mod against;
/// What it all adds up to, and which goals are held.
pub mod goals;
/// What a run lost and cost.
pub mod measure;
/// The table and the page.
pub mod page;
/// Who decides the number of workers.
pub mod policy;
/// Processes that run for a part of the time.
pub mod throttle;
/// What happens to a training.
pub mod trace;
/// Ranks, workers, queues: a discrete-event simulation.
pub mod world;
