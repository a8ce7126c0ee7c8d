//! Hashes of a spec: what decides bytes, and what pods are made from.

use feedmill_protocol::hash::hex;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::sparse::sparse;
use crate::types::DataPipeline;

/// The first 16 hexadecimal digits of a SHA-256.
#[must_use]
pub fn short_hash(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    hex(digest.get(..8).unwrap_or_default())
}

/// How inputs are hashed. An operator that hashes otherwise writes another word here, and must know this form as well: what it finds by
/// another hash it takes for another pipeline's, and replaces every fleet.
const FORM: &str = "v1-";

/// Whether these inputs are others, by hashes that may not be comparable: then they are not.
#[must_use]
pub fn are_others(theirs: &str, inputs: &str) -> bool {
    let form = |inputs: &str| inputs.split_once('-').map(|(form, _)| form.to_owned());
    theirs != inputs && form(theirs) == form(inputs)
}

/// The hashes of what decides bytes and of what pods are made from.
pub(super) fn inputs(raw: &DataPipeline) -> (String, String) {
    let mut spec = sparse(&raw.spec);
    let hash = |inputs: &Value| FORM.to_owned() + &short_hash(inputs.to_string().as_bytes());
    let part = |name: &str| spec.get(name).cloned().unwrap_or_default();
    let plan = hash(&json!([part("streams"), part("processor"), part("limits")]));
    if let Value::Object(spec) = &mut spec {
        // By these alone no pod differs.
        let apart =
            ["suspend", "replicas", "autoscaling", "updateStrategy", "disruptionBudget", "networkPolicy"];
        if let Some(Value::Object(worker)) = spec.get_mut("worker") {
            worker.retain(|field, _| field != "serviceAccountAnnotations");
        }
        // Their order stays; taking fields out one by one would change it.
        spec.retain(|field, value| !apart.contains(&field.as_str()) && *value != json!({}));
    }
    (plan, hash(&json!([&spec])))
}
