//! What a trainer must know of the model's processor to rebuild its tensors: part of `/v1/plan`, beside
//! the digest that already covers it.

use serde::{Deserialize, Serialize};

/// Numbers and token ids of one model's processor.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelFacts {
    /// Side of a patch in pixels.
    pub patch: u32,
    /// Patches per side that are merged into one token.
    pub merge: u32,
    /// Frames per patch; a still image fills all of them with the same pixels.
    pub temporal: u32,
    /// Mean per channel, of values 0..1.
    pub mean: [f32; 3],
    /// Standard deviation per channel, of values 0..1.
    pub std: [f32; 3],
    /// Fills rows up.
    pub pad_id: i32,
    /// Stands for a merged patch.
    pub image_pad_id: i32,
    /// Before an image.
    pub vision_start_id: i32,
    /// After an image.
    pub vision_end_id: i32,
}

/// Facts that no tensors can be made from.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the processor's {field} is out of bounds")]
pub struct ModelFactsError {
    /// Which of them.
    pub field: &'static str,
}

/// Larger sides and more frames are no processor's, and products stay small.
const MAX_SIDE: u32 = 256;

impl ModelFacts {
    /// Bytes of one patch on the wire: three channels, one temporal slot.
    #[must_use]
    pub fn patch_bytes(&self) -> usize {
        3 * (self.patch as usize).pow(2)
    }

    /// Values of one patch as the model takes it: all temporal slots.
    #[must_use]
    pub fn patch_values(&self) -> usize {
        self.patch_bytes() * self.temporal as usize
    }

    /// Checks facts that came from outside.
    ///
    /// # Errors
    /// Sides of 0 or absurd ones, statistics that are no positive finite numbers, negative ids.
    pub fn check(&self) -> Result<(), ModelFactsError> {
        let wrong = |field| Err(ModelFactsError { field });
        for (field, side) in [("patch", self.patch), ("merge", self.merge), ("temporal", self.temporal)] {
            if side == 0 || side > MAX_SIDE {
                return wrong(field);
            }
        }
        if self.mean.iter().any(|mean| !mean.is_finite()) {
            return wrong("mean");
        }
        if self.std.iter().any(|std| !std.is_finite() || *std <= 0.0) {
            return wrong("std");
        }
        for (field, id) in [
            ("pad_id", self.pad_id),
            ("image_pad_id", self.image_pad_id),
            ("vision_start_id", self.vision_start_id),
            ("vision_end_id", self.vision_end_id),
        ] {
            if id < 0 {
                return wrong(field);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_from_outside_are_checked() {
        let good = ModelFacts {
            patch: 16,
            merge: 2,
            temporal: 2,
            mean: [0.5; 3],
            std: [0.5; 3],
            pad_id: 1,
            image_pad_id: 2,
            vision_start_id: 3,
            vision_end_id: 4,
        };
        assert_eq!(good.check(), Ok(()));
        let cases = [
            (ModelFacts { patch: 0, ..good }, "patch"),
            (ModelFacts { merge: 257, ..good }, "merge"),
            (ModelFacts { temporal: 0, ..good }, "temporal"),
            (ModelFacts { mean: [0.5, f32::NAN, 0.5], ..good }, "mean"),
            (ModelFacts { std: [0.5, 0.0, 0.5], ..good }, "std"),
            (ModelFacts { image_pad_id: -1, ..good }, "image_pad_id"),
        ];
        for (facts, field) in cases {
            assert_eq!(facts.check(), Err(ModelFactsError { field }));
        }
    }

    #[test]
    fn statistics_keep_every_bit_through_json() {
        let mean = [0.481_454_66, 0.457_827_5, 0.408_210_73];
        let json = serde_json::to_string(&mean).unwrap();
        assert_eq!(serde_json::from_str::<[f32; 3]>(&json).unwrap(), mean);
    }
}
