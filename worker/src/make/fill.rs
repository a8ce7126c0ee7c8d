//! Takes sizes, gives the finished sample in the arena.
//!
//! The place is reserved first, then memory for decoding, then a thread; the pixels go straight into the
//! place they are served from.

use std::collections::HashMap;
use std::sync::Arc;

use feedmill_arena::{ArenaError, RegionWriter, Revoked, Urgency};
use feedmill_protocol::bad::RowStatus;
use feedmill_protocol::hash::{SampleHash, SampleHasher};
use feedmill_vision::{Geometry, Scratch};

use super::size::{SizedSample, picture_fault};
use super::{Attempt, MakeError, SampleMaker};
use crate::engine::SampleKey;
use crate::engine::sample::{Sample, SampleBytes, SampleMeta, SampleShape};
use crate::stream::Stream;
use crate::suspect::FillPatches;

/// How filling on a thread ended.
enum Filled {
    /// The region is complete.
    Done(Box<(RegionWriter, SampleHash, SizedSample)>),
    /// The place was taken for something more urgent before it was begun.
    Revoked(Box<SizedSample>),
}

impl SampleMaker {
    pub(crate) async fn fill(
        &self,
        key: SampleKey,
        stream: &Arc<Stream>,
        sized: SizedSample,
        urgency: &Urgency,
    ) -> Result<(Sample, SizedSample), Attempt> {
        let shape = sized.shape(&stream.processor.geometry);
        let mut sized = sized;
        loop {
            let child = self.child_if_suspected(key, sized.hidden_bytes());
            let decode_bytes = match &child {
                Some(_) => sized.child_bytes(shape),
                None => sized.decode_bytes(u64::MAX),
            };
            let place = self.arena.reserve(shape.region_len(), urgency).await.map_err(too_large)?;
            let permit = self
                .decode
                .acquire(decode_bytes.min(self.decode.capacity()), urgency)
                .await
                .map_err(|error| MakeError::TooLarge { detail: error.to_string() })?;
            let (of, stages, make) = (Arc::clone(stream), Arc::clone(&self.stages), self.sandbox.fill);
            let filled = self
                .pool
                .run(urgency, move |scratch| {
                    let _permit = permit;
                    let mut writer = match place.begin_fill() {
                        Ok(writer) => writer,
                        Err(Revoked) => return Ok(Filled::Revoked(Box::new(sized))),
                    };
                    stages.fill.time(|| match &child {
                        Some(child) => child.pixels(&of, &sized, shape, writer.as_mut_slice()),
                        None => pixels(&of, &sized, shape, writer.as_mut_slice(), scratch, make),
                    })?;
                    let hash = stages.hash.time(|| finish_text(&sized, shape, writer.as_mut_slice()));
                    Ok::<_, Attempt>(Filled::Done(Box::new((writer, hash, sized))))
                })
                .await??;
            match filled {
                Filled::Revoked(again) => sized = *again,
                Filled::Done(done) => {
                    let (writer, hash, sized) = *done;
                    let meta = SampleMeta {
                        sample_index: -1,
                        record_index: sized.read.id.record as i64,
                        dataset_index: sized.read.id.dataset as i32,
                        status: RowStatus::Ok,
                        shape,
                        hash,
                    };
                    let sample = Sample { meta, bytes: SampleBytes::Region(writer.finish()) };
                    return Ok((sample, sized));
                }
            }
        }
    }
}

fn too_large(error: ArenaError) -> MakeError {
    MakeError::TooLarge { detail: format!("{error}; raise cache.sharedMemory") }
}

/// Decodes, resizes and patchifies every picture into its place; a picture that stands twice in one size is
/// copied.
fn pixels(
    stream: &Stream,
    sized: &SizedSample,
    shape: SampleShape,
    region: &mut [u8],
    scratch: &mut Scratch,
    make: FillPatches,
) -> Result<(), Attempt> {
    let processor = &stream.processor;
    let geometry = Geometry { max_pixels: sized.max_pixels, ..processor.geometry };
    let patches = region
        .get_mut(..shape.patches_len())
        .ok_or_else(|| MakeError::Internal("the region is too small".into()))?;
    let mut begin = 0;
    let mut done: HashMap<(usize, (u32, u32)), usize> = HashMap::new();
    for picture in &sized.sized {
        let length = picture.grid.patch_bytes(&geometry);
        let (before, rest) = patches.split_at_mut(begin);
        let place =
            rest.get_mut(..length).ok_or_else(|| MakeError::Internal("the region is too small".into()))?;
        match done.get(&(picture.source, picture.resized)) {
            Some(first) => place.copy_from_slice(&before[*first..first + length]),
            None => make(
                &sized.pictures[picture.source],
                &sized.headers[picture.source],
                picture.resized,
                &geometry,
                &processor.colors,
                scratch,
                place,
            )
            .map_err(|error| picture_fault(&sized.read, picture.source, &error))?,
        }
        done.entry((picture.source, picture.resized)).or_insert(begin);
        begin += length;
    }
    Ok(())
}

/// Writes the text behind the patches and hashes the whole.
fn finish_text(sized: &SizedSample, shape: SampleShape, region: &mut [u8]) -> SampleHash {
    let grids: Vec<[i32; 3]> = sized
        .sized
        .iter()
        .map(|picture| [picture.grid.t as i32, picture.grid.h as i32, picture.grid.w as i32])
        .collect();
    let encoded = &sized.encoded;
    shape.write_text(region, &encoded.tokens, &encoded.loss_mask, &grids);
    let mut hasher = SampleHasher::new(&encoded.tokens, &encoded.loss_mask, &grids);
    hasher.patches(&region[..shape.patches_len()]);
    hasher.finish()
}
