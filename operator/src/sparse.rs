//! Takes a value and what it would be if nobody had asked for anything, gives what was asked for. Pure.
//!
//! What is hashed and what workers read is written so: a field with a default that only a later version knows is then in neither, and an
//! operator of that version makes the same of the same pipeline.

use serde_json::Value;

/// What `value` says beyond `default`. Null, and what is left empty by that, is nothing.
#[must_use]
pub fn sparse(value: Value, default: &Value) -> Value {
    match value {
        Value::Object(map) => map
            .into_iter()
            .filter_map(|(key, value)| {
                let default = default.get(&key).unwrap_or(&Value::Null);
                if value == *default {
                    return None;
                }
                let was_empty = is_empty(&value);
                let value = sparse(value, default);
                (was_empty || !is_empty(&value)).then_some((key, value))
            })
            .filter(|(_, value)| !value.is_null())
            .collect(),
        // Elements of lists have defaults of their own, which whoever knows the list gives.
        other => other,
    }
}

/// The same for each element of the list at `key`.
pub fn each(value: &mut Value, key: &str, make: impl Fn(Value) -> Value) {
    if let Some(Value::Array(items)) = value.get_mut(key) {
        for item in items {
            *item = make(item.take());
        }
    }
}

fn is_empty(value: &Value) -> bool {
    matches!(value, Value::Object(map) if map.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_nobody_asked_for_is_left_out() {
        let default = json!({"a": 1, "b": {"c": true, "d": "x"}, "e": []});
        let cases = [
            (json!({"a": 1, "b": {"c": true, "d": "x"}, "e": [], "f": null}), json!({})),
            (json!({"a": 2, "b": {"c": true, "d": "x"}}), json!({"a": 2})),
            (json!({"a": 1, "b": {"c": false, "d": "x"}}), json!({"b": {"c": false}})),
            (json!({"e": [1], "g": {"h": 1}, "i": {}}), json!({"e": [1], "g": {"h": 1}, "i": {}})),
        ];
        for (value, expected) in cases {
            assert_eq!(sparse(value.clone(), &default), expected, "{value}");
        }
        // A field that only a later version knows, at its default there.
        let later = json!({"a": 1, "b": {"c": true, "d": "x"}, "e": [], "new": 7});
        let mut value = default.clone();
        value["a"] = json!(5);
        let old = sparse(value.clone(), &default);
        value["new"] = json!(7);
        assert_eq!(sparse(value, &later), old);
    }

    #[test]
    fn elements_of_lists_have_their_own_defaults() {
        let mut value = json!({"list": [{"a": 1, "b": 2}, {"a": 3, "b": 2}]});
        each(&mut value, "list", |item| sparse(item, &json!({"b": 2, "a": 1})));
        assert_eq!(value, json!({"list": [{}, {"a": 3}]}));
        each(&mut value, "other", |item| item);
    }
}
