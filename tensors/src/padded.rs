//! Takes rows, gives them side by side, filled up on the right: what transformers' processor returns.

use crate::IGNORED;
use crate::positions::positions;
use crate::rows::{Rows, TensorError};

/// Lengths are rounded up to multiples of at most this; a larger one is a mistake.
pub(crate) const MAX_MULTIPLE: usize = 1 << 20;

/// Tensors of B rows and L columns, row-major.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Padded {
    /// B.
    pub rows: usize,
    /// L: the longest row, rounded up.
    pub length: usize,
    /// i64 [B, L]: tokens, the pad token behind them.
    pub input_ids: Vec<i64>,
    /// i64 [B, L]: 1 on tokens, 0 on padding.
    pub attention_mask: Vec<i64>,
    /// i64 [B, L]: the token where it is learnt, else -100. Not shifted: the model does that.
    pub labels: Vec<i64>,
    /// i64 [B, L]: 1 on image placeholders, else 0.
    pub mm_token_type_ids: Vec<i64>,
    /// i64 [3, B, L]: time, height, width; 0 on padding.
    pub position_ids: Vec<i64>,
}

/// `length`, rounded up to a multiple.
pub(crate) fn rounded(length: usize, multiple: usize, what: &'static str) -> Result<usize, TensorError> {
    if multiple == 0 || multiple > MAX_MULTIPLE {
        return Err(TensorError::Multiple { what, value: multiple });
    }
    Ok(length.div_ceil(multiple) * multiple)
}

impl Padded {
    /// Fills all rows up to the longest, rounded up to a multiple of `pad_to_multiple_of`.
    ///
    /// # Errors
    /// A multiple of 0 or an absurd one.
    pub fn new(rows: &Rows<'_>, pad_to_multiple_of: usize) -> Result<Self, TensorError> {
        let longest = rows.iter().map(|row| row.tokens.len()).max().unwrap_or(0);
        let length = rounded(longest, pad_to_multiple_of, "pad_to_multiple_of")?;
        let count = rows.count();
        let cells = count * length;
        let mut made = Self {
            rows: count,
            length,
            input_ids: Vec::with_capacity(cells),
            attention_mask: Vec::with_capacity(cells),
            labels: Vec::with_capacity(cells),
            mm_token_type_ids: Vec::with_capacity(cells),
            position_ids: vec![0; 3 * cells],
        };
        for (index, row) in rows.iter().enumerate() {
            let end = (index + 1) * length;
            made.input_ids.extend(row.tokens.iter().map(|token| i64::from(*token)));
            made.input_ids.resize(end, i64::from(rows.pad_id));
            made.attention_mask.resize(index * length + row.tokens.len(), 1);
            made.attention_mask.resize(end, 0);
            made.labels.extend(row.tokens.iter().zip(row.loss_mask).map(|(t, mask)| label(*t, *mask)));
            made.labels.resize(end, IGNORED);
            let types = row.tokens.iter().map(|token| i64::from(*token == rows.image_pad_id));
            made.mm_token_type_ids.extend(types);
            made.mm_token_type_ids.resize(end, 0);
            let places = positions(&row, rows.image_pad_id, rows.merge());
            for (axis, places) in made.position_ids.chunks_exact_mut(cells.max(1)).zip(&places) {
                axis.iter_mut().skip(index * length).zip(places).for_each(|(cell, place)| *cell = *place);
            }
        }
        Ok(made)
    }
}

/// The label of a token that is learnt, or not.
pub(crate) fn label(token: i32, mask: u8) -> i64 {
    if mask == 1 { i64::from(token) } else { IGNORED }
}
