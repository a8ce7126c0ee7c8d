//! Takes a row of any table and the data set's template, gives a record of messages.
//!
//! The template reads columns and writes JSON: a list of messages, or an object with `messages` and perhaps `images`,
//! `tools`, `system`, `id` and pixel fields. What it leaves out of `id`, images and pixel
//! fields is the row's own, so that no image is lost silently.

use std::io::{self, Write};
use std::sync::Arc;

use indexmap::IndexMap;
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior, Value as JinjaValue};
use serde_json::{Map, Value};

use super::columns::{Column, Columns};
use super::error::RecordError;
use super::row::Row;
use super::{SIZE_FIELDS, is_refused_or_size, is_set, json, wrong};
use crate::template::{describe, environment, json_value};

const NAME: &str = "record";

/// Steps that a template may take for one record. A template that walks a thousand turns takes some ten thousand.
const FUEL: u64 = 1_000_000;

/// Calls within calls of macros and includes; the templates' own default is 500.
const DEPTH: usize = 64;

/// Most text a template may write for one record: as long as the longest line at the default limit, twice.
const MOST_TEXT: usize = 32 << 20;

/// Columns that a message names, and letters of each.
const MOST_NAMED: usize = 12;
const LONGEST_NAME: usize = 48;

/// Keys of the object that a template may write, beside pixel fields and what is refused with its own words.
const WRITTEN: [&str; 6] = ["messages", "images", "image", "tools", "system", "id"];

/// A data set's template, compiled. Cheap to clone.
#[derive(Clone)]
pub struct RowTemplate {
    environment: Arc<Environment<'static>>,
    source: Arc<str>,
    /// Names that it reads and does not set itself, sorted: columns.
    columns: Arc<[String]>,
}

/// Why a data set's template cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the template does not compile: {what} (line {line})")]
pub struct RowTemplateError {
    /// What the compiler says.
    pub what: String,
    /// 1-based line of the template.
    pub line: usize,
}

impl std::fmt::Debug for RowTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("RowTemplate").field(&self.source).finish()
    }
}

impl RowTemplate {
    /// Compiles a template. It has the filters and functions of jinja as minijinja has them, Python's string methods,
    /// `tojson` and `raise_exception` as chat templates have them; a column that is not there is an error where it is
    /// written.
    ///
    /// # Errors
    /// What does not compile, with its line.
    pub fn compile(source: &str) -> Result<Self, RowTemplateError> {
        let broken = |error: &Error| RowTemplateError {
            what: match error.detail() {
                Some(detail) => format!("{}: {detail}", error.kind()),
                None => error.kind().to_string(),
            },
            line: error.line().unwrap_or(1),
        };
        let mut environment = environment().map_err(|error| broken(&error))?;
        environment.set_undefined_behavior(UndefinedBehavior::SemiStrict);
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(DEPTH);
        environment.add_template_owned(NAME, source.to_owned()).map_err(|error| broken(&error))?;
        // Names are looked up when they are reached. A row without columns reaches what comes first at least.
        let mut lenient = environment.clone();
        lenient.set_undefined_behavior(UndefinedBehavior::Chainable);
        let probe = lenient.get_template(NAME).and_then(|template| {
            template.render_captured_to(JinjaValue::from(()), Bounded(Vec::new())).map(drop)
        });
        if let Err(error) = probe
            && matches!(
                error.kind(),
                ErrorKind::UnknownFilter | ErrorKind::UnknownFunction | ErrorKind::UnknownTest
            )
        {
            return Err(broken(&error));
        }
        let named =
            environment.get_template(NAME).map_err(|error| broken(&error))?.undeclared_variables(false);
        let is_global = |name: &str| environment.globals().any(|(global, _)| global == name);
        let mut columns: Vec<String> = named.into_iter().filter(|name| !is_global(name)).collect();
        columns.sort_unstable();
        Ok(Self { environment: Arc::new(environment), source: source.into(), columns: columns.into() })
    }

