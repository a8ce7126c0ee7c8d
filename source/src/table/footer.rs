//! Takes the bytes of a footer, gives where every column chunk that is read lies, or refuses the file.
//!
//! A footer is somebody else's word: it is walked once within bounds of our own before the crate `parquet` builds anything of it, every
//! offset and length is held against the file's, and a panic of the crate is a refusal.

use std::ops::Range;

use parquet::basic::CompressionCodec;
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};

use super::cell::Cell;
use super::error::Refusal;
use super::page::Codec;
use super::panics::contained;
use super::schema::{MAX_DEPTH, Schema};
use super::thrift::{Kind, Malformed, Reader};

/// At the end of a file: the footer's length as u32 little-endian, then `PAR1`.
pub(super) const TAIL_BYTES: u64 = 8;

/// Longer footers are refused. Ten thousand row groups of ten columns take 15 MB.
pub(super) const MAX_FOOTER_BYTES: u64 = 64 << 20;

/// Most columns of a file, and most elements of its schema.
const MAX_COLUMNS: u64 = 10_000;

/// Most column chunks of a file, read or not: the crate takes about 500 bytes for each while it parses.
const MAX_CHUNKS: u64 = 500_000;

/// One file's data, as its footer says.
#[derive(Debug)]
pub(super) struct Footer {
    pub(super) schema: Schema,
    pub(super) groups: Vec<Group>,
}

/// A row group.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) rows: u64,
    /// One for each leaf of the schema.
    pub(super) chunks: Vec<Chunk>,
}

/// The values of one column in one row group.
#[derive(Clone, Debug)]
pub(super) struct Chunk {
    /// Bytes of the file.
    pub(super) bytes: Range<u64>,
    pub(super) codec: Codec,
    /// Where its first page of data lies; what stands before it is the dictionary.
    pub(super) data: u64,
    /// Where its offset index lies.
    pub(super) index: Option<Range<u64>>,
}

/// Length of the footer, from the file's last bytes.
pub(super) fn footer_length(tail: &[u8], file: u64) -> Result<u64, Refusal> {
    let Some((_, [a, b, c, d, magic @ ..])) = tail.split_at_checked(tail.len().saturating_sub(8)) else {
        return Err(Refusal::NotParquet);
    };
    match magic {
        b"PAR1" => {}
        b"PARE" => return Err(Refusal::Encrypted),
        _ => return Err(Refusal::NotParquet),
    }
    let length = u64::from(u32::from_le_bytes([*a, *b, *c, *d]));
    if length > MAX_FOOTER_BYTES {
        return Err(Refusal::LongFooter { bytes: length, limit: MAX_FOOTER_BYTES });
    }
    // `PAR1` stands at the beginning as well.
    if length.saturating_add(TAIL_BYTES + 4) > file {
        return Err(Refusal::Footer { what: "its footer would be longer than the file".into() });
    }
    Ok(length)
}

/// Reads a footer; `file` is the file's length.
pub(super) fn read(footer: &[u8], file: u64, wanted: &dyn Fn(&str) -> bool) -> Result<Footer, Refusal> {
    walk(footer)?;
    let metadata = contained(|| ParquetMetaDataReader::decode_metadata(footer).map_err(|e| e.to_string()))
        .map_err(|what| Refusal::Footer { what })?;
    contained(|| Ok::<_, String>(compact(&metadata, file, wanted)))
        .map_err(|what| Refusal::Footer { what })?
}

/// A row as a footer describes it.
pub(super) fn example(footer: &[u8]) -> Result<Vec<(String, Cell)>, Refusal> {
    walk(footer)?;
    let metadata = contained(|| ParquetMetaDataReader::decode_metadata(footer).map_err(|e| e.to_string()))
        .map_err(|what| Refusal::Footer { what })?;
    let schema = metadata.file_metadata().schema_descr();
    let column = |name: &str| Schema::new(schema, &|other| other == name).map(|schema| schema.example());
    let columns = schema.root_schema().get_fields().iter().map(|field| {
        let name = field.name();
        // By name, so columns of one name come as many times; whoever reads them refuses that.
        let cell = column(name).ok().and_then(|mut cells| cells.pop()).map_or(Cell::Null, |(_, cell)| cell);
        (name.to_owned(), cell)
    });
    contained(|| Ok(columns.collect())).map_err(|what: String| Refusal::Footer { what })
}

