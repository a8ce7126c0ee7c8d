//! Takes a checked batch, gives its rows as all stages read them.

use feedmill_protocol::frame::{BatchView, SampleView};
use feedmill_protocol::model::ModelFacts;

/// Why a batch gives no tensors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TensorError {
    /// Placeholders and grids do not agree.
    #[error("row {row} has {placeholders} image placeholders where its grids say {expected}")]
    Placeholders {
        /// Which row.
        row: usize,
        /// Placeholders among its tokens.
        placeholders: usize,
        /// What the grids say.
        expected: usize,
    },
    /// A grid that is no multiple of the merge size.
    #[error("row {row} has a grid of {height} x {width} patches, which are not merged {merge} by {merge}")]
    Grid {
        /// Which row.
        row: usize,
        /// Patches from top to bottom.
        height: i32,
        /// Patches from left to right.
        width: i32,
        /// Patches per side of a merged one.
        merge: u32,
    },
    /// Patches of another size than the model's.
    #[error("the batch's patches have {got} bytes where the model's have {expected}")]
    PatchSize {
        /// In the batch.
        got: usize,
        /// What the model's facts say.
        expected: usize,
    },
    /// Lengths that no tensor has.
    #[error("{what} must be at least 1 and not absurd, it is {value}")]
    Multiple {
        /// Which setting.
        what: &'static str,
        /// Its value.
        value: usize,
    },
}

/// One row: what stands at one position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row<'a> {
    /// Token ids, image placeholders expanded.
    pub tokens: &'a [i32],
    /// u8 [T]: 1 where the label is the token.
    pub loss_mask: &'a [u8],
    /// (t, h, w) in patches, one per image.
    pub grids: &'a [[i32; 3]],
}

impl Row<'_> {
    /// Tokens whose prediction is learnt. Nothing predicts the first token of a row.
    #[must_use]
    pub fn supervised(&self) -> usize {
        self.loss_mask.iter().skip(1).filter(|flag| **flag == 1).count()
    }
}

/// The row that is added when a micro batch must have an image: the smallest one there is, all of one gray,
/// nothing learnt. Every rank then runs the vision tower, which collectives over its weights need.
#[derive(Clone, Debug, PartialEq, Eq)]
struct MaskedImage {
    tokens: [i32; 3],
    grid: [[i32; 3]; 1],
}

/// The middle of a byte's values: after normalisation next to 0.
pub(crate) const GRAY: u8 = 128;

/// All rows of a batch.
#[derive(Clone, Debug)]
pub struct Rows<'a> {
    samples: &'a [SampleView<'a>],
    masked_image: Option<MaskedImage>,
    merge: u32,
    pub(crate) image_pad_id: i32,
    pub(crate) pad_id: i32,
}

impl<'a> Rows<'a> {
    /// The rows of a batch; with `ensure_image` one more when none of them has an image.
    ///
    /// # Errors
    /// Placeholders that do not agree with the grids, patches of another size than the model's.
    pub fn new(
        batch: &'a BatchView<'a>,
        model: &ModelFacts,
        ensure_image: bool,
    ) -> Result<Self, TensorError> {
        let samples = batch.samples();
        for (index, sample) in samples.iter().enumerate() {
            check(index, sample, model)?;
        }
        let has_image = samples.iter().any(|sample| !sample.grids.is_empty());
        let side = model.merge as i32;
        let masked_image = (ensure_image && !has_image).then_some(MaskedImage {
            tokens: [model.vision_start_id, model.image_pad_id, model.vision_end_id],
            grid: [[1, side, side]],
        });
        Ok(Self {
            samples,
            masked_image,
            merge: model.merge,
            image_pad_id: model.image_pad_id,
            pad_id: model.pad_id,
        })
    }

    /// How many rows, the extra one included.
    #[must_use]
    pub fn count(&self) -> usize {
        self.samples.len() + usize::from(self.masked_image.is_some())
    }

    /// Whether a masked image was added as the last row.
    #[must_use]
    pub fn has_masked_image(&self) -> bool {
        self.masked_image.is_some()
    }

    /// The rows in order.
    pub fn iter(&self) -> impl Iterator<Item = Row<'_>> {
        let samples = self.samples.iter().map(|sample| Row {
            tokens: &sample.tokens,
            loss_mask: sample.loss_mask,
            grids: &sample.grids,
        });
        samples.chain(self.masked_image.iter().map(|image| Row {
            tokens: &image.tokens,
            loss_mask: &[0; 3],
            grids: &image.grid,
        }))
    }

    /// i64 [n, 3]: the grids of all images, as the processor gives them.
    #[must_use]
    pub fn grids(&self) -> Vec<i64> {
        self.iter().flat_map(|row| row.grids.as_flattened().to_vec()).map(i64::from).collect()
    }

    /// Tokens whose prediction is learnt, in all rows.
    #[must_use]
    pub fn supervised(&self) -> usize {
        self.iter().map(|row| row.supervised()).sum()
    }

    /// Rows of patches that the extra image has.
    #[must_use]
    pub(crate) fn extra_patches(&self) -> usize {
        if self.masked_image.is_some() { (self.merge as usize).pow(2) } else { 0 }
    }

    pub(crate) fn merge(&self) -> i64 {
        i64::from(self.merge)
    }
}

fn check(row: usize, sample: &SampleView<'_>, model: &ModelFacts) -> Result<(), TensorError> {
    let side = model.merge as i32;
    let mut expected = 0usize;
    for [time, height, width] in &sample.grids {
        if height % side != 0 || width % side != 0 {
            return Err(TensorError::Grid { row, height: *height, width: *width, merge: model.merge });
        }
        // The frame was checked: sides are positive and their product is a number of patches that are there.
        expected += (*time as usize) * (height / side) as usize * (width / side) as usize;
    }
    let placeholders = sample.tokens.iter().filter(|token| **token == model.image_pad_id).count();
    if placeholders != expected {
        return Err(TensorError::Placeholders { row, placeholders, expected });
    }
    let patches: usize =
        sample.grids.iter().map(|grid| grid.iter().map(|side| *side as usize).product::<usize>()).sum();
    if patches > 0 && sample.patches.len() / patches != model.patch_bytes() {
        let got = sample.patches.len() / patches;
        return Err(TensorError::PatchSize { got, expected: model.patch_bytes() });
    }
    Ok(())
}
