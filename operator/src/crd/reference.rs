//! Takes the definition, gives the page that lists every field.

use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::{RULES, definition};

const HEAD: &str = "# Every field of a DataPipeline\n\n\
    Made from the definition by `make docs`. `kubectl explain dpl.spec` says the same. [install](install.md) and \
    [pipeline](pipeline.md) say what the fields are for, with examples; [operations](operations.md) what is observed.\n\n\
    | field | type | default | bounds | meaning |\n|---|---|---|---|---|\n";

/// Types of Kubernetes, which its own documentation lists.
const KUBERNETES: [&str; 5] = [
    ".podTemplate",
    ".placement.tolerations[]",
    ".networkPolicy.trainers[]",
    ".worker.env[]",
    ".worker.resources",
];

/// The page.
#[must_use]
pub fn page() -> String {
    let definition = definition();
    let schema = definition.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec");
    let mut page = HEAD.to_owned();
    if let Some(Value::Object(spec)) = schema {
        fields("", spec, &mut page);
    }
    page.push_str("\n## Rules between fields\n\nThey are checked at every write, so `kubectl apply` names the field.\n\n");
    for rule in RULES {
        let at: String = rule
            .at
            .iter()
            .map(|part| match *part {
                "items" => "[]".to_owned(),
                part => format!(".{part}"),
            })
            .collect();
        let field = format!("{at}{}", rule.field);
        let field = field.trim_start_matches('.');
        if field.is_empty() {
            let _ = writeln!(page, "- {}", rule.message);
        } else {
            let _ = writeln!(page, "- `{field}` {}", rule.message);
        }
    }
    page
}

fn fields(path: &str, schema: &Map<String, Value>, page: &mut String) {
    let Some(Value::Object(properties)) = schema.get("properties") else { return };
    let required: Vec<&str> = schema
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    for (name, field) in properties {
        let Value::Object(field) = field else { continue };
        let path = format!("{path}.{name}");
        let default = match field.get("default") {
            _ if required.contains(&name.as_str()) => "**required**".to_owned(),
            Some(Value::Object(_) | Value::Array(_)) | None => String::new(),
            Some(value) => format!("`{value}`"),
        };
        let (kind, inner, path) = kind(field, &path);
        let _ = writeln!(
            page,
            "| `spec{path}` | {kind} | {default} | {} | {} |",
            bounds(inner),
            cell(field.get("description").and_then(Value::as_str).unwrap_or_default())
        );
        if !KUBERNETES.contains(&path.as_str()) {
            fields(&path, inner, page);
        }
    }
}

/// What a field is in a word, the schema of what it holds, and its path.
fn kind<'a>(field: &'a Map<String, Value>, path: &str) -> (String, &'a Map<String, Value>, String) {
    let word = |schema: &Map<String, Value>| match schema.get("type").and_then(Value::as_str) {
        Some("object") if schema.contains_key("additionalProperties") => "map".to_owned(),
        Some(kind) => kind.to_owned(),
        None if schema.contains_key("x-kubernetes-int-or-string") => "number or string".to_owned(),
        None => "any".to_owned(),
    };
    match field.get("items") {
        Some(Value::Object(items)) => (format!("list of {}", word(items)), items, format!("{path}[]")),
        _ => (word(field), field, path.to_owned()),
    }
}

fn bounds(schema: &Map<String, Value>) -> String {
    if let Some(Value::Array(values)) = schema.get("enum") {
        let values: Vec<String> =
            values.iter().filter_map(Value::as_str).map(|value| format!("`{value}`")).collect();
        return values.join(", ");
    }
    let number = |key: &str| schema.get(key).and_then(Value::as_f64).map(|number| format!("{number}"));
    match (schema.get("type").and_then(Value::as_str), number("minimum"), number("maximum")) {
        (Some("integer"), Some(least), Some(most)) => format!("{least} to {most}"),
        (Some("string"), _, _) => schema
            .get("pattern")
            .and_then(Value::as_str)
            .map(|pattern| format!("`{}`", pattern.replace('|', "\\|")))
            .unwrap_or_default(),
        _ => String::new(),
    }
}

fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}
