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

use aho_corasick::{AhoCorasick, MatchKind};
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
    /// Bytes of text per id; 0 for ids that do not exist.
    lengths: Vec<u32>,
    added: Vec<AddedToken>,
    /// Over `added`, those matched before normalisation.
    raw: Matcher,
    /// Over `added`, those matched after it.
    normalized: Matcher,
}

/// Finds some of the added tokens, leftmost first and then longest, as the reference does.
struct Matcher {
    automaton: Option<AhoCorasick>,
    /// Pattern number → index into `added`.
    indices: Vec<usize>,
}

impl Matcher {
    fn new(patterns: Vec<(usize, String)>) -> Result<Self, TokenizerError> {
        let (indices, contents): (Vec<usize>, Vec<String>) = patterns.into_iter().unzip();
        let automaton = if contents.is_empty() { None } else { Some(leftmost_longest(&contents)?) };
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

/// An automaton that finds `contents` leftmost first and then longest.
pub(crate) fn leftmost_longest(contents: &[String]) -> Result<AhoCorasick, TokenizerError> {
    AhoCorasick::builder()
        .match_kind(MatchKind::LeftmostLongest)
        .build(contents)
        .map_err(|_| TokenizerError::AddedTokens { why: "they are too many or too long" })
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
        let mut ids = Vec::new();
        self.encode_model(content, &mut ids).ok()?;
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

    /// Appends the ids of a normalised stretch without raw added tokens, and checks that they cover it.
    pub(crate) fn encode(&self, normalized: &str, out: &mut Vec<u32>) -> Result<(), TokenizeError> {
        let first = out.len();
        if self.normalized.automaton.is_none() {
            self.encode_model(normalized, out)?;
        } else {
            let mut done = 0;
            for (index, start, end) in self.normalized.find(normalized) {
                self.encode_model(normalized.get(done..start).unwrap_or_default(), out)?;
                out.extend(self.added.get(index).map(|token| token.id));
                done = end;
            }
            self.encode_model(normalized.get(done..).unwrap_or_default(), out)?;
        }
        let covered = out.iter().skip(first).map(|id| self.length(*id)).sum::<usize>();
        if covered != normalized.len() {
            return Err(TokenizeError::Extent { covered, length: normalized.len() });
        }
        Ok(())
    }

    /// Appends the ids of text in which no added token is known.
    pub(crate) fn encode_model(&self, text: &str, out: &mut Vec<u32>) -> Result<(), TokenizeError> {
        if text.is_empty() {
            return Ok(());
        }
        let mut tokens: Vec<PipelineToken> = Vec::with_capacity(text.len() / 3 + 8);
        self.pipeline
            .encode_into(text, &self.options, &mut tokens)
            .map_err(|error| TokenizeError::Library(error.to_string()))?;
        out.extend_from_slice(PipelineToken::cast_slice(&tokens));
        Ok(())
    }

    /// Bytes of normalised text that an id stands for; 0 for an unknown id.
    pub(crate) fn length(&self, id: u32) -> usize {
        usize::try_from(id).ok().and_then(|id| self.lengths.get(id)).map_or(0, |length| *length as usize)
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