fn compact(metadata: &ParquetMetaData, file: u64, wanted: &dyn Fn(&str) -> bool) -> Result<Footer, Refusal> {
    let broken = |what: &str| Refusal::Footer { what: what.into() };
    let schema = Schema::new(metadata.file_metadata().schema_descr(), wanted)
        .map_err(|(column, what)| Refusal::Column { column, what })?;
    let mut groups = Vec::with_capacity(metadata.num_row_groups());
    for group in metadata.row_groups() {
        let rows =
            u64::try_from(group.num_rows()).map_err(|_| broken("a row group has less than no rows"))?;
        // Writers of empty tables leave one behind, with places that are none.
        if rows == 0 {
            continue;
        }
        let mut chunks = Vec::with_capacity(schema.leaves.len());
        for leaf in &schema.leaves {
            let column =
                group.columns().get(leaf.column).ok_or_else(|| broken("a row group lacks a column"))?;
            let refuse = |what: &str| Refusal::Column { column: leaf.path.clone(), what: what.into() };
            if column.file_path().is_some_and(|path| !path.is_empty()) {
                return Err(refuse("lies in another file"));
            }
            let codec = match column.compression_codec() {
                CompressionCodec::UNCOMPRESSED => Codec::Plain,
                CompressionCodec::SNAPPY => Codec::Snappy,
                CompressionCodec::GZIP => Codec::Gzip,
                CompressionCodec::ZSTD => Codec::Zstd,
                CompressionCodec::LZ4_RAW => Codec::Lz4,
                other => {
                    return Err(refuse(&format!(
                        "is compressed with {other:?}; snappy, zstd, gzip and lz4_raw can be read: write the file again"
                    )));
                }
            };
            let number = |number: i64| u64::try_from(number).map_err(|_| refuse("has an impossible place"));
            let data = number(column.data_page_offset())?;
            // Some writers put 0 where there is no dictionary.
            let start = match column.dictionary_page_offset() {
                Some(dictionary) if dictionary > 0 => number(dictionary)?.min(data),
                _ => data,
            };
            let end = start.checked_add(number(column.compressed_size())?);
            let bytes = match end {
                Some(end) if start >= 4 && data <= end && end <= file.saturating_sub(TAIL_BYTES) => {
                    start..end
                }
                _ => return Err(refuse("would lie outside the file")),
            };
            let index = match (column.offset_index_offset(), column.offset_index_length()) {
                (Some(offset), Some(length)) if length > 0 => {
                    let start = number(offset)?;
                    let end = start.checked_add(number(i64::from(length))?);
                    match end {
                        Some(end) if end <= file => Some(start..end),
                        _ => return Err(refuse("has an offset index outside the file")),
                    }
                }
                _ => None,
            };
            chunks.push(Chunk { bytes, codec, data, index });
        }
        groups.push(Group { rows, chunks });
    }
    Ok(Footer { schema, groups })
}

/// Walks a footer (`FileMetaData`) and counts, so that the crate meets no list that lies and no schema that is nested without end.
fn walk(footer: &[u8]) -> Result<(), Refusal> {
    walked(footer).map_err(|error| Refusal::Footer {
        what: match error {
            Malformed::Cut => "its footer ends too early".into(),
            Malformed::Broken(what) => what.into(),
        },
    })
}

