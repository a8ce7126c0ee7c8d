//! Takes the first bytes of a manifest, gives the scanner for its framing; and a scanner for any place in it.

use std::ops::ControlFlow;

use super::Framing;
use super::array::ArrayScanner;
use super::index::Place;
use super::lines::LineScanner;

const BOM: &[u8] = b"\xEF\xBB\xBF";

/// Where a record stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    /// First byte.
    pub(super) start: u64,
    /// Byte after the last one.
    pub(super) end: u64,
    /// 1-based physical line of the first byte.
    pub(super) line: u64,
}

/// Where and why an array is broken.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Broken {
    pub(super) offset: u64,
    pub(super) line: u64,
    pub(super) what: &'static str,
}

/// One of the two framings, fed block by block.
#[derive(Debug)]
pub(super) enum Scanner {
    Lines(LineScanner),
    Array(ArrayScanner),
}

/// Where the text begins, after a byte order mark, and its framing: an array when the first byte that is not white space is `[`.
/// `head` is the first block; more white space than that is taken for (blank) lines.
pub(super) fn detect(head: &[u8]) -> (u64, Framing) {
    let text = head.strip_prefix(BOM).unwrap_or(head);
    let first = text.iter().find(|byte| !matches!(byte, b' ' | b'\t' | b'\r' | b'\n'));
    let framing = if first == Some(&b'[') { Framing::JsonArray } else { Framing::Lines };
    ((head.len() - text.len()) as u64, framing)
}

/// What a file is that begins like this, if it is surely no manifest.
pub(super) fn foreign(head: &[u8]) -> Option<&'static str> {
    let known: [(&[u8], &str); 8] = [
        (b"PAR1", "a Parquet file (such data sets must be named .parquet)"),
        (b"PK\x03\x04", "a zip archive"),
        (b"BZh", "compressed with bzip2"),
        (b"\xFD7zXZ\0", "compressed with xz"),
        (b"\x04\x22\x4D\x18", "compressed with lz4"),
        (b"\xFF\xFE", "UTF-16 text"),
        (b"\xFE\xFF", "UTF-16 text"),
        (b"ARROW1", "an Arrow file"),
    ];
    known.into_iter().find_map(|(magic, name)| head.starts_with(magic).then_some(name))
}

impl Scanner {
    pub(super) fn new(framing: Framing, offset: u64) -> Self {
        match framing {
            Framing::Lines => Self::Lines(LineScanner::new(offset, 1)),
            Framing::JsonArray => Self::Array(ArrayScanner::new(offset, 1)),
        }
    }

    /// Goes on from a place where a record begins.
    pub(super) fn at(framing: Framing, place: Place) -> Self {
        match framing {
            Framing::Lines => Self::Lines(LineScanner::new(place.offset, place.line)),
            Framing::JsonArray => Self::Array(ArrayScanner::at_element(place.offset, place.line)),
        }
    }

    pub(super) fn feed(
        &mut self,
        block: &[u8],
        each: &mut impl FnMut(Span) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, Broken> {
        match self {
            Self::Lines(scanner) => Ok(scanner.feed(block, each)),
            Self::Array(scanner) => scanner.feed(block, each),
        }
    }

    pub(super) fn finish(&mut self, each: &mut impl FnMut(Span) -> ControlFlow<()>) -> Result<(), Broken> {
        match self {
            Self::Lines(scanner) => {
                let _ = scanner.finish(each);
                Ok(())
            }
            Self::Array(scanner) => scanner.finish(),
        }
    }

    /// Start and line of the record whose end has not come yet.
    pub(super) fn open(&self) -> Option<(u64, u64)> {
        match self {
            Self::Lines(scanner) => scanner.open(),
            Self::Array(scanner) => scanner.open(),
        }
    }
}
