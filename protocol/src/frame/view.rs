//! Reading: a checked, borrowed view.

use std::collections::HashMap;

use serde_json::Value;

use super::header::DType;

/// A frame's header is refused above this: ours are one page or two.
const MAX_HEADER: u64 = 1 << 20;

/// Why bytes are no frame, or a frame no batch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Fewer bytes than the frame says it has, or trailing ones.
    #[error("frame has {got} bytes where its header says {expected}")]
    Length {
        /// What the header says.
        expected: u64,
        /// What is there.
        got: u64,
    },
    /// A header longer than any that is written.
    #[error("frame header of {0} bytes is longer than the limit of 1 MiB")]
    HeaderTooLong(u64),
    /// The header is not JSON of the right form.
    #[error("frame header is malformed: {0}")]
    Header(String),
    /// Offsets with gaps, overlaps, or not matching shape and dtype.
    #[error("tensor {name:?} has offsets that do not fit its shape or its neighbours")]
    Offsets {
        /// Which tensor.
        name: String,
    },
    /// A tensor that is needed is absent.
    #[error("tensor {0:?} is missing")]
    Missing(&'static str),
    /// A tensor has another dtype or rank than the format says.
    #[error("tensor {name:?} is {got}, expected {expected}")]
    Type {
        /// Which tensor.
        name: &'static str,
        /// The dtype and shape expected.
        expected: &'static str,
        /// The dtype and shape found.
        got: String,
    },
    /// A format version this reader does not know.
    #[error("batch format version {0:?} is not known to this reader; update feedmill on this side")]
    Version(String),
    /// Tensors that contradict each other.
    #[error("batch contradicts itself: {0}")]
    Inconsistent(String),
}

/// One tensor of a frame, borrowed.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorView<'a> {
    /// Element type.
    pub dtype: DType,
    /// Row-major shape.
    pub shape: Vec<usize>,
    /// Its data, little-endian.
    pub data: &'a [u8],
}

impl<'a> TensorView<'a> {
    /// The elements of an `I32` tensor; empty for another dtype.
    pub fn i32s(&self) -> impl ExactSizeIterator<Item = i32> + 'a + use<'a> {
        let data = if self.dtype == DType::I32 { self.data } else { &[] };
        data.chunks_exact(4).map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    }

    /// The elements of an `I64` tensor; empty for another dtype.
    pub fn i64s(&self) -> impl ExactSizeIterator<Item = i64> + 'a + use<'a> {
        let data = if self.dtype == DType::I64 { self.data } else { &[] };
        data.chunks_exact(8).map(|b| i64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]))
    }
}

/// A frame whose header and offsets have been checked.
#[derive(Clone, Debug)]
pub struct FrameView<'a> {
    tensors: Vec<(String, TensorView<'a>)>,
    metadata: HashMap<String, String>,
}

impl<'a> FrameView<'a> {
    /// Checks a whole frame: length, JSON, dtypes, and that the data of the tensors follow each other
    /// without gaps to the very end. Tensors of dtypes that this reader does not know are left out.
    ///
    /// # Errors
    /// One of [`FrameError`]'s for whatever does not hold.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, FrameError> {
        let total = bytes.len() as u64;
        let short = |expected| FrameError::Length { expected, got: total };
        let length = bytes.first_chunk::<8>().map(|b| u64::from_le_bytes(*b)).ok_or(short(8))?;
        if length > MAX_HEADER {
            return Err(FrameError::HeaderTooLong(length));
        }
        let data_begin = 8 + length as usize;
        let header = bytes.get(8..data_begin).ok_or(short(data_begin as u64))?;
        let header: Value =
            serde_json::from_slice(header).map_err(|error| FrameError::Header(error.to_string()))?;
        let Value::Object(entries) = header else {
            return Err(FrameError::Header("not an object".into()));
        };
        let data = &bytes[data_begin..];
        let mut metadata = HashMap::new();
        let mut spans = Vec::new();
        for (name, entry) in entries {
            if name == "__metadata__" {
                let Value::Object(pairs) = entry else {
                    return Err(FrameError::Header("__metadata__ is not an object".into()));
                };
                for (key, value) in pairs {
                    let Value::String(text) = value else {
                        return Err(FrameError::Header(format!("metadata {key:?} is not a string")));
                    };
                    metadata.insert(key, text);
                }
            } else {
                spans.push(Span::read(name, &entry)?);
            }
        }
        spans.sort_by_key(|span| (span.begin, span.end));
        let mut reached = 0;
        let mut tensors = Vec::with_capacity(spans.len());
        for span in spans {
            if span.begin != reached {
                return Err(FrameError::Offsets { name: span.name });
            }
            reached = span.end;
            let end = usize::try_from(span.end).unwrap_or(usize::MAX);
            let slice = data
                .get(span.begin as usize..end)
                .ok_or(short((data_begin as u64).saturating_add(span.end)))?;
            if let Some(dtype) = span.dtype {
                tensors.push((span.name, TensorView { dtype, shape: span.shape, data: slice }));
            }
        }
        if reached != data.len() as u64 {
            return Err(short((data_begin as u64).saturating_add(reached)));
        }
        Ok(Self { tensors, metadata })
    }

    /// The tensor of this name.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<&TensorView<'a>> {
        self.tensors.iter().find(|(known, _)| known == name).map(|(_, tensor)| tensor)
    }

    /// All tensors, in the order of their data.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &TensorView<'a>)> {
        self.tensors.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// A value of `__metadata__`.
    #[must_use]
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.metadata.get(key).map(String::as_str)
    }
}

/// One header entry with its offsets checked against its shape.
struct Span {
    name: String,
    dtype: Option<DType>,
    shape: Vec<usize>,
    begin: u64,
    end: u64,
}

impl Span {
    fn read(name: String, entry: &Value) -> Result<Self, FrameError> {
        let malformed = |what: &str| FrameError::Header(format!("tensor {name:?} has no {what}"));
        let dtype = entry.get("dtype").and_then(Value::as_str).ok_or_else(|| malformed("dtype"))?;
        let dtype = DType::from_name(dtype);
        let numbers = |key: &str| -> Result<Vec<u64>, FrameError> {
            let list = entry.get(key).and_then(Value::as_array).ok_or_else(|| malformed(key))?;
            list.iter().map(|n| n.as_u64().ok_or_else(|| malformed(key))).collect()
        };
        let shape = numbers("shape")?;
        let offsets = numbers("data_offsets")?;
        let [begin, end] = offsets[..] else {
            return Err(malformed("pair of data_offsets"));
        };
        let elements = shape.iter().try_fold(1u64, |product, side| product.checked_mul(*side));
        let fits = match dtype {
            Some(dtype) => elements
                .and_then(|n| n.checked_mul(dtype.size() as u64))
                .zip(end.checked_sub(begin))
                .is_some_and(|(expected, got)| expected == got),
            None => end >= begin,
        };
        if !fits {
            return Err(FrameError::Offsets { name });
        }
        let shape = shape.into_iter().map(|side| side as usize).collect();
        Ok(Self { name, dtype, shape, begin, end })
    }
}
