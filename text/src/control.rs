//! Takes the texts of a record, gives them with control tokens hidden, and afterwards finds them again in what a template
//! rendered.
//!
//! A control token in record text is replaced by one private character before rendering and put back after it. So every
//! control token that the rendered text still holds was written by the template, and the places of those that the record
//! wrote are known exactly, whatever the template did around them.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use serde_json::Value;

use crate::record::{Conversation, Part, Role};
use crate::tokenizer::{AddedToken, Finder, TokenizerError};

/// Where private characters begin: supplementary private use area B, which no text should hold.
pub(crate) const PRIVATE_FIRST: u32 = 0x10_0000;

/// Private characters per window, and so the most control tokens. Windows are tried until one is free of the record's
/// own private characters.
const WINDOW: u32 = 256;

/// The last two private characters, which mark `{% generation %}` blocks; never part of a window.
pub(crate) const GENERATION_START: char = '\u{10FFFC}';
/// See [`GENERATION_START`].
pub(crate) const GENERATION_END: char = '\u{10FFFD}';

/// The last window ends before the marks.
const WINDOWS: u32 = (0x10_FF00 - PRIVATE_FIRST) / WINDOW;

/// Tokens whose names mean content, though they are added tokens: never hidden.
const CONTENT_TOKENS: [&str; 2] = ["<think>", "</think>"];

/// A token that text from records must not become.
#[derive(Debug)]
pub(crate) struct ControlToken {
    pub content: String,
    /// Turn, vision and padding tokens: hidden in every role. The others are kept in answers under `KeepContent`.
    pub turn: bool,
    /// The ids of its text where it is only text.
    pub plain_ids: Vec<u32>,
}

/// All control tokens of a tokenizer and template.
pub(crate) struct Controls {
    tokens: Vec<ControlToken>,
    every: Option<Finder>,
    turn: Option<Finder>,
    /// Index in the `turn` automaton → index in `tokens`.
    turn_indices: Vec<usize>,
}

/// Which control tokens are hidden in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hide {
    /// All of them.
    Every,
    /// Turn, vision and padding tokens.
    Turn,
}

impl Controls {
    /// Control tokens are the special tokens and the added tokens that the template's source spells out, except tokens
    /// that mean content. `ends` are the tokens that the configuration names as end, padding or begin.
    pub(crate) fn new(
        added: &[AddedToken],
        template_source: &str,
        ends: &[String],
        mut plain_ids: impl FnMut(&str) -> Vec<u32>,
    ) -> Result<Self, TokenizerError> {
        let tokens: Vec<ControlToken> = added
            .iter()
            .filter(|token| !CONTENT_TOKENS.contains(&token.content.as_str()))
            .filter(|token| token.special || template_source.contains(token.content.as_str()))
            .map(|token| ControlToken {
                content: token.content.clone(),
                turn: token.special && is_turn(&token.content, template_source, ends),
                plain_ids: plain_ids(&token.content),
            })
            .collect();
        if tokens.len() > WINDOW as usize {
            return Err(TokenizerError::AddedTokens { why: "more than 256 are control tokens" });
        }
        let automaton = |contents: Vec<String>| -> Result<Option<Finder>, TokenizerError> {
            if contents.is_empty() {
                return Ok(None);
            }
            Finder::new(&contents).map(Some)
        };
        let turn_indices: Vec<usize> =
            tokens.iter().enumerate().filter(|(_, token)| token.turn).map(|(index, _)| index).collect();
        Ok(Self {
            every: automaton(tokens.iter().map(|token| token.content.clone()).collect())?,
            turn: automaton(
                tokens.iter().filter(|token| token.turn).map(|token| token.content.clone()).collect(),
            )?,
            turn_indices,
            tokens,
        })
    }

    pub(crate) fn token(&self, index: usize) -> Option<&ControlToken> {
        self.tokens.get(index)
    }

