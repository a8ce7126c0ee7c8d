//! The schema of `podTemplate`: open, with those fields listed that rules speak of. Rules cannot see what is not listed.

use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

use crate::pod_template::CONTAINER;

/// Fields of a pod by which workers would be part of their node.
const OF_NODE: [&str; 4] = ["hostNetwork", "hostPID", "hostIPC", "hostUsers"];

fn open(properties: &Value) -> Value {
    json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": properties})
}

fn texts() -> Value {
    json!({"type": "object", "additionalProperties": {"type": "string"}})
}

/// A template whose fields are those of Kubernetes.
pub fn schema(_: &mut SchemaGenerator) -> Schema {
    let list = || json!({"type": "array", "items": open(&json!({}))});
    let mut container = json!({
        "name": {"type": "string", "minLength": 1, "maxLength": 63},
        "ports": list(),
    });
    for field in CONTAINER {
        container[field] = match field {
            "command" | "args" => json!({"type": "array", "items": {"type": "string"}}),
            _ => open(&json!({})),
        };
    }
    let mut container = open(&container);
    container["required"] = json!(["name"]);
    let mut pod = json!({
        "hostname": {"type": "string"},
        "hostAliases": list(),
        "topologySpreadConstraints": list(),
        "affinity": open(&json!({"podAntiAffinity": open(&json!({}))})),
        "containers": {"type": "array", "maxItems": 8, "items": container},
        "volumes": {"type": "array", "maxItems": 32, "items": open(&json!({"hostPath": open(&json!({}))}))},
    });
    for field in OF_NODE {
        pod[field] = json!({"type": "boolean"});
    }
    json_schema!({
        "type": "object",
        "properties": {
            "metadata": {"type": "object", "properties": {"labels": texts(), "annotations": texts()}},
            "spec": open(&pod),
        },
    })
}
