//! Feedmill's worker: records and images in, batches of exact tensors out.
//!
//! ```text
//!  pipeline ─► stream ─► order ─► make: record ─► fetch ─► size ─► fill ─► engine ─► serve ─► trainers
//!             manifests           └────────── cpu_pool, arena ──────────┘   order of need
//! ```
//!
//! A worker is stateless: any worker makes any range at any time with the same bytes.

/// Which record stands at a position.
pub mod order;
/// Manifests, processor and plan of each stream.
pub mod stream;
/// Threads for CPU work, by urgency.
pub mod cpu_pool;
/// From a position to a finished sample.
pub mod make;
/// From ranges with a need to leased samples.
pub mod engine;
