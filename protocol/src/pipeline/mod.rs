//! The `DataPipeline` resource as people write it, and its checked form.
//!
//! [`spec`] is what stands in the file; [`validated`] is what programs read. After
//! [`Pipeline::validate`] nobody reads the raw form again.

/// Byte quantities as Kubernetes writes them.
mod quantity;
/// The resource as it is written.
pub mod spec;
/// The resource after its checks: every default filled in, every quantity a number.
pub mod validated;
/// Whole numbers: what is allowed, in words.
mod whole;

pub use quantity::{Quantity, QuantityError};
pub use spec::Pipeline;
pub use validated::{FieldError, ValidatedPipeline};

/// What a worker's program needs beside its budgets, in bytes: code, tables, queues, connections. The product's promise is resident memory of
/// at most the budgets and 300 MB; a worker whose memory limit is below refuses to start.
pub const PROGRAM_BYTES: u64 = 300_000_000;

#[cfg(test)]
mod tests;
