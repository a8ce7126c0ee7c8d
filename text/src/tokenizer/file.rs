//! Takes the text of tokenizer.json and tokenizer_config.json, gives a [`Tokenizer`], or says what it cannot do.
//!
//! The library reads only its own newer file format. Its converter (`canonicalize_value`) is run on everything but the
//! vocabulary and the merges, which are most of the file and have the same form in both: that is a third of the time.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use serde::Deserialize;
use serde::de::{Deserializer as _, MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::{AddedToken, LONG, Matcher, Tokenizer};

/// Why a tokenizer cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// Not JSON of the expected form.
    #[error("tokenizer.json is not a tokenizer: {0}")]
    Json(#[source] serde_json::Error),
    /// The library's converter or reader refuses it.
    #[error("tokenizer.json cannot be read: {0}")]
    Library(String),
    /// A part of it that would make extents or ids wrong.
    #[error("tokenizer.json has {what}; only byte-level BPE with NFC or no normalizer is supported")]
    Unsupported {
        /// Which part.
        what: String,
    },
    /// The added tokens contradict each other or the vocabulary.
    #[error("added tokens cannot be used: {why}")]
    AddedTokens {
        /// What is wrong.
        why: &'static str,
    },
    /// tokenizer_config.json and tokenizer.json give one token two ids.
    #[error(
        "token {token:?} has id {in_config} in tokenizer_config.json and {in_tokenizer} in tokenizer.json"
    )]
    Contradiction {
        /// The token.
        token: String,
        /// Its id in tokenizer_config.json.
        in_config: u32,
        /// Its id in tokenizer.json.
        in_tokenizer: u32,
    },
}

#[derive(Deserialize)]
struct TokenizerFile<'a> {
    #[serde(borrow)]
    model: ModelFile<'a>,
    #[serde(default)]
    added_tokens: Vec<AddedTokenFile>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
}

#[derive(Deserialize)]
struct ModelFile<'a> {
    #[serde(rename = "type", default)]
    kind: Option<String>,
    #[serde(borrow)]
    vocab: &'a RawValue,
    #[serde(borrow)]
    merges: &'a RawValue,
    #[serde(default)]
    dropout: Option<f64>,
    #[serde(default)]
    unk_token: Option<String>,
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
    #[serde(default)]
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    fuse_unk: bool,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
    /// Only in the library's newer format.
    #[serde(default)]
    byte_level: bool,
}

/// An added token in either file.
#[derive(Deserialize)]
pub(crate) struct AddedTokenFile {
    #[serde(default)]
    id: Option<u32>,
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    normalized: bool,
    #[serde(default)]
    special: bool,
}

impl Tokenizer {
    /// Reads tokenizer.json; `config` are tokenizer_config.json's `added_tokens_decoder` entries and `special` the
    /// tokens that it names special.
    pub(crate) fn from_files(
        tokenizer_json: &[u8],
        config: &[(u32, AddedTokenFile)],
        special: &[String],
    ) -> Result<Self, TokenizerError> {
        let file: TokenizerFile<'_> = serde_json::from_slice(tokenizer_json).map_err(TokenizerError::Json)?;
        let model = &file.model;
        let unsupported = |what: String| TokenizerError::Unsupported { what };
        if model.kind.as_deref().is_some_and(|kind| kind != "BPE") {
            return Err(unsupported(format!("model {}", model.kind.as_deref().unwrap_or_default())));
        }
        if model.dropout.is_some_and(|dropout| dropout != 0.0) {
            return Err(unsupported("dropout".into()));
        }
        let nfc =
            is_nfc(&file.normalizer).ok_or_else(|| unsupported("a normalizer other than NFC".into()))?;
        let names: HashSet<&str> = file
            .added_tokens
            .iter()
            .chain(config.iter().map(|(_, token)| token))
            .map(|token| token.content.as_str())
            .collect();
        let vocab = Vocabulary::read(model.vocab, &names).map_err(TokenizerError::Json)?;

        let added = merge_added(&file.added_tokens, config, special, &vocab)?;
        let count = vocab
            .lengths
            .iter()
            .map(|(id, _)| *id)
            .chain(added.iter().map(|token| token.id))
            .max()
            .map_or(0, |id| id as usize + 1);
        // Ids index tables, here and in the library, which does not check; one huge id would make them huge.
        if count > 16 * (vocab.lengths.len() + added.len()) + 65_536 {
            let words = vocab.lengths.len();
            return Err(unsupported(format!("{count} ids for a vocabulary of {words}")));
        }
        let text = library_format(&file)?;
        let pipeline =
            tokenizers::from_json(&text).map_err(|error| TokenizerError::Library(error.to_string()))?;
        drop(text);

        let mut lengths = vec![0u32; count];
        for (id, bytes) in &vocab.lengths {
            if let Some(length) = lengths.get_mut(*id as usize) {
                *length = *bytes;
            }
        }
        for token in &added {
            if let Some(length) = lengths.get_mut(token.id as usize) {
                if *length > 0 && !vocab.named.contains_key(&token.content) {
                    return Err(TokenizerError::AddedTokens { why: "one has the id of another word" });
                }
                *length = u32::try_from(token.content.len()).unwrap_or(0);
            }
        }
        let patterns = |normalized: bool| -> Vec<(usize, String)> {
            added
                .iter()
                .enumerate()
                .filter(|(_, token)| token.normalized == normalized)
                .map(|(index, token)| (index, token.content.clone()))
                .collect()
        };
        let long = (0..).zip(&lengths).filter(|(_, length)| **length >= u32::from(LONG));
        let long = long.map(|(id, length)| (id, *length)).collect();
        let lengths = lengths.iter().map(|length| u8::try_from(*length).unwrap_or(LONG)).collect();
        let mut tokenizer = Self {
            options: Self::options(),
            nfc,
            raw: Matcher::new(patterns(false))?,
            normalized: Matcher::new(patterns(true))?,
            pipeline,
            lengths,
            long,
            added,
            pieces: Vec::new(),
        };
        tokenizer.learn_pieces().map_err(|error| TokenizerError::Library(error.to_string()))?;
        Ok(tokenizer)
    }
}

