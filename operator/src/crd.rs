//! Takes the types, gives the CustomResourceDefinition: bounded everywhere, with rules between fields.
//!
//! Rules are CEL and run at every write. None ties `replicas` to the bounds of the scaling: rules run on writes of the scale
//! subresource too, and another scaler would only get errors; the operator clamps and says so.

/// The page that lists every field.
#[cfg(test)]
mod reference;

use kube::CustomResourceExt;
use serde_json::{Map, Value, json};

use crate::types::DataPipeline;
use crate::validate::amount::{AMOUNT, AMOUNT_LETTERS};

/// Bounds of what Kubernetes' own types leave open. A stored object has at most 1.5 MB; the cost of rules is estimated from these.
const STRING: u64 = 4096;
const ITEMS: u64 = 64;

/// One rule between fields.
struct Rule {
    /// Where it stands, from the schema of the whole object.
    at: &'static [&'static str],
    /// The field that is named, from there.
    field: &'static str,
    rule: &'static str,
    message: &'static str,
    reason: &'static str,
}

const SPEC: &[&str] = &["spec"];
const INVALID: &str = "FieldValueInvalid";
const FORBIDDEN: &str = "FieldValueForbidden";

/// A field of the template that is merged which must be absent.
macro_rules! absent {
    ($at:expr, $field:literal, $message:literal) => {
        Rule {
            at: $at,
            field: concat!(".", $field),
            rule: concat!("!has(self.", $field, ")"),
            message: concat!("must be absent: ", $message),
            reason: FORBIDDEN,
        }
    };
}

/// The same of the worker's own container.
macro_rules! absent_of_worker {
    ($field:literal) => {
        Rule {
            at: &["spec", "podTemplate", "spec", "containers", "items"],
            field: concat!(".", $field),
            rule: concat!("self.name != 'worker' || !has(self.", $field, ")"),
            message: "must be absent of the container worker: it is the operator's own",
            reason: FORBIDDEN,
        }
    };
}

/// A map with keys of its writer alone.
macro_rules! not_ours {
    ($at:expr, $field:literal, $why:literal) => {
        Rule {
            at: $at,
            field: concat!(".", $field),
            rule: concat!(
                "!has(self.",
                $field,
                ") || !self.",
                $field,
                ".exists(key, key.startsWith('feedmill.dev/') || key.startsWith('app.kubernetes.io/'))"
            ),
            message: concat!("must not have keys of feedmill.dev/ or app.kubernetes.io/: ", $why),
            reason: FORBIDDEN,
        }
    };
}

/// No more of a resource is asked for than there may be.
macro_rules! within_limits {
    ($name:literal) => {
        Rule {
            at: &["spec", "worker", "resources"],
            field: concat!(".requests.", $name),
            rule: concat!(
                "!has(self.requests) || !has(self.limits) || !('",
                $name,
                "' in self.requests) || !('",
                $name,
                "' in self.limits) || !isQuantity(string(self.requests['",
                $name,
                "'])) || !isQuantity(string(self.limits['",
                $name,
                "'])) || quantity(string(self.requests['",
                $name,
                "'])).compareTo(quantity(string(self.limits['",
                $name,
                "']))) <= 0"
            ),
            message: concat!("must not be more than limits.", $name),
            reason: INVALID,
        }
    };
}

/// Where the template that is merged has a pod's fields.
const POD: &[&str] = &["spec", "podTemplate", "spec"];

