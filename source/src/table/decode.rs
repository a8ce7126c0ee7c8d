//! Takes the bytes of a column chunk piece by piece, gives its rows one after another, packed.

use bytes::Bytes;

use super::packed::Open;
use super::page::{Codec, MAX_HEADER_BYTES, PageHeader};
use super::panics::contained;
use super::row_cache::Piece;
use super::schema::Leaf;
use super::thrift::Malformed;
use super::values::{Pages, Values, values};

/// Decoded rows are handed over in pieces of about this many bytes.
const PIECE_BYTES: usize = 1 << 20;

/// Longer rows are pieces of their own.
const LARGE_ROW_BYTES: usize = 64 << 10;

/// Rows decoded at once: their values are slices of the page, 40 bytes each.
const BATCH_ROWS: usize = 256;

/// A page that decodes to more is refused: a dictionary of one long value makes gigabytes of a few bytes.
const MAX_DECODED_BYTES: u64 = 1 << 30;

/// Why a chunk cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Damage {
    pub(super) too_large: bool,
    pub(super) what: String,
}

impl From<&'static str> for Damage {
    fn from(what: &'static str) -> Self {
        Self { too_large: false, what: what.into() }
    }
}

/// How far a decoder is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// It needs so many bytes from its place on; what it did not take has to come again.
    From(u64),
    /// The caller needs so much room before this can go on.
    Room(u64),
    /// Every row that was expected is there.
    Done,
}

/// What the caller wants of the rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    /// Row in the row group of the first row that will come.
    pub(super) first: u64,
    /// Rows that will come.
    pub(super) rows: u64,
    /// The row asked for.
    pub(super) row: u64,
    /// Bytes there is room for, beside the input's.
    pub(super) room: u64,
    /// A page that takes more is bad.
    pub(super) largest_page: u64,
    /// Longer rows are bad.
    pub(super) longest: u64,
}

pub(super) struct Decoder {
    wanted: Wanted,
    codec: Codec,
    dictionary_bytes: u64,
    pages: Pages,
    values: Box<dyn Values>,
    repeated: bool,
    /// Row that the next entry with repetition level 0 begins.
    next: u64,
    /// The row that is being collected.
    open: Open,
    /// The row asked for, once it is there.
    pub(super) found: Option<Bytes>,
}

impl Decoder {
    pub(super) fn new(leaf: &Leaf, codec: Codec, wanted: Wanted) -> Self {
        let pages = Pages::default();
        Self {
            wanted,
            codec,
            dictionary_bytes: 0,
            values: values(&leaf.descriptor, pages.clone()),
            pages,
            repeated: leaf.descriptor.max_rep_level() > 0,
            next: wanted.first,
            open: Open::default(),
            found: None,
        }
    }