/// What is needed of the model's vocabulary; its words are not kept, the library keeps its own.
struct Vocabulary {
    /// (id, bytes of text it stands for).
    lengths: Vec<(u32, u32)>,
    /// Words that are added tokens as well, with their ids.
    named: HashMap<String, u32>,
}

impl Vocabulary {
    fn read(json: &RawValue, names: &HashSet<&str>) -> Result<Self, serde_json::Error> {
        let mut deserializer = serde_json::Deserializer::from_str(json.get());
        deserializer.deserialize_map(VocabularyVisitor { names })
    }
}

struct VocabularyVisitor<'n> {
    names: &'n HashSet<&'n str>,
}

/// A word, borrowed where JSON needs no unescaping.
#[derive(Deserialize)]
struct Word<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de> Visitor<'de> for VocabularyVisitor<'_> {
    type Value = Vocabulary;

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("an object of words and ids")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Vocabulary, A::Error> {
        let mut vocabulary = Vocabulary { lengths: Vec::new(), named: HashMap::new() };
        while let Some((Word(word), id)) = access.next_entry::<Word<'de>, u32>()? {
            // In the byte-level alphabet one character is one byte.
            let bytes = u32::try_from(word.chars().count()).unwrap_or(u32::MAX);
            vocabulary.lengths.push((id, bytes));
            if self.names.contains(&*word) {
                vocabulary.named.insert(word.into_owned(), id);
            }
        }
        Ok(vocabulary)
    }
}

/// Whether text is normalised to NFC; `None` for any other normalizer. NFC keeps ASCII and is stable under cutting at
/// added tokens; others change what a byte stands for.
fn is_nfc(normalizer: &Value) -> Option<bool> {
    match normalizer.get("type").and_then(Value::as_str) {
        None => normalizer.is_null().then_some(false),
        Some("NFC") => Some(true),
        Some("Sequence") => {
            let steps = normalizer.get("normalizers").and_then(Value::as_array)?;
            let steps: Option<Vec<bool>> = steps.iter().map(is_nfc).collect();
            Some(steps?.contains(&true))
        }
        Some(_) => None,
    }
}

