//! Takes tokenizer.json, gives token ids and how many bytes of text each id covers.
//!
//! The `tokenizers` release used here returns ids only, so extents are the running sum of the ids' byte lengths over the
//! normalised text, and the sum must match. Added tokens are found here, not by the library: the caller needs to know
//! which stretches of text they are, and the library's second model without added tokens would cost a second load.
//!
//! Compared with the reference (tokenizers 0.23.3) over every code point: equal, but for the 4,657 letters that came with
//! Unicode 17 where an apostrophe follows, which the reference's regular expressions do not know as letters yet.

mod file;

use std::borrow::Cow;
use std::collections::HashMap;

use aho_corasick::{AhoCorasick, FindIter, MatchKind};
use tokenizers::pipeline::{EncodeOptions, Override, PipelineToken, PipelineTokenizer};
use unicode_normalization_alignments::{IsNormalized, UnicodeNormalization as _, is_nfc_quick};

pub(crate) use file::AddedTokenFile;
pub use file::TokenizerError;

/// A token beside the model's vocabulary, matched in text before anything else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AddedToken {
    pub id: u32,
    pub content: String,
    pub special: bool,
    /// Matched after normalisation instead of before.
    pub normalized: bool,
}

/// Byte-level BPE with added tokens. Shared by threads.
pub(crate) struct Tokenizer {
    pipeline: PipelineTokenizer,
    options: EncodeOptions,
    /// Whether text is normalised to NFC.
    nfc: bool,
    /// Bytes of text per id; 0 for ids that do not exist, [`LONG`] for those in `long`. One byte each, so that the table
    /// stays in the processor's cache.
    lengths: Vec<u8>,
    /// Bytes of text of ids with [`LONG`] bytes or more.
    long: HashMap<u32, u32>,
    added: Vec<AddedToken>,
    /// Over `added`, those matched before normalisation.
    raw: Matcher,
    /// Over `added`, those matched after it.
    normalized: Matcher,
    /// The ids of what templates write between added tokens, see [`TEMPLATE_PIECES`].
    pieces: Vec<(&'static str, Vec<u32>)>,
}

/// Stands in the table of lengths for this many bytes and more.
const LONG: u8 = u8::MAX;

/// What templates write between added tokens again and again. A call of the library costs more than these are long, so
/// their ids are asked for once.
const TEMPLATE_PIECES: [&str; 4] = ["\n", "user\n", "assistant\n", "system\n"];

/// Finds some of the added tokens, leftmost first and then longest, as the reference does.
struct Matcher {
    automaton: Option<Finder>,
    /// Pattern number → index into `added`.
    indices: Vec<usize>,
}

impl Matcher {
    fn new(patterns: Vec<(usize, String)>) -> Result<Self, TokenizerError> {
        let (indices, contents): (Vec<usize>, Vec<String>) = patterns.into_iter().unzip();
        let automaton = if contents.is_empty() { None } else { Some(Finder::new(&contents)?) };
        Ok(Self { automaton, indices })
    }

    fn find<'a>(&'a self, text: &'a str) -> impl Iterator<Item = (usize, usize, usize)> + 'a {
        self.automaton.iter().flat_map(move |automaton| {
            automaton.find_iter(text).filter_map(|found| {
                let index = self.indices.get(found.pattern().as_usize())?;
                Some((*index, found.start(), found.end()))
            })
        })
    }
}

/// Finds texts, leftmost first and then longest.
pub(crate) struct Finder {
    automaton: AhoCorasick,
    /// The bytes that the texts begin with; empty if they are more than three.
    first: Vec<u8>,
}

impl Finder {
    pub(crate) fn new(contents: &[String]) -> Result<Self, TokenizerError> {
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(contents)
            .map_err(|_| TokenizerError::AddedTokens { why: "they are too many or too long" })?;
        let mut first: Vec<u8> =
            contents.iter().filter_map(|content| content.as_bytes().first()).copied().collect();
        first.sort_unstable();
        first.dedup();
        if first.len() > 3 {
            first.clear();
        }
        Ok(Self { automaton, first })
    }

    /// Where the first of the texts can begin. Most texts of records have no such place, and looking for bytes costs a
    /// tenth of starting the automaton.
    fn place(&self, text: &str) -> Option<usize> {
        match *self.first {
            [one] => memchr::memchr(one, text.as_bytes()),
            [one, two] => memchr::memchr2(one, two, text.as_bytes()),
            [one, two, three] => memchr::memchr3(one, two, three, text.as_bytes()),
            _ => Some(0),
        }
    }

    pub(crate) fn find_iter<'a>(&'a self, text: &'a str) -> impl Iterator<Item = aho_corasick::Match> + 'a {
        let found: Option<FindIter<'_, '_>> = self.place(text).map(|_| self.automaton.find_iter(text));
        found.into_iter().flatten()
    }

    pub(crate) fn is_match(&self, text: &str) -> bool {
        self.place(text).is_some_and(|_| self.automaton.is_match(text))
    }
}

/// Why text could not be tokenized.
#[derive(Debug, thiserror::Error)]
pub enum TokenizeError {
    /// The library failed.
    #[error("tokenizer failed: {0}")]
    Library(String),
    /// The ids' byte lengths do not add up to the text.
    #[error("tokens cover {covered} bytes of a text of {length}")]
    Extent {
        /// Bytes that the ids stand for.
        covered: usize,
        /// Bytes of the normalised text.
        length: usize,
    },
}

impl Tokenizer {
    pub(crate) fn added(&self) -> &[AddedToken] {
        &self.added
    }

