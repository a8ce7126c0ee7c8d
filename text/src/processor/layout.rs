//! Takes rendered text, gives the places of turns in it, and its tokens with a loss mask.
//!
//! A turn is found by the turn tokens that the template wrote. Those that the record wrote are known (see `control`), so
//! the word "assistant" in a text means nothing.

use std::ops::Range;

use crate::control::{Cut, GENERATION_END, GENERATION_START};
use crate::record::{Conversation, Part, Role};
use crate::tokenizer::{TokenizeError, Tokenizer};
use tokenizers::pipeline::PipelineToken;

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
        places: &[Place],
        include_newline: bool,
    ) -> Result<Vec<Range<usize>>, LayoutError> {
        let mut turns = Vec::new();
        // Some(content start) within an assistant turn, Some(None) within another one.
        let mut open: Option<Option<usize>> = None;
        for Place { token, range } in places {
            let Some(token) = tokenizer.added().get(*token) else { continue };
            match (token.content.as_str(), open) {
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

    /// Added tokens in the text but those that the record wrote and that are hidden, in order.
    pub(super) fn template_tokens(&self, tokenizer: &Tokenizer) -> Vec<Place> {
        let mut places = Vec::new();
        let starts = std::iter::once(0).chain(self.cuts.iter().map(|cut| cut.range.end));
        let ends = self.cuts.iter().map(|cut| cut.range.start).chain(std::iter::once(self.text.len()));
        for (start, end) in starts.zip(ends) {
            let text = self.text.get(start..end).unwrap_or_default();
            places.extend(
                tokenizer
                    .find_added(text)
                    .map(|(token, from, to)| Place { token, range: start + from..start + to }),
            );
        }
        places
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
                match find(rest, text.trim()) {
                    Some(at) => from += at + text.trim().len(),
                    None => return Err(LayoutError::LeftOut { message: index }),
                }
            }
        }
        Ok(())
    }
}

/// A token of the tokenizer in rendered text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Index into the tokenizer's added tokens.
    pub token: usize,
    pub range: Range<usize>,
}

/// [`str::find`], faster for long texts that are there: preparing a search for a whole text costs more than the search.
fn find(text: &str, wanted: &str) -> Option<usize> {
    /// Bytes that are looked for first.
    const HEAD: usize = 16;
    /// Places that begin like `wanted` and go on otherwise, before it is looked for as a whole: texts that repeat
    /// themselves would make this slow.
    const TRIES: usize = 8;
    let Some(head) = wanted.as_bytes().get(..HEAD) else { return text.find(wanted) };
    for place in memchr::memmem::find_iter(text.as_bytes(), head).take(TRIES) {
        if text.as_bytes().get(place..).is_some_and(|rest| rest.starts_with(wanted.as_bytes())) {
            return Some(place);
        }
    }
    text.find(wanted)
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

/// Collects tokens and the loss mask, from the front of the text to its end.
pub(crate) struct Row<'a> {
    tokenizer: &'a Tokenizer,
    spans: &'a [Range<usize>],
    tokens: Vec<PipelineToken>,
    pub loss_mask: Vec<u8>,
}

impl<'a> Row<'a> {
    /// For a text of so many bytes; `spans` are learnt, in order.
    pub(crate) fn new(tokenizer: &'a Tokenizer, spans: &'a [Range<usize>], text_len: usize) -> Self {
        // Prose has about four bytes a token.
        let tokens = text_len / 3 + 8;
        Self { tokenizer, spans, tokens: Vec::with_capacity(tokens), loss_mask: Vec::with_capacity(tokens) }
    }

    pub(crate) fn ids(&self) -> &[u32] {
        PipelineToken::cast_slice(&self.tokens)
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
    pub(super) fn push(&mut self, ids: &[u32], range: &Range<usize>) {
        let mask = u8::from(self.is_supervised(range));
        self.tokens.extend(ids.iter().map(|id| PipelineToken::from(*id)));
        self.loss_mask.resize(self.tokens.len(), mask);
    }

    /// A stretch that is encoded in one piece: added tokens, and the text between them.
    pub(crate) fn text(&mut self, text: &str, range: Range<usize>) -> Result<(), TokenizeError> {
        let stretch = text.get(range.clone()).unwrap_or_default();
        let tokenizer = self.tokenizer;
        let places: Vec<Place> = tokenizer
            .find_added(stretch)
            .map(|(token, start, end)| Place { token, range: range.start + start..range.start + end })
            .collect();
        self.places(text, range, &places)
    }

    /// The same where the added tokens are known.
    pub(super) fn places(
        &mut self,
        text: &str,
        range: Range<usize>,
        places: &[Place],
    ) -> Result<(), TokenizeError> {
        let mut done = range.start;
        for Place { token, range } in places {
            self.piece(text.get(done..range.start).unwrap_or_default(), done)?;
            if let Some(token) = self.tokenizer.added().get(*token) {
                self.push(&[token.id], range);
            }
            done = range.end;
        }
        self.piece(text.get(done..range.end).unwrap_or_default(), done)
    }

    /// Text without added tokens, which begins at `start` of the rendered text.
    fn piece(&mut self, piece: &str, start: usize) -> Result<(), TokenizeError> {
        if piece.is_empty() {
            return Ok(());
        }
        let range = start..start + piece.len();
        let whole = self.overlapping(&range).any(|span| span.start <= range.start && span.end >= range.end);
        let split = !whole && self.is_supervised(&range);
        if !split && let Some(ids) = self.tokenizer.template_piece(piece) {
            self.push(ids, &range);
            return Ok(());
        }
        let normalized = self.tokenizer.normalize(piece);
        let first = self.tokens.len();
        self.tokenizer.encode(&normalized, &mut self.tokens)?;
        self.loss_mask.resize(self.tokens.len(), u8::from(whole));
        let tokens = self.tokens.get(first..).unwrap_or_default();
        let extent = |covered| {
            let length = normalized.len();
            if covered == length { Ok(()) } else { Err(TokenizeError::Extent { covered, length }) }
        };
        if !split {
            return extent(self.tokenizer.covered(tokens));
        }
        let learnt = self.learnt(piece, &normalized, &range);
        let mut spans = learnt.as_deref().unwrap_or_default().iter().peekable();
        let mut token_start = 0;
        for (place, id) in (first..).zip(PipelineToken::cast_slice(tokens)) {
            let token_end = token_start + self.tokenizer.length(*id);
            // Spans are in order, so the first that does not end before the token begins first as well.
            while spans.next_if(|span| span.end <= token_start).is_some() {}
            if spans.peek().is_some_and(|span| token_end > span.start) {
                if spans.peek().is_some_and(|span| span.end >= normalized.len()) {
                    // All that follow are learnt.
                    let rest = tokens.get(place - first..).unwrap_or_default();
                    token_start += self.tokenizer.covered(rest);
                    self.loss_mask.truncate(place);
                    self.loss_mask.resize(self.tokens.len(), 1);
                    break;
                }
                if let Some(mask) = self.loss_mask.get_mut(place) {
                    *mask = 1;
                }
            }
            token_start = token_end;
        }
        extent(token_start)?;
        learnt.map(|_| ())
    }

    /// The learnt stretches of a piece, as places in its normalised text.
    fn learnt(
        &self,
        piece: &str,
        normalized: &str,
        range: &Range<usize>,
    ) -> Result<Vec<Range<usize>>, TokenizeError> {
        let offset = |place: usize| self.normalized_offset(piece, normalized, place - range.start);
        self.overlapping(range)
            .map(|span| Ok(offset(span.start.max(range.start))?..offset(span.end.min(range.end))?))
            .collect()
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
