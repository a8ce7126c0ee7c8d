//! Takes the decompressed bytes in blocks, gives the manifest's digest.

use sha2::{Digest as _, Sha256};

/// The manifest digest is a tree of two levels over the decompressed bytes, BOM included:
///
/// 1. The bytes are cut into blocks of 4 MiB = 4,194,304 bytes; the last one may be shorter; no bytes, no block.
/// 2. A leaf is the SHA-256 of one block, 32 bytes.
/// 3. The digest is the SHA-256 of: the 27 bytes `feedmill manifest digest 1\n`, the total length as u64 little-endian, then all
///    leaves in order.
///
/// In Python: `sha256(b"feedmill manifest digest 1\n" + len(data).to_bytes(8, "little") + b"".join(sha256(data[i:i+4194304]).digest()
/// for i in range(0, len(data), 4194304)))`.
pub const BLOCK_BYTES: usize = 4 << 20;

const TAG: &[u8; 27] = b"feedmill manifest digest 1\n";

/// Builds the digest from blocks in order; every block but the last must have [`BLOCK_BYTES`].
#[derive(Debug, Default)]
pub(super) struct TreeDigest {
    length: u64,
    leaves: Vec<u8>,
}

impl TreeDigest {
    pub(super) fn add_block(&mut self, block: &[u8]) {
        debug_assert!(!block.is_empty() && block.len() <= BLOCK_BYTES);
        debug_assert!(self.length.is_multiple_of(BLOCK_BYTES as u64), "only the last block may be short");
        self.length += block.len() as u64;
        self.leaves.extend_from_slice(&Sha256::digest(block));
    }

    pub(super) fn finish(self) -> [u8; 32] {
        let mut root = Sha256::new();
        root.update(TAG);
        root.update(self.length.to_le_bytes());
        root.update(&self.leaves);
        root.finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(data: &[u8]) -> String {
        let mut tree = TreeDigest::default();
        data.chunks(BLOCK_BYTES).for_each(|block| tree.add_block(block));
        tree.finish().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Values from Python's hashlib with the expression in the doc of [`BLOCK_BYTES`].
    #[test]
    fn equals_the_documented_expression() {
        assert_eq!(hex(b""), EMPTY);
        assert_eq!(hex(b"{}\n"), SHORT);
        let long: Vec<u8> = (0..2 * BLOCK_BYTES + 1).map(|i| (i % 251) as u8).collect();
        assert_eq!(hex(&long[..2 * BLOCK_BYTES]), TWO_BLOCKS);
        assert_eq!(hex(&long), TWO_BLOCKS_AND_ONE_BYTE);
    }

    const EMPTY: &str = "159a03933354fe9a1762d664487c6df2b43f099e169aa223c32e11c6e6fbf70b";
    const SHORT: &str = "2bcb170e2da7df7e0beb9123cceef6c0c454fee9edb3fc8ced2c15ff10399b07";
    const TWO_BLOCKS: &str = "cc8cc769cd2d2444d7328c1ec9c52512ef07d8e1189663964b124d9cb2987803";
    const TWO_BLOCKS_AND_ONE_BYTE: &str = "8deb9a8d9020318d730fbd40523d4b27c06ac71896f6aab76928c6e5bbef2dcd";
}
