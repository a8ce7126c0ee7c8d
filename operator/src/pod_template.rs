//! Takes what a person writes over the template of workers, gives the template with it: merged as Kubernetes merges patches of pods. Pure.
//!
//! Maps merge field by field and `null` takes a field away. Lists whose elements have a key, such as containers by name, merge element by
//! element; all others are replaced whole. `$patch: delete` takes an element or a map away, `$patch: replace` puts it in the other's place.
//! That is strategic merge of <https://github.com/kubernetes/community/blob/master/contributors/devel/sig-api-machinery/strategic-merge-patch.md>;
//! keys are those of `k8s.io/api/core/v1`.

use feedmill_protocol::pipeline::FieldError;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use serde_json::{Map, Value};

use crate::desired::{DOCUMENT_FOLDER, DOCUMENT_VOLUME, PLAN_FOLDER, PLAN_VOLUME, WORKER, is_ours};

/// What stands at the head of errors.
const FIELD: &str = "spec.podTemplate";
/// Much more than all that a pod can sensibly be told; the template is kept twice for each pipeline.
const MOST_BYTES: usize = 64 << 10;
/// What the worker's container is told by the operator alone.
pub const CONTAINER: [&str; 6] =
    ["command", "args", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle"];
/// Volumes by which the operator knows what a worker reads.
const VOLUMES: [&str; 2] = [DOCUMENT_VOLUME, PLAN_VOLUME];
/// And where they are mounted.
const FOLDERS: [&str; 2] = [DOCUMENT_FOLDER, PLAN_FOLDER];
const OF_NODE: &str = "must be absent: workers are no part of their node";
/// Kubernetes' word for how an element is merged.
const DIRECTIVE: &str = "$patch";
/// What is merged and never replaced or taken away: what the operator decides stands there too.
const SHARED: [&str; 6] =
    ["/metadata", "/metadata/labels", "/metadata/annotations", "/spec", "/spec/containers", "/spec/volumes"];

/// What is written over the template of workers, checked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodPatch(Map<String, Value>);

impl PodPatch {
    /// Checks it. `alone`: no two workers may stand on one node.
    ///
    /// # Errors
    /// Each field that is the operator's own, or none of a pod.
    pub fn new(patch: &Map<String, Value>, alone: bool) -> Result<Self, Vec<FieldError>> {
        if patch.is_empty() {
            return Ok(Self::default());
        }
        let mut errors = Vec::new();
        let mut refuse = |at: String, reason: &str| {
            errors.push(FieldError { field: format!("{FIELD}{at}"), reason: reason.to_owned() });
        };
        let whole = Value::Object(patch.clone());
        let bytes = whole.to_string().len();
        if bytes > MOST_BYTES {
            refuse(String::new(), &format!("has {bytes} bytes, of at most {MOST_BYTES}"));
        }
        for place in SHARED.into_iter().chain(alone.then_some("/spec/affinity")) {
            let (Some(given), at) = (whole.pointer(place), place.replace('/', ".")) else { continue };
            if given.is_null() {
                refuse(at, "must not be null: what the operator decides stands there too");
            } else if given.get(DIRECTIVE).is_some() {
                refuse(
                    format!("{at}.{DIRECTIVE}"),
                    "must be absent: what the operator decides stands there too, so it is merged",
                );
            }
        }
        for part in ["labels", "annotations"] {
            let given = patch.get("metadata").and_then(|metadata| metadata.get(part)?.as_object());
            for key in given.into_iter().flat_map(Map::keys).filter(|key| is_ours(key)) {
                refuse(format!(".metadata.{part}"), &format!("{key} is the operator's own"));
            }
        }
        let spec = patch.get("spec").and_then(Value::as_object);
        for (field, value) in spec.into_iter().flatten() {
            match field.as_str() {
                "topologySpreadConstraints" => {
                    refuse(format!(".spec.{field}"), "is spec.placement.spread's to say")
                }
                "affinity" if alone && value.get("podAntiAffinity").is_some() => refuse(
                    format!(".spec.{field}.podAntiAffinity"),
                    "is taken by placement.spread.mode OnePerNode",
                ),
                field if field.starts_with("host") => {
                    refuse(format!(".spec.{field}"), OF_NODE);
                }
                "volumes" => {
                    for (number, volume) in value.as_array().into_iter().flatten().enumerate() {
                        let name = volume["name"].as_str().unwrap_or_default();
                        if VOLUMES.contains(&name) {
                            refuse(
                                format!(".spec.{field}[{number}]"),
                                &format!("{name} is the operator's own"),
                            );
                        }
                        if volume.get("hostPath").is_some() {
                            refuse(format!(".spec.{field}[{number}].hostPath"), OF_NODE);
                        }
                    }
                }
                "containers" | "initContainers" => {
                    for (number, container) in value.as_array().into_iter().flatten().enumerate() {
                        of_container(&format!(".spec.{field}[{number}]"), container, &mut refuse);
                    }
                }
                _ => {}
            }
        }
        unknown(whole, &mut refuse);
        if errors.is_empty() { Ok(Self(patch.clone())) } else { Err(errors) }
    }

    /// The template with it.
    #[must_use]
    pub fn over(&self, template: PodTemplateSpec) -> PodTemplateSpec {
        // Of most pipelines, at each look at them.
        if self.0.is_empty() {
            return template;
        }
        let Ok(Value::Object(mut whole)) = serde_json::to_value(&template) else { return template };
        merge(&mut whole, &self.0);
        // Both are templates, and so is what becomes of them.
        serde_json::from_value(Value::Object(whole)).unwrap_or(template)
    }
}

fn of_container(at: &str, container: &Value, refuse: &mut impl FnMut(String, &str)) {
    let name = container.get("name").and_then(Value::as_str);
    if name.is_none() {
        refuse(format!("{at}.name"), "must be there: by it containers are merged");
    }
    if container.get("ports").is_some() {
        refuse(
            format!("{at}.ports"),
            "must be absent: trainers and probes find workers by the one port they have",
        );
    }
    let own = CONTAINER.iter().filter(|field| name == Some(WORKER) && container.get(**field).is_some());
    for field in own {
        refuse(format!("{at}.{field}"), "must be absent of the container worker: it is the operator's own");
    }
    if name != Some(WORKER) {
        return;
    }
    if container.get(DIRECTIVE).is_some() {
        refuse(format!("{at}.{DIRECTIVE}"), "must be absent of the container worker");
    }
    let Some(mounts) = container.get("volumeMounts") else { return };
    let at = format!("{at}.volumeMounts");
    if !mounts.is_array() {
        refuse(at.clone(), "must be a list: what the operator mounts stays there");
    }
    for (number, mount) in mounts.as_array().into_iter().flatten().enumerate() {
        let path = mount.get("mountPath").and_then(Value::as_str).unwrap_or_default();
        if FOLDERS.contains(&path.trim_end_matches('/')) {
            refuse(format!("{at}[{number}]"), &format!("{path} is the operator's own"));
        }
    }
}

/// Refuses what is no field of a pod, or has another type: it would be left out in silence.
fn unknown(mut plain: Value, refuse: &mut impl FnMut(String, &str)) {
    without_directives(&mut plain);
    let read = serde_json::from_value::<PodTemplateSpec>(plain.clone());
    match read.and_then(serde_json::to_value) {
        Err(error) => refuse(String::new(), &format!("is no template of a pod: {error}")),
        Ok(read) => missing("", &plain, &read, refuse),
    }
}

fn without_directives(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|field, value| field != DIRECTIVE && !value.is_null());
            map.values_mut().for_each(without_directives);
        }
        Value::Array(items) => items.iter_mut().for_each(without_directives),
        _ => {}
    }
}

