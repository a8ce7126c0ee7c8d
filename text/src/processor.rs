//! Takes a checkpoint's processor files and a [`Conversation`], gives token ids and a loss mask.
//!
//! A conversation is rendered whole and tokenized once ([`TextProcessor::prepare`]); image placeholders are widened on ids
//! afterwards ([`Prepared::expand`]), so that a sample can be tried with several image sizes.

pub(crate) mod layout;
mod load;
mod settings;
#[cfg(test)]
mod tests;
mod tokens;

use std::collections::BTreeMap;
use std::ops::Range;

pub use layout::LayoutError;
pub use load::LoadError;
pub use settings::{ControlTokensAssistant, LabelSettings, ProcessorFiles, TemplateChoice, TextSettings};
pub use tokens::TokenView;

pub use crate::control::NoPrivateCharacter;
pub use crate::template::{BuiltinTemplate, Date, DateError, TemplateError};
pub use crate::tokenizer::{TokenizeError, TokenizerError};

use crate::control::{Controls, Cut, Hide};
use crate::fault::FaultClass;
use crate::record::{Conversation, Role};
use crate::template::ChatTemplate;
use crate::tokenizer::Tokenizer;
use layout::{Place, Rendered};

/// Tokenizer, template and rules of one checkpoint, checked against each other. Shared by threads.
pub struct TextProcessor {
    tokenizer: Tokenizer,
    template: ChatTemplate,
    controls: Controls,
    settings: TextSettings,
    ids: SpecialIds,
    /// Whether the template writes tool descriptions, tool calls, tool answers and reasoning.
    writes: Support,
}

/// Ids read from the checkpoint's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpecialIds {
    /// Stands for an image, once in [`Prepared`] and once per merged patch after expansion.
    pub image_pad: i32,
    /// Before an image.
    pub vision_start: i32,
    /// After an image.
    pub vision_end: i32,
    /// For videos, if the vocabulary has one.
    pub video_pad: Option<i32>,
    /// Begins a turn.
    pub turn_start: i32,
    /// Ends a turn.
    pub turn_end: i32,
    /// `pad_token` of tokenizer_config.json: fills rows up.
    pub pad: i32,
    /// `eos_token` of tokenizer_config.json: the one token of a stub row.
    pub stub: i32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Support {
    descriptions: bool,
    calls: bool,
    answers: bool,
    reasoning: bool,
}

