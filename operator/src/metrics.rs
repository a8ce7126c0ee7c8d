//! What the operator counts, with a help text each.

use prometheus::{
    Encoder as _, GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, TextEncoder,
};

use crate::validate::Key;

/// All metrics of the operator.
pub struct Metrics {
    registry: Registry,
    writes: IntCounterVec,
    reconciles: HistogramVec,
    pipelines: IntGauge,
    leader: IntGauge,
    wanted: IntGaugeVec,
    ready: IntGaugeVec,
    wait: GaugeVec,
    fill: GaugeVec,
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
        let wait = GaugeVec::new(
            Opts::new(
                "feedmill_trainer_wait_ratio",
                "The largest share of its time that a rank waits for data; 0 while none reports.",
            ),
            &of,
        )?;
        let fill = GaugeVec::new(
            Opts::new(
                "feedmill_trainer_queue_fill",
                "The emptiest queue of a rank, as a share of what it wants in hand; 1 while none reports.",
            ),
            &of,
        )?;
        registry.register(Box::new(wait.clone()))?;
        registry.register(Box::new(fill.clone()))?;
        registry.register(Box::new(writes.clone()))?;
        registry.register(Box::new(reconciles.clone()))?;
        registry.register(Box::new(pipelines.clone()))?;
        registry.register(Box::new(leader.clone()))?;
        registry.register(Box::new(wanted.clone()))?;
        registry.register(Box::new(ready.clone()))?;
        Ok(Self { registry, writes, reconciles, pipelines, leader, wanted, ready, wait, fill })
    }

    /// One write.
    pub fn written(&self, kind: &str) {
        self.writes.with_label_values(&[kind]).inc();
    }

    /// A pipeline was worked on.
    pub fn reconciled(&self, result: &str, seconds: f64) {
        self.reconciles.with_label_values(&[result]).observe(seconds);
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

    /// What trainers of one report: never without a number, so that whoever scales by it has one from the start.
    pub fn trainers(&self, key: &Key, wait_permille: Option<i32>, queue_fill_percent: Option<i32>) {
        let labels = [key.namespace.as_str(), key.name.as_str()];
        self.wait.with_label_values(&labels).set(f64::from(wait_permille.unwrap_or(0)) / 1000.0);
        self.fill.with_label_values(&labels).set(f64::from(queue_fill_percent.unwrap_or(100)) / 100.0);
    }

    /// A pipeline is gone.
    pub fn forget(&self, key: &Key) {
        let labels = [key.namespace.as_str(), key.name.as_str()];
        // Absent when it never had a size.
        drop(self.wanted.remove_label_values(&labels));
        drop(self.ready.remove_label_values(&labels));
        drop(self.wait.remove_label_values(&labels));
        drop(self.fill.remove_label_values(&labels));
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
