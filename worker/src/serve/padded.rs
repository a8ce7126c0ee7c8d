//! Leased samples become the processor's own padded tensors, expanded on the fly.
//!
//! What Hugging Face's processor returns with padding on the right: fp32 pixel values with both temporal
//! slots, int64 ids. Eight times the compact bytes, so nothing of it is stored: pieces are made as the
//! reader takes them.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use feedmill_arena::Urgency;
use feedmill_protocol::frame::{DType, TensorSpec, write_header};
use feedmill_protocol::plan::PlanDigest;
use feedmill_protocol::position::Range;
use feedmill_vision::{Geometry, normalisation_lut};

use crate::cpu_pool::CpuPool;
use crate::engine::sample::LeasedSample;

/// The tensors of this layout in the order of their data.
pub(crate) const PADDED_TENSORS: [&str; 6] =
    ["pixel_values", "image_grid_thw", "input_ids", "attention_mask", "labels", "mm_token_type_ids"];

/// Bytes of pixel values made at once; large enough that frames are full, small enough to be bounded.
const PIECE_BYTES: usize = 1 << 20;

/// A label that carries no loss.
const IGNORED: i64 = -100;

/// What expanding needs of the model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PaddedModel {
    pub(crate) geometry: Geometry,
    pub(crate) pad_id: i32,
    pub(crate) image_pad_id: i32,
}

/// A piece of the body that is not made yet.
enum Piece {
    Ready(Bytes),
    /// Rows of one sample's patches.
    Pixels {
        sample: usize,
        rows: std::ops::Range<usize>,
    },
}

/// The body as pieces, made one after another.
pub(crate) struct Pieces {
    samples: Arc<Vec<LeasedSample>>,
    table: Arc<[[f32; 256]; 3]>,
    patch_pixels: usize,
    temporal: usize,
    pieces: VecDeque<Piece>,
    bytes: u64,
}

impl Pieces {
    pub(crate) fn new(
        samples: Vec<LeasedSample>,
        model: PaddedModel,
        plan: PlanDigest,
        range: Range,
        tensors: Option<&[&'static str]>,
    ) -> Self {
        let patch_pixels = (model.geometry.patch as usize).pow(2);
        let temporal = model.geometry.temporal as usize;
        let sum = |part: fn(&LeasedSample) -> usize| samples.iter().map(part).sum::<usize>();
        let (patches, images) = (sum(|s| s.meta.shape.patches), sum(|s| s.meta.shape.images));
        let longest = samples.iter().map(|s| s.meta.shape.tokens).max().unwrap_or(0);
        let ids = vec![samples.len(), longest];
        let columns = 3 * temporal * patch_pixels;
        let specs: Vec<TensorSpec> = PADDED_TENSORS
            .iter()
            .filter(|name| tensors.is_none_or(|wanted| wanted.contains(name)))
            .map(|name| match *name {
                "pixel_values" => TensorSpec::new(name, DType::F32, [patches, columns]),
                "image_grid_thw" => TensorSpec::new(name, DType::I64, [images, 3]),
                _ => TensorSpec::new(name, DType::I64, ids.clone()),
            })
            .collect();
        let plan = plan.to_string();
        let metadata = [("format", "hf-1"), ("plan", plan.as_str()), ("range", &range.to_string())];
        let header = write_header(&specs, &metadata);
        let bytes = (header.len() + specs.iter().map(TensorSpec::bytes).sum::<usize>()) as u64;
        let mut pieces = VecDeque::from([Piece::Ready(Bytes::from(header))]);
        let mut small = Vec::new();
        for spec in &specs {
            if spec.name == "pixel_values" {
                let step = (PIECE_BYTES / (columns * 4).max(1)).max(1);
                for (sample, leased) in samples.iter().enumerate() {
                    let rows = leased.meta.shape.patches;
                    pieces.extend(
                        (0..rows)
                            .step_by(step)
                            .map(|begin| Piece::Pixels { sample, rows: begin..(begin + step).min(rows) }),
                    );
                }
            } else {
                gather(spec.name, &samples, longest, model, &mut small);
            }
        }
        pieces.push_back(Piece::Ready(Bytes::from(small)));
        Self {
            samples: Arc::new(samples),
            table: Arc::new(normalisation_lut(&model.geometry)),
            patch_pixels,
            temporal,
            pieces,
            bytes,
        }
    }

    /// Bytes of the whole frame.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The next piece, made on the pool; None at the end.
    pub(crate) async fn next(&mut self, pool: &CpuPool, urgency: &Urgency) -> Option<Bytes> {
        let (sample, rows) = match self.pieces.pop_front()? {
            Piece::Ready(bytes) => return Some(bytes),
            Piece::Pixels { sample, rows } => (sample, rows),
        };
        let (samples, table) = (Arc::clone(&self.samples), Arc::clone(&self.table));
        let (patch_pixels, temporal) = (self.patch_pixels, self.temporal);
        let expand = move |_: &mut feedmill_vision::Scratch| {
            let patch = 3 * patch_pixels;
            let patches = &samples[sample].patches()[rows.start * patch..rows.end * patch];
            expand(patches, patch_pixels, temporal, &table)
        };
        pool.run(urgency, expand).await.ok().map(Bytes::from)
    }
}

/// u8 patches [rows, 3*p*p] become f32 [rows, 3*T*p*p], little-endian: column (c*T + t)*p*p + i, every
/// temporal slot the same.
fn expand(patches: &[u8], patch_pixels: usize, temporal: usize, table: &[[f32; 256]; 3]) -> Vec<u8> {
    let mut out = Vec::with_capacity(patches.len() * temporal * 4);
    for channels in patches.chunks_exact(3 * patch_pixels) {
        for (channel, values) in channels.chunks_exact(patch_pixels).zip(table) {
            let begin = out.len();
            for byte in channel {
                out.extend(values[usize::from(*byte)].to_le_bytes());
            }
            let slot = begin..out.len();
            for _ in 1..temporal {
                out.extend_from_within(slot.clone());
            }
        }
    }
    out
}

fn gather(name: &str, samples: &[LeasedSample], longest: usize, model: PaddedModel, out: &mut Vec<u8>) {
    let numbers = |bytes: &[u8]| -> Vec<i64> {
        bytes.chunks_exact(4).map(|b| i64::from(i32::from_le_bytes([b[0], b[1], b[2], b[3]]))).collect()
    };
    for sample in samples {
        if name == "image_grid_thw" {
            out.extend(numbers(sample.grids()).iter().flat_map(|side| side.to_le_bytes()));
            continue;
        }
        let tokens = numbers(sample.tokens());
        let value = |position: usize| -> i64 {
            let Some(token) = tokens.get(position).copied() else {
                return match name {
                    "input_ids" => i64::from(model.pad_id),
                    "labels" => IGNORED,
                    _ => 0,
                };
            };
            match name {
                "input_ids" => token,
                "labels" if sample.loss_mask()[position] == 1 => token,
                "labels" => IGNORED,
                "mm_token_type_ids" => i64::from(token == i64::from(model.image_pad_id)),
                _ => 1,
            }
        };
        out.extend((0..longest).flat_map(|position| value(position).to_le_bytes()));
    }
}
