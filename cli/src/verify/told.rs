//! Takes what was found at each position, gives it in words or as JSON, and the exit code.

use std::process::ExitCode;

use serde_json::{Map, Value, json};

use super::reference::Row;

/// So many differences are kept in the JSON; more are only counted.
const MAX_KEPT: usize = 1000;

/// What was found at a position.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// Every tensor is equal.
    Equal {
        /// Tokens of the sample.
        tokens: u64,
        /// Pictures of the sample.
        pictures: u64,
    },
    /// The first difference.
    Different {
        /// The record.
        row: Row,
        /// Tensor, index, both values, where it is.
        difference: Map<String, Value>,
    },
    /// Why there is nothing to compare.
    NotCompared(String),
}

impl Outcome {
    /// Of the reference's answer for a record.
    pub fn of(mut answer: Value, row: Row) -> Self {
        let number = |name: &str| answer[name].as_u64().unwrap_or_default();
        let (tokens, pictures) = (number("tokens"), number("pictures"));
        if let Some(reason) = answer["failed"].as_str() {
            return Self::Different {
                row,
                difference: Map::from_iter([("reference_fails".to_owned(), json!(reason))]),
            };
        }
        match answer["difference"].take() {
            Value::Object(difference) => Self::Different { row, difference },
            _ => Self::Equal { tokens, pictures },
        }
    }

    /// A line or a few for people.
    pub fn text(&self, position: u64) -> String {
        match self {
            Self::Equal { tokens, pictures } => {
                format!("position {position}: equal, {tokens} tokens, {pictures} pictures\n")
            }
            Self::NotCompared(reason) => format!("position {position}: not compared: {reason}\n"),
            Self::Different { row, difference } => {
                let mut text = format!("position {position}: DIFFERENT, {} line {}\n", row.dataset, row.line);
                for (name, value) in difference {
                    let value = value.as_str().map_or_else(|| value.to_string(), |text| format!("{text:?}"));
                    text += &format!("  {name:<15} {value}\n");
                }
                text
            }
        }
    }
}

/// Everything found.
pub struct Summary {
    about: Value,
    settings: Value,
    equal: u64,
    tokens: u64,
    pictures: u64,
    different: u64,
    not_compared: u64,
    differences: Vec<Value>,
}

impl Summary {
    /// Nothing yet.
    pub fn new(about: Value, settings: &Value) -> Self {
        let mut settings = settings.clone();
        if let Some(fields) = settings.as_object_mut() {
            // It is gone when this is read.
            fields.remove("folder");
        }
        Self {
            about,
            settings,
            equal: 0,
            tokens: 0,
            pictures: 0,
            different: 0,
            not_compared: 0,
            differences: Vec::new(),
        }
    }

    /// One position more.
    pub fn add(&mut self, position: u64, outcome: Outcome) {
        match outcome {
            Outcome::Equal { tokens, pictures } => {
                self.equal += 1;
                self.tokens += tokens;
                self.pictures += pictures;
            }
            Outcome::Different { row, mut difference } => {
                self.different += 1;
                if self.differences.len() < MAX_KEPT {
                    difference.insert("position".into(), json!(position));
                    difference.insert("dataset".into(), json!(row.dataset));
                    difference.insert("line".into(), json!(row.line));
                    self.differences.push(Value::Object(difference));
                }
            }
            Outcome::NotCompared(_) => self.not_compared += 1,
        }
    }

    /// The end, for people or as JSON.
    pub fn text(&self, as_json: bool) -> String {
        let Self { equal, tokens, pictures, different, not_compared, .. } = self;
        if as_json {
            let all = json!({
                "equal": equal, "tokens": tokens, "pictures": pictures, "different": different,
                "not_compared": not_compared, "differences": self.differences, "reference": self.about,
                "settings": self.settings,
            });
            return format!("{all}\n");
        }
        let versions = self.about["versions"].as_object().map_or_else(String::new, |versions| {
            let each = versions
                .iter()
                .map(|(name, version)| format!("{name} {}", version.as_str().unwrap_or_default()));
            each.collect::<Vec<_>>().join(", ")
        });
        let processor = self.about["image_processor"].as_str().unwrap_or_default();
        format!(
            "\n{equal} records equal ({tokens} tokens, {pictures} pictures), {different} different, {not_compared} not \
             compared\nby {versions}, {processor}\n"
        )
    }

    /// 0 all equal, 1 a difference, 2 nothing was compared.
    pub fn exit_code(&self) -> ExitCode {
        match (self.equal, self.different) {
            (_, 1..) => ExitCode::FAILURE,
            (0, 0) => ExitCode::from(2),
            _ => ExitCode::SUCCESS,
        }
    }
}
