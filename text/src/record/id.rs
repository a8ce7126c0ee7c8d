//! Takes one line of a manifest, gives the record's own id, without reading the rest of it.

use serde::Deserialize;
use serde_json::{Number, Value};

#[derive(Deserialize)]
struct WithId {
    #[serde(default)]
    id: Option<Value>,
}

/// The `id` of a record, as [`super::Conversation::id`] has it; None for a record without one and for a line that is no
/// record. Nothing but the `id` is kept in memory.
pub fn record_id(line: &[u8]) -> Option<String> {
    serde_json::from_slice::<WithId>(line).ok()?.id.as_ref().and_then(written)
}

/// An id as people write it.
pub(super) fn written(id: &Value) -> Option<String> {
    match id {
        Value::String(id) => Some(id.clone()),
        Value::Number(id) => Some(Number::to_string(id)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_strings_and_numbers_and_nothing_else() {
        for (line, expected) in [
            (r#"{"id": "a\u00e9", "x": [1, {"id": 2}]}"#, Some("aé")),
            (r#"{"conversations": [], "id": 7}"#, Some("7")),
            (r#"{"id": 1.5}"#, Some("1.5")),
            (r#"{"id": null}"#, None),
            (r#"{"id": ["a"]}"#, None),
            (r#"{"id": "a", "id": "b"}"#, None),
            (r#"{"x": {"id": "a"}}"#, None),
            (r#"{"id": "a"} x"#, None),
            (r#"["id", "a"]"#, None),
            ("\u{0}", None),
        ] {
            assert_eq!(record_id(line.as_bytes()).as_deref(), expected, "{line}");
        }
    }
}
