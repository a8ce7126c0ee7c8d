//! Takes pages, gives the levels and values of one column: the crate's own decoders.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use parquet::basic::Type as Physical;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::column::reader::ColumnReaderImpl;
use parquet::data_type::{
    AsBytes, BoolType, ByteArrayType, DataType, DoubleType, FixedLenByteArrayType, FloatType, Int32Type,
    Int64Type, Int96Type,
};
use parquet::errors::Result as ParquetResult;
use parquet::schema::types::ColumnDescPtr;

/// Pages between the decoder and the crate's reader of columns.
#[derive(Clone, Default)]
pub(super) struct Pages(Arc<Mutex<VecDeque<Page>>>);

impl Pages {
    pub(super) fn push(&self, page: Page) {
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
pub(super) trait Values: Send {
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

pub(super) fn values(descriptor: &ColumnDescPtr, pages: Pages) -> Box<dyn Values> {
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
