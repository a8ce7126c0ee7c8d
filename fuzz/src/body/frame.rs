//! A batch frame from a stranger.

use feedmill_protocol::frame::{BatchView, FrameView};

use crate::memory::peak_of;

/// Parsing takes memory in proportion to the frame, never to what its header claims; what is parsed can be read to
/// the end.
pub(super) fn body(data: &[u8]) -> bool {
    let (peak, parsed) = peak_of(|| (FrameView::parse(data).is_ok(), BatchView::parse(data)));
    let most = 64 * data.len() as u64 + (64 << 10);
    assert!(peak <= most, "parsing {} bytes took {peak}", data.len());
    let (is_frame, batch) = parsed;
    let Ok(batch) = batch else { return false };
    assert!(is_frame, "a batch is a frame");
    let mut tokens = 0;
    for row in batch.samples() {
        assert_eq!(row.tokens.len(), row.loss_mask.len());
        tokens += row.tokens.len();
        let _ = row.computed_hash();
    }
    let all = batch.frame().tensor("tokens").map(|tensor| tensor.i32s().len());
    assert_eq!(all, Some(tokens), "every token belongs to a row");
    true
}
