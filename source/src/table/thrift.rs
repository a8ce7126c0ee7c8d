//! Takes bytes in Thrift's compact protocol, gives their fields one by one, without recursion beyond a bound and without allocating.
//!
//! Parquet's footers, page headers and offset indexes are written so (Thrift specification, "Thrift Compact protocol encoding").

/// Why the bytes are no such message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Malformed {
    /// The bytes end inside a field. More may come where the reader does not hold all of them.
    Cut,
    /// No such message, whatever follows.
    Broken(&'static str),
}

/// A type as a field's header names it. Booleans of fields are in the header itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Bool(bool),
    Byte,
    Integer,
    Double,
    Binary,
    List,
    Map,
    Struct,
    Uuid,
}

/// Structures nested deeper are refused; Parquet's own are five deep.
const MAX_DEPTH: u32 = 16;

pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Bytes read so far.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    fn byte(&mut self) -> Result<u8, Malformed> {
        let byte = *self.bytes.get(self.at).ok_or(Malformed::Cut)?;
        self.at += 1;
        Ok(byte)
    }

    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value: u64 = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7F) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Malformed::Broken("a number has more than ten bytes"))
    }

    /// An integer of 16, 32 or 64 bits.
    pub(super) fn integer(&mut self) -> Result<i64, Malformed> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    fn skip_bytes(&mut self, length: u64) -> Result<(), Malformed> {
        let left = (self.bytes.len() - self.at) as u64;
        if length > left {
            return Err(Malformed::Cut);
        }
        // Not above the length of a slice.
        self.at += length as usize;
        Ok(())
    }

    /// Kind and number of the elements of a list or set.
    pub(super) fn list(&mut self) -> Result<(u8, u64), Malformed> {
        let head = self.byte()?;
        let count = match head >> 4 {
            15 => self.varint()?,
            count => u64::from(count),
        };
        Ok((head & 0x0F, count))
    }

    /// A list whose elements must be structures: their number.
    pub(super) fn structs(&mut self) -> Result<u64, Malformed> {
        match self.list()? {
            (12, count) | (_, count @ 0) => Ok(count),
            _ => Err(Malformed::Broken("a list of something else than structures")),
        }
    }

    /// The next field of a structure: its number and kind, or None at the structure's end.
    pub(super) fn field(&mut self, last: &mut i64) -> Result<Option<(i64, Kind)>, Malformed> {
        let head = self.byte()?;
        if head == 0 {
            return Ok(None);
        }
        let id = match head >> 4 {
            0 => self.integer()?,
            step => last.saturating_add(i64::from(step)),
        };
        *last = id;
        Ok(Some((id, kind(head & 0x0F)?)))
    }

    /// Passes over a value of a field.
    pub(super) fn skip(&mut self, kind: Kind) -> Result<(), Malformed> {
        self.skip_value(kind, MAX_DEPTH)
    }

    fn skip_value(&mut self, value: Kind, depth: u32) -> Result<(), Malformed> {
        let inner = depth.checked_sub(1).ok_or(Malformed::Broken("structures are nested too deep"))?;
        match value {
            Kind::Bool(_) => Ok(()),
            Kind::Byte => self.skip_bytes(1),
            Kind::Integer => self.varint().map(|_| ()),
            Kind::Double => self.skip_bytes(8),
            Kind::Uuid => self.skip_bytes(16),
            Kind::Binary => {
                let length = self.varint()?;
                self.skip_bytes(length)
            }
            Kind::List => {
                let (code, count) = self.list()?;
                for _ in 0..count {
                    self.skip_element(code, inner)?;
                }
                Ok(())
            }
            Kind::Map => {
                let count = self.varint()?;
                if count == 0 {
                    return Ok(());
                }
                let kinds = self.byte()?;
                for _ in 0..count {
                    self.skip_element(kinds >> 4, inner)?;
                    self.skip_element(kinds & 0x0F, inner)?;
                }
                Ok(())
            }
            Kind::Struct => {
                let mut last = 0;
                while let Some((_, kind)) = self.field(&mut last)? {
                    self.skip_value(kind, inner)?;
                }
                Ok(())
            }
        }
    }

    /// Every element takes a byte at least, so a list that lies about its length ends with the bytes.
    fn skip_element(&mut self, code: u8, depth: u32) -> Result<(), Malformed> {
        match kind(code)? {
            Kind::Bool(_) => self.skip_bytes(1),
            kind => self.skip_value(kind, depth),
        }
    }
}

fn kind(code: u8) -> Result<Kind, Malformed> {
    Ok(match code {
        1 => Kind::Bool(true),
        2 => Kind::Bool(false),
        3 => Kind::Byte,
        4..=6 => Kind::Integer,
        7 => Kind::Double,
        8 => Kind::Binary,
        9 | 10 => Kind::List,
        11 => Kind::Map,
        12 => Kind::Struct,
        13 => Kind::Uuid,
        _ => return Err(Malformed::Broken("an unknown type of field")),
    })
}
