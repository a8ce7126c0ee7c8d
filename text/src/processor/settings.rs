//! What a [`TextProcessor`](super::TextProcessor) is made from.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::template::{BuiltinTemplate, Date};

/// The checkpoint's files, as bytes.
#[derive(Clone, Debug, Default)]
pub struct ProcessorFiles {
    /// tokenizer.json.
    pub tokenizer_json: Vec<u8>,
    /// tokenizer_config.json.
    pub tokenizer_config_json: Option<Vec<u8>>,
    /// chat_template.jinja, or chat_template.json. Without it the `chat_template` of tokenizer_config.json counts.
    pub chat_template: Option<Vec<u8>>,
    /// preprocessor_config.json.
    pub preprocessor_config_json: Vec<u8>,
}

/// What happens to control tokens that answers hold and that make no turns, images or padding (box, quad, object_ref,
/// tool tags). In all other text they are always plain text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ControlTokensAssistant {
    /// They stay single ids: grounding and function calling data write them on purpose.
    #[default]
    KeepContent,
    /// They are plain text as everywhere else.
    Escape,
}

/// What is learnt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabelSettings {
    /// Only the last assistant turn.
    pub last_turn_only: bool,
    /// The newline after the end of a turn as well.
    pub include_newline: bool,
}

impl Default for LabelSettings {
    fn default() -> Self {
        Self { last_turn_only: false, include_newline: true }
    }
}

/// Which template is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum TemplateChoice {
    /// The checkpoint's own.
    #[default]
    Checkpoint,
    /// One that comes with the program.
    Builtin(BuiltinTemplate),
}

/// Settings that change tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct TextSettings {
    /// Control tokens in answers.
    pub control_tokens_assistant: ControlTokensAssistant,
    /// Whether control tokens in record text are text. `false` is what Hugging Face does without being asked: record
    /// text can then forge turns.
    pub sanitize: bool,
    /// What is learnt.
    pub labels: LabelSettings,
    /// Which template.
    pub template: TemplateChoice,
    /// Passed on to the template.
    pub template_kwargs: Map<String, Value>,
    /// Today, for templates that ask.
    pub date: Option<Date>,
}

impl Default for TextSettings {
    fn default() -> Self {
        Self {
            control_tokens_assistant: ControlTokensAssistant::default(),
            sanitize: true,
            labels: LabelSettings::default(),
            template: TemplateChoice::default(),
            template_kwargs: Map::new(),
            date: None,
        }
    }
}
