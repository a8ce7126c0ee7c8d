use std::collections::BTreeSet;
use std::path::Path;

use super::*;

fn schema() -> Value {
    definition().pointer("/spec/versions/0/schema/openAPIV3Schema").unwrap().clone()
}

fn each(path: &str, schema: &Value, see: &mut dyn FnMut(&str, &Map<String, Value>)) {
    let map = schema.as_object().unwrap();
    see(path, map);
    for (name, inner) in map.get("properties").and_then(Value::as_object).into_iter().flatten() {
        each(&format!("{path}.{name}"), inner, see);
    }
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = map.get(key) {
            each(&format!("{path}[]"), inner, see);
        }
    }
}

#[test]
fn everything_that_can_be_written_is_bounded_and_structural() {
    each("", &schema(), &mut |path, map| {
        let has = |key: &str| map.contains_key(key);
        let forbidden = ["$ref", "oneOf", "anyOf", "allOf", "nullable"];
        assert!(!forbidden.iter().any(|key| has(key)), "{path}: {map:?}");
        let kind = map.get("type").and_then(Value::as_str);
        let open = has("x-kubernetes-preserve-unknown-fields") || has("x-kubernetes-int-or-string");
        assert!(kind.is_some() || open, "{path} has no type: {map:?}");
        match kind {
            Some("integer") => {
                assert!(has("minimum") && has("maximum"), "{path}");
                assert!(["int32", "int64"].contains(&map["format"].as_str().unwrap()), "{path}");
            }
            Some("string") => assert!(has("maxLength") || has("enum") || has("format"), "{path}"),
            Some("array") => assert!(has("maxItems"), "{path}"),
            _ => {}
        }
        if let Some(default) = map.get("default") {
            assert!(!default.is_null(), "{path} has a default of nothing");
        }
    });
}

#[test]
fn every_rule_stands_at_a_field_that_exists() {
    let text = schema().to_string();
    for rule in RULES {
        assert!(text.contains(&Value::from(rule.rule).to_string()), "{}", rule.rule);
        assert!(!rule.message.ends_with('.') && rule.message.len() < 200, "{}", rule.message);
    }
}

#[test]
fn what_a_cluster_accepts_is_accepted_on_one_machine() {
    let schema = schema();
    let known: BTreeSet<String> = {
        let spec = schemars::schema_for!(feedmill_protocol::pipeline::spec::PipelineSpec);
        spec.get("properties").and_then(Value::as_object).unwrap().keys().cloned().collect()
    };
    let here: BTreeSet<String> =
        schema.pointer("/properties/spec/properties").unwrap().as_object().unwrap().keys().cloned().collect();
    assert_eq!(here, known);
}

/// Compares a file with what is made, or writes it when `FEEDMILL_WRITE_DOCS` is set.
fn same(path: &str, made: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    if std::env::var_os("FEEDMILL_WRITE_DOCS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, made).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == made, "{} is not what is made now; run `make docs`", path.display());
}

#[test]
fn the_definition_is_the_checked_in_one() {
    same("crds/feedmill.dev_datapipelines.yaml", &yaml().unwrap());
}

#[test]
fn the_page_lists_every_field() {
    let page = reference::page();
    for field in ["spec.replicas", "spec.streams[].datasets[].columns.image", "spec.worker.resources"] {
        assert!(page.contains(&format!("| `{field}` |")), "{field}");
    }
    same("docs/reference.md", &page);
}

#[test]
fn the_chart_installs_the_same_definition() {
    same("charts/feedmill/templates/crd.yaml", &template().unwrap());
}