/// The file as the library reads it, without normalizer, added tokens, post-processor, padding and truncation.
fn library_format(file: &TokenizerFile<'_>) -> Result<String, TokenizerError> {
    let model = &file.model;
    let mut small = json!({
        "version": "1.0",
        "normalizer": null,
        "pre_tokenizer": file.pre_tokenizer,
        "model": {
            "type": "BPE",
            "unk_token": model.unk_token,
            "continuing_subword_prefix": model.continuing_subword_prefix,
            "end_of_word_suffix": model.end_of_word_suffix,
            "fuse_unk": model.fuse_unk,
            "byte_fallback": model.byte_fallback,
            "ignore_merges": model.ignore_merges,
            "vocab": {},
            "merges": [],
        },
    });
    if model.byte_level {
        small["model"]["byte_level"] = Value::Bool(true);
    }
    tokenizers::canonicalize_value(&mut small).map_err(|error| TokenizerError::Library(error.to_string()))?;
    let fields = match small {
        Value::Object(fields) => fields,
        _ => Map::new(),
    };
    let is_byte_level = fields
        .get("model")
        .and_then(|model| model.get("byte_level"))
        .and_then(Value::as_bool)
        .unwrap_or(false);
    if !is_byte_level {
        return Err(TokenizerError::Unsupported { what: "no ByteLevel pre-tokenizer".into() });
    }
    let merges = pairs(model.merges)?;
    let mut text = String::with_capacity(model.vocab.get().len() + merges.len() + 4096);
    let mut separator = '{';
    for (key, value) in &fields {
        let _ = write!(text, "{separator}{}:", Value::String(key.clone()));
        separator = ',';
        match value {
            Value::Object(model_fields) if key == "model" => {
                let mut separator = '{';
                for (key, value) in model_fields {
                    let _ = write!(text, "{separator}{}:", Value::String(key.clone()));
                    separator = ',';
                    match key.as_str() {
                        "vocab" => text.push_str(model.vocab.get()),
                        "merges" => text.push_str(&merges),
                        _ => {
                            let _ = write!(text, "{value}");
                        }
                    }
                }
                text.push('}');
            }
            value => {
                let _ = write!(text, "{value}");
            }
        }
    }
    text.push('}');
    Ok(text)
}

/// Merges as pairs; older files write "left right".
fn pairs(merges: &RawValue) -> Result<Cow<'_, str>, TokenizerError> {
    let text = merges.get();
    let inner = text.trim_start().strip_prefix('[').unwrap_or_default();
    if !inner.trim_start().starts_with('"') {
        return Ok(Cow::Borrowed(text));
    }
    let lines: Vec<Cow<'_, str>> = serde_json::from_str(text).map_err(TokenizerError::Json)?;
    let mut pairs = Vec::with_capacity(lines.len());
    for line in &lines {
        if line.starts_with("#version") {
            continue;
        }
        let (left, right) = line
            .split_once(' ')
            .filter(|(_, right)| !right.contains(' '))
            .ok_or_else(|| TokenizerError::Unsupported { what: "a merge that is not two words".into() })?;
        pairs.push((left, right));
    }
    serde_json::to_string(&pairs).map(Cow::Owned).map_err(TokenizerError::Json)
}

/// Added tokens of both files, by id. As in the reference, tokenizer_config.json adds to and overrides tokenizer.json.
fn merge_added(
    in_tokenizer: &[AddedTokenFile],
    in_config: &[(u32, AddedTokenFile)],
    special: &[String],
    vocab: &Vocabulary,
) -> Result<Vec<AddedToken>, TokenizerError> {
    let bad = |why| TokenizerError::AddedTokens { why };
    let mut added: Vec<AddedToken> = Vec::new();
    let all = in_tokenizer
        .iter()
        .map(|token| (token.id, token))
        .chain(in_config.iter().map(|(id, token)| (Some(*id), token)));
    for (id, token) in all {
        let id = id.ok_or(bad("one has no id"))?;
        if token.content.is_empty() {
            return Err(bad("one is empty"));
        }
        if token.lstrip || token.rstrip || token.single_word {
            return Err(bad("one strips spaces or matches whole words only"));
        }
        let new = AddedToken {
            id,
            content: token.content.clone(),
            special: token.special || special.contains(&token.content),
            normalized: token.normalized,
        };
        if new.normalized && !new.content.is_ascii() {
            return Err(bad("one is matched after normalisation and is not ascii"));
        }
        if vocab.named.get(&new.content).is_some_and(|known| *known != id) {
            return Err(bad("one has another id in the vocabulary"));
        }
        match added.iter().position(|known| known.content == new.content || known.id == id) {
            None => added.push(new),
            Some(index) => match added.get_mut(index) {
                Some(known) if known.content != new.content => return Err(bad("two have one id")),
                Some(known) if known.id != id => {
                    return Err(TokenizerError::Contradiction {
                        token: new.content,
                        in_config: id,
                        in_tokenizer: known.id,
                    });
                }
                Some(known) => *known = new,
                None => {}
            },
        }
    }
    added.sort_by_key(|token| token.id);
    Ok(added)
}
