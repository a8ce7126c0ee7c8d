//! Takes a row, gives its tokens one by one with their text, for people.

use super::{Encoded, TextProcessor};

/// A character has at most 4 bytes, so no more tokens than this share one.
const MAX_SHARED: usize = 4;

/// One token, or an image's placeholders as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenView {
    /// Its id.
    pub id: i32,
    /// Its text; None when the token before it begins the character that this one goes on with, and shows it.
    pub text: Option<String>,
    /// Whether the label is the token.
    pub supervised: bool,
    /// How often it stands here: more than once for image placeholders alone.
    pub repeats: usize,
}

impl TextProcessor {
    /// The tokens of a row in order; neighbouring image placeholders of equal supervision are one entry.
    pub fn tokens(&self, encoded: &Encoded) -> Vec<TokenView> {
        let image_pad = self.image_pad_id();
        let row: Vec<(i32, bool)> =
            encoded.tokens.iter().copied().zip(encoded.loss_mask.iter().map(|mask| *mask == 1)).collect();
        let mut views = Vec::new();
        let mut rest = row.as_slice();
        while let Some(&(id, supervised)) = rest.first() {
            let count = if id == image_pad {
                let repeats = rest.iter().take_while(|other| **other == (id, supervised)).count();
                views.push(TokenView { id, text: Some(self.decode(&[id])), supervised, repeats });
                repeats
            } else {
                let (text, shared) = self.shortest_text(rest);
                let group = rest.iter().take(shared);
                views.extend(group.enumerate().map(|(index, &(id, supervised))| TokenView {
                    id,
                    text: (index == 0).then(|| text.clone()),
                    supervised,
                    repeats: 1,
                }));
                shared
            };
            rest = rest.get(count..).unwrap_or_default();
        }
        views
    }

    /// The text of the first token, or of as many as make whole characters together; at least one.
    fn shortest_text(&self, row: &[(i32, bool)]) -> (String, usize) {
        let ids: Vec<i32> = row.iter().take(MAX_SHARED).map(|(id, _)| *id).collect();
        let text = |count: usize| self.decode(ids.get(..count).unwrap_or_default());
        (1..=ids.len())
            .map(|count| (text(count), count))
            .find(|(text, _)| !text.contains(char::REPLACEMENT_CHARACTER))
            // The record has a replacement character of its own, whose bytes look broken until the last of them is
            // there and look the same then.
            .unwrap_or_else(|| {
                let broken = text(1);
                let same = (2..=ids.len()).take_while(|count| text(*count) == broken).count();
                (broken, 1 + same)
            })
    }
}
