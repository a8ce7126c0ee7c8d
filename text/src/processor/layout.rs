//! Takes rendered text, gives the places of turns in it, and its tokens with a loss mask.
//!
//! A turn is found by the turn tokens that the template wrote. Those that the record wrote are known (see `control`), so
//! the word "assistant" in a text means nothing.

use std::ops::Range;

use crate::control::{Cut, GENERATION_END, GENERATION_START};
use crate::record::{Conversation, Part, Role};
use crate::tokenizer::{TokenizeError, Tokenizer};

pub(crate) const TURN_START: &str = "<|im_start|>";
pub(crate) const TURN_END: &str = "<|im_end|>";

/// Follows the start of an assistant turn.
const ASSISTANT_HEADER: &str = "assistant\n";

/// How a template's text departs from one turn per message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// A turn begins within a turn, or ends without having begun.
    #[error("turns do not begin and end in turn")]
    Nesting,
    /// Assistant turns and assistant messages differ in number.
    #[error("{written} assistant turns for {messages} assistant messages")]
    Turns {
        /// Turns found in the text.
        written: usize,
        /// Assistant messages of the conversation.
        messages: usize,
    },
    /// A message is not in the text.
    #[error("message {message} is left out")]
    LeftOut {
        /// 0-based index in the conversation.
        message: usize,
    },
    /// The text depends on control tokens within messages.
    #[error("control tokens in messages change what is written around them")]
    LooksAtControlTokens,
    /// Vision tokens that frame no image.
    #[error("vision tokens stand where no image is")]
    Vision,
    /// `{% generation %}` marks that do not pair up, or text that holds them.
    #[error("generation marks do not pair up")]
    Marks,
}

/// Rendered text and what is known about it.
pub(super) struct Rendered {
    pub text: String,
    /// Control tokens that the record wrote, in order.
    pub cuts: Vec<Cut>,
    /// What `{% generation %}` blocks wrote, in order.
    pub marks: Vec<Range<usize>>,
}

impl Rendered {
    /// The learnt part of every assistant turn: its content, its end and, if asked for, the newline after that.
    pub(super) fn assistant_turns(
        &self,
        tokenizer: &Tokenizer,
        include_newline: bool,
    ) -> Result<Vec<Range<usize>>, LayoutError> {
        let mut turns = Vec::new();
        // Some(content start) within an assistant turn, Some(None) within another one.
        let mut open: Option<Option<usize>> = None;
        for (content, range) in self.template_tokens(tokenizer) {
            match (content, open) {
                (TURN_START, None) => {
                    let body = self.text.get(range.end..).unwrap_or_default();
                    let is_assistant = body.starts_with(ASSISTANT_HEADER);
                    open = Some(is_assistant.then_some(range.end + ASSISTANT_HEADER.len()));
                }
                (TURN_END, Some(content_start)) => {
                    open = None;
                    let Some(start) = content_start else { continue };
                    let after = self.text.get(range.end..).unwrap_or_default();
                    let newline = usize::from(include_newline && after.starts_with('\n'));
                    turns.push(start..range.end + newline);
                }
                (TURN_START, Some(_)) | (TURN_END, None) => return Err(LayoutError::Nesting),
                _ => {}
            }
        }
        if open.is_some() {
            return Err(LayoutError::Nesting);
        }
        Ok(turns)
    }

    /// Added tokens in the text but those that the record wrote and that are hidden.
    fn template_tokens<'a>(
        &'a self,
        tokenizer: &'a Tokenizer,
    ) -> impl Iterator<Item = (&'a str, Range<usize>)> + 'a {
        let starts = std::iter::once(0).chain(self.cuts.iter().map(|cut| cut.range.end));
        let ends = self.cuts.iter().map(|cut| cut.range.start).chain(std::iter::once(self.text.len()));
        starts.zip(ends).flat_map(move |(start, end)| {
            let text = self.text.get(start..end).unwrap_or_default();
            tokenizer.find_added(text).filter_map(move |(index, from, to)| {
                let token = tokenizer.added().get(index)?;
                Some((token.content.as_str(), start + from..start + to))
            })
        })
    }

    /// Every message but the assistant's is in the text, in order, apart from white space at its ends. What templates do
    /// to answers (they cut reasoning out of earlier turns, say) is theirs to decide.
    pub(super) fn check_messages(&self, conversation: &Conversation) -> Result<(), LayoutError> {
        let mut from = 0;
        for (index, message) in conversation.messages.iter().enumerate() {
            if message.role == Role::Assistant {
                continue;
            }
            for part in &message.parts {
                let Part::Text(text) = part else { continue };
                let rest = self.text.get(from..).unwrap_or_default();
                match rest.find(text.trim()) {
                    Some(at) => from += at + text.trim().len(),
                    None => return Err(LayoutError::LeftOut { message: index }),
                }
            }
        }
        Ok(())
    }
}

