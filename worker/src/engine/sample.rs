//! A finished sample: what is known of it, and where its bytes lie.
//!
//! Its region in the arena holds `patches | tokens i32 | grids i32 [n,3] | loss mask u8`, so that one
//! reservation holds all of it and patches are sent from where they were made.

use std::sync::Arc;

use feedmill_arena::{Region, RegionLease};
use feedmill_protocol::bad::RowStatus;
use feedmill_protocol::hash::{SampleHash, SampleHasher};

/// Sizes of the parts of a sample, fixed before a pixel is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleShape {
    /// Tokens, placeholders expanded.
    pub tokens: usize,
    /// Images.
    pub images: usize,
    /// Patches of all images.
    pub patches: usize,
    /// Bytes of one patch: channels * p * p.
    pub patch_bytes: usize,
}

impl SampleShape {
    /// Bytes of all patches.
    #[must_use]
    pub fn patches_len(&self) -> usize {
        self.patches * self.patch_bytes
    }

    /// Bytes of the whole region.
    #[must_use]
    pub fn region_len(&self) -> usize {
        self.patches_len() + self.tokens * 5 + self.images * 12
    }

    fn tokens_at(&self) -> std::ops::Range<usize> {
        let begin = self.patches_len();
        begin..begin + self.tokens * 4
    }

    fn grids_at(&self) -> std::ops::Range<usize> {
        let begin = self.tokens_at().end;
        begin..begin + self.images * 12
    }

    fn mask_at(&self) -> std::ops::Range<usize> {
        let begin = self.grids_at().end;
        begin..begin + self.tokens
    }

    /// Writes the text and the grids behind the patches.
    ///
    /// # Panics
    /// When the slices don't have the shape's sizes; they are made together with it.
    pub fn write_text(&self, region: &mut [u8], tokens: &[i32], mask: &[u8], grids: &[[i32; 3]]) {
        for (slot, token) in region[self.tokens_at()].chunks_exact_mut(4).zip(tokens) {
            slot.copy_from_slice(&token.to_le_bytes());
        }
        for (slot, side) in region[self.grids_at()].chunks_exact_mut(4).zip(grids.iter().flatten()) {
            slot.copy_from_slice(&side.to_le_bytes());
        }
        region[self.mask_at()].copy_from_slice(mask);
    }
}

/// What is known of a sample besides its bytes; one row of the small tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleMeta {
    /// Epoch-space index that the order assigned; -1 for filler.
    pub sample_index: i64,
    /// Record really used; -1 for filler and stubs.
    pub record_index: i64,
    /// Data set of the record; -1 for filler and stubs.
    pub dataset_index: i32,
    /// What the row is.
    pub status: RowStatus,
    /// Sizes of its parts.
    pub shape: SampleShape,
    /// Its hash.
    pub hash: SampleHash,
}

/// Where the bytes of a sample lie.
#[derive(Debug)]
pub enum SampleBytes {
    /// In the arena; may be evicted.
    Region(Region),
    /// On the heap: the few bytes of a stub.
    Stub(Arc<[u8]>),
}

/// A finished sample.
#[derive(Debug)]
pub struct Sample {
    /// What is known of it.
    pub meta: SampleMeta,
    /// Its bytes.
    pub bytes: SampleBytes,
}

impl Sample {
    /// The fixed row without loss: one token, no image.
    #[must_use]
    pub fn stub(token: i32, patch_bytes: usize, sample_index: i64, status: RowStatus) -> Self {
        let shape = SampleShape { tokens: 1, images: 0, patches: 0, patch_bytes };
        let mut bytes = vec![0; shape.region_len()];
        shape.write_text(&mut bytes, &[token], &[0], &[]);
        let hash = SampleHasher::new(&[token], &[0], &[]).finish();
        let meta = SampleMeta { sample_index, record_index: -1, dataset_index: -1, status, shape, hash };
        Self { meta, bytes: SampleBytes::Stub(bytes.into()) }
    }

    /// Holds the bytes in place; None when they were evicted.
    #[must_use]
    pub fn lease(&self) -> Option<LeasedSample> {
        let bytes = match &self.bytes {
            SampleBytes::Region(region) => LeasedBytes::Region(Arc::new(region.lease()?)),
            SampleBytes::Stub(bytes) => LeasedBytes::Stub(Arc::clone(bytes)),
        };
        Some(LeasedSample { meta: self.meta, bytes })
    }
}

#[derive(Clone, Debug)]
enum LeasedBytes {
    Region(Arc<RegionLease>),
    Stub(Arc<[u8]>),
}

/// A sample whose bytes stay in place while this lives.
#[derive(Clone, Debug)]
pub struct LeasedSample {
    /// What is known of it.
    pub meta: SampleMeta,
    bytes: LeasedBytes,
}

impl LeasedSample {
    fn all(&self) -> &[u8] {
        match &self.bytes {
            LeasedBytes::Region(lease) => lease,
            LeasedBytes::Stub(bytes) => bytes,
        }
    }

    /// u8 [patches, C*p*p].
    #[must_use]
    pub fn patches(&self) -> &[u8] {
        &self.all()[..self.meta.shape.patches_len()]
    }

    /// i32 [T], little-endian.
    #[must_use]
    pub fn tokens(&self) -> &[u8] {
        &self.all()[self.meta.shape.tokens_at()]
    }

    /// i32 [n, 3], little-endian.
    #[must_use]
    pub fn grids(&self) -> &[u8] {
        &self.all()[self.meta.shape.grids_at()]
    }

    /// u8 [T].
    #[must_use]
    pub fn loss_mask(&self) -> &[u8] {
        &self.all()[self.meta.shape.mask_at()]
    }
}
