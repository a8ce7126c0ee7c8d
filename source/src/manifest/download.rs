//! Takes an object in a store, gives its bytes in order, piece by piece.

use futures_util::{StreamExt as _, stream};
use tokio::sync::mpsc::Sender;

use super::input::Piece;
use crate::stores::{ObjectVersion, Stores};
use crate::uri::ObjectUri;

/// A manifest in S3 comes in pieces of this size, each with its own deadline and retries, so a broken connection costs one piece.
const PIECE_BYTES: u64 = 8 << 20;

/// Pieces asked for at once: one connection to S3 gives 50 to 100 MB/s.
const PIECES_AHEAD: usize = 4;

/// Sends the object piece by piece, in order, until the end, a failure, or nobody listens.
pub(super) async fn download(
    stores: &Stores,
    uri: &ObjectUri,
    version: ObjectVersion,
    sender: Sender<Piece>,
) {
    let starts = (0..version.size.div_ceil(PIECE_BYTES)).map(|piece| piece * PIECE_BYTES);
    let mut pieces = stream::iter(starts)
        .map(|start| stores.get_range(uri, start..version.size.min(start + PIECE_BYTES), &version))
        .buffered(PIECES_AHEAD);
    while let Some(piece) = pieces.next().await {
        let failed = piece.is_err();
        let piece = piece.map_or_else(Piece::Failed, Piece::Bytes);
        if sender.send(piece).await.is_err() || failed {
            return;
        }
    }
    // A listener that has failed is gone already; nothing is lost then.
    let _ = sender.send(Piece::End).await;
}
