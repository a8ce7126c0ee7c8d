//! Takes a suspected record's pictures, has a child process read their headers and make their patches, and
//! tells what its end means for the record.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use feedmill_arena::Urgency;
use feedmill_vision::Geometry;
use tokio::runtime::Handle;

use super::read::ReadSample;
use super::size::{SizedSample, image_limits};
use super::{Attempt, Fault, MakeError, SampleMaker};
use crate::engine::SampleKey;
use crate::engine::sample::SampleShape;
use crate::stream::Stream;
use crate::suspect::{Ending, Evidence, MOST_HIDDEN_BYTES, Order, PictureOrder, Suspects};

/// Memory of a child that only reads headers, apart from the picture.
const HEADER_BYTES: u64 = 4 << 20;

/// A child for one sample's pictures, and who is told when it dies.
pub(super) struct Child {
    program: PathBuf,
    runtime: Handle,
    suspects: Arc<Suspects>,
    stream_index: usize,
}

impl SampleMaker {
    /// A child for this position, when workers have died under it or a picture hides too much of what it takes.
    pub(super) fn child_if_suspected(&self, key: SampleKey, hidden_bytes: u64) -> Option<Child> {
        if hidden_bytes <= MOST_HIDDEN_BYTES && !self.suspects.is_suspected(key) {
            return None;
        }
        Some(Child {
            program: self.sandbox.program.clone()?,
            runtime: Handle::current(),
            suspects: Arc::clone(&self.suspects),
            stream_index: key.stream,
        })
    }

    /// Has the headers of a suspected record's pictures read in a child first: what survives there is read here.
    pub(super) async fn headers_if_suspected(
        &self,
        key: SampleKey,
        stream: &Arc<Stream>,
        read: ReadSample,
        pictures: &[Bytes],
        urgency: &Urgency,
    ) -> Result<ReadSample, Attempt> {
        let Some(child) = self.child_if_suspected(key, 0).filter(|_| !pictures.is_empty()) else {
            return Ok(read);
        };
        let (of, pictures) = (Arc::clone(stream), pictures.to_vec());
        let memory = child.headers_order(&of, &pictures).memory_bytes();
        let permit = self
            .decode
            .acquire(memory.min(self.decode.capacity()), urgency)
            .await
            .map_err(|error| MakeError::TooLarge { detail: error.to_string() })?;
        self.pool
            .run(urgency, move |_| {
                let _permit = permit;
                let order = child.headers_order(&of, &pictures);
                match child.make(&of, &read, order, |picture| picture) {
                    // Told again, in the words of the usual way, when the header is read here.
                    Ok(()) | Err(Attempt::Bad(_)) => Ok(read),
                    Err(failed) => Err(failed),
                }
            })
            .await?
    }
}

impl Child {
    fn headers_order<'a>(&self, stream: &'a Stream, pictures: &'a [Bytes]) -> Order<'a> {
        Order {
            limits: image_limits(stream),
            geometry: &stream.processor.geometry,
            colors: stream.processor.colors,
            decode_bytes: HEADER_BYTES,
            pixels: 0,
            pictures: pictures
                .iter()
                .map(|bytes| PictureOrder { bytes, resized: None, place: Default::default() })
                .collect(),
        }
    }

    /// Makes every picture of a sample in its place; a picture that stands twice in one size is copied.
    pub(super) fn pixels(
        &self,
        stream: &Stream,
        sized: &SizedSample,
        shape: SampleShape,
        region: &mut [u8],
    ) -> Result<(), Attempt> {
        let too_small = || MakeError::Internal("the region is too small".into());
        let geometry = Geometry { max_pixels: sized.max_pixels, ..stream.processor.geometry };
        let mut rest = region.get_mut(..shape.patches_len()).ok_or_else(too_small)?;
        let mut begin = 0;
        let mut first: HashMap<(usize, (u32, u32)), usize> = HashMap::new();
        let mut copies = Vec::new();
        let mut sources = Vec::new();
        let mut pictures = Vec::new();
        for picture in &sized.sized {
            let length = picture.grid.patch_bytes(&geometry);
            let (place, behind) = rest.split_at_mut_checked(length).ok_or_else(too_small)?;
            rest = behind;
            match first.get(&(picture.source, picture.resized)) {
                Some(from) => copies.push((*from, begin, length)),
                None => {
                    first.insert((picture.source, picture.resized), begin);
                    sources.push(picture.source);
                    let bytes = &sized.pictures[picture.source];
                    pictures.push(PictureOrder { bytes, resized: Some(picture.resized), place });
                }
            }
            begin += length;
        }
        let pixels = |source: &usize| {
            let (width, height) = sized.headers[*source].stored_size();
            u64::from(width) * u64::from(height)
        };
        let order = Order {
            limits: image_limits(stream),
            geometry: &geometry,
            colors: stream.processor.colors,
            decode_bytes: sized.decode_bytes(MOST_HIDDEN_BYTES),
            pixels: sources.iter().map(pixels).sum(),
            pictures,
        };
        self.make(stream, &sized.read, order, |picture| sources.get(picture).copied().unwrap_or(picture))?;
        for (from, to, length) in copies {
            region.copy_within(from..from + length, to);
        }
        Ok(())
    }

    /// Runs the child; `source` gives the record's source of a picture of the order.
    fn make(
        &self,
        stream: &Stream,
        read: &ReadSample,
        order: Order<'_>,
        source: impl Fn(usize) -> usize,
    ) -> Result<(), Attempt> {
        self.suspects.children.fetch_add(1, Ordering::Relaxed);
        match order.run(&self.program, &self.runtime) {
            Ending::Made => Ok(()),
            Ending::Bad { picture, class, detail } => {
                let key = read.key(source(picture));
                Err(Attempt::Bad(Fault { class, line: read.line, key, detail }))
            }
            Ending::Unable(detail) => Err(MakeError::Internal(detail).into()),
            Ending::Lethal { picture, how } => {
                let evidence = Evidence { line: read.line, key: read.key(source(picture)), how };
                let dataset = stream.datasets[read.id.dataset].name.clone();
                tracing::error!(
                    dataset,
                    line = evidence.line,
                    key = evidence.key.as_deref().unwrap_or_default(),
                    how = evidence.how,
                    "a record kills the process that makes it; add the line to the data set's exclude list"
                );
                self.suspects.convict(self.stream_index, read.id, evidence.clone());
                Err(MakeError::Lethal { dataset, evidence }.into())
            }
        }
    }
}