/// Why a conversation cannot be encoded. Permanent.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    /// The template refused it.
    #[error("chat template refuses the conversation")]
    Template(#[from] TemplateError),
    /// The template did not write one turn per assistant message, or left a message out.
    #[error("chat template does not write the conversation turn by turn: {0}")]
    Layout(#[from] LayoutError),
    /// The conversation has tools or reasoning and the template does not write them.
    #[error("chat template does not write {what}; choose a template that does")]
    Unwritten {
        /// Tool descriptions, calls or answers, or reasoning.
        what: &'static str,
    },
    /// The text is made of the characters that hide control tokens.
    #[error(transparent)]
    NoPrivateCharacter(#[from] NoPrivateCharacter),
    /// The tokenizer failed.
    #[error("text cannot be tokenized")]
    Tokenize(#[from] TokenizeError),
    /// Image tokens and images differ in number.
    #[error("{placeholders} image tokens for {images} images")]
    Placeholders {
        /// Image tokens in the ids.
        placeholders: usize,
        /// Images of the conversation, or sizes given.
        images: usize,
    },
    /// An image of no tokens, or so many that they cannot be counted.
    #[error("image {image} has an impossible number of tokens")]
    ImageTokens {
        /// Index of the image.
        image: usize,
    },
    /// Nothing would be learnt.
    #[error("no token is supervised")]
    NoSupervision,
}

impl EncodeError {
    /// The class under which this error is counted.
    pub fn class(&self) -> FaultClass {
        match self {
            EncodeError::Template(_) | EncodeError::Layout(_) => FaultClass::Template,
            EncodeError::Unwritten { .. } => FaultClass::UnsupportedField,
            EncodeError::NoPrivateCharacter(_) | EncodeError::Tokenize(_) => FaultClass::Tokenizer,
            EncodeError::Placeholders { .. } | EncodeError::ImageTokens { .. } => {
                FaultClass::PlaceholderMismatch
            }
            EncodeError::NoSupervision => FaultClass::NoSupervision,
        }
    }
}

/// A conversation in ids, with one placeholder per image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepared {
    tokens: Vec<i32>,
    loss_mask: Vec<u8>,
    /// Index of every placeholder in `tokens`, ascending.
    images: Vec<usize>,
}

/// A finished row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// Token ids, i32 `[L]`, image placeholders expanded.
    pub tokens: Vec<i32>,
    /// u8 `[L]`: 1 where the label is the token, 0 where it is -100.
    pub loss_mask: Vec<u8>,
}

impl Prepared {
    /// Tokens that are not images'.
    pub fn text_len(&self) -> usize {
        self.tokens.len() - self.images.len()
    }

    /// Number of images.
    pub fn image_count(&self) -> usize {
        self.images.len()
    }

    /// Length after [`Self::expand`] with these sizes, without building the row; saturates.
    pub fn expanded_len(&self, tokens_per_image: &[u32]) -> usize {
        tokens_per_image.iter().fold(self.text_len(), |sum, tokens| sum.saturating_add(*tokens as usize))
    }

    /// Its ids, with one placeholder an image.
    pub fn ids(&self) -> &[i32] {
        &self.tokens
    }

    /// Tokens that are learnt; at least one.
    pub fn supervised(&self) -> usize {
        memchr::memchr_iter(1, &self.loss_mask).count()
    }

    /// Writes each image's placeholder as often as the image has merged patches.
    pub fn expand(&self, tokens_per_image: &[u32]) -> Result<Encoded, EncodeError> {
        if tokens_per_image.len() != self.images.len() {
            return Err(EncodeError::Placeholders {
                placeholders: self.images.len(),
                images: tokens_per_image.len(),
            });
        }
        if let Some(image) = tokens_per_image.iter().position(|tokens| *tokens == 0) {
            return Err(EncodeError::ImageTokens { image });
        }
        let length = self.expanded_len(tokens_per_image);
        if i32::try_from(length).is_err() {
            return Err(EncodeError::ImageTokens { image: 0 });
        }
        let mut tokens = Vec::with_capacity(length);
        let mut loss_mask = Vec::with_capacity(length);
        let mut done = 0;
        for (position, count) in self.images.iter().zip(tokens_per_image) {
            tokens.extend_from_slice(self.tokens.get(done..*position).unwrap_or_default());
            loss_mask.extend_from_slice(self.loss_mask.get(done..*position).unwrap_or_default());
            let token = self.tokens.get(*position).copied().unwrap_or_default();
            let mask = self.loss_mask.get(*position).copied().unwrap_or_default();
            tokens.extend(std::iter::repeat_n(token, *count as usize));
            loss_mask.extend(std::iter::repeat_n(mask, *count as usize));
            done = position + 1;
        }
        tokens.extend_from_slice(self.tokens.get(done..).unwrap_or_default());
        loss_mask.extend_from_slice(self.loss_mask.get(done..).unwrap_or_default());
        Ok(Encoded { tokens, loss_mask })
    }
}

impl TextProcessor {
    /// Renders and tokenizes a conversation. Everything about its length but the images' sizes is known then.
    pub fn prepare(&self, conversation: &Conversation) -> Result<Prepared, EncodeError> {
        self.refuse_unwritten(conversation)?;
        let rendered = self.render(conversation)?;
        rendered.check_messages(conversation)?;
        let places = rendered.template_tokens(&self.tokenizer);
        let spans = self.supervised_spans(&rendered, &places, conversation)?;
        let (prepared, framed) = self.tokenize(&rendered, &places, &spans)?;
        if prepared.images.len() != conversation.images.len() {
            return Err(EncodeError::Placeholders {
                placeholders: prepared.images.len(),
                images: conversation.images.len(),
            });
        }
        if self.settings.sanitize && !framed {
            return Err(LayoutError::Vision.into());
        }
        if !prepared.loss_mask.contains(&1) {
            return Err(EncodeError::NoSupervision);
        }
        Ok(prepared)
    }

    /// [`Self::prepare`] and [`Prepared::expand`] in one.
    pub fn encode(
        &self,
        conversation: &Conversation,
        tokens_per_image: &[u32],
    ) -> Result<Encoded, EncodeError> {
        self.prepare(conversation)?.expand(tokens_per_image)
    }

    /// How often each control token stands in a conversation's texts, by role and token: turn, vision and padding tokens,
    /// and whatever else the template spells out. Tool descriptions count as the system's.
    pub fn control_token_counts(&self, conversation: &Conversation) -> BTreeMap<(Role, &str), u64> {
        self.controls.counts(conversation)
    }

    /// Ids read from the checkpoint's files.
    pub fn special_ids(&self) -> SpecialIds {
        self.ids
    }

    /// The one token of a stub row: `eos_token`.
    pub fn stub_token(&self) -> i32 {
        self.ids.stub
    }

    /// The image placeholder.
    pub fn image_pad_id(&self) -> i32 {
        self.ids.image_pad
    }

    /// Fills rows up.
    pub fn pad_id(&self) -> i32 {
        self.ids.pad
    }

    /// The text of ids, for people: lossy where a character is cut, image placeholders as they are.
    pub fn decode(&self, ids: &[i32]) -> String {
        let ids: Vec<u32> = ids.iter().filter_map(|id| u32::try_from(*id).ok()).collect();
        self.tokenizer.decode(&ids)
    }

    /// The text of a row in runs of equal supervision: (text, supervised), for people.
    pub fn runs(&self, encoded: &Encoded) -> Vec<(String, bool)> {
        let mut runs = Vec::new();
        let mut done = 0;
        for run in encoded.loss_mask.chunk_by(|left, right| left == right) {
            let end = done + run.len();
            let ids = encoded.tokens.get(done..end).unwrap_or_default();
            runs.push((self.decode(ids), run.first() == Some(&1)));
            done = end;
        }
        runs
    }

    fn refuse_unwritten(&self, conversation: &Conversation) -> Result<(), EncodeError> {
        let unwritten = |what| Err(EncodeError::Unwritten { what });
        if !self.writes.descriptions && !conversation.tools.is_empty() {
            return unwritten("tool descriptions");
        }
        let messages = &conversation.messages;
        if !self.writes.calls && messages.iter().any(|message| !message.tool_calls.is_empty()) {
            return unwritten("tool calls");
        }
        if !self.writes.answers && messages.iter().any(|message| message.role == Role::Tool) {
            return unwritten("tool answers");
        }
        if !self.writes.reasoning && messages.iter().any(|message| message.reasoning.is_some()) {
            return unwritten("reasoning_content");
        }
        Ok(())
    }

    /// The rendered text, with the places of control tokens that the record wrote.
    fn render(&self, conversation: &Conversation) -> Result<Rendered, EncodeError> {
        let assistant = match self.settings.control_tokens_assistant {
            ControlTokensAssistant::KeepContent => Hide::Turn,
            ControlTokensAssistant::Escape => Hide::Every,
        };
        let Some(hider) = self.controls.hider(conversation, assistant)? else {
            let text = self.template.render(conversation, None)?;
            return Ok(self.without_marks(text, Vec::new())?);
        };
        let hidden = self.template.render(conversation, Some(&hider))?;
        let (text, cuts) = hider.restore(&hidden);
        // A template that looks at control tokens in record text wrote something else than it would have written.
        if self.template.render(conversation, None)? != text {
            return Err(LayoutError::LooksAtControlTokens.into());
        }
        Ok(self.without_marks(text, cuts)?)
    }

    fn without_marks(&self, text: String, cuts: Vec<Cut>) -> Result<Rendered, LayoutError> {
        if self.template.marks_generation {
            layout::take_marks(&text, cuts)
        } else {
            Ok(Rendered { text, cuts, marks: Vec::new() })
        }
    }

    /// What is learnt, as byte ranges of the rendered text, in order.
    fn supervised_spans(
        &self,
        rendered: &Rendered,
        places: &[Place],
        conversation: &Conversation,
    ) -> Result<Vec<Range<usize>>, LayoutError> {
        let turns = if self.template.marks_generation {
            rendered.marks.clone()
        } else {
            rendered.assistant_turns(&self.tokenizer, places, self.settings.labels.include_newline)?
        };
        let assistants: Vec<_> =
            conversation.messages.iter().filter(|message| message.role == Role::Assistant).collect();
        if turns.len() != assistants.len() {
            return Err(LayoutError::Turns { written: turns.len(), messages: assistants.len() });
        }
        let last = assistants.len().saturating_sub(1);
        Ok(turns
            .into_iter()
            .zip(assistants)
            .enumerate()
            .filter(|(index, (_, message))| {
                message.loss.unwrap_or(true) && (!self.settings.labels.last_turn_only || *index == last)
            })
            .map(|(_, (span, _))| span)
            .collect())
    }

    /// The row, and whether vision tokens frame its images and stand nowhere else: they come from the template alone,
    /// so there are as many as images ask for.
    fn tokenize(
        &self,
        rendered: &Rendered,
        places: &[Place],
        spans: &[Range<usize>],
    ) -> Result<(Prepared, bool), EncodeError> {
        let Rendered { text, cuts, .. } = rendered;
        let mut row = layout::Row::new(&self.tokenizer, spans, text.len());
        if self.settings.sanitize {
            let (mut done, mut rest) = (0, places);
            for cut in cuts {
                let before = rest.partition_point(|place| place.range.start < cut.range.start);
                let (stretch, after) = rest.split_at(before);
                row.places(text, done..cut.range.start, stretch)?;
                let ids = self.controls.token(cut.token).map(|token| token.plain_ids.as_slice());
                row.push(ids.unwrap_or_default(), &cut.range);
                (done, rest) = (cut.range.end, after);
            }
            row.places(text, done..text.len(), rest)?;
        } else {
            row.text(text, 0..text.len())?;
        }
        // Ids are checked to fit i32 when the vocabulary is loaded.
        let tokens: Vec<i32> = row.ids().iter().map(|id| id.cast_signed()).collect();
        let SpecialIds { image_pad, vision_start, vision_end, video_pad, .. } = self.ids;
        let least = image_pad.min(vision_start).min(vision_end).min(video_pad.unwrap_or(image_pad));
        let (mut images, mut starts, mut ends, mut videos) = (Vec::new(), 0, 0, 0);
        // These ids come after those of words, so most tokens are passed by with one comparison.
        for (position, id) in tokens.iter().enumerate().filter(|(_, id)| **id >= least) {
            starts += usize::from(*id == vision_start);
            ends += usize::from(*id == vision_end);
            videos += usize::from(Some(*id) == video_pad);
            if *id == image_pad {
                images.push(position);
            }
        }
        let framed = starts == images.len() && ends == images.len() && videos == 0;
        Ok((Prepared { tokens, loss_mask: row.loss_mask, images }, framed))
    }
}
