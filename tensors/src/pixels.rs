//! Takes u8 patches, gives the values that the model sees: `(x - 255*mean) / (255*std)` in f32 by a table of
//! 256 values a channel, every temporal slot the same.

use feedmill_protocol::model::ModelFacts;

use crate::rows::{GRAY, Rows};

/// 255 × mean and 255 × standard deviation per channel, as f32: what normalising on the trainer's device
/// takes. Subtraction first, then division.
#[must_use]
pub fn statistics(model: &ModelFacts) -> ([f32; 3], [f32; 3]) {
    (model.mean.map(|mean| mean * 255.0), model.std.map(|std| std * 255.0))
}

fn table(model: &ModelFacts) -> [[f32; 256]; 3] {
    let (means, stds) = statistics(model);
    let mut table = [[0.0; 256]; 3];
    for ((values, mean), std) in table.iter_mut().zip(means).zip(stds) {
        for (byte, value) in values.iter_mut().enumerate() {
            *value = (byte as f32 - mean) / std;
        }
    }
    table
}

/// f32 [P, 3*T*p*p]: column (c*T + t)*p*p + i; behind the batch's patches those of the extra image, if
/// there is one.
#[must_use]
pub fn pixel_values(patches: &[u8], rows: &Rows<'_>, model: &ModelFacts) -> Vec<f32> {
    let table = table(model);
    let patch_pixels = (model.patch as usize).pow(2);
    let extra = rows.extra_patches();
    let mut values =
        Vec::with_capacity(patches.len() * model.temporal as usize + extra * model.patch_values());
    let mut patch = |bytes: &[u8]| {
        for (channel, table) in bytes.chunks_exact(patch_pixels).zip(&table) {
            let begin = values.len();
            values.extend(channel.iter().map(|byte| table[usize::from(*byte)]));
            let slot = begin..values.len();
            for _ in 1..model.temporal {
                values.extend_from_within(slot.clone());
            }
        }
    };
    patches.chunks_exact(3 * patch_pixels).for_each(&mut patch);
    let gray = vec![GRAY; 3 * patch_pixels];
    for _ in 0..extra {
        patch(&gray);
    }
    values
}

/// u8 [P, 3*p*p]: the patches of the extra image; empty when there is none.
#[must_use]
pub fn extra_patches(rows: &Rows<'_>, model: &ModelFacts) -> Vec<u8> {
    vec![GRAY; rows.extra_patches() * model.patch_bytes()]
}
