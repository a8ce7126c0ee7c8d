//! Takes a page as it is stored, gives it decompressed, as the decoder of values wants it.
//!
//! Every size is compared with what the caller has room for before anything is allocated (Parquet format, "Data Pages").

use std::io::Read as _;

use bytes::Bytes;
use parquet::basic::Encoding;
use parquet::column::page::Page;

use super::thrift::{Kind, Malformed, Reader};

/// Longer headers are refused: beside numbers they hold a page's least and greatest value, which writers shorten.
pub(super) const MAX_HEADER_BYTES: usize = 1 << 20;

/// How pages of a column are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Codec {
    Plain,
    Snappy,
    Gzip,
    Zstd,
    Lz4,
}

/// What a page's header says.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PageHeader {
    /// Bytes of the header itself.
    pub(super) length: usize,
    kind: i64,
    pub(super) stored: usize,
    pub(super) uncompressed: usize,
    crc: Option<u32>,
    pub(super) values: usize,
    encoding: i64,
    definition_encoding: i64,
    repetition_encoding: i64,
    nulls: usize,
    rows: usize,
    definition_bytes: usize,
    repetition_bytes: usize,
    compressed: bool,
}

impl PageHeader {
    /// Reads a header at the beginning of `bytes`.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut header = Self { kind: -1, encoding: -1, compressed: true, ..Self::default() };
        let mut reader = Reader::new(bytes);
        let mut last = 0;
        while let Some((id, kind)) = reader.field(&mut last)? {
            match (id, kind) {
                (1, Kind::Integer) => header.kind = reader.integer()?,
                (2, Kind::Integer) => header.uncompressed = size(reader.integer()?)?,
                (3, Kind::Integer) => header.stored = size(reader.integer()?)?,
                (4, Kind::Integer) => header.crc = Some(reader.integer()? as u32),
                (5, Kind::Struct) => header.data(&mut reader)?,
                (7, Kind::Struct) => header.dictionary(&mut reader)?,
                (8, Kind::Struct) => header.data_2(&mut reader)?,
                (_, kind) => reader.skip(kind)?,
            }
        }
        header.length = reader.position();
        Ok(header)
    }

    fn data(&mut self, reader: &mut Reader<'_>) -> Result<(), Malformed> {
        let mut last = 0;
        while let Some((id, kind)) = reader.field(&mut last)? {
            match (id, kind) {
                (1, Kind::Integer) => self.values = size(reader.integer()?)?,
                (2, Kind::Integer) => self.encoding = reader.integer()?,
                (3, Kind::Integer) => self.definition_encoding = reader.integer()?,
                (4, Kind::Integer) => self.repetition_encoding = reader.integer()?,
                (_, kind) => reader.skip(kind)?,
            }
        }
        Ok(())
    }

    fn dictionary(&mut self, reader: &mut Reader<'_>) -> Result<(), Malformed> {
        let mut last = 0;
        while let Some((id, kind)) = reader.field(&mut last)? {
            match (id, kind) {
                (1, Kind::Integer) => self.values = size(reader.integer()?)?,
                (2, Kind::Integer) => self.encoding = reader.integer()?,
                (_, kind) => reader.skip(kind)?,
            }
        }
        Ok(())
    }

    fn data_2(&mut self, reader: &mut Reader<'_>) -> Result<(), Malformed> {
        let mut last = 0;
        while let Some((id, kind)) = reader.field(&mut last)? {
            match (id, kind) {
                (1, Kind::Integer) => self.values = size(reader.integer()?)?,
                (2, Kind::Integer) => self.nulls = size(reader.integer()?)?,
                (3, Kind::Integer) => self.rows = size(reader.integer()?)?,
                (4, Kind::Integer) => self.encoding = reader.integer()?,
                (5, Kind::Integer) => self.definition_bytes = size(reader.integer()?)?,
                (6, Kind::Integer) => self.repetition_bytes = size(reader.integer()?)?,
                (7, Kind::Bool(compressed)) => self.compressed = compressed,
                (_, kind) => reader.skip(kind)?,
            }
        }
        Ok(())
    }

    pub(super) fn is_dictionary(&self) -> bool {
        self.kind == 2
    }

    /// Whether it is no data and no dictionary: to be passed over, as the format asks for kinds that are not known.
    pub(super) fn is_other(&self) -> bool {
        !matches!(self.kind, 0 | 2 | 3)
    }

    /// Whether values are written as parts of earlier values, so that a page of a megabyte may hold gigabytes.
    pub(super) fn shares_prefixes(&self) -> bool {
        self.encoding == 7
    }

    /// Bytes that decoding it takes beside the stored page: the decompressed page and a place for each of its values (levels, and a
    /// slice of the page).
    pub(super) fn memory(&self, codec: Codec) -> u64 {
        let decompressed = if self.is_copied(codec) { self.uncompressed as u64 } else { 0 };
        decompressed.saturating_add((self.values as u64).saturating_mul(BYTES_A_VALUE))
    }

    fn is_copied(&self, codec: Codec) -> bool {
        codec != Codec::Plain && (self.kind != 3 || self.compressed)
    }

    /// The page, decompressed. `stored` has the length that the header says, and the caller has room for [`PageHeader::memory`].
    pub(super) fn open(&self, stored: Bytes, codec: Codec) -> Result<Page, &'static str> {
        if stored.len() != self.stored {
            return Err("a page is cut");
        }
        if let Some(expected) = self.crc {
            let mut crc = flate2::Crc::new();
            crc.update(&stored);
            if crc.sum() != expected {
                return Err("a page's checksum does not match its bytes");
            }
        }
        let encoding = encoding(self.encoding)?;
        let levels = match self.kind {
            3 => self.definition_bytes.saturating_add(self.repetition_bytes),
            _ => 0,
        };
        if levels > self.stored || levels > self.uncompressed {
            return Err("a page's levels are longer than the page");
        }
        let buf = if self.is_copied(codec) {
            let mut whole = vec![0; self.uncompressed];
            let (front, rest) = whole.split_at_mut(levels);
            front.copy_from_slice(&stored[..levels]);
            decompress(codec, &stored[levels..], rest)?;
            Bytes::from(whole)
        } else if self.uncompressed == self.stored {
            stored
        } else {
            return Err("a page that is not compressed has two lengths");
        };
        Ok(match self.kind {
            0 => Page::DataPage {
                buf,
                num_values: self.values as u32,
                encoding,
                def_level_encoding: level_encoding(self.definition_encoding)?,
                rep_level_encoding: level_encoding(self.repetition_encoding)?,
                statistics: None,
            },
            2 => {
                // Each value of a dictionary takes a byte at least, booleans have none.
                if self.values > buf.len() {
                    return Err("a dictionary says that it has more values than bytes");
                }
                Page::DictionaryPage { buf, num_values: self.values as u32, encoding, is_sorted: false }
            }
            _ => Page::DataPageV2 {
                buf,
                num_values: self.values as u32,
                encoding,
                num_nulls: self.nulls as u32,
                num_rows: self.rows as u32,
                def_levels_byte_len: self.definition_bytes as u32,
                rep_levels_byte_len: self.repetition_bytes as u32,
                is_compressed: false,
                statistics: None,
            },
        })
    }
}

