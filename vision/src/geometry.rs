//! Takes a checkpoint's preprocessor_config.json, gives the numbers that decide sizes, patches and values.

use serde_json::Value;

/// Sizes and statistics of a Qwen-VL image processor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Geometry {
    /// Side of a patch in pixels (16 for Qwen3-VL, 14 before).
    pub patch: u32,
    /// Patches per side that the model merges into one token (2).
    pub merge: u32,
    /// Frames per patch (2); a still image fills all of them with the same pixels.
    pub temporal: u32,
    /// Fewest pixels after the resize.
    pub min_pixels: u64,
    /// Most pixels after the resize.
    pub max_pixels: u64,
    /// Mean per channel, of values 0..1.
    pub mean: [f32; 3],
    /// Standard deviation per channel, of values 0..1.
    pub std: [f32; 3],
}

/// A preprocessor_config.json that this crate cannot follow exactly.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GeometryError {
    /// A field is not there.
    #[error("preprocessor config has no {field}")]
    Missing {
        /// The field.
        field: &'static str,
    },
    /// A field holds something that would make other pixels than this crate makes, or nonsense.
    #[error("preprocessor config field {field} is {value}, supported is {supported}")]
    Unsupported {
        /// The field.
        field: &'static str,
        /// What it holds, as JSON.
        value: String,
        /// What it may hold.
        supported: &'static str,
    },
}

/// Image processors whose pixels are those of this crate.
const PROCESSORS: [&str; 4] = [
    "Qwen2VLImageProcessor",
    "Qwen2VLImageProcessorFast",
    "Qwen2_5_VLImageProcessor",
    "Qwen2_5_VLImageProcessorFast",
];

impl Geometry {
    /// Largest side of a patch and of a merge block, so that products stay small.
    const MAX_SIDE: u64 = 256;
    /// Most pixels after a resize: the resize's row buffers and `i32` places are made for this.
    const MAX_PIXELS: u64 = 1 << 30;