fn walked(footer: &[u8]) -> Result<(), Malformed> {
    let mut reader = Reader::new(footer);
    let (mut last, mut chunks) = (0, 0);
    while let Some((id, kind)) = reader.field(&mut last)? {
        match (id, kind) {
            (2, Kind::List) => walk_schema(&mut reader)?,
            (4, Kind::List) => {
                for _ in 0..reader.structs()? {
                    let mut last = 0;
                    while let Some((id, kind)) = reader.field(&mut last)? {
                        match (id, kind) {
                            (1, Kind::List) => {
                                for _ in 0..reader.structs()? {
                                    reader.skip(Kind::Struct)?;
                                    chunks += 1;
                                    if chunks > MAX_CHUNKS {
                                        return Err(Malformed::Broken(
                                            "it has more than 500000 column chunks",
                                        ));
                                    }
                                }
                            }
                            (_, kind) => reader.skip(kind)?,
                        }
                    }
                }
            }
            (_, kind) => reader.skip(kind)?,
        }
    }
    Ok(())
}

/// The schema is a tree written depth first: each element says how many children follow it.
fn walk_schema(reader: &mut Reader<'_>) -> Result<(), Malformed> {
    let count = reader.structs()?;
    if count > MAX_COLUMNS {
        return Err(Malformed::Broken("its schema has more than 10000 elements"));
    }
    // Children still to come at each depth.
    let mut open: Vec<i64> = Vec::new();
    for _ in 0..count {
        let (mut last, mut children) = (0, 0);
        while let Some((id, kind)) = reader.field(&mut last)? {
            match (id, kind) {
                (5, Kind::Integer) => children = reader.integer()?,
                (_, kind) => reader.skip(kind)?,
            }
        }
        if let Some(left) = open.last_mut() {
            *left -= 1;
        }
        if children > 0 {
            open.push(children);
            // Two for every level of a list.
            if open.len() > 2 * MAX_DEPTH as usize {
                return Err(Malformed::Broken("its schema is nested too deep"));
            }
        }
        while open.last() == Some(&0) {
            open.pop();
        }
    }
    Ok(())
}

/// Where a page lies, and its first row in the row group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PagePlace {
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) row: u64,
}

/// Reads an offset index: the pages of a chunk in order (Parquet format, "Page Index").
pub(super) fn offset_index(bytes: &[u8], chunk: &Chunk, rows: u64) -> Result<Vec<PagePlace>, &'static str> {
    let pages = places(bytes).map_err(|_| "its offset index is damaged")?;
    let mut expected_row = None;
    for page in &pages {
        let end = page.offset.checked_add(page.length);
        let inside = end.is_some_and(|end| page.offset >= chunk.data && end <= chunk.bytes.end);
        let in_order = match expected_row {
            None => page.row == 0,
            Some(before) => page.row > before,
        };
        if !inside || !in_order || page.row >= rows {
            return Err("its offset index does not fit its column chunk");
        }
        expected_row = Some(page.row);
    }
    if pages.is_empty() { Err("its offset index has no pages") } else { Ok(pages) }
}

fn places(bytes: &[u8]) -> Result<Vec<PagePlace>, Malformed> {
    const NEGATIVE: Malformed = Malformed::Broken("a negative number");
    let mut reader = Reader::new(bytes);
    let (mut last, mut pages) = (0, Vec::new());
    while let Some((id, kind)) = reader.field(&mut last)? {
        match (id, kind) {
            (1, Kind::List) => {
                for _ in 0..reader.structs()? {
                    let mut page = PagePlace { offset: 0, length: 0, row: 0 };
                    let mut last = 0;
                    while let Some((id, kind)) = reader.field(&mut last)? {
                        match (id, kind) {
                            (1, Kind::Integer) => {
                                page.offset = u64::try_from(reader.integer()?).map_err(|_| NEGATIVE)?;
                            }
                            (2, Kind::Integer) => {
                                page.length = u64::try_from(reader.integer()?).map_err(|_| NEGATIVE)?;
                            }
                            (3, Kind::Integer) => {
                                page.row = u64::try_from(reader.integer()?).map_err(|_| NEGATIVE)?;
                            }
                            (_, kind) => reader.skip(kind)?,
                        }
                    }
                    pages.push(page);
                }
            }
            (_, kind) => reader.skip(kind)?,
        }
    }
    Ok(pages)
}