const RULES: &[Rule] = &[
    Rule {
        at: &[],
        // The schema does not list metadata, so no path may lead there.
        field: "",
        rule: "size(self.metadata.name) <= 52 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        message: "metadata.name must be at most 52 lower-case letters, digits and minus, beginning with a letter: names of workers are made of it",
        reason: INVALID,
    },
    Rule {
        at: SPEC,
        field: ".streams",
        rule: "self.suspend || oldSelf.suspend || self.streams == oldSelf.streams",
        message: "may change only while the pipeline is suspended, because trainers read by them; set spec.suspend to true first",
        reason: FORBIDDEN,
    },
    Rule {
        at: SPEC,
        field: ".processor",
        rule: "self.suspend || oldSelf.suspend || self.processor == oldSelf.processor",
        message: "may change only while the pipeline is suspended, because trainers read by it; set spec.suspend to true first",
        reason: FORBIDDEN,
    },
    Rule {
        at: SPEC,
        field: ".limits",
        rule: "self.suspend || oldSelf.suspend || self.limits == oldSelf.limits",
        message: "may change only while the pipeline is suspended, because they decide which records are bad; set spec.suspend to true first",
        reason: FORBIDDEN,
    },
    Rule {
        at: SPEC,
        field: ".updateStrategy.maxSurge",
        rule: "self.placement.spread.mode != 'OnePerNode' || !has(self.updateStrategy) || !has(self.updateStrategy.maxSurge) || string(self.updateStrategy.maxSurge) in ['0', '0%']",
        message: "must be 0 or absent with placement.spread.mode OnePerNode: there is no node for one more",
        reason: INVALID,
    },
    Rule {
        at: SPEC,
        field: ".updateStrategy.maxUnavailable",
        rule: "self.placement.spread.mode != 'OnePerNode' || !has(self.updateStrategy) || !has(self.updateStrategy.maxUnavailable) || !(string(self.updateStrategy.maxUnavailable) in ['0', '0%'])",
        message: "must not be 0 with placement.spread.mode OnePerNode: one goes before another can come",
        reason: INVALID,
    },
    Rule {
        at: SPEC,
        field: ".cache.fetch",
        rule: "quantity(string(self.cache.fetch)).compareTo(quantity(string(self.limits.maxSampleBytes))) >= 0",
        message: "cannot hold the files of one record at its limit; raise it or lower limits.maxSampleBytes",
        reason: INVALID,
    },
    Rule {
        at: &["spec", "updateStrategy"],
        field: ".maxUnavailable",
        rule: "!has(self.maxSurge) || !(string(self.maxSurge) in ['0', '0%']) || !has(self.maxUnavailable) || !(string(self.maxUnavailable) in ['0', '0%'])",
        message: "must not be 0 together with maxSurge: nothing could ever be replaced",
        reason: INVALID,
    },
    Rule {
        at: &["spec", "autoscaling"],
        field: ".minReplicas",
        rule: "self.minReplicas <= self.maxReplicas",
        message: "must not be more than maxReplicas",
        reason: INVALID,
    },
    Rule {
        at: &["spec", "autoscaling"],
        field: ".minReplicas",
        rule: "self.mode != 'Internal' || self.minReplicas >= 1",
        message: "must be at least 1 in mode Internal: trainers report to workers, so nobody could wake a fleet of 0",
        reason: INVALID,
    },
    Rule {
        at: &["spec", "autoscaling"],
        field: ".signal",
        rule: "self.mode == 'Internal' || !has(self.signal)",
        message: "must be absent unless mode is Internal: nothing else listens to it",
        reason: FORBIDDEN,
    },
    Rule {
        at: &["spec", "autoscaling", "reports", "fallback"],
        field: ".replicas",
        rule: "self.behavior != 'CurrentReplicasIfHigher' || has(self.replicas)",
        message: "must say at least how many, with behavior CurrentReplicasIfHigher",
        reason: INVALID,
    },
    Rule {
        at: &["spec", "autoscaling", "reports", "fallback"],
        field: ".replicas",
        rule: "self.behavior == 'CurrentReplicasIfHigher' || !has(self.replicas)",
        message: "does nothing without behavior CurrentReplicasIfHigher; write that beside it, or leave both out",
        reason: FORBIDDEN,
    },
    Rule {
        at: &["spec", "limits"],
        field: ".maxSampleBytes",
        rule: "quantity(string(self.maxSampleBytes)).compareTo(quantity(string(self.maxImageBytes))) >= 0",
        message: "must be at least maxImageBytes",
        reason: INVALID,
    },
    Rule {
        at: &["spec", "limits"],
        field: ".maxLineBytes",
        rule: "quantity(string(self.maxLineBytes)).compareTo(quantity('1Ki')) >= 0 && quantity(string(self.maxLineBytes)).compareTo(quantity('1Gi')) <= 0",
        message: "must be 1Ki to 1Gi",
        reason: INVALID,
    },
    Rule {
        at: &["spec", "limits"],
        field: ".maxImageBytes",
        rule: "quantity(string(self.maxImageBytes)).compareTo(quantity('1')) >= 0 && quantity(string(self.maxImageBytes)).compareTo(quantity('2Gi')) <= 0",
        message: "must be 1 to 2Gi",
        reason: INVALID,
    },
    Rule {
        at: &["spec", "cache"],
        field: ".sharedMemory",
        rule: "quantity(string(self.sharedMemory)).compareTo(quantity('16Mi')) >= 0 && quantity(string(self.sharedMemory)).compareTo(quantity('4Ti')) <= 0",
        message: "must be 16Mi to 4Ti",
        reason: INVALID,
    },
    Rule {
        at: &["spec", "processor"],
        field: ".minPixels",
        rule: "!has(self.minPixels) || !has(self.maxPixels) || self.minPixels <= self.maxPixels",
        message: "must not be more than maxPixels",
        reason: INVALID,
    },
    Rule {
        at: &["spec", "streams", "items", "datasets", "items"],
        field: ".recordFormat",
        rule: "!has(self.template) || self.recordFormat == 'Auto'",
        message: "must be absent beside a template, which says itself what records become",
        reason: INVALID,
    },
    within_limits!("cpu"),
    within_limits!("memory"),
    not_ours!(&["spec", "worker"], "labels", "the operator finds its workers by them"),
    not_ours!(&["spec", "worker"], "annotations", "they are the operator's own"),
    Rule {
        at: &["spec", "worker"],
        field: ".serviceAccountAnnotations",
        rule: "!has(self.serviceAccountName) || !has(self.serviceAccountAnnotations)",
        message: "must be absent beside serviceAccountName: an account that exists is not changed",
        reason: FORBIDDEN,
    },
    Rule {
        at: SPEC,
        field: ".podTemplate",
        rule: "self.placement.spread.mode != 'OnePerNode' || !has(self.podTemplate) || !has(self.podTemplate.spec) || !has(self.podTemplate.spec.affinity) || !has(self.podTemplate.spec.affinity.podAntiAffinity)",
        message: "must not have spec.affinity.podAntiAffinity with placement.spread.mode OnePerNode, which takes it",
        reason: FORBIDDEN,
    },
    not_ours!(&["spec", "podTemplate", "metadata"], "labels", "the operator finds its workers by them"),
    not_ours!(&["spec", "podTemplate", "metadata"], "annotations", "they are the operator's own"),
    absent!(POD, "hostNetwork", "workers are no part of their node"),
    absent!(POD, "hostPID", "workers are no part of their node"),
    absent!(POD, "hostIPC", "workers are no part of their node"),
    absent!(POD, "hostUsers", "workers are no part of their node"),
    absent!(POD, "hostname", "workers are found by a Service"),
    absent!(POD, "hostAliases", "workers are no part of their node"),
    absent!(
        &["spec", "podTemplate", "spec", "volumes", "items"],
        "hostPath",
        "workers are no part of their node"
    ),
    absent!(POD, "topologySpreadConstraints", "spec.placement.spread says it"),
    absent!(
        &["spec", "podTemplate", "spec", "containers", "items"],
        "ports",
        "trainers and probes find workers by the one port they have"
    ),
    absent_of_worker!("command"),
    absent_of_worker!("args"),
    absent_of_worker!("livenessProbe"),
    absent_of_worker!("readinessProbe"),
    absent_of_worker!("startupProbe"),
    absent_of_worker!("lifecycle"),
];

