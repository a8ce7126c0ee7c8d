//! What the operator counts, with a help text each. Only the operator that acts knows pipelines, so only it has figures of them.

/// Series of conditions.
mod conditions;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use prometheus::{
    Encoder as _, GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, TextEncoder,
};

use feedmill_scaler::Reason;

use crate::scrape::Figures;
use crate::validate::Key;

use conditions::Conditions;

/// All metrics of the operator.
pub struct Metrics {
    registry: Registry,
    writes: IntCounterVec,
    reconciles: HistogramVec,
    pipelines: IntGauge,
    leader: IntGauge,
    wanted: IntGaugeVec,
    ready: IntGaugeVec,
    decisions: IntCounterVec,
    wait: GaugeVec,
    fill: GaugeVec,
    ranks: IntGaugeVec,
    conditions: Conditions,
    queries: IntCounterVec,
}

impl Metrics {
    /// Registers all.
    ///
    /// # Errors
    /// Two of one name.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let writes = IntCounterVec::new(
            Opts::new("feedmill_operator_writes_total", "Writes to the API server, by kind of object."),
            &["kind"],
        )?;
        let reconciles = HistogramVec::new(
            HistogramOpts::new(
                "feedmill_operator_reconcile_duration_seconds",
                "How long a pipeline was worked on, by how that ended.",
            ),
            &["result"],
        )?;
        let pipelines = IntGauge::new("feedmill_operator_pipelines", "Pipelines that are looked after.")?;
        let leader =
            IntGauge::new("feedmill_operator_leader", "1 while this operator is the one that acts.")?;
        let of = ["namespace", "pipeline"];
        let wanted =
            IntGaugeVec::new(Opts::new("feedmill_desired_workers", "Workers that are wanted."), &of)?;
        let ready = IntGaugeVec::new(Opts::new("feedmill_ready_workers", "Workers that serve."), &of)?;
        let decisions = IntCounterVec::new(
            Opts::new(
                "feedmill_scaling_decisions_total",
                "Decisions on the number of workers, by their reason.",
            ),
            &["namespace", "pipeline", "reason"],
        )?;
        let wait = GaugeVec::new(
            Opts::new(
                "feedmill_trainer_wait_ratio",
                "The largest share of its time that a rank waits for data, 0 to 1; absent while no rank has told.",
            ),
            &of,
        )?;
        let fill = GaugeVec::new(
            Opts::new(
                "feedmill_trainer_queue_fill",
                "How full the emptiest queue of a rank is, 0 to 1; absent while no rank has told.",
            ),
            &of,
        )?;
        let ranks = IntGaugeVec::new(
            Opts::new("feedmill_reporting_ranks", "Ranks of trainings with a fresh report."),
            &of,
        )?;
        let conditions = Conditions::new()?;
        let queries = IntCounterVec::new(
            Opts::new(
                "feedmill_prometheus_queries_total",
                "Queries to Prometheus servers that pipelines name, by what came of them: answered, or why there was no number.",
            ),
            &["server", "result"],
        )?;
        registry.register(Box::new(queries.clone()))?;
        registry.register(Box::new(wait.clone()))?;
        registry.register(Box::new(fill.clone()))?;
        registry.register(Box::new(ranks.clone()))?;
        registry.register(Box::new(conditions.clone()))?;
        registry.register(Box::new(decisions.clone()))?;
        registry.register(Box::new(writes.clone()))?;
        registry.register(Box::new(reconciles.clone()))?;
        registry.register(Box::new(pipelines.clone()))?;
        registry.register(Box::new(leader.clone()))?;
        registry.register(Box::new(wanted.clone()))?;
        registry.register(Box::new(ready.clone()))?;
        Ok(Self {
            registry,
            writes,
            reconciles,
            pipelines,
            leader,
            wanted,
            ready,
            decisions,
            wait,
            fill,
            ranks,
            conditions,
            queries,
        })
    }

    /// One write.
    pub fn written(&self, kind: &str) {
        self.writes.with_label_values(&[kind]).inc();
    }

    /// A pipeline was worked on.
    pub fn reconciled(&self, result: &str, seconds: f64) {
        self.reconciles.with_label_values(&[result]).observe(seconds);
    }

    /// A query of this server has ended like this.
    pub fn queried(&self, server: &str, result: &str) {
        self.queries.with_label_values(&[server, result]).inc();
    }

    /// How many there are.
    pub fn pipelines(&self, count: usize) {
        self.pipelines.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// This operator acts.
    pub fn leads(&self) {
        self.leader.set(1);
    }

    /// The size of one.
    pub fn size(&self, key: &Key, wanted: i32, ready: i32) {
        let labels = [key.namespace.as_str(), key.name.as_str()];
        self.wanted.with_label_values(&labels).set(wanted.into());
        self.ready.with_label_values(&labels).set(ready.into());
    }

    /// A size was decided, for this reason.
    pub fn decided(&self, key: &Key, reason: &str) {
        let of =
            |reason| self.decisions.with_label_values(&[key.namespace.as_str(), key.name.as_str(), reason]);
        // A rate does not see a counter's first value. What is decided once a day would never be seen, so all begin at 0.
        for reason in Reason::LABELS {
            of(reason);
        }
        of(reason).inc();
    }

    /// What trainers of a pipeline report; none: they cannot be seen. What is not known is absent, so that no scaler takes an old
    /// figure for a new one.
    pub fn trainers(&self, key: &Key, figures: Option<Figures>) {
        let labels = [key.namespace.as_str(), key.name.as_str()];
        let share = |gauges: &GaugeVec, parts: Option<i32>, whole: f64| match parts {
            Some(parts) => gauges.with_label_values(&labels).set(f64::from(parts) / whole),
            None => drop(gauges.remove_label_values(&labels)),
        };
        share(&self.wait, figures.and_then(|figures| figures.wait_permille), 1000.0);
        share(&self.fill, figures.and_then(|figures| figures.queue_fill_percent), 100.0);
        match figures {
            Some(figures) => self.ranks.with_label_values(&labels).set(figures.ranks.into()),
            None => drop(self.ranks.remove_label_values(&labels)),
        }
    }

    /// The conditions of a pipeline, all of them.
    pub fn conditions(&self, key: &Key, conditions: &[Condition]) {
        self.conditions.set(key, conditions);
    }

    /// A pipeline is gone.
    pub fn forget(&self, key: &Key) {
        let labels = [key.namespace.as_str(), key.name.as_str()];
        self.trainers(key, None);
        self.conditions.forget(key);
        for reason in Reason::LABELS {
            drop(self.decisions.remove_label_values(&[labels[0], labels[1], reason]));
        }
        // Absent when it never had a size.
        drop(self.wanted.remove_label_values(&labels));
        drop(self.ready.remove_label_values(&labels));
    }

    /// All, as Prometheus reads them.
    ///
    /// # Errors
    /// A metric that cannot be written.
    pub fn text(&self) -> Result<String, prometheus::Error> {
        let mut bytes = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn key() -> Key {
        Key { namespace: "training".into(), name: "qwen".into() }
    }

    fn condition(kind: &str, status: &str, reason: &str) -> Condition {
        serde_json::from_value(json!({
            "type": kind, "status": status, "reason": reason, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
        }))
        .unwrap()
    }

    /// Lines of a pipeline, without their names' common beginning.
    fn lines(metrics: &Metrics) -> Vec<String> {
        let text = metrics.text().unwrap();
        let of = text.lines().filter(|line| line.contains("pipeline=\"qwen\""));
        of.map(str::to_owned).collect()
    }

    #[test]
    fn what_trainers_do_not_tell_is_absent_and_never_nan() {
        let metrics = Metrics::new().unwrap();
        let figures = Figures { ranks: 8, wait_permille: Some(125), queue_fill_percent: Some(50) };
        metrics.trainers(&key(), Some(figures));
        assert_eq!(
            lines(&metrics),
            [
                "feedmill_reporting_ranks{namespace=\"training\",pipeline=\"qwen\"} 8",
                "feedmill_trainer_queue_fill{namespace=\"training\",pipeline=\"qwen\"} 0.5",
                "feedmill_trainer_wait_ratio{namespace=\"training\",pipeline=\"qwen\"} 0.125",
            ]
        );
        metrics.trainers(&key(), Some(Figures::default()));
        assert_eq!(lines(&metrics), ["feedmill_reporting_ranks{namespace=\"training\",pipeline=\"qwen\"} 0"]);
        metrics.trainers(&key(), None);
        assert_eq!(lines(&metrics), [""; 0]);
    }

    #[test]
    fn a_condition_has_one_status_and_one_reason() {
        let metrics = Metrics::new().unwrap();
        metrics.conditions(&key(), &[condition("Ready", "False", "WorkersStarting")]);
        metrics.conditions(&key(), &[condition("Ready", "True", "WorkersServe")]);
        let of = |rest: &str| format!("{{namespace=\"training\",pipeline=\"qwen\",{rest}");
        assert_eq!(
            lines(&metrics),
            [
                format!("feedmill_pipeline_condition{}", of("status=\"false\",type=\"Ready\"} 0")),
                format!("feedmill_pipeline_condition{}", of("status=\"true\",type=\"Ready\"} 1")),
                format!("feedmill_pipeline_condition{}", of("status=\"unknown\",type=\"Ready\"} 0")),
                format!(
                    "feedmill_pipeline_condition_reason{}",
                    of("reason=\"WorkersServe\",type=\"Ready\"} 1")
                ),
            ]
        );
    }

    /// A rate over a counter that begins at 1 is 0.
    #[test]
    fn a_reason_that_comes_once_in_a_while_is_seen_by_a_rate() {
        let metrics = Metrics::new().unwrap();
        metrics.decided(&key(), "Enough");
        let of = |reason: &str, times: u8| {
            let labels = format!("namespace=\"training\",pipeline=\"qwen\",reason=\"{reason}\"");
            format!("feedmill_scaling_decisions_total{{{labels}}} {times}")
        };
        let lines = lines(&metrics);
        assert_eq!(lines.len(), Reason::LABELS.len());
        assert!(lines.contains(&of("Enough", 1)) && lines.contains(&of("Sated", 0)), "{lines:?}");
    }

    #[test]
    fn nothing_is_left_of_a_pipeline_that_is_gone() {
        let metrics = Metrics::new().unwrap();
        metrics.size(&key(), 2, 1);
        metrics.decided(&key(), Reason::LABELS[3]);
        metrics.trainers(
            &key(),
            Some(Figures { ranks: 1, wait_permille: Some(0), queue_fill_percent: Some(9) }),
        );
        metrics.conditions(&key(), &[condition("Ready", "False", "WorkersStarting")]);
        metrics.conditions(
            &key(),
            &[condition("Ready", "True", "WorkersServe"), condition("Degraded", "False", "AsExpected")],
        );
        assert!(!lines(&metrics).is_empty());
        metrics.forget(&key());
        assert_eq!(lines(&metrics), [""; 0]);
    }
}