    pub(crate) fn added_by_content(&self, content: &str) -> Option<&AddedToken> {
        self.added.iter().find(|token| token.content == content)
    }

    /// The id of an added token or of a word of the model.
    pub(crate) fn id_of(&self, content: &str) -> Option<u32> {
        if let Some(token) = self.added_by_content(content) {
            return Some(token.id);
        }
        let ids = self.model_ids(content).ok()?;
        match ids[..] {
            [id] => Some(id),
            _ => None,
        }
    }

    /// Added tokens matched before normalisation: (index into [`Self::added`], start, end), in order.
    pub(crate) fn find_added<'a>(
        &'a self,
        text: &'a str,
    ) -> impl Iterator<Item = (usize, usize, usize)> + 'a {
        self.raw.find(text)
    }

    /// The text as the model sees it. The library's own NFC is not used: its tables are newer than those of the
    /// reference, which order and compose characters of later Unicode versions otherwise.
    pub(crate) fn normalize<'a>(&self, text: &'a str) -> Cow<'a, str> {
        // ASCII is the common case and always normal.
        if !self.nfc || text.is_ascii() || is_nfc_quick(text.chars()) == IsNormalized::Yes {
            Cow::Borrowed(text)
        } else {
            Cow::Owned(text.nfc().map(|(character, _)| character).collect())
        }
    }

    /// The ids of a stretch that templates write often, if `text` is one.
    pub(crate) fn template_piece(&self, text: &str) -> Option<&[u32]> {
        let known = self.pieces.iter().find(|(known, _)| *known == text);
        known.map(|(_, ids)| ids.as_slice())
    }

    /// Asks the library for the ids of [`TEMPLATE_PIECES`].
    fn learn_pieces(&mut self) -> Result<(), TokenizeError> {
        for piece in TEMPLATE_PIECES {
            let mut tokens = Vec::new();
            let covered = self.encode(piece, &mut tokens).map(|()| self.covered(&tokens))?;
            // What does not cover its text is an error where it is met.
            if covered == piece.len() {
                self.pieces.push((piece, PipelineToken::cast_slice(&tokens).to_vec()));
            }
        }
        Ok(())
    }

    /// Appends the tokens of a normalised stretch without raw added tokens. The caller checks that they cover it.
    pub(crate) fn encode(&self, normalized: &str, out: &mut Vec<PipelineToken>) -> Result<(), TokenizeError> {
        if self.normalized.automaton.is_none() {
            return self.encode_model(normalized, out);
        }
        let mut done = 0;
        for (index, start, end) in self.normalized.find(normalized) {
            self.encode_model(normalized.get(done..start).unwrap_or_default(), out)?;
            out.extend(self.added.get(index).map(|token| PipelineToken::from(token.id)));
            done = end;
        }
        self.encode_model(normalized.get(done..).unwrap_or_default(), out)
    }

    /// Appends the tokens of text in which no added token is known.
    fn encode_model(&self, text: &str, out: &mut Vec<PipelineToken>) -> Result<(), TokenizeError> {
        if text.is_empty() {
            return Ok(());
        }
        self.pipeline
            .encode_into(text, &self.options, out)
            .map_err(|error| TokenizeError::Library(error.to_string()))
    }

    /// The ids of text in which no added token is known.
    pub(crate) fn model_ids(&self, text: &str) -> Result<Vec<u32>, TokenizeError> {
        let mut tokens = Vec::new();
        self.encode_model(text, &mut tokens)?;
        Ok(PipelineToken::cast_slice(&tokens).to_vec())
    }

    /// Bytes of normalised text that tokens stand for.
    pub(crate) fn covered(&self, tokens: &[PipelineToken]) -> usize {
        PipelineToken::cast_slice(tokens).iter().map(|id| self.length(*id)).sum()
    }

    /// Bytes of normalised text that an id stands for; 0 for an unknown id.
    pub(crate) fn length(&self, id: u32) -> usize {
        match usize::try_from(id).ok().and_then(|id| self.lengths.get(id)) {
            Some(&LONG) => self.long.get(&id).map_or(0, |length| *length as usize),
            length => length.map_or(0, |length| usize::from(*length)),
        }
    }

    /// Whether an id exists.
    pub(crate) fn knows(&self, id: u32) -> bool {
        self.length(id) > 0
    }

    /// Text for people: bytes that are no UTF-8 become replacement characters, unknown ids nothing.
    pub(crate) fn decode(&self, ids: &[u32]) -> String {
        let mut text = String::new();
        let is_added = |id: &u32| self.added.iter().any(|token| token.id == *id);
        for run in ids.chunk_by(|left, right| !is_added(left) && !is_added(right)) {
            match run {
                [id] if is_added(id) => text.extend(
                    self.added.iter().find(|token| token.id == *id).map(|token| token.content.as_str()),
                ),
                run => text.push_str(&self.pipeline.decode(run, false).unwrap_or_default()),
            }
        }
        text
    }

    fn options() -> EncodeOptions {
        EncodeOptions {
            add_special_tokens: false,
            encode_special_tokens: false,
            padding: Override::Off,
            truncation: Override::Off,
        }
    }
}

#[cfg(test)]
mod tests;