/// The definition as JSON.
///
/// # Panics
/// Never outside of this crate's tests: it depends on nothing but the types, and a test makes it.
#[must_use]
pub fn definition() -> Value {
    let mut definition = serde_json::to_value(DataPipeline::crd()).unwrap_or_default();
    if let Some(schema) = definition.pointer_mut("/spec/versions/0/schema/openAPIV3Schema") {
        finish(schema);
        // Nothing reads them.
        if let Some(Value::Object(resources)) =
            schema.pointer_mut("/properties/spec/properties/worker/properties/resources/properties")
        {
            resources.remove("claims");
            for amounts in resources.values_mut() {
                if let Some(Value::Object(amount)) = amounts.get_mut("additionalProperties") {
                    amount.insert("pattern".into(), AMOUNT.into());
                    amount.insert("minimum".into(), json!(0));
                    amount.insert("maxLength".into(), json!(AMOUNT_LETTERS));
                }
            }
        }
        // Kubernetes takes any number: below 0 is at once.
        if let Some(Value::Object(seconds)) = schema.pointer_mut(
            "/properties/spec/properties/placement/properties/tolerations/items/properties/tolerationSeconds",
        ) {
            seconds.insert("minimum".into(), json!(-((1_i64 << 53) - 1)));
        }
        for rule in RULES {
            add(schema, rule);
        }
    }
    definition
}

