//! Templates of our own that give the same text as the checkpoints' for conversations of text and images.

use serde::{Deserialize, Serialize};

/// A template that comes with the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum BuiltinTemplate {
    /// Qwen2-VL Instruct.
    Qwen2Vl,
    /// Qwen2.5-VL Instruct; the same text as Qwen2-VL.
    #[serde(rename = "Qwen2_5Vl")]
    Qwen2_5Vl,
    /// Qwen3-VL Instruct, with tools.
    Qwen3Vl,
}

impl BuiltinTemplate {
    /// The jinja source.
    pub(crate) fn source(self) -> &'static str {
        match self {
            BuiltinTemplate::Qwen2Vl | BuiltinTemplate::Qwen2_5Vl => {
                include_str!("builtin/qwen2_vl.jinja")
            }
            BuiltinTemplate::Qwen3Vl => include_str!("builtin/qwen3_vl.jinja"),
        }
    }

    /// Whether a template's source is one of these.
    pub(crate) fn has(source: &str) -> bool {
        [Self::Qwen2Vl, Self::Qwen3Vl].into_iter().any(|known| known.source() == source)
    }

    /// The `patch_size` of the family's preprocessor_config.json.
    pub(crate) fn patch_size(self) -> u64 {
        match self {
            BuiltinTemplate::Qwen2Vl | BuiltinTemplate::Qwen2_5Vl => 14,
            BuiltinTemplate::Qwen3Vl => 16,
        }
    }
}