    /// Takes whole pages from the beginning of `input`, which is what comes next of the chunk. `last` says that nothing follows it. Pieces
    /// of rows are given to `keep`, with the row that they begin at.
    pub(super) fn feed(
        &mut self,
        input: &mut Bytes,
        last: bool,
        keep: &mut dyn FnMut(u64, Piece<'_>),
    ) -> Result<Progress, Damage> {
        let mut out = Out { ends: Vec::new(), bytes: Vec::new(), first: self.next, keep };
        let progress = self.pages(input, last, &mut out);
        // What stands before a damaged page is good.
        out.flush(self.next);
        match progress {
            Ok(Progress::Done) if self.found.is_none() => Err("the row asked for did not come".into()),
            progress => progress,
        }
    }

    fn pages(&mut self, input: &mut Bytes, last: bool, out: &mut Out<'_>) -> Result<Progress, Damage> {
        loop {
            if self.complete() {
                return Ok(Progress::Done);
            }
            let header = match PageHeader::read(&input[..input.len().min(MAX_HEADER_BYTES)]) {
                Ok(header) => header,
                Err(Malformed::Broken(what)) => return Err(what.into()),
                Err(Malformed::Cut) if input.len() >= MAX_HEADER_BYTES => {
                    return Err("a page's header is longer than 1 MiB".into());
                }
                Err(Malformed::Cut) if last && input.is_empty() => {
                    self.end(out)?;
                    return Ok(Progress::Done);
                }
                Err(Malformed::Cut) if last => {
                    return Err("the column chunk ends inside a page's header".into());
                }
                Err(Malformed::Cut) => return Ok(Progress::From(input.len() as u64 + 1)),
            };
            let whole = header.length as u64 + header.stored as u64;
            let memory = header.memory(self.codec).saturating_add(self.dictionary_bytes);
            let page = whole.saturating_add(memory);
            if page > self.wanted.largest_page {
                return Err(Damage {
                    too_large: true,
                    what: format!(
                        "a page takes {page} bytes, the limit is {}: write the file with smaller pages, or raise limits.maxSampleBytes",
                        self.wanted.largest_page
                    ),
                });
            }
            if page > self.wanted.room {
                return Ok(Progress::Room(page));
            }
            if (input.len() as u64) < whole {
                if last {
                    return Err("the column chunk ends inside a page".into());
                }
                return Ok(Progress::From(whole));
            }
            drop(input.split_to(header.length));
            let stored = input.split_to(header.stored);
            if header.is_other() {
                continue;
            }
            if header.shares_prefixes() && self.repeated {
                return Err(
                    "lists in the encoding DELTA_BYTE_ARRAY are not read: write the column with another"
                        .into(),
                );
            }
            if header.is_dictionary() {
                self.dictionary_bytes = header.memory(self.codec).max(stored.len() as u64);
            }
            let codec = self.codec;
            let page = contained(|| header.open(stored, codec).map_err(Damage::from))?;
            let data = page.is_data_page();
            self.pages.push(page);
            if data {
                let batch = if header.shares_prefixes() { 1 } else { BATCH_ROWS };
                self.rows(batch, out)?;
            }
        }
    }

    /// Whether everything expected is there. In lists the last row may go on in the next page.
    fn complete(&self) -> bool {
        !self.repeated && self.next - self.wanted.first >= self.wanted.rows
    }

    /// The end of the bytes: the last row of a list is whole now.
    fn end(&mut self, out: &mut Out<'_>) -> Result<(), Damage> {
        if self.open.entries > 0 {
            self.close(out);
        }
        if self.next - self.wanted.first != self.wanted.rows {
            return Err(Damage {
                too_large: false,
                what: format!(
                    "the column chunk has {} rows where its footer says {}",
                    self.next - self.wanted.first,
                    self.wanted.rows
                ),
            });
        }
        Ok(())
    }

    /// Decodes the page that was pushed.
    fn rows(&mut self, batch: usize, out: &mut Out<'_>) -> Result<(), Damage> {
        let mut decoded: u64 = 0;
        loop {
            let values = &mut self.values;
            let count = contained(|| {
                values.read(batch).map_err(|error| Damage { too_large: false, what: error.to_string() })
            })?;
            if count == 0 {
                return Ok(());
            }
            for index in 0..count {
                let (definition, repetition, value) =
                    self.values.entry(index).ok_or("a page lacks values")?;
                if repetition == 0 && self.open.entries > 0 {
                    close(&mut self.open, &mut self.next, &self.wanted, &mut self.found, out);
                }
                if self.next - self.wanted.first >= self.wanted.rows {
                    return Err("the column chunk has more rows than its footer says".into());
                }
                let length = value.map_or(0, <[u8]>::len) as u64;
                decoded = decoded.saturating_add(length + 4);
                if decoded > MAX_DECODED_BYTES {
                    return Err("a page decodes to more than 1 GiB".into());
                }
                self.open.add(definition, repetition, value, self.wanted.longest);
                if !self.repeated {
                    close(&mut self.open, &mut self.next, &self.wanted, &mut self.found, out);
                }
            }
        }
    }

    fn close(&mut self, out: &mut Out<'_>) {
        close(&mut self.open, &mut self.next, &self.wanted, &mut self.found, out);
    }
}

fn close(open: &mut Open, next: &mut u64, wanted: &Wanted, found: &mut Option<Bytes>, out: &mut Out<'_>) {
    let row = std::mem::take(open).finish();
    let is_wanted = *next == wanted.row;
    *next += 1;
    if is_wanted || row.len() >= LARGE_ROW_BYTES {
        // Handed over as it is, without a copy.
        let row = Bytes::from(row);
        out.flush(*next - 1);
        out.single(&row, *next);
        if is_wanted {
            *found = Some(row);
        }
    } else {
        out.push(&row, *next);
    }
}

/// Pieces on their way to the cache.
struct Out<'a> {
    ends: Vec<u8>,
    bytes: Vec<u8>,
    first: u64,
    keep: &'a mut dyn FnMut(u64, Piece<'_>),
}

impl Out<'_> {
    /// `next` is the row after this one.
    fn push(&mut self, row: &[u8], next: u64) {
        self.bytes.extend_from_slice(row);
        // A piece is ended long before this limit.
        let end = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX);
        self.ends.extend(end.to_le_bytes());
        if self.bytes.len() >= PIECE_BYTES {
            self.flush(next);
        }
    }

    /// A row that is a piece of its own.
    fn single(&mut self, row: &[u8], next: u64) {
        if let Ok(end) = u32::try_from(row.len()) {
            (self.keep)(self.first, Piece { ends: &end.to_le_bytes(), bytes: row });
        }
        self.first = next;
    }

    /// `next` is the row after the last one pushed.
    fn flush(&mut self, next: u64) {
        if !self.ends.is_empty() {
            (self.keep)(self.first, Piece { ends: &self.ends, bytes: &self.bytes });
        }
        self.ends.clear();
        self.bytes.clear();
        self.first = next;
    }
}