/// The definition as YAML.
///
/// # Errors
/// None that can be met: the definition is plain JSON.
pub fn yaml() -> Result<String, serde_saphyr::ser::Error> {
    serde_saphyr::to_string(&definition())
}

/// The definition as the chart installs it: kept when the chart goes, unless told otherwise.
#[cfg(test)]
fn template() -> Result<String, serde_saphyr::ser::Error> {
    const KEEP: &str = "metadata:\n  {{- if .Values.crds.keep }}\n  annotations:\n    helm.sh/resource-policy: keep\n  {{- end }}\n";
    let definition = yaml()?.replacen("metadata:\n", KEEP, 1);
    Ok(format!("{{{{- if .Values.crds.enabled }}}}\n{definition}{{{{- end }}}}\n"))
}

fn add(schema: &mut Value, rule: &Rule) {
    let at = rule.at.iter().fold(String::new(), |path, part| match *part {
        "items" => path + "/items",
        part => path + "/properties/" + part,
    });
    let Some(Value::Object(target)) = schema.pointer_mut(&at) else { return };
    let rules = target.entry("x-kubernetes-validations").or_insert_with(|| json!([]));
    if let Value::Array(rules) = rules {
        let mut written = json!({"rule": rule.rule, "message": rule.message, "reason": rule.reason});
        if !rule.field.is_empty() {
            written["fieldPath"] = rule.field.into();
        }
        rules.push(written);
    }
}

/// Makes a schema structural and bounded, all the way down.
fn finish(schema: &mut Value) {
    let Value::Object(map) = schema else { return };
    for key in ["nullable", "title", "$schema", "examples"] {
        map.remove(key);
    }
    if map.contains_key("properties") && map.get("additionalProperties") == Some(&Value::Bool(false)) {
        map.remove("additionalProperties");
    }
    // Any value at all.
    if map.get("additionalProperties") == Some(&Value::Bool(true)) {
        map.remove("additionalProperties");
        map.insert("x-kubernetes-preserve-unknown-fields".into(), true.into());
    }
    if map.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true)) {
        // Said by the extension; Kubernetes allows nothing else beside it.
        for key in ["format", "type", "anyOf"] {
            map.remove(key);
        }
        map.entry("maxLength").or_insert_with(|| json!(64));
    }
    match map.get("type").and_then(Value::as_str) {
        Some("integer") => whole(map),
        Some("string") if !map.contains_key("enum") => {
            map.entry("maxLength").or_insert_with(|| json!(STRING));
        }
        Some("array") => {
            map.entry("maxItems").or_insert_with(|| json!(ITEMS));
        }
        Some("object") if map.contains_key("additionalProperties") => {
            map.entry("maxProperties").or_insert_with(|| json!(ITEMS));
        }
        _ => {}
    }
    if let Some(Value::Object(properties)) = map.get_mut("properties") {
        properties.values_mut().for_each(finish);
    }
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = map.get_mut(key) {
            finish(inner);
        }
    }
}

/// Kubernetes knows int32 and int64 only, and refuses what is larger.
fn whole(map: &mut Map<String, Value>) {
    let most = map.get("maximum").and_then(Value::as_f64);
    let small = map.get("format").and_then(Value::as_str).is_some_and(|format| format == "int32");
    let fits = most.is_some_and(|most| most <= f64::from(i32::MAX));
    map.insert("format".into(), json!(if small || fits { "int32" } else { "int64" }));
    map.entry("minimum").or_insert_with(|| json!(0));
    map.entry("maximum").or_insert_with(|| if small { json!(i32::MAX) } else { json!((1_i64 << 53) - 1) });
}

#[cfg(test)]
mod tests;