fn missing(at: &str, given: &Value, read: &Value, refuse: &mut impl FnMut(String, &str)) {
    match (given, read) {
        (Value::Object(given), Value::Object(read)) => {
            for (field, value) in given {
                match read.get(field) {
                    Some(read) => missing(&format!("{at}.{field}"), value, read, refuse),
                    None => refuse(format!("{at}.{field}"), "is no field of a pod that this operator knows"),
                }
            }
        }
        (Value::Array(given), Value::Array(read)) => {
            for (number, (given, read)) in given.iter().zip(read).enumerate() {
                missing(&format!("{at}[{number}]"), given, read, refuse);
            }
        }
        _ => {}
    }
}

/// The key by which elements of a list are told apart.
fn key_of(list: &str) -> Option<&'static str> {
    match list {
        "containers" | "initContainers" | "volumes" | "env" | "imagePullSecrets" | "resourceClaims" => {
            Some("name")
        }
        "volumeMounts" => Some("mountPath"),
        "volumeDevices" => Some("devicePath"),
        _ => None,
    }
}

fn merge(into: &mut Map<String, Value>, patch: &Map<String, Value>) {
    for (field, given) in patch.iter().filter(|(field, _)| *field != DIRECTIVE) {
        match (given, into.get_mut(field), key_of(field)) {
            (Value::Object(given), Some(Value::Object(into)), _) if directive(given).is_none() => {
                merge(into, given);
            }
            (Value::Array(given), Some(Value::Array(into)), Some(key)) => {
                merge_lists(field, key, into, given)
            }
            (Value::Object(map), _, _) if directive(map) == Some("delete") => drop(into.remove(field)),
            (Value::Null, _, _) => drop(into.remove(field)),
            _ => {
                let mut given = given.clone();
                without_directives(&mut given);
                into.insert(field.clone(), given);
            }
        }
    }
}