/// Takes generation marks out of rendered text, and moves `cuts` along.
pub(super) fn take_marks(marked: &str, mut cuts: Vec<Cut>) -> Result<Rendered, LayoutError> {
    let mut text = String::with_capacity(marked.len());
    let mut marks = Vec::new();
    let mut open = None;
    let mut moved = cuts.iter_mut().peekable();
    for (place, character) in marked.char_indices() {
        if let Some(cut) = moved.next_if(|cut| cut.range.start == place) {
            cut.range = text.len()..text.len() + cut.range.len();
        }
        match (character, open) {
            (GENERATION_START, None) => open = Some(text.len()),
            (GENERATION_END, Some(start)) => {
                marks.push(start..text.len());
                open = None;
            }
            (GENERATION_START | GENERATION_END, _) => return Err(LayoutError::Marks),
            (other, _) => text.push(other),
        }
    }
    drop(moved);
    if open.is_some() {
        return Err(LayoutError::Marks);
    }
    Ok(Rendered { text, cuts, marks })
}

/// Collects ids and the loss mask, from the front of the text to its end.
pub(crate) struct Row<'a> {
    tokenizer: &'a Tokenizer,
    spans: &'a [Range<usize>],
    pub ids: Vec<u32>,
    pub loss_mask: Vec<u8>,
}

impl<'a> Row<'a> {
    pub(crate) fn new(tokenizer: &'a Tokenizer, spans: &'a [Range<usize>]) -> Self {
        Self { tokenizer, spans, ids: Vec::new(), loss_mask: Vec::new() }
    }

    /// Whether a token that stands for `range` is learnt: token start < span end and token end > span start.
    fn is_supervised(&self, range: &Range<usize>) -> bool {
        self.overlapping(range).next().is_some()
    }

    fn overlapping(&self, range: &Range<usize>) -> impl Iterator<Item = &'a Range<usize>> + use<'a> {
        let (start, end) = (range.start, range.end);
        let first = self.spans.partition_point(|span| span.end <= start);
        self.spans.iter().skip(first).take_while(move |span| span.start < end)
    }

    /// Ids that together stand for one stretch.
    pub(super) fn ids(&mut self, ids: &[u32], range: &Range<usize>) {
        let mask = u8::from(self.is_supervised(range));
        self.ids.extend_from_slice(ids);
        self.loss_mask.resize(self.ids.len(), mask);
    }

    /// A stretch that is encoded in one piece: added tokens, and the text between them.
    pub(crate) fn text(&mut self, text: &str, range: Range<usize>) -> Result<(), TokenizeError> {
        let stretch = text.get(range.clone()).unwrap_or_default();
        let mut done = 0;
        let tokenizer = self.tokenizer;
        for (index, start, end) in tokenizer.find_added(stretch) {
            self.piece(stretch.get(done..start).unwrap_or_default(), range.start + done)?;
            if let Some(token) = tokenizer.added().get(index) {
                self.ids(&[token.id], &(range.start + start..range.start + end));
            }
            done = end;
        }
        self.piece(stretch.get(done..).unwrap_or_default(), range.start + done)
    }

    /// Text without added tokens, which begins at `start` of the rendered text.
    fn piece(&mut self, piece: &str, start: usize) -> Result<(), TokenizeError> {
        if piece.is_empty() {
            return Ok(());
        }
        let range = start..start + piece.len();
        let normalized = self.tokenizer.normalize(piece);
        let first = self.ids.len();
        self.tokenizer.encode(&normalized, &mut self.ids)?;
        let whole = self.overlapping(&range).any(|span| span.start <= range.start && span.end >= range.end);
        self.loss_mask.resize(self.ids.len(), u8::from(whole));
        if whole || !self.is_supervised(&range) {
            return Ok(());
        }
        let mut learnt = Vec::new();
        for span in self.overlapping(&range) {
            let from = span.start.max(range.start) - start;
            let to = span.end.min(range.end) - start;
            learnt.push(
                self.normalized_offset(piece, &normalized, from)?
                    ..self.normalized_offset(piece, &normalized, to)?,
            );
        }
        let mut token_start = 0;
        let masks = self.loss_mask.iter_mut().skip(first);
        for (id, mask) in self.ids.iter().skip(first).zip(masks) {
            let token_end = token_start + self.tokenizer.length(*id);
            if learnt.iter().any(|span| token_start < span.end && token_end > span.start) {
                *mask = 1;
            }
            token_start = token_end;
        }
        Ok(())
    }

    /// Where a place in a piece is after normalisation. The place must not be within what is composed to one character.
    fn normalized_offset(
        &self,
        piece: &str,
        normalized: &str,
        offset: usize,
    ) -> Result<usize, TokenizeError> {
        if piece.len() == normalized.len() && piece == normalized {
            return Ok(offset);
        }
        let before = self.tokenizer.normalize(piece.get(..offset).unwrap_or_default());
        let after = self.tokenizer.normalize(piece.get(offset..).unwrap_or_default());
        let matches = normalized.len() == before.len() + after.len()
            && normalized.starts_with(&*before)
            && normalized.ends_with(&*after);
        if matches {
            Ok(before.len())
        } else {
            Err(TokenizeError::Extent { covered: before.len() + after.len(), length: normalized.len() })
        }
    }
}
