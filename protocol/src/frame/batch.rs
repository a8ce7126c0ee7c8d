//! The compact ragged batch: its tensors, and checks that hold between them.

use super::header::{DType, TensorSpec};
use super::view::{FrameError, FrameView, TensorView};
use crate::bad::RowStatus;
use crate::hash::{SampleHash, SampleHasher};

/// The version in `__metadata__.format`, raised when a tensor's meaning changes.
pub const FORMAT_VERSION: &str = "feedmill-1";

/// The tensors of the compact layout in the order of their data.
pub const COMPACT_TENSORS: [&str; 11] = [
    "patches",
    "sample_index",
    "record_index",
    "image_grid_thw",
    "tokens",
    "cu_seqlens",
    "images_per_sample",
    "dataset_index",
    "loss_mask",
    "status",
    "sample_hash",
];

/// The sizes that fix every tensor's shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchShape {
    /// Rows B.
    pub samples: usize,
    /// Tokens T of all rows.
    pub tokens: usize,
    /// Images n of all rows.
    pub images: usize,
    /// Patches P of all images.
    pub patches: usize,
    /// Bytes of one patch: channels * p * p.
    pub patch_bytes: usize,
}

impl BatchShape {
    /// Name, dtype and shape of each compact tensor, in the order of their data.
    #[must_use]
    pub fn tensors(&self) -> Vec<TensorSpec> {
        let samples = self.samples;
        vec![
            TensorSpec::new("patches", DType::U8, [self.patches, self.patch_bytes]),
            TensorSpec::new("sample_index", DType::I64, [samples]),
            TensorSpec::new("record_index", DType::I64, [samples]),
            TensorSpec::new("image_grid_thw", DType::I32, [self.images, 3]),
            TensorSpec::new("tokens", DType::I32, [self.tokens]),
            TensorSpec::new("cu_seqlens", DType::I32, [samples + 1]),
            TensorSpec::new("images_per_sample", DType::I32, [samples]),
            TensorSpec::new("dataset_index", DType::I32, [samples]),
            TensorSpec::new("loss_mask", DType::U8, [self.tokens]),
            TensorSpec::new("status", DType::U8, [samples]),
            TensorSpec::new("sample_hash", DType::U8, [samples, 16]),
        ]
    }
}

/// A whole compact batch, checked: every tensor there, every shape right, every count in agreement.
#[derive(Clone, Debug)]
pub struct BatchView<'a> {
    frame: FrameView<'a>,
    samples: Vec<SampleView<'a>>,
}

/// One row of a batch, borrowed.
#[derive(Clone, Debug)]
pub struct SampleView<'a> {
    /// Index in the epoch space that the order assigned; -1 for filler.
    pub sample_index: i64,
    /// Record really used, 0-based over the non-blank lines of its data set; -1 for filler and stubs.
    pub record_index: i64,
    /// Data set the record is from; -1 for filler and stubs.
    pub dataset_index: i32,
    /// What the row is.
    pub status: RowStatus,
    /// Token ids, image placeholders expanded.
    pub tokens: Vec<i32>,
    /// u8 [T]: 1 where the label is the token.
    pub loss_mask: &'a [u8],
    /// (t, h, w) in patches, one per image.
    pub grids: Vec<[i32; 3]>,
    /// u8 [rows, C*p*p] of all its images.
    pub patches: &'a [u8],
    /// The hash that came with it.
    pub hash: SampleHash,
}

impl SampleView<'_> {
    /// The hash of the bytes that are here, to be held against the one that came with them.
    #[must_use]
    pub fn computed_hash(&self) -> SampleHash {
        let mut hasher = SampleHasher::new(&self.tokens, self.loss_mask, &self.grids);
        hasher.patches(self.patches);
        hasher.finish()
    }
}

impl<'a> BatchView<'a> {
    /// Checks a frame as a compact batch.
    ///
    /// # Errors
    /// See [`FrameError`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, FrameError> {
        let frame = FrameView::parse(bytes)?;
        let version = frame.metadata("format").unwrap_or_default();
        if version != FORMAT_VERSION {
            return Err(FrameError::Version(version.into()));
        }
        let need = |name: &'static str, expected: &'static str, dtype: DType, last: &[usize]| {
            typed(&frame, name, expected, dtype, last)
        };
        let status = need("status", "U8 [B]", DType::U8, &[])?;
        let samples = status.shape[0];
        let patches = frame.tensor("patches").ok_or(FrameError::Missing("patches"))?;
        let &[_, patch_bytes] = &patches.shape[..] else {
            return Err(mismatch("patches", "U8 [P, C*p*p]", patches));
        };
        let patches = need("patches", "U8 [P, C*p*p]", DType::U8, &[patch_bytes])?;
        let tokens = need("tokens", "I32 [T]", DType::I32, &[])?;
        let grids = need("image_grid_thw", "I32 [n, 3]", DType::I32, &[3])?;
        let shape = BatchShape {
            samples,
            tokens: tokens.shape[0],
            images: grids.shape[0],
            patches: patches.shape[0],
            patch_bytes,
        };
        for spec in shape.tensors() {
            let tensor = frame.tensor(spec.name).ok_or(FrameError::Missing(spec.name))?;
            if tensor.dtype != spec.dtype || tensor.shape != spec.shape {
                return Err(mismatch(spec.name, "what the other tensors' shapes imply", tensor));
            }
        }
        let samples = Rows { frame: &frame, shape }.split()?;
        Ok(Self { frame, samples })
    }

    /// The rows in order.
    #[must_use]
    pub fn samples(&self) -> &[SampleView<'a>] {
        &self.samples
    }

    /// The plan digest in the frame's metadata.
    #[must_use]
    pub fn plan(&self) -> &str {
        self.frame.metadata("plan").unwrap_or_default()
    }

    /// The range `start-end` in the frame's metadata.
    #[must_use]
    pub fn range(&self) -> &str {
        self.frame.metadata("range").unwrap_or_default()
    }

    /// The frame beneath, for tensors that this view does not name.
    #[must_use]
    pub fn frame(&self) -> &FrameView<'a> {
        &self.frame
    }
}

