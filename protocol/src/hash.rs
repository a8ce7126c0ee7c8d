//! One hash per sample and the chain over them.
//!
//! XXH3-128, seed 0, canonical (big-endian) bytes, over: u32le token count, tokens i32le, mask u8,
//! u32le image count, grids i32le (t, h, w each), patches u8. Independent of the frame's version and
//! of how samples were batched, so two runs compare by chaining hashes in position order.

use twox_hash::XxHash3_128;

/// XXH3-128 of one sample, canonical byte order.
pub type SampleHash = [u8; 16];

/// Hashes one sample while it is filled: text first, then the patches as they come.
pub struct SampleHasher(XxHash3_128);

impl SampleHasher {
    /// Takes what is known before a pixel is decoded: `tokens` i32 [T], `loss_mask` u8 [T], `grids`
    /// i32 [n, 3].
    #[must_use]
    pub fn new(tokens: &[i32], loss_mask: &[u8], grids: &[[i32; 3]]) -> Self {
        let mut inner = XxHash3_128::with_seed(0);
        inner.write(&(tokens.len() as u32).to_le_bytes());
        let mut bytes = Vec::with_capacity(tokens.len() * 4);
        bytes.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
        inner.write(&bytes);
        inner.write(loss_mask);
        inner.write(&(grids.len() as u32).to_le_bytes());
        for side in grids.iter().flatten() {
            inner.write(&side.to_le_bytes());
        }
        Self(inner)
    }

    /// The next bytes of the sample's patches, in order.
    pub fn patches(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    /// The hash of everything written.
    #[must_use]
    pub fn finish(self) -> SampleHash {
        self.0.finish_128().to_be_bytes()
    }
}

/// A chain over sample hashes in position order: two runs that saw the same samples at the same
/// positions have the same chain, whatever their batches were.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct HashChain {
    state: SampleHash,
    length: u64,
}

impl HashChain {
    /// The empty chain.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the sample of the next position.
    pub fn push(&mut self, hash: SampleHash) {
        let mut inner = XxHash3_128::with_seed(0);
        inner.write(&self.state);
        inner.write(&hash);
        self.state = inner.finish_128().to_be_bytes();
        self.length += 1;
    }

    /// How many samples are in it.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// 32 hexadecimal digits.
    #[must_use]
    pub fn hex(&self) -> String {
        hex(&self.state)
    }
}

/// Lower-case hexadecimal digits.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The layout is spelt out once more by hand, over the published one-shot hash.
    #[test]
    fn the_hash_is_over_the_written_layout() {
        let mut bytes = Vec::new();
        bytes.extend(3u32.to_le_bytes());
        for token in [7i32, -1, 151_655] {
            bytes.extend(token.to_le_bytes());
        }
        bytes.extend([0u8, 1, 1]);
        bytes.extend(1u32.to_le_bytes());
        for side in [1i32, 2, 4] {
            bytes.extend(side.to_le_bytes());
        }
        bytes.extend([9u8; 64]);
        let expected = XxHash3_128::oneshot(&bytes).to_be_bytes();
        let mut hasher = SampleHasher::new(&[7, -1, 151_655], &[0, 1, 1], &[[1, 2, 4]]);
        hasher.patches(&[9; 40]);
        hasher.patches(&[9; 24]);
        assert_eq!(hasher.finish(), expected);
    }

    #[test]
    fn the_empty_input_has_the_published_value() {
        assert_eq!(hex(&XxHash3_128::oneshot(b"").to_be_bytes()), "99aa06d3014798d86001c324468d497f");
    }

    #[test]
    fn a_chain_knows_order_and_length() {
        let (mut a, mut b) = (HashChain::new(), HashChain::new());
        for (first, second) in [([1; 16], [2; 16]), ([2; 16], [1; 16])] {
            a.push(first);
            b.push(second);
        }
        assert_ne!(a, b);
        assert_eq!(a.length(), 2);
        assert_ne!(a.hex(), HashChain::new().hex());
    }
}
