//! How many workers a pipeline needs: signals, policy, the previous decision and the time go in; a count and the reason for it come out.
//! Pure: no clock, no I/O, no Kubernetes. All times are milliseconds by the clock of whoever calls.
//!
//! ```text
//!  what workers answer ─► observe ─► signals ─┐
//!    or what Prometheus answers ─► prometheus ─┤
//!                           spec ─────────────┼─► decide: sight ─► size ─► hold ─► hunger ─► probation ─► margin ─► bounds ─► decision, reason
//!               state of the decision before ─┘                                                                               └─► state
//! ```
#![forbid(unsafe_code)]

/// Nothing leaves the bounds, nor grows by more than a step.
mod bounds;
/// The decision.
mod decide;
/// What forbids a change for a while.
mod hold;
/// What ranks that wait, or have plenty, ask for.
mod hunger;
/// What is added to a size by arithmetic, and when it is not.
mod margin;
/// What workers answer becomes the signals of a window.
pub mod observe;
/// A smaller size is kept only if nobody waits for it.
mod probation;
/// What a Prometheus server answers becomes the signals of a window.
pub mod prometheus;
/// Why: one sentence for every decision.
pub mod reason;
/// Whether the signals can be believed.
mod sight;
/// What a decision is made from.
pub mod signals;
/// How many workers the trainings need by arithmetic.
mod size;
/// What a person wants: bounds, targets, what to do without reports.
pub mod spec;
/// What one decision leaves to the next.
pub mod state;

pub use bounds::Limit;
pub use decide::{Decision, Figures, decide};
pub use observe::{Observer, Scrape, Stream};
pub use reason::Reason;
pub use signals::Signals;
pub use spec::ScalingSpec;
pub use state::State;