    /// Reads a preprocessor_config.json of Qwen2-VL, Qwen2.5-VL or Qwen3-VL. Pixel limits come from
    /// `size.shortest_edge` / `size.longest_edge` (they are pixel counts there), else `min_pixels` /
    /// `max_pixels`, and must agree when both are given.
    ///
    /// # Errors
    /// Names the field that is missing, or that asks for something else than the one recipe supported:
    /// resize with bicubic filter, rescale by 1/255, normalise, convert to RGB.
    pub fn from_preprocessor_config(config: &Value) -> Result<Self, GeometryError> {
        let field = |name: &'static str| config.get(name).filter(|value| !value.is_null());
        let refuse = |field: &'static str, value: &Value, supported: &'static str| {
            GeometryError::Unsupported { field, value: value.to_string(), supported }
        };

        let processor =
            field("image_processor_type").ok_or(GeometryError::Missing { field: "image_processor_type" })?;
        if !processor.as_str().is_some_and(|name| PROCESSORS.contains(&name)) {
            return Err(refuse(
                "image_processor_type",
                processor,
                "an image processor of Qwen2-VL to Qwen3-VL",
            ));
        }
        for name in ["do_resize", "do_rescale", "do_normalize", "do_convert_rgb"] {
            if let Some(value) = field(name).filter(|value| value.as_bool() != Some(true)) {
                return Err(refuse(name, value, "true"));
            }
        }
        for name in ["do_center_crop", "do_pad", "crop_size", "pad_size"] {
            if let Some(value) = field(name).filter(|value| value.as_bool() != Some(false)) {
                return Err(refuse(name, value, "false or not given"));
            }
        }
        if let Some(value) = field("resample").filter(|value| value.as_u64() != Some(3)) {
            return Err(refuse("resample", value, "3 (bicubic)"));
        }
        let rescale = field("rescale_factor");
        if let Some(value) = rescale.filter(|value| value.as_f64() != Some(1.0 / 255.0)) {
            return Err(refuse("rescale_factor", value, "1/255"));
        }

        let side = |name: &'static str| {
            let value = field(name).ok_or(GeometryError::Missing { field: name })?;
            let side = value.as_u64().filter(|side| (1..=Self::MAX_SIDE).contains(side));
            side.and_then(|side| u32::try_from(side).ok()).ok_or_else(|| refuse(name, value, "1 to 256"))
        };
        let statistic = |name: &'static str| {
            let value = field(name).ok_or(GeometryError::Missing { field: name })?;
            let numbers: Option<Vec<f32>> = value
                .as_array()
                .and_then(|list| list.iter().map(|number| number.as_f64().map(|v| v as f32)).collect());
            numbers
                .and_then(|numbers| <[f32; 3]>::try_from(numbers).ok())
                .filter(|numbers| numbers.iter().all(|number| number.is_finite()))
                .ok_or_else(|| refuse(name, value, "three numbers"))
        };
        let limit = |edge: &'static str, short: &'static str| {
            let from_size = field("size").and_then(|size| size.get(edge)).filter(|value| !value.is_null());
            let from_top = field(short);
            let value = from_size.or(from_top).ok_or(GeometryError::Missing { field: edge })?;
            if let Some(other) = from_top.filter(|other| *other != value) {
                return Err(refuse(short, other, "the same as in size"));
            }
            let pixels = value.as_u64().filter(|pixels| (1..=Self::MAX_PIXELS).contains(pixels));
            pixels.ok_or_else(|| refuse(edge, value, "a pixel count up to 2^30"))
        };

        let geometry = Self {
            patch: side("patch_size")?,
            merge: side("merge_size")?,
            temporal: side("temporal_patch_size")?,
            min_pixels: limit("shortest_edge", "min_pixels")?,
            max_pixels: limit("longest_edge", "max_pixels")?,
            mean: statistic("image_mean")?,
            std: statistic("image_std")?,
        };
        if let Some(value) = field("image_std").filter(|_| geometry.std.contains(&0.0)) {
            return Err(refuse("image_std", value, "numbers other than 0"));
        }
        if geometry.min_pixels > geometry.max_pixels {
            return Err(GeometryError::Unsupported {
                field: "shortest_edge",
                value: geometry.min_pixels.to_string(),
                supported: "at most longest_edge",
            });
        }
        Ok(geometry)
    }

    /// The side of the smallest picture and the unit of every size: patch × merge, in pixels.
    pub fn factor(&self) -> u32 {
        self.patch.saturating_mul(self.merge)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// What Qwen3-VL's file says.
    fn qwen3() -> Value {
        json!({
            "size": {"longest_edge": 16_777_216, "shortest_edge": 65_536},
            "patch_size": 16, "temporal_patch_size": 2, "merge_size": 2,
            "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
            "processor_class": "Qwen3VLProcessor", "image_processor_type": "Qwen2VLImageProcessorFast",
            "crop_size": null, "do_center_crop": null, "do_pad": null, "default_to_square": true,
            "do_resize": true, "do_rescale": true, "do_normalize": true, "do_convert_rgb": true,
            "resample": 3, "rescale_factor": 0.003_921_568_627_450_98, "data_format": "channels_first"
        })
    }

    #[test]
    fn files_of_the_three_model_families_are_understood() {
        let geometry = Geometry::from_preprocessor_config(&qwen3()).unwrap();
        assert_eq!((geometry.factor(), geometry.min_pixels, geometry.max_pixels), (32, 65_536, 16_777_216));
        // Qwen2-VL and the first Qwen2.5-VL files: no size, limits at the top.
        let older = json!({
            "min_pixels": 3136, "max_pixels": 12_845_056, "patch_size": 14, "temporal_patch_size": 2,
            "merge_size": 2, "image_mean": [0.481_454_66, 0.457_827_5, 0.408_210_73],
            "image_std": [0.268_629_54, 0.261_302_58, 0.275_777_11],
            "image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2VLProcessor"
        });
        let geometry = Geometry::from_preprocessor_config(&older).unwrap();
        assert_eq!((geometry.factor(), geometry.min_pixels, geometry.max_pixels), (28, 3136, 12_845_056));
        assert_eq!(geometry.mean[2], 0.408_210_73);
        // Files saved again by later versions say both.
        let mut both = older.clone();
        both["size"] = json!({"shortest_edge": 3136, "longest_edge": 12_845_056});
        assert_eq!(Geometry::from_preprocessor_config(&both), Ok(geometry));
    }

    #[test]
    fn every_field_that_would_change_pixels_is_refused_by_name() {
        let cases = [
            ("image_processor_type", json!("CLIPImageProcessor")),
            ("image_processor_type", json!(7)),
            ("do_resize", json!(false)),
            ("do_rescale", json!(false)),
            ("do_normalize", json!(false)),
            ("do_convert_rgb", json!("yes")),
            ("do_center_crop", json!(true)),
            ("do_pad", json!(true)),
            ("crop_size", json!({"height": 224})),
            ("resample", json!(2)),
            ("rescale_factor", json!(1)),
            ("patch_size", json!(0)),
            ("patch_size", json!(1000)),
            ("merge_size", json!("2")),
            ("temporal_patch_size", json!(-1)),
            ("image_mean", json!([0.5, 0.5])),
            ("image_mean", json!(0.5)),
            ("image_std", json!([0.5, 0.0, 0.5])),
            ("min_pixels", json!(1)),
        ];
        for (name, value) in cases {
            let mut config = qwen3();
            config[name] = value.clone();
            match Geometry::from_preprocessor_config(&config) {
                Err(GeometryError::Unsupported { field, .. }) => assert_eq!(field, name, "{value}"),
                other => panic!("{name} = {value}: {other:?}"),
            }
        }
        for (size, field) in [
            (json!({"shortest_edge": 65_536, "longest_edge": 1}), "shortest_edge"),
            (json!({"shortest_edge": 0, "longest_edge": 9}), "shortest_edge"),
            (json!({"shortest_edge": 1, "longest_edge": 9e30}), "longest_edge"),
        ] {
            let mut config = qwen3();
            config["size"] = size;
            let refused = Geometry::from_preprocessor_config(&config);
            assert!(matches!(refused, Err(GeometryError::Unsupported { field: f, .. }) if f == field));
        }
    }

    #[test]
    fn every_field_that_decides_is_required() {
        for name in [
            "image_processor_type",
            "patch_size",
            "merge_size",
            "temporal_patch_size",
            "image_mean",
            "image_std",
        ] {
            let mut config = qwen3();
            config[name] = Value::Null;
            let refused = Geometry::from_preprocessor_config(&config);
            assert_eq!(refused, Err(GeometryError::Missing { field: name }));
        }
        let mut config = qwen3();
        config["size"] = Value::Null;
        let refused = Geometry::from_preprocessor_config(&config);
        assert_eq!(refused, Err(GeometryError::Missing { field: "shortest_edge" }));
        assert!(Geometry::from_preprocessor_config(&Value::Null).is_err());
    }
}
