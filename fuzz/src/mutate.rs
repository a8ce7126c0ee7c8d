//! Takes inputs, a seed and a number, gives a changed input: always the same one.

/// Changes of one case.
const MOST_CHANGES: u64 = 6;
/// Half of the changes fall in the first so many bytes, a quarter in the last: headers and lengths stand there.
const HEAD: usize = 200;
/// Inputs do not grow beyond their corpus by more than this.
const MOST_INSERTED: usize = 4096;

/// A generator with 64 bits of state (SplitMix64): short, and every seed is as good as another.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The generator of one case.
    #[must_use]
    pub fn of_case(seed: u64, number: u64) -> Self {
        let mut random = Self(seed);
        let begin = random.number() ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        Self(begin)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below the bound; 0 for a bound of 0.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.number() >> 16) as usize % bound.max(1)
    }
}

/// Numbers at which lengths and counts go wrong.
const INTERESTING: [u64; 16] = [
    0,
    1,
    2,
    0x7F,
    0x80,
    0xFF,
    0x100,
    0x7FFF,
    0x8000,
    0xFFFF,
    0x10000,
    0x7FFF_FFFF,
    0x8000_0000,
    0xFFFF_FFFF,
    1 << 53,
    u64::MAX,
];

/// One changed input: `words` are put in now and then, for formats made of words.
#[must_use]
pub fn case(corpus: &[Vec<u8>], words: &[&[u8]], seed: u64, number: u64) -> Vec<u8> {
    let mut random = Random::of_case(seed, number);
    // In turns, so that every input gets its share.
    let Some(base) = corpus.get(number as usize % corpus.len().max(1)) else { return Vec::new() };
    let mut bytes = base.clone();
    // Half of the cases have one change that keeps the length: most of these are read far beyond their beginning.
    if random.number().is_multiple_of(2) {
        change(&mut bytes, random_kind(KEEPING, words, &mut random), corpus, words, &mut random);
        return bytes;
    }
    for _ in 0..=random.number() % MOST_CHANGES {
        change(&mut bytes, random_kind(ALL, words, &mut random), corpus, words, &mut random);
    }
    bytes
}

/// What is done to an input.
#[derive(Clone, Copy)]
enum Change {
    Bit,
    Byte,
    Number,
    Length,
    Word,
    Cut,
    Remove,
    Repeat,
    Splice,
    Insert,
    Fill,
    InsertWord,
}

const KEEPING: &[Change] = &[Change::Word, Change::Bit, Change::Byte, Change::Number, Change::Length];
const ALL: &[Change] = &[
    Change::Word,
    Change::InsertWord,
    Change::Bit,
    Change::Byte,
    Change::Number,
    Change::Length,
    Change::Cut,
    Change::Remove,
    Change::Repeat,
    Change::Splice,
    Change::Insert,
    Change::Fill,
];

fn random_kind(kinds: &[Change], words: &[&[u8]], random: &mut Random) -> Change {
    match kinds[random.below(kinds.len())] {
        Change::Word | Change::InsertWord if words.is_empty() => Change::Byte,
        kind => kind,
    }
}

/// A place near the beginning, near the end, or anywhere.
fn place(bytes: &[u8], random: &mut Random) -> usize {
    let range = bytes.len().min(HEAD);
    match random.below(4) {
        0 | 1 => random.below(range),
        2 => bytes.len() - range + random.below(range),
        _ => random.below(bytes.len()),
    }
}

fn change(bytes: &mut Vec<u8>, kind: Change, corpus: &[Vec<u8>], words: &[&[u8]], random: &mut Random) {
    let at = place(bytes, random);
    match kind {
        Change::Bit => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << random.below(8);
            }
        }
        Change::Byte => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = random.number() as u8;
            }
        }
        Change::Number => {
            // An interesting number of 1, 2, 4 or 8 bytes, either end first.
            let width = 1 << random.below(4);
            let value = INTERESTING[random.below(INTERESTING.len())];
            overwrite(bytes, at, &number(value, width, random));
        }
        Change::Length => {
            // A length or count that is off by a little or by a power of two.
            let width = 1usize << (1 + random.below(2));
            if let Some(field) = bytes.get(at..at + width) {
                let big = random.number().is_multiple_of(2);
                let fold = |value: u64, byte: &u8| value << 8 | u64::from(*byte);
                let value = if big { field.iter().fold(0, fold) } else { field.iter().rev().fold(0, fold) };
                let value = match random.below(4) {
                    0 => value.wrapping_add(1),
                    1 => value.wrapping_sub(1),
                    2 => value.wrapping_mul(2),
                    _ => value ^ (1 << random.below(8 * width)),
                };
                let mut digits = value.to_le_bytes()[..width].to_vec();
                if big {
                    digits.reverse();
                }
                overwrite(bytes, at, &digits);
            }
        }
        Change::Cut => bytes.truncate(at),
        Change::Remove => {
            let end = (at + 1 + random.below(64)).min(bytes.len());
            bytes.drain(at.min(end)..end);
        }
        Change::Repeat => {
            // A piece once more, somewhere else.
            let begin = place(bytes, random);
            let piece: Vec<u8> = bytes[begin..].iter().take(1 + random.below(200)).copied().collect();
            bytes.splice(at..at, piece);
        }
        Change::Splice => {
            // The beginning of this and the end of another.
            let other = &corpus[random.below(corpus.len())];
            let from = random.below(other.len());
            bytes.truncate(at);
            bytes.extend_from_slice(&other[from..]);
        }
        Change::Insert => {
            let piece: Vec<u8> = (0..random.below(32)).map(|_| random.number() as u8).collect();
            bytes.splice(at..at, piece);
        }
        Change::Fill => {
            let length = random.below(MOST_INSERTED);
            let fill = [0, 0xFF, b' ', b'[', b'{'][random.below(5)];
            bytes.splice(at..at, std::iter::repeat_n(fill, length));
        }
        Change::Word => overwrite(bytes, at, words[random.below(words.len())]),
        Change::InsertWord => {
            bytes.splice(at..at, words[random.below(words.len())].iter().copied());
        }
    }
}

fn number(value: u64, width: usize, random: &mut Random) -> Vec<u8> {
    let mut digits = value.to_le_bytes()[..width].to_vec();
    if random.number().is_multiple_of(2) {
        digits.reverse();
    }
    digits
}

fn overwrite(bytes: &mut [u8], at: usize, with: &[u8]) {
    for (byte, new) in bytes.iter_mut().skip(at).zip(with) {
        *byte = *new;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_the_same_every_time_and_cases_differ() {
        let corpus = [b"one input".to_vec(), b"{\"another\": [1, 2, 3]}".to_vec(), Vec::new()];
        let all = |seed| (0..3000).map(|n| case(&corpus, &[b"null"], seed, n)).collect::<Vec<_>>();
        assert_eq!(all(1), all(1));
        let mut different = all(1);
        different.extend(all(2));
        different.sort();
        different.dedup();
        assert!(different.len() > 3000, "{}", different.len());
    }

    #[test]
    fn an_empty_corpus_gives_empty_cases() {
        assert!(case(&[], &[], 1, 7).is_empty());
    }
}
