//! Takes what was found in single records, gives sums over chunks and data sets.
//!
//! Everything here merges: associative, commutative, with an empty one; so threads, chunks and interruptions do not
//! show in the result.

use std::collections::BTreeMap;

use feedmill_protocol::bad::BadClass;
use serde::{Deserialize, Serialize};

use super::distinct::Distinct;
use super::histogram::Histogram;

/// Records with this many pictures or more are counted together.
pub const MANY_PICTURES: u32 = 64;

/// What the text of a data set's records says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextTally {
    /// Records looked at.
    pub records: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Records that cannot be used, found without looking at pictures.
    pub bad: BTreeMap<BadClass, u64>,
    /// Tokens of the text of usable records, pictures not counted.
    pub text_tokens: Histogram,
    /// The same of those that have no picture: whole samples.
    pub without_pictures: Histogram,
    /// Learnt tokens of usable records.
    pub supervised: u64,
    /// Pictures of a record → usable records.
    pub pictures: BTreeMap<u32, u64>,
    /// Pictures in records, as bytes.
    pub inline: u64,
    /// Pictures of usable records that lie in storage, each once a record.
    pub stored: u64,
    /// Of them on S3.
    pub on_s3: u64,
    /// Records with an assistant turn without text.
    pub empty_answers: u64,
    /// Records of which a trailing user turn was dropped.
    pub dropped_turns: u64,
    /// Records longer than a sample may be, by their text alone.
    pub over_by_text: u64,
    /// Records longer than a sample may be with the smallest pictures there can be.
    pub over_at_least: u64,
    /// Records longer than a sample may be if all their pictures had the most tokens that a usual one can have.
    pub over_at_most: u64,
    /// Records without pictures among `over_by_text`.
    pub over_without_pictures: u64,
    /// Of them those that fit without their last turns.
    pub droppable_without_pictures: u64,
    /// Role → control token → how often records write it. Tokenizers have at most 256 of them.
    pub control_tokens: BTreeMap<String, BTreeMap<String, u64>>,
    /// Records that write a control token.
    pub with_control_tokens: u64,
}

/// What the pictures of a data set's records say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PictureTally {
    /// Records with pictures looked at.
    pub records: u64,
    /// Records that cannot be used, found only by looking at pictures.
    pub bad: BTreeMap<BadClass, u64>,
    /// Tokens of whole samples at the processor's own limit of pixels, before anything is done about long ones.
    pub tokens: Histogram,
    /// Pixels of pictures as stored, each once a record.
    pub pixels: Histogram,
    /// Bytes of their files.
    pub bytes: Histogram,
    /// Format → pictures.
    pub formats: BTreeMap<String, u64>,
    /// Pictures that their EXIF turns.
    pub turned: u64,
    /// Records longer than a sample may be.
    pub over: u64,
    /// Of them those that fit with smaller pictures.
    pub shrinkable: u64,
    /// Of them those that fit without their last turns.
    pub droppable: u64,
    /// Pictures decoded.
    pub decoded: u64,
    /// Records that no worker with this much shared memory can hold.
    pub unholdable: u64,
}

fn add<K: Ord + Clone>(sums: &mut BTreeMap<K, u64>, other: &BTreeMap<K, u64>) {
    for (key, count) in other {
        *sums.entry(key.clone()).or_default() += count;
    }
}

impl TextTally {
    /// Adds another one. Every field must be here: a forgotten one does not compile.
    pub fn merge(&mut self, other: &Self) {
        let Self {
            records,
            bytes,
            bad,
            text_tokens,
            without_pictures,
            supervised,
            pictures,
            inline,
            stored,
            on_s3,
            empty_answers,
            dropped_turns,
            over_by_text,
            over_at_least,
            over_at_most,
            over_without_pictures,
            droppable_without_pictures,
            control_tokens,
            with_control_tokens,
        } = other;
        self.records += records;
        self.bytes += bytes;
        add(&mut self.bad, bad);
        self.text_tokens.merge(text_tokens);
        self.without_pictures.merge(without_pictures);
        self.supervised += supervised;
        add(&mut self.pictures, pictures);
        self.inline += inline;
        self.stored += stored;
        self.on_s3 += on_s3;
        self.empty_answers += empty_answers;
        self.dropped_turns += dropped_turns;
        self.over_by_text += over_by_text;
        self.over_at_least += over_at_least;
        self.over_at_most += over_at_most;
        self.over_without_pictures += over_without_pictures;
        self.droppable_without_pictures += droppable_without_pictures;
        for (role, tokens) in control_tokens {
            add(self.control_tokens.entry(role.clone()).or_default(), tokens);
        }
        self.with_control_tokens += with_control_tokens;
    }

