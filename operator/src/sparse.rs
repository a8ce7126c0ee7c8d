//! Takes a spec, gives what it asks for beyond the defaults of its version. Pure.
//!
//! What is hashed, and what workers read, has this form: an operator that knows one more field, with a default that means what was meant
//! without it, hashes and writes the same. The defaults of a version are frozen, and stand in its schema.

use std::sync::LazyLock;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::crd;

static SPEC: LazyLock<Value> = LazyLock::new(|| {
    let pointer = "/spec/versions/0/schema/openAPIV3Schema/properties/spec";
    crd::definition().pointer_mut(pointer).map(Value::take).unwrap_or_default()
});

/// A pipeline's spec, or a part of it, without what equals its default, with its keys in order.
#[must_use]
pub fn sparse(spec: &impl Serialize) -> Value {
    without_defaults(&serde_json::to_value(spec).unwrap_or_default(), &SPEC)
}

fn without_defaults(value: &Value, schema: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut fields: Vec<(&String, &Value)> = map.iter().collect();
            fields.sort_unstable_by_key(|(name, _)| *name);
            let mut sparse = Map::new();
            for (name, value) in fields {
                let schema = schema
                    .get("properties")
                    .and_then(|properties| properties.get(name))
                    .or_else(|| schema.get("additionalProperties"))
                    .unwrap_or(&Value::Null);
                let default = schema.get("default");
                let value = (default != Some(value)).then(|| without_defaults(value, schema));
                // Of its fields each may equal its own default.
                let is_empty = |value: &Value| value.as_object().is_some_and(Map::is_empty);
                if let Some(value) =
                    value.filter(|value| !(is_empty(value) && default.is_some_and(Value::is_object)))
                {
                    sparse.insert(name.clone(), value);
                }
            }
            Value::Object(sparse)
        }
        Value::Array(items) => {
            let schema = schema.get("items").unwrap_or(&Value::Null);
            items.iter().map(|item| without_defaults(item, schema)).collect()
        }
        value => value.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_field_that_a_newer_operator_knows_is_absent_while_it_has_its_default() {
        let schema = json!({"properties": {
            "streams": {"items": {"properties": {"new": {"default": 5}}}},
            "cache": {"default": {"disk": "1Gi", "new": true}, "properties": {"disk": {"default": "1Gi"}, "new": {"default": true}}},
            "labels": {"additionalProperties": {}},
        }});
        let value = json!({"streams": [{"name": "a", "new": 5}, {"new": 6}], "labels": {"z": "1", "a": "2"},
            "cache": {"new": true, "disk": "1Gi"}});
        let sparse = without_defaults(&value, &schema);
        assert_eq!(sparse.to_string(), r#"{"labels":{"a":"2","z":"1"},"streams":[{"name":"a"},{"new":6}]}"#);
        let value = json!({"cache": {"new": true, "disk": "2Gi"}, "labels": {}});
        assert_eq!(without_defaults(&value, &schema).to_string(), r#"{"cache":{"disk":"2Gi"},"labels":{}}"#);
    }

    #[test]
    fn a_spec_of_defaults_is_what_had_to_be_written() {
        let stored = crate::validate::tests::stored("");
        let expected = json!({
            "streams": [{"name": "train", "seed": 42, "datasets": [{"name": "chartqa", "uri": "s3://b/train.jsonl"}]}],
            "processor": {"uri": "s3://b/qwen3-vl/"},
            "cache": {"sharedMemory": "1Gi", "fetch": "256Mi", "decode": "512Mi"},
            "limits": {"maxImagePixels": 16_777_216},
        });
        assert_eq!(sparse(&stored.spec), expected);
    }
}
