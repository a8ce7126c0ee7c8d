//! What hostile input may do to Feedmill: nothing but an error with a name.
//!
//! ```text
//!  corpus (the goldens) ─► mutate (seed, number) ─► body: plain functions ─► runner: which case, its input in a file
//!                                                        └─ memory: what was announced holds
//! ```
//!
//! A body takes bytes and panics when a promise is broken. The same bodies run over a hundred thousand cases in
//! `cargo test`, over millions in `long`, and under cargo-fuzz (`fuzz/cargo-fuzz`).

/// Inputs to begin with.
pub mod corpus;
/// Changes to them, by seed and number.
pub mod mutate;

/// What is promised for any input, one function a surface.
pub mod body;
/// Memory that a piece of work takes.
pub mod memory;

/// Runs a body over cases, keeps the input that breaks it.
pub mod runner;

/// Files made to harm.
pub mod hostile;