    /// Whether any usable record has a picture.
    #[must_use]
    pub fn has_pictures(&self) -> bool {
        self.inline + self.stored > 0
    }
}

impl PictureTally {
    /// Adds another one. Every field must be here: a forgotten one does not compile.
    pub fn merge(&mut self, other: &Self) {
        let Self {
            records,
            bad,
            tokens,
            pixels,
            bytes,
            formats,
            turned,
            over,
            shrinkable,
            droppable,
            decoded,
            unholdable,
        } = other;
        self.records += records;
        add(&mut self.bad, bad);
        self.tokens.merge(tokens);
        self.pixels.merge(pixels);
        self.bytes.merge(bytes);
        add(&mut self.formats, formats);
        self.turned += turned;
        self.over += over;
        self.shrinkable += shrinkable;
        self.droppable += droppable;
        self.decoded += decoded;
        self.unholdable += unholdable;
    }
}

/// Everything counted so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tallies {
    /// Text, by data set.
    pub text: Vec<TextTally>,
    /// Pictures, by data set.
    pub pictures: Vec<PictureTally>,
    /// Records by the hash of their bytes; None when duplicates are not looked for.
    pub records: Option<Distinct>,
    /// Pictures in storage by the hash of their address.
    pub keys: Distinct,
}

impl Tallies {
    /// Nothing counted, of so many data sets.
    #[must_use]
    pub fn new(sets: usize, duplicates: bool) -> Self {
        Self {
            text: vec![TextTally::default(); sets],
            pictures: vec![PictureTally::default(); sets],
            records: duplicates.then(Distinct::default),
            keys: Distinct::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(numbers: &[u64]) -> TextTally {
        let number = |index: usize| numbers.get(index).copied().unwrap_or(0) % 1000;
        let mut tally = TextTally {
            records: number(0),
            bytes: number(1),
            supervised: number(2),
            inline: number(3),
            stored: number(4),
            on_s3: number(5),
            empty_answers: number(6),
            dropped_turns: number(7),
            over_by_text: number(8),
            over_at_least: number(9),
            over_at_most: number(10),
            over_without_pictures: number(11),
            droppable_without_pictures: number(18),
            with_control_tokens: number(19),
            control_tokens: [(
                format!("r{}", number(20) % 2),
                [(format!("t{}", number(21) % 2), number(22))].into(),
            )]
            .into(),
            bad: [(BadClass::ALL[number(12) as usize % BadClass::ALL.len()], number(13))].into(),
            pictures: [(number(14) as u32 % 4, number(15))].into(),
            ..TextTally::default()
        };
        tally.text_tokens.add(number(16));
        tally.without_pictures.add(number(17));
        tally
    }

    fn pictures(numbers: &[u64]) -> PictureTally {
        let number = |index: usize| numbers.get(index).copied().unwrap_or(0) % 1000;
        let mut tally = PictureTally {
            records: number(0),
            turned: number(1),
            over: number(2),
            shrinkable: number(3),
            decoded: number(4),
            droppable: number(13),
            unholdable: number(5),
            bad: [(BadClass::ALL[number(6) as usize % BadClass::ALL.len()], number(7))].into(),
            formats: [(format!("F{}", number(8) % 3), number(9))].into(),
            ..PictureTally::default()
        };
        tally.tokens.add(number(10));
        tally.pixels.add(number(11));
        tally.bytes.add(number(12));
        tally
    }

    proptest! {
        #[test]
        fn merging_is_associative_and_commutative_and_comes_back_from_json(
            parts in prop::collection::vec(prop::collection::vec(any::<u64>(), 23), 3)
        ) {
            let merged = |order: [usize; 3], nested: bool| {
                let [one, other, third] = order.map(|index| (text(&parts[index]), pictures(&parts[index])));
                let (mut sum, mut rest) = (one, other);
                if nested {
                    rest.0.merge(&third.0);
                    rest.1.merge(&third.1);
                }
                sum.0.merge(&rest.0);
                sum.1.merge(&rest.1);
                if !nested {
                    sum.0.merge(&third.0);
                    sum.1.merge(&third.1);
                }
                sum
            };
            let reference = merged([0, 1, 2], false);
            for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
                prop_assert_eq!(&merged(order, true), &reference);
                prop_assert_eq!(&merged(order, false), &reference);
            }
            let mut empty = TextTally::default();
            empty.merge(&reference.0);
            prop_assert_eq!(&empty, &reference.0);
            let json = serde_json::to_string(&reference).unwrap();
            prop_assert_eq!(&serde_json::from_str::<(TextTally, PictureTally)>(&json).unwrap(), &reference);
        }
    }
}
