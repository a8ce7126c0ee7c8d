//! Leased samples become a compact frame, patches by reference.
//!
//! The answer is a header, one chunk of patches for each sample, straight from shared memory, and one
//! gathered buffer of everything small.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use feedmill_protocol::bad::RowStatus;
use feedmill_protocol::frame::{BatchShape, FORMAT_VERSION, TensorSpec, write_header};
use feedmill_protocol::hash::SampleHash;
use feedmill_protocol::plan::PlanDigest;
use feedmill_protocol::position::Range;
use http_body::{Body, Frame, SizeHint};

use crate::engine::sample::LeasedSample;

/// What holds a sample's patches in place while they are sent, and whatever must live as long.
struct PatchOwner<K> {
    sample: LeasedSample,
    _keep: K,
}

impl<K> AsRef<[u8]> for PatchOwner<K> {
    fn as_ref(&self) -> &[u8] {
        self.sample.patches()
    }
}

/// The chunks of a compact frame, in order. `keep` lives until every chunk of patches is gone.
pub(crate) fn chunks<K: Clone + Send + Sync + 'static>(
    samples: &[LeasedSample],
    patch_bytes: usize,
    plan: PlanDigest,
    range: Range,
    tensors: Option<&[&'static str]>,
    keep: &K,
) -> VecDeque<Bytes> {
    let sum = |part: fn(&LeasedSample) -> usize| samples.iter().map(part).sum::<usize>();
    let shape = BatchShape {
        samples: samples.len(),
        tokens: sum(|sample| sample.meta.shape.tokens),
        images: sum(|sample| sample.meta.shape.images),
        patches: sum(|sample| sample.meta.shape.patches),
        patch_bytes,
    };
    let wanted = |spec: &TensorSpec| tensors.is_none_or(|names| names.contains(&spec.name));
    let specs: Vec<TensorSpec> = shape.tensors().into_iter().filter(wanted).collect();
    let metadata = [("format", FORMAT_VERSION), ("plan", &plan.to_string()), ("range", &range.to_string())];
    let mut chunks = VecDeque::with_capacity(samples.len() + 2);
    chunks.push_back(Bytes::from(write_header(&specs, &metadata)));
    let mut small = Vec::with_capacity(specs.iter().skip(1).map(TensorSpec::bytes).sum());
    for spec in &specs {
        if spec.name == "patches" {
            let with_patches = samples.iter().filter(|sample| sample.meta.shape.patches > 0);
            chunks.extend(
                with_patches.map(|sample| {
                    Bytes::from_owner(PatchOwner { sample: sample.clone(), _keep: keep.clone() })
                }),
            );
        } else {
            gather(spec.name, samples, &mut small);
        }
    }
    if !small.is_empty() {
        chunks.push_back(Bytes::from(small));
    }
    chunks
}

/// Appends one of the small tensors.
fn gather(name: &str, samples: &[LeasedSample], out: &mut Vec<u8>) {
    let mut total = 0i32;
    if name == "cu_seqlens" {
        out.extend(total.to_le_bytes());
    }
    for sample in samples {
        let meta = &sample.meta;
        match name {
            "sample_index" => out.extend(meta.sample_index.to_le_bytes()),
            "record_index" => out.extend(meta.record_index.to_le_bytes()),
            "dataset_index" => out.extend(meta.dataset_index.to_le_bytes()),
            "image_grid_thw" => out.extend(sample.grids()),
            "tokens" => out.extend(sample.tokens()),
            "loss_mask" => out.extend(sample.loss_mask()),
            "images_per_sample" => out.extend((meta.shape.images as i32).to_le_bytes()),
            "cu_seqlens" => {
                total += meta.shape.tokens as i32;
                out.extend(total.to_le_bytes());
            }
            "status" => out.push(meta.status.to_byte()),
            "sample_hash" => out.extend(meta.hash),
            _ => {}
        }
    }
}

/// A body of whole chunks, each sent as it is.
pub(super) struct ChunkBody {
    chunks: VecDeque<Bytes>,
    left: u64,
}

impl ChunkBody {
    pub(super) fn new(chunks: VecDeque<Bytes>) -> Self {
        let left = chunks.iter().map(|chunk| chunk.len() as u64).sum();
        Self { chunks, left }
    }

    /// Bytes of all chunks.
    pub(super) fn len(&self) -> u64 {
        self.left
    }
}

impl Body for ChunkBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let chunk = self.chunks.pop_front();
        self.left -= chunk.as_ref().map_or(0, Bytes::len) as u64;
        Poll::Ready(chunk.map(|chunk| Ok(Frame::data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        self.chunks.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// A strong tag: the same samples in the same layout have the same bytes.
pub(super) fn etag(samples: &[LeasedSample], layout: &str, range: Range, stop: Option<u64>) -> String {
    tag(samples.iter().map(|sample| (sample.meta.hash, sample.meta.status)), layout, range, stop)
}

/// The same of hashes and states.
pub(crate) fn tag(
    rows: impl Iterator<Item = (SampleHash, RowStatus)>,
    layout: &str,
    range: Range,
    stop: Option<u64>,
) -> String {
    let mut hasher = twox_hash::XxHash3_128::with_seed(0);
    for (hash, status) in rows {
        hasher.write(&hash);
        hasher.write(&[status.to_byte()]);
    }
    hasher.write(format!("{layout} {range} {stop:?}").as_bytes());
    format!("\"{:032x}\"", hasher.finish_128())
}

/// Something that lives as long as a response's bytes.
pub(super) type Keep = Arc<super::connection::LeaseTicket>;
