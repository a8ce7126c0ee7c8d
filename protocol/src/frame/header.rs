//! Writing: names, dtypes and shapes give the header's bytes.

use std::fmt::Write;

/// The data begins at a multiple of this, so that a frame read into an aligned buffer has aligned patches.
pub const HEADER_ALIGNMENT: usize = 4096;

/// The element types that frames use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// Unsigned bytes.
    U8,
    /// 32-bit signed little-endian integers.
    I32,
    /// 64-bit signed little-endian integers.
    I64,
    /// 32-bit little-endian floats.
    F32,
}

impl DType {
    /// The name that safetensors uses.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            DType::U8 => "U8",
            DType::I32 => "I32",
            DType::I64 => "I64",
            DType::F32 => "F32",
        }
    }

    /// The dtype with this safetensors name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [DType::U8, DType::I32, DType::I64, DType::F32].into_iter().find(|d| d.name() == name)
    }

    /// Bytes of one element.
    #[must_use]
    pub fn size(self) -> usize {
        match self {
            DType::U8 => 1,
            DType::I32 | DType::F32 => 4,
            DType::I64 => 8,
        }
    }
}

/// One tensor of a frame that is being written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Its name; plain ASCII without quotes.
    pub name: &'static str,
    /// Element type.
    pub dtype: DType,
    /// Row-major shape.
    pub shape: Vec<usize>,
}

impl TensorSpec {
    /// A tensor of this name, type and shape.
    #[must_use]
    pub fn new(name: &'static str, dtype: DType, shape: impl Into<Vec<usize>>) -> Self {
        Self { name, dtype, shape: shape.into() }
    }

    /// Bytes of its data.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.size()
    }
}

/// The bytes before the data: length, JSON in the order of `tensors`, padding with spaces. Tensors'
/// data follow each other without gaps in the same order.
#[must_use]
pub fn write_header(tensors: &[TensorSpec], metadata: &[(&str, &str)]) -> Vec<u8> {
    let mut json = String::with_capacity(HEADER_ALIGNMENT);
    json.push_str("{\"__metadata__\":{");
    for (index, (key, value)) in metadata.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        // Writing to a String cannot fail, nor can a string fail to become JSON.
        let _ = write!(json, "{comma}{}:{}", quoted(key), quoted(value));
    }
    json.push('}');
    let mut offset = 0;
    for tensor in tensors {
        let end = offset + tensor.bytes();
        let shape: Vec<String> = tensor.shape.iter().map(ToString::to_string).collect();
        let _ = write!(
            json,
            ",{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{offset},{end}]}}",
            quoted(tensor.name),
            tensor.dtype.name(),
            shape.join(",")
        );
        offset = end;
    }
    json.push('}');
    let length = (8 + json.len()).next_multiple_of(HEADER_ALIGNMENT) - 8;
    let mut bytes = Vec::with_capacity(8 + length);
    bytes.extend((length as u64).to_le_bytes());
    bytes.extend(json.as_bytes());
    bytes.resize(8 + length, b' ');
    bytes
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
