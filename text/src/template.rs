//! Takes a chat template and a conversation, gives the rendered text.
//!
//! Templates run in minijinja with the functions and settings that Hugging Face gives them: trimmed blocks, loop controls,
//! Python's string methods, `raise_exception`, `tojson` as `json.dumps(ensure_ascii=False)`, `strftime_now` from a set date.

mod builtin;
mod context;
mod date;
mod outline;
pub(crate) mod python_json;
#[cfg(test)]
mod tests;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Kwargs;
use minijinja::{Environment, Error, ErrorKind, Value};

pub use builtin::BuiltinTemplate;
pub use date::{Date, DateError};

use crate::control::{GENERATION_END, GENERATION_START, Hider, PRIVATE_FIRST};
use crate::record::Conversation;
use outline::Outlines;

const NAME: &str = "chat";

/// A compiled template and what it is rendered with beside the conversation.
pub(crate) struct ChatTemplate {
    environment: Environment<'static>,
    /// Names that are the same for every conversation: special tokens, keyword arguments.
    globals: Vec<(String, Value)>,
    /// The source has `{% generation %}` blocks, which say themselves what is learnt.
    pub marks_generation: bool,
    /// What it writes around texts, if it is one of ours.
    outlines: Option<Outlines>,
}

/// Why a template could not be compiled or refused a conversation.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// Not a template minijinja accepts.
    #[error("chat template does not compile: {0}")]
    Compile(String),
    /// The template stopped. The text is the template's own, never the record's.
    #[error("chat template failed: {0}")]
    Render(String),
    /// The template asks for today's date.
    #[error("chat template asks for the date; set a date, so that the same record gives the same tokens")]
    NeedsDate,
    /// The template's source holds characters that are used to mark text.
    #[error("chat template holds private characters of plane 16")]
    PrivateCharacters,
}

impl ChatTemplate {
    pub(crate) fn new(
        source: &str,
        date: Option<Date>,
        globals: Vec<(String, Value)>,
    ) -> Result<Self, TemplateError> {
        if source.chars().any(is_private) {
            return Err(TemplateError::PrivateCharacters);
        }
        if date.is_none() && source.contains("strftime_now") {
            return Err(TemplateError::NeedsDate);
        }
        // Ours write no argument, which could hold the characters that mark texts in outlines.
        let outlines = BuiltinTemplate::has(source).then(Outlines::new);
        let (source, marks_generation) = mark_generation(source);
        let mut environment = environment().map_err(|error| TemplateError::Compile(error.to_string()))?;
        environment.add_filter("feedmill_generation", |text: String| {
            format!("{GENERATION_START}{text}{GENERATION_END}")
        });
        if let Some(date) = date {
            environment.add_function("strftime_now", move |format: String, _: Kwargs| date.format(&format));
        }
        environment
            .add_template_owned(NAME, source)
            .map_err(|error| TemplateError::Compile(error.to_string()))?;
        Ok(Self { environment, globals, marks_generation, outlines })
    }

    /// The whole conversation at once, without a prompt for another turn.
    pub(crate) fn render(
        &self,
        conversation: &Conversation,
        hider: Option<&Hider<'_>>,
    ) -> Result<String, TemplateError> {
        let outlined = self
            .outlines
            .as_ref()
            .and_then(|outlines| outlines.render(conversation, hider, |marked| self.run(marked, None).ok()));
        match outlined {
            Some(text) => Ok(text),
            None => self.run(conversation, hider),
        }
    }

    /// Runs the template.
    fn run(&self, conversation: &Conversation, hider: Option<&Hider<'_>>) -> Result<String, TemplateError> {
        let failed = |error: Error| TemplateError::Render(describe(&error));
        let template = self.environment.get_template(NAME).map_err(failed)?;
        template.render(context::build(conversation, hider, &self.globals)).map_err(failed)
    }
}

/// Whether a character is of plane 16, whose characters mark what templates write.
fn is_private(character: char) -> bool {
    u32::from(character) >= PRIVATE_FIRST
}

/// What every template has, a checkpoint's and a data set's: blocks trimmed and nothing escaped, as Hugging Face runs
/// them, Python's string methods, `tojson`, `raise_exception`.
pub(crate) fn environment() -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_filter("tojson", python_json::tojson);
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    Ok(environment)
}

/// JSON from the settings as a template value.
pub(crate) fn json_value(value: &serde_json::Value) -> Value {
    context::json(value, None)
}

/// The kind of an error and where it is; details may quote the record, except those the template's author wrote.
pub(crate) fn describe(error: &Error) -> String {
    let line = error.line().unwrap_or(0);
    match (error.kind(), error.detail()) {
        (ErrorKind::InvalidOperation, Some(detail)) if detail.len() <= 200 => {
            format!("{detail} (line {line})")
        }
        (kind, _) => format!("{kind} (line {line})"),
    }
}

/// `{% generation %}` is Hugging Face's own tag. A filter block has the same rules for white space, so the tag becomes
/// one that marks its content.
fn mark_generation(source: &str) -> (String, bool) {
    let mut marked = String::with_capacity(source.len() + 64);
    let mut found = false;
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        marked.push_str(before);
        let Some(end) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let (tag, after) = tag.split_at(end + 2);
        let inner = tag.trim_start_matches("{%").trim_end_matches("%}");
        let name = inner.trim_matches(['-', '+']).trim();
        match name {
            "generation" | "endgeneration" => {
                found = true;
                let block = if name == "generation" { "filter feedmill_generation" } else { "endfilter" };
                marked.push_str(&tag.replacen(name, block, 1));
            }
            _ => marked.push_str(tag),
        }
        rest = after;
    }
    marked.push_str(rest);
    (marked, found)
}
