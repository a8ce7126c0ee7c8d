//! Takes the bytes of a column chunk piece by piece, gives the values of its rows, row by row.
//!
//! A row of one column is kept as the list of its entries: their number, then for each its definition and repetition level and, where
//! there is a value, its length plus one and its bytes. That is what the row cache holds, and what [`entries`] reads.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use parquet::basic::Type as Physical;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::column::reader::ColumnReaderImpl;
use parquet::data_type::{
    AsBytes, BoolType, ByteArrayType, DataType, DoubleType, FixedLenByteArrayType, FloatType, Int32Type,
    Int64Type, Int96Type,
};
use parquet::errors::Result as ParquetResult;
use parquet::schema::types::ColumnDescPtr;

use super::page::{Codec, MAX_HEADER_BYTES, PageHeader};
use super::panics::contained;
use super::row_cache::Piece;
use super::schema::{Entry, Leaf};
use super::thrift::Malformed;

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

/// The row that is being collected: its number of entries as u32 little-endian, then these. Beside the page, each thread that decodes
/// has one of them.
#[derive(Default)]
struct Open {
    entries: u32,
    bytes: Vec<u8>,
    too_large: u64,
}

/// In front of the entries.
const COUNT_BYTES: usize = 4;

impl Open {
    fn add(&mut self, definition: i16, repetition: i16, value: Option<&[u8]>, longest: u64) {
        // A row of 2^32 entries is long since too large.
        self.entries = self.entries.saturating_add(1);
        let length = value.map_or(0, <[u8]>::len);
        let bytes = (self.bytes.len() + length) as u64;
        if self.too_large > 0 || bytes > longest {
            self.too_large = self.too_large.max(bytes);
            self.bytes = Vec::new();
            return;
        }
        if self.bytes.is_empty() {
            self.bytes.reserve_exact(COUNT_BYTES + 12 + length);
            self.bytes.extend([0; COUNT_BYTES]);
        }
        put_number(&mut self.bytes, u64::try_from(definition).unwrap_or(0));
        put_number(&mut self.bytes, u64::try_from(repetition).unwrap_or(0));
        match value {
            None => self.bytes.push(0),
            Some(value) => {
                put_number(&mut self.bytes, value.len() as u64 + 1);
                self.bytes.extend_from_slice(value);
            }
        }
    }

    fn finish(mut self) -> Vec<u8> {
        if self.too_large > 0 {
            // No row has no entry; so 0 says that it is too large, and how large.
            let mut row = vec![0; COUNT_BYTES];
            put_number(&mut row, self.too_large);
            return row;
        }
        if let Some(count) = self.bytes.first_chunk_mut::<COUNT_BYTES>() {
            *count = self.entries.to_le_bytes();
        }
        self.bytes
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

fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn take_number(bytes: &mut Bytes) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.first()?;
        *bytes = bytes.slice(1..);
        number |= u64::from(byte & 0x7F) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// The entries of a row of one column; None for bytes that are not such a row. Err is the length of a row that is too large.
pub(super) fn entries(mut row: Bytes) -> Option<Result<Vec<Entry>, u64>> {
    let count = u32::from_le_bytes(*row.first_chunk::<COUNT_BYTES>()?);
    row = row.slice(COUNT_BYTES..);
    if count == 0 {
        return take_number(&mut row).map(Err);
    }
    let mut entries = Vec::new();
    for _ in 0..count {
        let definition = i16::try_from(take_number(&mut row)?).ok()?;
        let repetition = i16::try_from(take_number(&mut row)?).ok()?;
        let value = match take_number(&mut row)? {
            0 => None,
            length => {
                let length = usize::try_from(length - 1).ok().filter(|length| *length <= row.len())?;
                Some(row.split_to(length))
            }
        };
        entries.push(Entry { definition, repetition, value });
    }
    row.is_empty().then_some(Ok(entries))
}

/// Pages between the decoder and the crate's reader of columns.
#[derive(Clone, Default)]
struct Pages(Arc<Mutex<VecDeque<Page>>>);

impl Pages {
    fn push(&self, page: Page) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_back(page);
    }
}

impl Iterator for Pages {
    type Item = ParquetResult<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> ParquetResult<Option<Page>> {
        Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front())
    }

    fn peek_next_page(&mut self) -> ParquetResult<Option<PageMetadata>> {
        Ok(None)
    }

    fn skip_next_page(&mut self) -> ParquetResult<()> {
        self.get_next_page().map(|_| ())
    }

    /// Rows are told apart here, by repetition levels, so no page needs to end with one.
    fn at_record_boundary(&mut self) -> ParquetResult<bool> {
        Ok(false)
    }
}

/// Values of one column, of whatever type.
trait Values: Send {
    /// Decodes the next rows, and what of a row begins without ending: the number of entries.
    fn read(&mut self, rows: usize) -> ParquetResult<usize>;

    /// Definition level, repetition level and value of an entry that was decoded; in order.
    fn entry(&mut self, index: usize) -> Option<(i16, i16, Option<&[u8]>)>;
}

struct Typed<T: DataType> {
    reader: ColumnReaderImpl<T>,
    descriptor: ColumnDescPtr,
    definitions: Vec<i16>,
    repetitions: Vec<i16>,
    values: Vec<T::T>,
    value: usize,
}

impl<T: DataType> Values for Typed<T>
where
    T::T: Send,
{
    fn read(&mut self, rows: usize) -> ParquetResult<usize> {
        self.definitions.clear();
        self.repetitions.clear();
        self.values.clear();
        self.value = 0;
        let (_, _, levels) = self.reader.read_records(
            rows,
            Some(&mut self.definitions),
            Some(&mut self.repetitions),
            &mut self.values,
        )?;
        Ok(levels)
    }

    fn entry(&mut self, index: usize) -> Option<(i16, i16, Option<&[u8]>)> {
        let most = self.descriptor.max_def_level();
        let definition = if most == 0 { 0 } else { *self.definitions.get(index)? };
        let repetition =
            if self.descriptor.max_rep_level() == 0 { 0 } else { *self.repetitions.get(index)? };
        if definition != most {
            return Some((definition, repetition, None));
        }
        let value = self.values.get(self.value)?;
        self.value += 1;
        Some((definition, repetition, Some(value.as_bytes())))
    }
}

fn values(descriptor: &ColumnDescPtr, pages: Pages) -> Box<dyn Values> {
    fn typed<T: DataType>(descriptor: &ColumnDescPtr, pages: Pages) -> Box<dyn Values>
    where
        T::T: Send,
    {
        Box::new(Typed::<T> {
            reader: ColumnReaderImpl::new(Arc::clone(descriptor), Box::new(pages)),
            descriptor: Arc::clone(descriptor),
            definitions: Vec::new(),
            repetitions: Vec::new(),
            values: Vec::new(),
            value: 0,
        })
    }
    match descriptor.physical_type() {
        Physical::BOOLEAN => typed::<BoolType>(descriptor, pages),
        Physical::INT32 => typed::<Int32Type>(descriptor, pages),
        Physical::INT64 => typed::<Int64Type>(descriptor, pages),
        Physical::INT96 => typed::<Int96Type>(descriptor, pages),
        Physical::FLOAT => typed::<FloatType>(descriptor, pages),
        Physical::DOUBLE => typed::<DoubleType>(descriptor, pages),
        Physical::BYTE_ARRAY => typed::<ByteArrayType>(descriptor, pages),
        Physical::FIXED_LEN_BYTE_ARRAY => typed::<FixedLenByteArrayType>(descriptor, pages),
    }
}
