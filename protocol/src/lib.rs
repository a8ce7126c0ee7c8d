//! What Feedmill's programs must agree on. Pure: no runtime, no clock, no I/O, no unsafe.
//!
//! ```text
//! pipeline ─► plan ─► position ─► ranks ─► course ─► placement ─► http ─► frame ─► hash
//!                                                  local ◄─┴───► report
//! ```
#![forbid(unsafe_code)]

/// Why a record could not be used, and what a row of a batch says of it.
pub mod bad;
/// The steps of a rank: sizes that change, stretches that are left out, an end.
pub mod course;
/// The batch frame: a safetensors file in a fixed order.
pub mod frame;
/// One hash per sample and the chain over them.
pub mod hash;
/// Paths, headers and problem documents of the HTTP interface.
pub mod http;
/// What an agent and the readers on its node say to each other.
pub mod local;
/// What a trainer must know of the model's processor.
pub mod model;
/// The `DataPipeline` resource as people write it, and its checked form.
pub mod pipeline;
/// Which worker is asked for a range.
pub mod placement;
/// Everything that decides bytes, and one digest over it.
pub mod plan;
/// Positions of the endless stream and half-open ranges of them.
pub mod position;
/// Which positions a data-parallel rank reads in a step.
pub mod ranks;
/// What ranks report and what workers answer about themselves.
pub mod report;
