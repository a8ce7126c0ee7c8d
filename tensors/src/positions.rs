//! Takes a row's tokens and grids, gives each token's place in time, height and width.
//!
//! Text advances all three together. An image of (h, w) merged patches takes time = here, height = here +
//! i, width = here + j, row by row; what follows goes on at here + max(h, w). That is `get_rope_index` of
//! Qwen2-VL to Qwen3-VL for still images.

use crate::rows::Row;

/// i64 [3][T]: time, height and width of each token of a row; `merge` patches a side are one token.
#[must_use]
pub fn positions(row: &Row<'_>, image_pad_id: i32, merge: i64) -> [Vec<i64>; 3] {
    let mut places: [Vec<i64>; 3] = std::array::from_fn(|_| Vec::with_capacity(row.tokens.len()));
    let mut grids = row.grids.iter();
    let mut here = 0i64;
    let mut at = 0;
    while let Some(token) = row.tokens.get(at) {
        let grid = if *token == image_pad_id { grids.next() } else { None };
        let Some([_, height, width]) = grid else {
            places.iter_mut().for_each(|axis| axis.push(here));
            here += 1;
            at += 1;
            continue;
        };
        let (height, width) = (i64::from(*height) / merge, i64::from(*width) / merge);
        for i in 0..height {
            for j in 0..width {
                for (axis, offset) in places.iter_mut().zip([0, i, j]) {
                    axis.push(here + offset);
                }
            }
        }
        here += height.max(width);
        at += (height * width) as usize;
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_spans_its_sides_and_text_goes_on_behind_the_longer_one() {
        let row = Row { tokens: &[7, 9, 9, 9, 9, 9, 9, 7, 7], loss_mask: &[0; 9], grids: &[[1, 4, 6]] };
        let [time, height, width] = positions(&row, 9, 2);
        assert_eq!(time, [0, 1, 1, 1, 1, 1, 1, 4, 5]);
        assert_eq!(height, [0, 1, 1, 1, 2, 2, 2, 4, 5]);
        assert_eq!(width, [0, 1, 2, 3, 1, 2, 3, 4, 5]);
    }
}