    /// Finds what `hide` hides: (index of the token, range), leftmost first and then longest.
    fn find<'a>(&'a self, text: &'a str, hide: Hide) -> impl Iterator<Item = (usize, Range<usize>)> + 'a {
        let automaton = match hide {
            Hide::Every => &self.every,
            Hide::Turn => &self.turn,
        };
        automaton.iter().flat_map(move |automaton| {
            automaton.find_iter(text).filter_map(move |found| {
                let pattern = found.pattern().as_usize();
                let index = match hide {
                    Hide::Every => pattern,
                    Hide::Turn => *self.turn_indices.get(pattern)?,
                };
                Some((index, found.range()))
            })
        })
    }

    fn contains(&self, text: &str) -> bool {
        self.every.as_ref().is_some_and(|automaton| automaton.is_match(text))
    }

    /// How often each control token stands in the texts of each role. A token that adjacent parts make counts.
    pub(crate) fn counts(&self, conversation: &Conversation) -> BTreeMap<(Role, &str), u64> {
        let mut counts = BTreeMap::new();
        each_text_of_roles(conversation, &mut |role, text| {
            for (index, _) in self.find(text, Hide::Every) {
                if let Some(token) = self.token(index) {
                    *counts.entry((role, token.content.as_str())).or_default() += 1;
                }
            }
        });
        counts
    }

    /// Gives the means to hide a conversation's control tokens, or `None` if it holds none of them. An error if every
    /// private character is taken.
    pub(crate) fn hider(
        &self,
        conversation: &Conversation,
        assistant: Hide,
    ) -> Result<Option<Hider<'_>>, NoPrivateCharacter> {
        let mut found = false;
        each_text(conversation, |text| found = found || self.contains(text));
        if !found {
            return Ok(None);
        }
        let mut taken = BTreeSet::new();
        each_text(conversation, |text| {
            taken.extend(
                text.chars()
                    .map(u32::from)
                    .filter(|character| *character >= PRIVATE_FIRST)
                    .map(|character| (character - PRIVATE_FIRST) / WINDOW),
            );
        });
        let window = (0..WINDOWS).find(|window| !taken.contains(window)).ok_or(NoPrivateCharacter)?;
        Ok(Some(Hider { controls: self, first: PRIVATE_FIRST + window * WINDOW, assistant }))
    }
}

/// Tokens that make turns, images and padding. Names are the family's convention; whatever else the template spells out
/// and the file calls special, or the configuration calls an end, counts as well.
fn is_turn(content: &str, template_source: &str, ends: &[String]) -> bool {
    matches!(content, "<|im_start|>" | "<|im_end|>" | "<|endoftext|>")
        || content.starts_with("<|vision_")
        || content.ends_with("_pad|>")
        || template_source.contains(content)
        || ends.iter().any(|end| end == content)
}

/// A record that uses every private character.
#[derive(Debug, thiserror::Error)]
#[error("text uses so many private characters that control tokens in it cannot be told apart")]
pub struct NoPrivateCharacter;

/// Calls `visit` with every text of a conversation that a template may write, adjacent text parts joined.
fn each_text(conversation: &Conversation, mut visit: impl FnMut(&str)) {
    each_text_of_roles(conversation, &mut |_, text| visit(text));
}

/// As [`each_text`], with the role that says the text; tool descriptions are the system's.
fn each_text_of_roles(conversation: &Conversation, visit: &mut impl FnMut(Role, &str)) {
    for message in &conversation.messages {
        let mut visit = |text: &str| visit(message.role, text);
        for run in message.parts.chunk_by(|left, right| is_text(left) && is_text(right)) {
            match run {
                [Part::Text(text)] => visit(text),
                [Part::Image(_)] => {}
                run => visit(&joined(run)),
            }
        }
        if let Some(reasoning) = &message.reasoning {
            visit(reasoning);
        }
        for call in &message.tool_calls {
            each_string(call, &mut visit);
        }
    }
    for tool in &conversation.tools {
        each_string(tool, &mut |text: &str| visit(Role::System, text));
    }
}

fn each_string(value: &Value, visit: &mut impl FnMut(&str)) {
    match value {
        Value::String(text) => visit(text),
        Value::Array(items) => items.iter().for_each(|item| each_string(item, visit)),
        Value::Object(fields) => fields.iter().for_each(|(key, value)| {
            visit(key);
            each_string(value, visit);
        }),
        _ => {}
    }
}

