//! The batch frame: a safetensors file in a fixed order.
//!
//! ```text
//! 8 bytes  u64le      length H of the header, such that 8 + H is a multiple of 4096
//! H bytes  JSON       {"__metadata__":{..},"patches":{"dtype":"U8","shape":[..],"data_offsets":[..]},..}, spaces
//! data                patches first (so 4096-aligned), then 8-, 4- and 1-byte tensors, no gaps
//! ```
//!
//! Any safetensors reader reads it. The order is ours: patches first, so that they can be served by
//! reference and lie page-aligned in the reader's buffer. Readers ignore tensors they don't know.

/// The compact ragged batch: its tensors, and checks that hold between them.
mod batch;
/// Writing: names, dtypes and shapes give the header's bytes.
mod header;
/// Reading: a checked, borrowed view.
mod view;

pub use batch::{BatchShape, BatchView, COMPACT_TENSORS, FORMAT_VERSION, SampleView};
pub use header::{DType, HEADER_ALIGNMENT, TensorSpec, write_header};
pub use view::{FrameError, FrameView, TensorView};

#[cfg(test)]
mod tests;
