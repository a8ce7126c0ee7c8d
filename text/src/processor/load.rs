//! Takes a checkpoint's files, gives a [`TextProcessor`] whose parts fit together, or says which do not.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::layout::{TURN_END, TURN_START};
use super::{EncodeError, ProcessorFiles, SpecialIds, Support, TemplateChoice, TextProcessor, TextSettings};
use crate::control::Controls;
use crate::record::{Conversation, ImageReference, Message, Part, Role};
use crate::template::{ChatTemplate, TemplateError};
use crate::tokenizer::{AddedTokenFile, Tokenizer, TokenizerError};

/// Why a checkpoint's files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// tokenizer.json.
    #[error("tokenizer cannot be used")]
    Tokenizer(#[from] TokenizerError),
    /// A JSON file that is none.
    #[error("{file} is not valid json of the expected form")]
    Json {
        /// Its name.
        file: &'static str,
        /// What the reader said.
        #[source]
        source: serde_json::Error,
    },
    /// There is no template.
    #[error(
        "no chat template: give chat_template.jinja, a tokenizer_config.json with one, or choose a built-in one"
    )]
    NoTemplate,
    /// The template.
    #[error("chat template cannot be used")]
    Template(#[from] TemplateError),
    /// A token that the files must agree on is missing.
    #[error("the vocabulary has no {token}, which {needed_by} needs")]
    MissingToken {
        /// The token.
        token: String,
        /// Who needs it.
        needed_by: &'static str,
    },
    /// A keyword argument that would overwrite what templates are given.
    #[error("template argument {name} is set by the program")]
    ReservedArgument {
        /// Its name.
        name: String,
    },
    /// preprocessor_config.json is another family's.
    #[error("preprocessor_config.json says {field} {found}, the template's family has {expected}")]
    Family {
        /// The field.
        field: &'static str,
        /// What the file says.
        found: String,
        /// What it should say.
        expected: String,
    },
    /// A conversation that every template must write cannot be encoded.
    #[error("a probe conversation cannot be encoded with this template and tokenizer")]
    Probe(#[source] Box<EncodeError>),
    /// The probe's learnt text is not its answers.
    #[error("the assistant's turns cannot be found in what the chat template writes")]
    Spans,
}

/// What counts of tokenizer_config.json.
#[derive(Deserialize, Default)]
struct TokenizerConfig {
    #[serde(default)]
    added_tokens_decoder: BTreeMap<String, AddedTokenFile>,
    #[serde(default)]
    additional_special_tokens: Option<Vec<TokenName>>,
    #[serde(default)]
    chat_template: Option<Value>,
    #[serde(default)]
    bos_token: Option<TokenName>,
    #[serde(default)]
    eos_token: Option<TokenName>,
    #[serde(default)]
    pad_token: Option<TokenName>,
    #[serde(default)]
    unk_token: Option<TokenName>,
}

/// A token's text, plain or in a struct.
#[derive(Deserialize)]
#[serde(untagged)]
enum TokenName {
    Text(String),
    Struct { content: String },
}

impl TokenName {
    fn text(&self) -> &str {
        match self {
            TokenName::Text(text) | TokenName::Struct { content: text } => text,
        }
    }
}

/// Names that the program gives to templates.
const RESERVED: [&str; 4] = ["messages", "tools", "documents", "add_generation_prompt"];

impl TextProcessor {
    /// Reads and checks a checkpoint's files.
    pub fn load(files: &ProcessorFiles, settings: &TextSettings) -> Result<Self, LoadError> {
        let config: TokenizerConfig = match &files.tokenizer_config_json {
            Some(bytes) => read_json(bytes, "tokenizer_config.json")?,
            None => TokenizerConfig::default(),
        };
        let preprocessor: Map<String, Value> =
            read_json(&files.preprocessor_config_json, "preprocessor_config.json")?;
        check_family(&preprocessor, settings.template)?;
        let source = template_source(files, &config, settings.template)?;

        let special: Vec<String> = config
            .additional_special_tokens
            .iter()
            .flatten()
            .chain([&config.bos_token, &config.eos_token, &config.pad_token].into_iter().flatten())
            .map(|name| name.text().to_owned())
            .collect();
        let in_config: Vec<(u32, AddedTokenFile)> = config
            .added_tokens_decoder
            .into_iter()
            .filter_map(|(id, token)| Some((id.parse().ok()?, token)))
            .collect();
        let tokenizer = Tokenizer::from_files(&files.tokenizer_json, &in_config, &special)?;

        let globals = globals(
            settings,
            [
                ("bos_token", &config.bos_token),
                ("eos_token", &config.eos_token),
                ("pad_token", &config.pad_token),
                ("unk_token", &config.unk_token),
            ],
        )?;
        let template = ChatTemplate::new(&source, settings.date, globals)?;
        let eos = config.eos_token.as_ref().map_or(TURN_END, TokenName::text);
        let pad = config.pad_token.as_ref().map_or("<|endoftext|>", TokenName::text);
        let ids = special_ids(&tokenizer, eos, pad)?;
        let ends: Vec<String> = [&config.bos_token, &config.eos_token, &config.pad_token]
            .into_iter()
            .flatten()
            .map(|name| name.text().to_owned())
            .collect();
        let mut plain_error = None;
        let controls = Controls::new(tokenizer.added(), &source, &ends, |content| {
            tokenizer.model_ids(content).unwrap_or_else(|error| {
                plain_error = Some(error);
                Vec::new()
            })
        })?;
        if let Some(error) = plain_error {
            return Err(LoadError::Probe(Box::new(error.into())));
        }
        let mut processor = Self {
            tokenizer,
            template,
            controls,
            settings: settings.clone(),
            ids,
            writes: Support::default(),
        };
        processor.probe_turns()?;
        processor.writes = processor.probe_support();
        Ok(processor)
    }

    /// A conversation that every template must write: the learnt text must be its answers.
    fn probe_turns(&self) -> Result<(), LoadError> {
        let probe = probe(vec![
            message(Role::System, "probe instructions"),
            Message {
                parts: vec![Part::Image(0), Part::Text("probe question".into())],
                ..message(Role::User, "")
            },
            message(Role::Assistant, "first probe answer"),
            message(Role::User, "another probe question"),
            message(Role::Assistant, "second probe answer"),
        ]);
        let failed = |error: EncodeError| LoadError::Probe(Box::new(error));
        let prepared = self.prepare(&probe).map_err(failed)?;
        let encoded = prepared.expand(&[4]).map_err(failed)?;
        let learnt: Vec<String> = self
            .runs(&encoded)
            .into_iter()
            .filter(|(_, supervised)| *supervised)
            .map(|(text, _)| text)
            .collect();
        let expected: &[&str] = if self.settings.labels.last_turn_only {
            &["second probe answer"]
        } else {
            &["first probe answer", "second probe answer"]
        };
        let found = learnt.len() == expected.len()
            && learnt.iter().zip(expected).all(|(text, answer)| {
                text.contains(answer) && !text.contains("question") && !text.contains(TURN_START)
            });
        if found { Ok(()) } else { Err(LoadError::Spans) }
    }

    /// Which of tool use and reasoning the template writes.
    fn probe_support(&self) -> Support {
        const NAME: &str = "probe_function";
        let writes = |conversation: &Conversation, text: &str| {
            self.template.render(conversation, None).is_ok_and(|rendered| rendered.contains(text))
        };
        let function =
            json!({"type": "function", "function": {"name": NAME, "description": "", "parameters": {}}});
        let call = json!({"type": "function", "function": {"name": NAME, "arguments": {}}});
        let plain = vec![message(Role::User, "q"), message(Role::Assistant, "a")];
        let mut described = probe(plain.clone());
        described.tools = vec![function];
        let mut called = probe(plain.clone());
        if let Some(last) = called.messages.last_mut() {
            last.tool_calls = vec![call.clone()];
        }
        let mut answered = called.clone();
        answered.messages.push(message(Role::Tool, NAME));
        if let Some(assistant) = answered.messages.get_mut(1) {
            assistant.tool_calls.clear();
        }
        let mut reasoned = probe(plain);
        if let Some(last) = reasoned.messages.last_mut() {
            last.reasoning = Some(NAME.to_owned());
        }
        Support {
            descriptions: writes(&described, NAME),
            calls: writes(&called, NAME),
            answers: writes(&answered, NAME),
            reasoning: writes(&reasoned, NAME),
        }
    }
}

fn message(role: Role, text: &str) -> Message {
    Message {
        role,
        parts: vec![Part::Text(text.to_owned())],
        reasoning: None,
        loss: None,
        tool_calls: Vec::new(),
    }
}

fn probe(messages: Vec<Message>) -> Conversation {
    let images = messages
        .iter()
        .flat_map(|message| &message.parts)
        .filter(|part| matches!(part, Part::Image(_)))
        .map(|_| ImageReference::Path("probe".into()).into())
        .collect();
    Conversation {
        id: None,
        messages,
        images,
        tools: Vec::new(),
        dropped_trailing_user: 0,
        empty_assistant: 0,
    }
}

fn read_json<'a, T: Deserialize<'a>>(bytes: &'a [u8], file: &'static str) -> Result<T, LoadError> {
    serde_json::from_slice(bytes).map_err(|source| LoadError::Json { file, source })
}

/// A built-in template is for one family, and preprocessor_config.json says which family the checkpoint is.
fn check_family(preprocessor: &Map<String, Value>, template: TemplateChoice) -> Result<(), LoadError> {
    if let Some(kind) = preprocessor.get("image_processor_type").and_then(Value::as_str)
        && !kind.starts_with("Qwen2VL")
    {
        return Err(LoadError::Family {
            field: "image_processor_type",
            found: kind.to_owned(),
            expected: "Qwen2VLImageProcessor".to_owned(),
        });
    }
    if let (TemplateChoice::Builtin(builtin), Some(found)) = (template, preprocessor.get("patch_size"))
        && found.as_u64() != Some(builtin.patch_size())
    {
        return Err(LoadError::Family {
            field: "patch_size",
            found: found.to_string(),
            expected: builtin.patch_size().to_string(),
        });
    }
    Ok(())
}

fn template_source(
    files: &ProcessorFiles,
    config: &TokenizerConfig,
    choice: TemplateChoice,
) -> Result<String, LoadError> {
    if let TemplateChoice::Builtin(builtin) = choice {
        return Ok(builtin.source().to_owned());
    }
    if let Some(bytes) = &files.chat_template {
        let text =
            std::str::from_utf8(bytes).map_err(|_| TemplateError::Compile("it is not utf-8".into()))?;
        // chat_template.json holds the template in a field; no jinja template is JSON.
        if let Ok(Value::Object(fields)) = serde_json::from_str(text) {
            return named_template(fields.get("chat_template")).ok_or(LoadError::NoTemplate);
        }
        return Ok(text.to_owned());
    }
    named_template(config.chat_template.as_ref()).ok_or(LoadError::NoTemplate)
}

/// A template, or the one called "default" in a list or map of named ones.
fn named_template(value: Option<&Value>) -> Option<String> {
    match value? {
        Value::String(text) => Some(text.clone()),
        Value::Array(items) => items
            .iter()
            .find(|item| item.get("name").and_then(Value::as_str) == Some("default"))
            .and_then(|item| item.get("template"))
            .and_then(Value::as_str)
            .map(str::to_owned),
        Value::Object(fields) => fields.get("default").and_then(Value::as_str).map(str::to_owned),
        _ => None,
    }
}

/// What a template sees beside the conversation: special tokens by role, then the settings' arguments.
fn globals(
    settings: &TextSettings,
    tokens: [(&str, &Option<TokenName>); 4],
) -> Result<Vec<(String, minijinja::Value)>, LoadError> {
    let mut globals: Vec<(String, minijinja::Value)> = tokens
        .into_iter()
        .filter_map(|(role, name)| Some((role.to_owned(), minijinja::Value::from(name.as_ref()?.text()))))
        .collect();
    for (name, value) in &settings.template_kwargs {
        if RESERVED.contains(&name.as_str()) {
            return Err(LoadError::ReservedArgument { name: name.clone() });
        }
        globals.push((name.clone(), crate::template::json_value(value)));
    }
    Ok(globals)
}

fn special_ids(tokenizer: &Tokenizer, eos: &str, pad: &str) -> Result<SpecialIds, LoadError> {
    let find = |token: &str| {
        tokenizer.id_of(token).filter(|id| tokenizer.knows(*id)).and_then(|id| i32::try_from(id).ok())
    };
    let need = |token: &str, needed_by: &'static str| {
        find(token).ok_or_else(|| LoadError::MissingToken { token: token.to_owned(), needed_by })
    };
    Ok(SpecialIds {
        image_pad: need("<|image_pad|>", "the image processor")?,
        vision_start: need("<|vision_start|>", "the chat template")?,
        vision_end: need("<|vision_end|>", "the chat template")?,
        video_pad: find("<|video_pad|>"),
        turn_start: need(TURN_START, "the chat template")?,
        turn_end: need(TURN_END, "the chat template")?,
        pad: need(pad, "tokenizer_config.json's pad_token")?,
        stub: need(eos, "tokenizer_config.json's eos_token")?,
    })
}
