//! The facts of a stream's plan.
//!
//! What is written here changes the digest, so every fact must change bytes, or make records bad, when it
//! changes; and everything that does so must be here. Names and addresses are not: the same data may move.

use feedmill_protocol::hash::hex;
use feedmill_protocol::pipeline::spec::LimitsSpec;
use feedmill_protocol::pipeline::validated::ValidatedStream;
use feedmill_protocol::plan::Plan;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::dataset::Dataset;
use super::processor::Processor;

pub(super) fn plan(
    stream: &ValidatedStream,
    datasets: &[Dataset],
    processor: &Processor,
    limits: &LimitsSpec,
) -> Plan {
    let mut plan = Plan::new();
    plan.set("stream.seed", stream.seed);
    plan.set("stream.shuffle", stream.shuffle);
    plan.set("stream.bad_samples", written(&stream.bad_samples));
    for (index, dataset) in datasets.iter().enumerate() {
        // Zero-padded, so that sorting by path keeps the data sets in order.
        let fact = |name: &str| format!("dataset.{index:03}.{name}");
        let (of, digest) = dataset.records.digest();
        plan.set(fact(of), hex(&digest));
        plan.set(fact("records"), dataset.records.len());
        plan.set(fact("percent"), dataset.percent);
        plan.set(fact("shape"), written(&dataset.rules.shape));
        let spec = &dataset.spec;
        plan.set(fact("columns"), written(&spec.columns));
        plan.set(fact("template"), spec.template.as_ref().map(|text| hex(&Sha256::digest(text))));
        // Which references can be followed; where prefixes lead is an address, as the image base is.
        let prefixes: Vec<&str> = spec.image_prefixes.iter().map(|prefix| prefix.from.as_str()).collect();
        plan.set(fact("image_prefixes"), prefixes);
        plan.set(fact("image_roots"), spec.image_roots.clone());
        let mut exclude: Vec<u64> = dataset.exclude.iter().copied().collect();
        exclude.sort_unstable();
        plan.set(fact("exclude"), exclude);
    }
    for (name, hash) in &processor.files {
        plan.set(format!("processor.file.{name}"), hash.clone());
    }
    let (spec, geometry) = (&processor.spec, &processor.geometry);
    plan.set("processor.min_pixels", geometry.min_pixels);
    plan.set("processor.max_pixels", geometry.max_pixels);
    plan.set("processor.max_tokens", spec.max_tokens);
    plan.set("processor.too_long", written(&spec.too_long));
    plan.set("processor.chat_template", written(&spec.chat_template));
    plan.set("processor.template_kwargs", json!(spec.template_kwargs));
    plan.set("processor.date", spec.date.clone());
    plan.set("processor.control_tokens", written(&spec.control_tokens));
    plan.set("processor.labels", written(&spec.labels));
    plan.set("processor.colors", written(&spec.colors));
    plan.set("limits.max_line_bytes", limits.max_line_bytes.0);
    plan.set("limits.max_image_bytes", limits.max_image_bytes.0);
    plan.set("limits.max_image_pixels", limits.max_image_pixels);
    plan.set("limits.max_sample_bytes", limits.max_sample_bytes.0);
    plan
}

/// A setting as JSON. These are plain structs and enums, which always become JSON.
fn written(setting: &impl serde::Serialize) -> Value {
    serde_json::to_value(setting).unwrap_or(Value::Null)
}