fn mismatch(name: &'static str, expected: &'static str, tensor: &TensorView<'_>) -> FrameError {
    let got = format!("{} {:?}", tensor.dtype.name(), tensor.shape);
    FrameError::Type { name, expected, got }
}

/// The tensor `name`, of this dtype, with one free first axis and `last` after it.
fn typed<'f, 'a>(
    frame: &'f FrameView<'a>,
    name: &'static str,
    expected: &'static str,
    dtype: DType,
    last: &[usize],
) -> Result<&'f TensorView<'a>, FrameError> {
    let tensor = frame.tensor(name).ok_or(FrameError::Missing(name))?;
    if tensor.dtype != dtype || tensor.shape.get(1..) != Some(last) {
        return Err(mismatch(name, expected, tensor));
    }
    Ok(tensor)
}

/// Cuts the ragged tensors into rows; shapes have been checked.
struct Rows<'f, 'a> {
    frame: &'f FrameView<'a>,
    shape: BatchShape,
}

impl<'a> Rows<'_, 'a> {
    fn tensor(&self, name: &'static str) -> Result<&TensorView<'a>, FrameError> {
        self.frame.tensor(name).ok_or(FrameError::Missing(name))
    }

    fn split(&self) -> Result<Vec<SampleView<'a>>, FrameError> {
        let wrong = |what: &str| FrameError::Inconsistent(what.into());
        let bounds: Vec<i32> = self.tensor("cu_seqlens")?.i32s().collect();
        let image_counts: Vec<i32> = self.tensor("images_per_sample")?.i32s().collect();
        let tokens: Vec<i32> = self.tensor("tokens")?.i32s().collect();
        let sides: Vec<i32> = self.tensor("image_grid_thw")?.i32s().collect();
        let grids: Vec<[i32; 3]> = sides.chunks_exact(3).map(|g| [g[0], g[1], g[2]]).collect();
        let sample_index: Vec<i64> = self.tensor("sample_index")?.i64s().collect();
        let record_index: Vec<i64> = self.tensor("record_index")?.i64s().collect();
        let dataset_index: Vec<i32> = self.tensor("dataset_index")?.i32s().collect();
        let mask = self.tensor("loss_mask")?.data;
        let patches = self.tensor("patches")?.data;
        let status = self.tensor("status")?.data;
        let hashes = self.tensor("sample_hash")?.data;

        if bounds.first() != Some(&0) || bounds.last().copied() != i32::try_from(tokens.len()).ok() {
            return Err(wrong("cu_seqlens does not run from 0 to the number of tokens"));
        }
        let mut rows = Vec::with_capacity(self.shape.samples);
        let (mut image, mut byte) = (0usize, 0usize);
        for row in 0..self.shape.samples {
            let (begin, end) = (bounds[row] as usize, bounds[row + 1] as usize);
            if bounds[row + 1] < bounds[row] || end > tokens.len() {
                return Err(wrong("cu_seqlens is not rising"));
            }
            let count = usize::try_from(image_counts[row]).ok();
            let row_grids = count
                .and_then(|count| grids.get(image..image.checked_add(count)?))
                .ok_or_else(|| wrong("images_per_sample does not add up to the grids"))?;
            image += row_grids.len();
            let row_bytes = patch_rows(row_grids)
                .and_then(|rows| rows.checked_mul(self.shape.patch_bytes))
                .ok_or_else(|| wrong("a grid has a side below 1 or is absurdly large"))?;
            let row_patches = byte
                .checked_add(row_bytes)
                .and_then(|end| patches.get(byte..end))
                .ok_or_else(|| wrong("grids say more patches than there are"))?;
            byte += row_bytes;
            let row_mask = &mask[begin..end];
            if row_mask.iter().any(|flag| *flag > 1) {
                return Err(wrong("loss_mask has a value other than 0 and 1"));
            }
            let mut hash = SampleHash::default();
            hash.copy_from_slice(&hashes[row * 16..row * 16 + 16]);
            rows.push(SampleView {
                sample_index: sample_index[row],
                record_index: record_index[row],
                dataset_index: dataset_index[row],
                status: RowStatus::from_byte(status[row]).map_err(|error| wrong(&error.to_string()))?,
                tokens: tokens[begin..end].to_vec(),
                loss_mask: row_mask,
                grids: row_grids.to_vec(),
                patches: row_patches,
                hash,
            });
        }
        if image != grids.len() || byte != patches.len() {
            return Err(wrong("there are more grids or patches than the rows use"));
        }
        Ok(rows)
    }
}

/// Patches of all grids; None when a side is below 1 or the product overflows.
fn patch_rows(grids: &[[i32; 3]]) -> Option<usize> {
    grids.iter().try_fold(0usize, |sum, grid| {
        let rows = grid.iter().try_fold(1usize, |product, side| {
            usize::try_from(*side).ok().filter(|side| *side > 0).and_then(|s| product.checked_mul(s))
        })?;
        sum.checked_add(rows)
    })
}
