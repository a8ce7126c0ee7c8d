//! Takes rows, gives them one after another in one long row, with where each begins.

use crate::IGNORED;
use crate::padded::{label, rounded};
use crate::positions::positions;
use crate::rows::{Rows, TensorError};

/// To what lengths are rounded up; 1 = not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedSettings {
    /// The whole row's length. What is missing is added to the last segment.
    pub pad_to_multiple_of: usize,
    /// Every segment's length: context parallelism wants 2 × its size, sequence parallelism its size.
    pub per_segment_multiple: usize,
}

impl Default for PackedSettings {
    fn default() -> Self {
        Self { pad_to_multiple_of: 1, per_segment_multiple: 1 }
    }
}

/// Tensors of one row of T columns, in which S rows of the batch are segments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packed {
    /// T, padding included.
    pub length: usize,
    /// i64 [T]: tokens; the pad token behind each segment that is rounded up.
    pub input_ids: Vec<i64>,
    /// i64 [T]: the token where it is learnt, else -100; never at the first token of a segment, which nothing
    /// predicts. Not shifted.
    pub labels: Vec<i64>,
    /// i64 [T]: `labels` moved one to the left, as Megatron takes them: what the token at this place predicts.
    pub shifted_labels: Vec<i64>,
    /// i64 [T]: 1 on image placeholders, else 0.
    pub mm_token_type_ids: Vec<i64>,
    /// i64 [4, T]: place in the segment's text, then time, height, width. Every segment begins at 0.
    pub position_ids: Vec<i64>,
    /// i32 [S+1]: ends of the segments as if nothing were padded.
    pub cu_seqlens: Vec<i32>,
    /// i32 [S+1]: where the segments really begin and end in the row.
    pub cu_seqlens_padded: Vec<i32>,
    /// The longest segment, padding included.
    pub max_seqlen: usize,
}

impl Packed {
    /// Lays all rows one after another.
    ///
    /// # Errors
    /// A multiple of 0 or an absurd one.
    pub fn new(rows: &Rows<'_>, settings: PackedSettings) -> Result<Self, TensorError> {
        let PackedSettings { pad_to_multiple_of, per_segment_multiple } = settings;
        let lengths: Vec<usize> = rows.iter().map(|row| row.tokens.len()).collect();
        let mut padded = Vec::with_capacity(lengths.len());
        for length in &lengths {
            padded.push(rounded(*length, per_segment_multiple, "per_segment_multiple")?);
        }
        let sum = padded.iter().sum();
        let length = rounded(sum, pad_to_multiple_of, "pad_to_multiple_of")?;
        if let Some(last) = padded.last_mut() {
            *last += length - sum;
        }
        let mut made = Self {
            length,
            cu_seqlens: ends(&lengths),
            cu_seqlens_padded: ends(&padded),
            max_seqlen: padded.iter().copied().max().unwrap_or(0),
            ..Self::default()
        };
        let mut axes: [Vec<i64>; 4] = std::array::from_fn(|_| Vec::with_capacity(length));
        for (row, width) in rows.iter().zip(&padded) {
            let end = made.input_ids.len() + width;
            made.input_ids.extend(row.tokens.iter().map(|token| i64::from(*token)));
            made.input_ids.resize(end, i64::from(rows.pad_id));
            let learnt = row.tokens.iter().zip(row.loss_mask).skip(1);
            made.labels.extend(row.tokens.first().map(|_| IGNORED));
            made.labels.extend(learnt.map(|(token, mask)| label(*token, *mask)));
            made.labels.resize(end, IGNORED);
            made.mm_token_type_ids.extend(row.tokens.iter().map(|t| i64::from(*t == rows.image_pad_id)));
            made.mm_token_type_ids.resize(end, 0);
            axes[0].extend(0..*width as i64);
            let places = positions(&row, rows.image_pad_id, rows.merge());
            for (axis, places) in axes[1..].iter_mut().zip(places) {
                // Padding goes on as text would: a place of 0 would look like another segment's begin.
                let next = places.last().map_or(0, |last| last + 1);
                let missing = (width - places.len()) as i64;
                axis.extend(places);
                axis.extend(next..next + missing);
            }
        }
        made.shifted_labels = made.labels.iter().skip(1).copied().chain([IGNORED]).take(length).collect();
        made.position_ids = axes.concat();
        Ok(made)
    }
}

/// 0 and the running sums.
fn ends(lengths: &[usize]) -> Vec<i32> {
    let sums = lengths.iter().scan(0i32, |sum, length| {
        // A frame with more than 2^31 tokens is refused long before.
        *sum = sum.saturating_add(i32::try_from(*length).unwrap_or(i32::MAX));
        Some(*sum)
    });
    std::iter::once(0).chain(sums).collect()
}
