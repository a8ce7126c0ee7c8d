//! Takes a finished sample, gives one of its pictures as PNG: put together again from the patches that are served.

use feedmill_protocol::http::{Problem, problem_kind};
use feedmill_vision::{Geometry, Grid, RgbImage, Scratch, patches_to_rgb};

use super::answer::not_found;
use crate::cpu_pool::CpuPool;
use crate::engine::sample::LeasedSample;
use feedmill_arena::Urgency;

/// The picture with the 0-based number `number`, made on the pool.
///
/// # Errors
/// The sample has no such picture.
pub(crate) async fn png(
    sample: LeasedSample,
    number: usize,
    geometry: Geometry,
    pool: &CpuPool,
) -> Result<Vec<u8>, Problem> {
    let (begin, grid) = place(&sample, number, &geometry).ok_or_else(|| {
        not_found(format!("the sample has {} pictures, the first is number 0", sample.meta.shape.images))
    })?;
    let make = move |_: &mut Scratch| {
        let end = begin.saturating_add(grid.patch_bytes(&geometry));
        let patches = sample.patches().get(begin..end)?;
        encode(&patches_to_rgb(patches, &grid, &geometry)).ok()
    };
    let made = pool.run(&Urgency::new(0), make).await.ok().flatten();
    made.ok_or_else(|| {
        let detail = format!("picture {number} could not be put together again");
        Problem::new(problem_kind::INTERNAL, 500, "the worker failed", detail)
    })
}

/// Where the patches of a picture begin, and its grid.
fn place(sample: &LeasedSample, number: usize, geometry: &Geometry) -> Option<(usize, Grid)> {
    let mut begin = 0usize;
    for (index, sides) in sample.grids().chunks_exact(12).enumerate() {
        let side = |at: usize| {
            let bytes: [u8; 4] = sides.get(at..at + 4)?.try_into().ok()?;
            u32::try_from(i32::from_le_bytes(bytes)).ok()
        };
        let grid = Grid { t: side(0)?, h: side(4)?, w: side(8)? };
        if index == number {
            return Some((begin, grid));
        }
        begin = begin.checked_add(grid.patch_bytes(geometry))?;
    }
    None
}

/// RGB as PNG without any word on colours, which readers take for sRGB: what they show are the bytes. Weakly compressed:
/// it is looked at once, and a person waits.
fn encode(picture: &RgbImage) -> Result<Vec<u8>, png::EncodingError> {
    let mut out = Vec::new();
    let mut encoder = png::Encoder::new(&mut out, picture.width, picture.height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_compression(png::Compression::Fast);
    encoder.write_header()?.write_image_data(&picture.pixels)?;
    Ok(out)
}