pub(crate) fn is_text(part: &Part) -> bool {
    matches!(part, Part::Text(_))
}

fn joined(run: &[Part]) -> String {
    run.iter()
        .filter_map(|part| match part {
            Part::Text(text) => Some(text.as_str()),
            Part::Image(_) => None,
        })
        .collect()
}

/// Hides control tokens of one conversation, and finds them again.
pub(crate) struct Hider<'a> {
    controls: &'a Controls,
    /// The character that stands for token 0.
    first: u32,
    assistant: Hide,
}

/// A control token that the record wrote, in the restored text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    pub range: Range<usize>,
    /// Index of the control token.
    pub token: usize,
}

impl Hider<'_> {
    /// What is hidden in the content of assistant messages; everywhere else it is [`Hide::Every`].
    pub(crate) fn assistant(&self) -> Hide {
        self.assistant
    }

    fn character(&self, token: usize) -> char {
        // A window holds as many characters as there can be tokens, and all of them are valid.
        u32::try_from(token)
            .ok()
            .and_then(|token| char::from_u32(self.first + token))
            .unwrap_or(char::REPLACEMENT_CHARACTER)
    }

    fn token(&self, character: char) -> Option<(usize, &ControlToken)> {
        let index = u32::from(character).checked_sub(self.first)? as usize;
        Some((index, self.controls.tokens.get(index)?))
    }

    /// One text with its control tokens hidden.
    pub(crate) fn hide<'t>(&self, text: &'t str, hide: Hide) -> Cow<'t, str> {
        let mut hidden: Option<String> = None;
        let mut done = 0;
        for (token, range) in self.controls.find(text, hide) {
            let hidden = hidden.get_or_insert_with(String::new);
            hidden.push_str(text.get(done..range.start).unwrap_or_default());
            hidden.push(self.character(token));
            done = range.end;
        }
        match hidden {
            None => Cow::Borrowed(text),
            Some(mut hidden) => {
                hidden.push_str(text.get(done..).unwrap_or_default());
                Cow::Owned(hidden)
            }
        }
    }

    /// Adjacent text parts with their control tokens hidden, also those that only their joint makes. A token that
    /// crosses a joint stands in the part in which it begins.
    pub(crate) fn hide_run(&self, run: &[Part], hide: Hide) -> Vec<String> {
        let whole = joined(run);
        let mut found = self.controls.find(&whole, hide).peekable();
        let mut parts = Vec::with_capacity(run.len());
        let (mut start, mut done) = (0, 0);
        for part in run {
            let Part::Text(text) = part else { continue };
            let end = start + text.len();
            let mut hidden = String::with_capacity(text.len());
            while let Some((token, range)) = found.next_if(|(_, range)| range.start < end) {
                hidden.push_str(whole.get(done.max(start)..range.start).unwrap_or_default());
                hidden.push(self.character(token));
                done = range.end;
            }
            hidden.push_str(whole.get(done.max(start)..end).unwrap_or_default());
            parts.push(hidden);
            start = end;
        }
        parts
    }

    /// Puts the control tokens back into rendered text.
    pub(crate) fn restore(&self, rendered: &str) -> (String, Vec<Cut>) {
        let mut text = String::with_capacity(rendered.len() + 64);
        let mut cuts = Vec::new();
        let mut done = 0;
        // Private characters are of plane 16, whose characters begin with this byte and no others do.
        for place in memchr::memchr_iter(0xF4, rendered.as_bytes()) {
            let Some(character) = rendered.get(place..).and_then(|rest| rest.chars().next()) else {
                continue;
            };
            if let Some((token, control)) = self.token(character) {
                text.push_str(rendered.get(done..place).unwrap_or_default());
                let start = text.len();
                text.push_str(&control.content);
                cuts.push(Cut { range: start..text.len(), token });
                done = place + character.len_utf8();
            }
        }
        text.push_str(rendered.get(done..).unwrap_or_default());
        (text, cuts)
    }
}
