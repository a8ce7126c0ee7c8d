//! The closed list of reasons why a record's text cannot be used.

/// Why a record's text cannot be used. Permanent: the same record gives the same class always.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FaultClass {
    /// Not JSON, not UTF-8, nested too deeply, a number out of range, or one key twice.
    MalformedJson,
    /// JSON, but not a record of the data set's shape.
    WrongShape,
    /// A role that is none of the known ones.
    UnknownRole,
    /// Placeholders and images do not match in number or place.
    PlaceholderMismatch,
    /// Video, audio or another kind of content that is neither text nor image.
    UnsupportedModality,
    /// A field that would change the sample and is not supported, or that cannot be followed.
    UnsupportedField,
    /// An image reference that cannot be read as one.
    BadReference,
    /// No token would be supervised.
    NoSupervision,
    /// The chat template refused the conversation or did not render it turn by turn; or the data set's template failed.
    Template,
    /// The tokenizer failed or its tokens do not cover the text.
    Tokenizer,
}

impl FaultClass {
    /// Every class, in the order of this list.
    pub const ALL: [FaultClass; 10] = [
        FaultClass::MalformedJson,
        FaultClass::WrongShape,
        FaultClass::UnknownRole,
        FaultClass::PlaceholderMismatch,
        FaultClass::UnsupportedModality,
        FaultClass::UnsupportedField,
        FaultClass::BadReference,
        FaultClass::NoSupervision,
        FaultClass::Template,
        FaultClass::Tokenizer,
    ];

    /// The name used in counters and lists.
    pub fn as_str(self) -> &'static str {
        match self {
            FaultClass::MalformedJson => "malformed_json",
            FaultClass::WrongShape => "wrong_shape",
            FaultClass::UnknownRole => "unknown_role",
            FaultClass::PlaceholderMismatch => "placeholder_mismatch",
            FaultClass::UnsupportedModality => "unsupported_modality",
            FaultClass::UnsupportedField => "unsupported_field",
            FaultClass::BadReference => "bad_reference",
            FaultClass::NoSupervision => "no_supervision",
            FaultClass::Template => "template",
            FaultClass::Tokenizer => "tokenizer",
        }
    }
}

impl std::fmt::Display for FaultClass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}