/// Two levels of 2 bytes and a value of at most 40.
const BYTES_A_VALUE: u64 = 44;

/// A number of the header that counts something.
fn size(number: i64) -> Result<usize, Malformed> {
    // The format's own type is i32, so every size fits a u32 afterwards.
    i32::try_from(number)
        .ok()
        .and_then(|number| usize::try_from(number).ok())
        .ok_or(Malformed::Broken("a page's header has an impossible number"))
}

fn encoding(code: i64) -> Result<Encoding, &'static str> {
    Ok(match code {
        0 => Encoding::PLAIN,
        2 => Encoding::PLAIN_DICTIONARY,
        3 => Encoding::RLE,
        5 => Encoding::DELTA_BINARY_PACKED,
        6 => Encoding::DELTA_LENGTH_BYTE_ARRAY,
        7 => Encoding::DELTA_BYTE_ARRAY,
        8 => Encoding::RLE_DICTIONARY,
        9 => Encoding::BYTE_STREAM_SPLIT,
        _ => return Err("a page has an unknown encoding"),
    })
}

#[expect(deprecated, reason = "files of old writers have levels in this encoding")]
fn level_encoding(code: i64) -> Result<Encoding, &'static str> {
    match code {
        3 => Ok(Encoding::RLE),
        4 => Ok(Encoding::BIT_PACKED),
        _ => Err("a page's levels have an unknown encoding"),
    }
}

/// Decompresses all of `stored`, which must give exactly as many bytes as `out` has.
fn decompress(codec: Codec, stored: &[u8], out: &mut [u8]) -> Result<(), &'static str> {
    const DAMAGED: &str = "a page cannot be decompressed";
    const OTHER_LENGTH: &str = "a page's length after decompression is not what its header says";
    let length = match codec {
        Codec::Plain => {
            if stored.len() != out.len() {
                return Err(OTHER_LENGTH);
            }
            out.copy_from_slice(stored);
            out.len()
        }
        // A page without values may have no compressed bytes at all.
        _ if stored.is_empty() && out.is_empty() => 0,
        Codec::Snappy => {
            if snap::raw::decompress_len(stored).ok() != Some(out.len()) {
                return Err(OTHER_LENGTH);
            }
            snap::raw::Decoder::new().decompress(stored, out).map_err(|_| DAMAGED)?
        }
        Codec::Zstd => zstd::bulk::decompress_to_buffer(stored, out).map_err(|_| DAMAGED)?,
        Codec::Lz4 => lz4_flex::block::decompress_into(stored, out).map_err(|_| DAMAGED)?,
        Codec::Gzip => {
            let mut decoder = flate2::read::MultiGzDecoder::new(stored);
            decoder.read_exact(out).map_err(|_| DAMAGED)?;
            match decoder.read(&mut [0]).map_err(|_| DAMAGED)? {
                0 => out.len(),
                _ => return Err(OTHER_LENGTH),
            }
        }
    };
    if length == out.len() { Ok(()) } else { Err(OTHER_LENGTH) }
}