fn merge_lists(list: &str, key: &str, into: &mut Vec<Value>, patch: &[Value]) {
    for given in patch.iter().filter_map(Value::as_object) {
        let this = |other: &Value| other.get(key) == given.get(key);
        let place = into.iter().position(this);
        let mut plain = Value::Object(given.clone());
        without_directives(&mut plain);
        match (directive(given), place.and_then(|place| into.get_mut(place)), place) {
            (Some("delete"), _, Some(place)) => drop(into.remove(place)),
            (Some("delete"), _, None) => {}
            (None, Some(Value::Object(old)), _) if list != "volumes" || is_of_one_kind(old, given) => {
                merge(old, given)
            }
            (_, Some(old), _) => *old = plain,
            (_, None, _) => into.push(plain),
        }
    }
}

/// A volume has one source: where another is given it takes the place of the first.
fn is_of_one_kind(one: &Map<String, Value>, other: &Map<String, Value>) -> bool {
    other.keys().all(|source| one.contains_key(source))
}

fn directive(map: &Map<String, Value>) -> Option<&str> {
    map.get(DIRECTIVE)?.as_str()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::desired;
    use crate::validate::tests::{installation, pipeline, stored};
    use crate::validate::validate;

    fn patch(value: &Value) -> Result<PodPatch, Vec<FieldError>> {
        PodPatch::new(value.as_object().unwrap(), false)
    }

    #[test]
    fn what_is_the_operators_own_is_refused_with_its_field() {
        for (field, value) in [
            ("metadata.labels", json!({"metadata": {"labels": {"feedmill.dev/pipeline": "other"}}})),
            ("metadata.annotations", json!({"metadata": {"annotations": {"feedmill.dev/plan-inputs": "x"}}})),
            ("spec.hostNetwork", json!({"spec": {"hostNetwork": true}})),
            ("spec.hostPID", json!({"spec": {"hostPID": false}})),
            ("spec.topologySpreadConstraints", json!({"spec": {"topologySpreadConstraints": []}})),
            ("spec.containers[0].args", json!({"spec": {"containers": [{"name": "worker", "args": []}]}})),
            (
                "spec.containers[0].command",
                json!({"spec": {"containers": [{"name": "worker", "command": ["sh"]}]}}),
            ),
            (
                "spec.containers[0].readinessProbe",
                json!({"spec": {"containers": [{"name": "worker", "readinessProbe": {}}]}}),
            ),
            (
                "spec.containers[0].$patch",
                json!({"spec": {"containers": [{"name": "worker", "$patch": "delete"}]}}),
            ),
            ("spec.containers[0].name", json!({"spec": {"containers": [{"image": "x"}]}})),
            (
                "spec.containers[1].ports",
                json!({"spec": {"containers": [{"name": "worker"}, {"name": "b", "ports": [{"containerPort": 1}]}]}}),
            ),
            (
                "spec.volumes[0].hostPath",
                json!({"spec": {"volumes": [{"name": "a", "hostPath": {"path": "/"}}]}}),
            ),
            ("spec.volumes[0]", json!({"spec": {"volumes": [{"name": "plan", "$patch": "delete"}]}})),
            ("spec.dnsConfg", json!({"spec": {"dnsConfg": {}}})),
            (
                "spec.containers[0].env[0].valu",
                json!({"spec": {"containers": [{"name": "a", "env": [{"name": "A", "valu": ""}]}]}}),
            ),
            ("status", json!({"status": {}})),
        ] {
            let errors = patch(&value).unwrap_err();
            let fields: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
            assert!(fields.contains(&format!("{FIELD}.{field}").as_str()), "{value}: {errors:?}");
        }
        let errors = patch(&json!({"spec": {"priority": "high"}})).unwrap_err();
        assert_eq!((errors[0].field.as_str(), errors.len()), (FIELD, 1), "{errors:?}");
        let long = json!({"metadata": {"annotations": {"a": "x".repeat(70_000)}}});
        assert!(patch(&long).unwrap_err()[0].reason.contains("at most 65536"));
        let apart = json!({"spec": {"affinity": {"podAntiAffinity": {}}}});
        assert!(patch(&apart).is_ok());
        assert!(PodPatch::new(apart.as_object().unwrap(), true).is_err());
    }

    #[test]
    fn a_directive_or_null_took_away_what_is_the_operators_beside_it() {
        let refused = |value: &Value, alone: bool, field: &str| {
            let errors = PodPatch::new(value.as_object().unwrap(), alone).unwrap_err();
            let field = format!("{FIELD}.{field}");
            assert!(errors.iter().any(|error| error.field == field), "{value}: {errors:?}");
        };
        for (field, value) in [
            (
                "metadata.annotations.$patch",
                json!({"metadata": {"annotations": {"$patch": "replace", "note": "x"}}}),
            ),
            ("metadata.labels.$patch", json!({"metadata": {"labels": {"$patch": "delete"}}})),
            ("metadata.$patch", json!({"metadata": {"$patch": "delete"}})),
            ("metadata", json!({"metadata": null})),
            ("metadata.labels", json!({"metadata": {"labels": null}})),
            ("metadata.annotations", json!({"metadata": {"annotations": null}})),
            ("spec.$patch", json!({"spec": {"$patch": "replace", "containers": [{"name": "other"}]}})),
            ("spec", json!({"spec": null})),
            ("spec.containers.$patch", json!({"spec": {"containers": {"$patch": "delete"}}})),
            ("spec.containers", json!({"spec": {"containers": null}})),
            ("spec.volumes.$patch", json!({"spec": {"volumes": {"$patch": "delete"}}})),
            ("spec.volumes", json!({"spec": {"volumes": null}})),
            (
                "spec.containers[0].volumeMounts",
                json!({"spec": {"containers": [{"name": "worker", "volumeMounts": null}]}}),
            ),
            (
                "spec.containers[0].volumeMounts[0]",
                json!({"spec": {"containers": [{"name": "worker", "volumeMounts": [
                    {"name": "plan", "mountPath": "/etc/feedmill/plan", "$patch": "delete"}]}]}}),
            ),
            (
                "spec.containers[0].volumeMounts[0]",
                json!({"spec": {"containers": [{"name": "worker", "volumeMounts": [
                    {"name": "mine", "mountPath": "/etc/feedmill/pipeline/"}]}]}}),
            ),
        ] {
            refused(&value, false, field);
        }
        for (field, affinity) in [
            ("spec.affinity.$patch", json!({"$patch": "delete"})),
            ("spec.affinity.$patch", json!({"$patch": "replace", "nodeAffinity": {}})),
            ("spec.affinity", Value::Null),
        ] {
            let value = json!({"spec": {"affinity": affinity}});
            refused(&value, true, field);
            // Without OnePerNode it is no business of the operator.
            assert!(patch(&value).is_ok(), "{value}");
        }
        let lines = "podTemplate: {metadata: {annotations: {$patch: replace, note: x}}}";
        let errors = validate(&stored(lines)).unwrap_err();
        assert_eq!(errors[0].field, "spec.podTemplate.metadata.annotations.$patch");
    }

    #[test]
    fn it_is_merged_as_kubernetes_merges() {
        let plain = desired::template(&pipeline("s3: {credentialsSecretRef: {name: keys}}"), &installation());
        let given = json!({
            "metadata": {"labels": {"team": "vision"}, "annotations": {"note": "x"}},
            "spec": {
                "runtimeClassName": "gvisor",
                "enableServiceLinks": null,
                "securityContext": {"fsGroup": 1000},
                "tolerations": [{"key": "pool", "operator": "Exists"}],
                "containers": [
                    {"name": "worker", "volumeMounts": [{"name": "more", "mountPath": "/more"}], "env": [{"name": "A", "value": "1"}]},
                    {"name": "side", "image": "side:1"},
                ],
                "volumes": [
                    {"name": "more", "emptyDir": {}},
                    {"name": "cache", "ephemeral": {"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"]}}}},
                    {"name": "s3", "$patch": "delete"},
                ],
            },
        });
        let made = serde_json::to_value(patch(&given).unwrap().over(plain.clone())).unwrap();
        let plain = serde_json::to_value(plain).unwrap();
        let (spec, was) = (&made["spec"], &plain["spec"]);
        let (labels, own) = (&made["metadata"]["labels"], &plain["metadata"]["labels"]);
        assert_eq!(labels["team"], "vision");
        assert!(own.as_object().unwrap().iter().all(|(key, value)| &labels[key] == value));
        assert_eq!(
            (&spec["runtimeClassName"], &spec["enableServiceLinks"]),
            (&json!("gvisor"), &Value::Null)
        );
        assert_eq!(
            (&spec["securityContext"]["fsGroup"], &spec["securityContext"]["runAsNonRoot"]),
            (&json!(1000), &json!(true))
        );
        // Without a key: theirs.
        assert_eq!(spec["tolerations"], json!([{"key": "pool", "operator": "Exists"}]));
        let [worker, side] = spec["containers"].as_array().unwrap().as_slice() else { panic!("{spec}") };
        let own = &was["containers"][0];
        assert_eq!(
            (&worker["args"], &worker["image"], &side["image"]),
            (&own["args"], &own["image"], &json!("side:1"))
        );
        let of = |list: &Value, key: &str| -> Vec<Value> {
            list.as_array().unwrap().iter().map(|item| item[key].clone()).collect()
        };
        assert_eq!(of(&worker["env"], "name"), ["TMPDIR", "A"]);
        assert_eq!(
            of(&worker["volumeMounts"], "mountPath").len(),
            of(&own["volumeMounts"], "mountPath").len() + 1
        );
        assert_eq!(of(&spec["volumes"], "name"), ["pipeline", "plan", "cache", "more"]);
        // A volume has one source.
        assert_eq!(spec["volumes"][2].as_object().unwrap().keys().collect::<Vec<_>>(), ["ephemeral", "name"]);
    }

    #[test]
    fn pods_are_made_with_it_and_made_anew_when_it_changes() {
        let one = pipeline("podTemplate: {spec: {runtimeClassName: gvisor}}");
        let spec = desired::template(&one, &installation()).spec.unwrap();
        assert_eq!(spec.runtime_class_name.as_deref(), Some("gvisor"));
        assert_ne!(one.template_inputs, pipeline("").template_inputs);
        assert_eq!(one.plan_inputs, pipeline("").plan_inputs);
        // Nothing in it is nothing.
        assert_eq!(pipeline("podTemplate: {}").template_inputs, pipeline("").template_inputs);
        let errors = validate(&stored("podTemplate: {spec: {hostNetwork: true}}")).unwrap_err();
        assert_eq!(errors[0].field, "spec.podTemplate.spec.hostNetwork");
        let alone =
            "placement: {spread: {mode: OnePerNode}}\npodTemplate: {spec: {affinity: {podAntiAffinity: {}}}}";
        assert_eq!(
            validate(&stored(alone)).unwrap_err()[0].field,
            "spec.podTemplate.spec.affinity.podAntiAffinity"
        );
    }
}