    /// The template as written.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The row's messages and images, as a record of the shape *Messages* with its columns under their usual names.
    ///
    /// Time is bounded by a number of steps, the text by its length. Values that the template itself makes larger and
    /// larger are bounded by the steps alone, so a template is to be trusted as the pipeline is.
    pub(super) fn record(&self, row: Row, columns: &Columns) -> Result<Row, RecordError> {
        let text = self.render(&row.fields)?;
        let Row { mut fields, blobs } = row;
        let written = json::parse(text.trim().as_bytes()).map_err(RecordError::TemplateJson)?;
        let mut record = match written {
            Value::Array(messages) => Map::from_iter([("messages".to_owned(), Value::Array(messages))]),
            Value::Object(record) => {
                // A misspelt key would lose what it was meant to say.
                if let Some(unknown) =
                    record.keys().find(|key| !WRITTEN.contains(&key.as_str()) && !is_refused_or_size(key))
                {
                    return Err(RecordError::Template(format!(
                        "it writes the key {unknown:?}, which a record does not have; known are {}",
                        WRITTEN.join(", ")
                    )));
                }
                record
            }
            _ => return Err(wrong("the template wrote neither a list of messages nor an object")),
        };
        if let Some(id) = columns.take(&mut fields, Column::Id)? {
            record.entry("id").or_insert(id);
        }
        let images = Column::Image.usual_names();
        if !images.iter().any(|name| record.contains_key(*name))
            && let Some(image) = columns.take(&mut fields, Column::Image)?
            && is_set(Some(&image))
        {
            record.insert("images".to_owned(), image);
        }
        for field in SIZE_FIELDS {
            if let Some(value) = fields.remove(field) {
                record.entry(field).or_insert(value);
            }
        }
        Ok(Row { fields: record, blobs })
    }

    /// Which columns it names and the row has not, and those that the row has, for people.
    fn missing(&self, fields: &Map<String, Value>) -> String {
        let quoted = |names: Vec<&String>| {
            let names: Vec<String> =
                names.into_iter().take(MOST_NAMED).map(|name| format!("{:?}", cut(name))).collect();
            names.join(", ")
        };
        let missing: Vec<&String> = self.columns.iter().filter(|name| !fields.contains_key(*name)).collect();
        if missing.is_empty() {
            return String::new();
        }
        format!("; the record has no column {}, it has {}", quoted(missing), quoted(fields.keys().collect()))
    }

    fn render(&self, fields: &Map<String, Value>) -> Result<String, RecordError> {
        let template = self.environment.get_template(NAME);
        let template = template.map_err(|error| RecordError::Template(describe(&error)))?;
        let row: IndexMap<JinjaValue, JinjaValue> =
            fields.iter().map(|(name, value)| (JinjaValue::from(name.as_str()), json_value(value))).collect();
        let mut text = Bounded(Vec::new());
        let result = template.render_captured_to(JinjaValue::from_object(row), &mut text).map(drop);
        if text.0.len() > MOST_TEXT {
            return Err(RecordError::Template("it writes more text than a record may have".to_owned()));
        }
        result.map_err(|error| {
            let missing = match error.kind() {
                ErrorKind::UndefinedError => self.missing(fields),
                _ => String::new(),
            };
            RecordError::Template(describe(&error) + &missing)
        })?;
        String::from_utf8(text.0).map_err(|_| wrong("the template wrote no text"))
    }
}

/// A name as a message shows it: what stands in data may be of any length.
fn cut(name: &str) -> &str {
    name.char_indices().nth(LONGEST_NAME).and_then(|(end, _)| name.get(..end)).unwrap_or(name)
}

/// Takes text up to the limit, and one byte more to say that there was more.
struct Bounded(Vec<u8>);

impl Write for Bounded {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        if self.0.len() + text.len() > MOST_TEXT {
            self.0.resize(MOST_TEXT + 1, 0);
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        }
        self.0.extend_from_slice(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
