//! Takes the conditions of pipelines, gives their series while somebody reads them.
//!
//! A pipeline has nine conditions, and 36 series of them. Kept as gauges those were 22 kB for each pipeline, most of it the same texts.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use prometheus::core::{Collector, Desc};
use prometheus::proto::{Gauge, LabelPair, Metric, MetricFamily, MetricType};

use crate::validate::Key;

/// What a condition's status may be, as kube-state-metrics writes it.
const STATUSES: [&str; 3] = ["true", "false", "unknown"];

/// Status and reason of each condition, by its type.
type Told = BTreeMap<String, (&'static str, String)>;

/// Conditions of all pipelines.
#[derive(Clone)]
pub(super) struct Conditions {
    told: Arc<Mutex<HashMap<Key, Told>>>,
    statuses: Desc,
    reasons: Desc,
}

impl Conditions {
    pub(super) fn new() -> Result<Self, prometheus::Error> {
        let of = |name: &str, help: &str, label: &str| {
            let labels = ["namespace", "pipeline", label, "type"].map(str::to_owned).into();
            Desc::new(name.into(), help.into(), labels, HashMap::new())
        };
        Ok(Self {
            told: Arc::default(),
            statuses: of(
                "feedmill_pipeline_condition",
                "Conditions of a pipeline: 1 for the status that each has, true, false or unknown.",
                "status",
            )?,
            reasons: of(
                "feedmill_pipeline_condition_reason",
                "1 for the reason that each condition has.",
                "reason",
            )?,
        })
    }

    /// These have changed, or are as they were.
    pub(super) fn set(&self, key: &Key, conditions: &[Condition]) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let told = told.entry(key.clone()).or_default();
        for condition in conditions {
            let status = STATUSES.into_iter().find(|status| condition.status.eq_ignore_ascii_case(status));
            told.insert(condition.type_.clone(), (status.unwrap_or("unknown"), condition.reason.clone()));
        }
    }

    /// A pipeline is gone.
    pub(super) fn forget(&self, key: &Key) {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}

impl Collector for Conditions {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.statuses, &self.reasons]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut statuses, mut reasons) = (Vec::new(), Vec::new());
        for (key, conditions) in &*told {
            for (kind, (status, reason)) in conditions {
                for possible in STATUSES {
                    let value = f64::from(u8::from(possible == *status));
                    statuses.push(series(key, ("status", possible), kind, value));
                }
                reasons.push(series(key, ("reason", reason), kind, 1.0));
            }
        }
        [(&self.statuses, statuses), (&self.reasons, reasons)]
            .into_iter()
            .map(|(desc, metrics)| {
                let mut family = MetricFamily::default();
                family.set_name(desc.fq_name.clone());
                family.set_help(desc.help.clone());
                family.set_field_type(MetricType::GAUGE);
                family.set_metric(metrics);
                family
            })
            .collect()
    }
}

/// One series; labels in the order of their names.
fn series(key: &Key, (label, value): (&str, &str), kind: &str, figure: f64) -> Metric {
    let labels =
        [("namespace", key.namespace.as_str()), ("pipeline", &key.name), (label, value), ("type", kind)];
    let pairs = labels.map(|(name, value)| {
        let mut pair = LabelPair::default();
        pair.set_name(name.to_owned());
        pair.set_value(value.to_owned());
        pair
    });
    let mut gauge = Gauge::default();
    gauge.set_value(figure);
    let mut metric = Metric::from_label(pairs.into());
    metric.set_gauge(gauge);
    metric
}
