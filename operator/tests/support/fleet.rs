//! One pipeline, `fleet`, and the operator that looks after it.

use std::ops::Deref;
use std::sync::Arc;

use clap::{Args as _, Command, FromArgMatches as _};
use feedmill_operator::metrics::Metrics;
use feedmill_operator::run::{Unreadable, look_after};
use feedmill_operator::settings::OperatorArgs;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::{DEPLOYMENTS, NAMESPACE, PIPELINES, PODS, Server, pipeline};

/// An operator that has the lease.
pub fn operator(server: &Server, identity: &str, metrics: &Arc<Metrics>) -> JoinHandle<()> {
    begun(server, identity, metrics, &[])
}

/// The same with more arguments.
fn begun(server: &Server, identity: &str, metrics: &Arc<Metrics>, more: &[&str]) -> JoinHandle<()> {
    let command = OperatorArgs::augment_args(Command::new("operator"));
    let words = ["operator", "--worker-image=worker:1", "--identity", identity, "--without-nodes"];
    let words = words.iter().chain(more).copied();
    let settings = OperatorArgs::from_arg_matches(&command.get_matches_from(words)).unwrap();
    let (client, metrics) = (server.client(), Arc::clone(metrics));
    tokio::spawn(async move {
        let ended = look_after(client, &settings, metrics, &Unreadable::default()).await;
        panic!("{ended:?}")
    })
}

/// The pipeline, its server and its operator.
pub struct Fleet {
    server: Server,
    /// None: it crashed.
    operator: Option<JoinHandle<()>>,
    pub metrics: Arc<Metrics>,
}

impl Deref for Fleet {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        if let Some(operator) = &self.operator {
            assert!(std::thread::panicking() || !operator.is_finished(), "the operator has ended");
            operator.abort();
        }
    }
}

impl Fleet {
    /// A pipeline of this spec on a server that may have been prepared.
    pub fn on(server: Server, spec: &Value) -> Self {
        Self::given(server, spec, &[])
    }

    /// The same, of an operator with more arguments.
    pub fn given(server: Server, spec: &Value, more: &[&str]) -> Self {
        server.put(PIPELINES, pipeline("fleet", spec));
        let metrics = Arc::new(Metrics::new().unwrap());
        let operator = Some(begun(&server, "me", &metrics, more));
        Self { server, operator, metrics }
    }

    /// So many workers, which are wanted.
    pub async fn of(workers: i64) -> Self {
        let fleet = Self::on(Server::start(), &json!({"replicas": workers}));
        fleet.sized(workers).await;
        fleet
    }

    /// So many workers, which serve, and that is told.
    pub async fn serving(workers: i64) -> Self {
        let fleet = Self::of(workers).await;
        fleet.deploy();
        fleet.tells("Progressing", "Complete").await;
        fleet
    }

    /// The operator ends as in a crash.
    pub async fn crash(&mut self) {
        let operator = self.operator.take().unwrap();
        operator.abort();
        assert!(operator.await.unwrap_err().is_cancelled());
    }

    /// Another operator begins, after a crash.
    pub fn recover(&mut self) {
        self.metrics = Arc::new(Metrics::new().unwrap());
        self.operator = Some(operator(&self.server, "me", &self.metrics));
    }

    /// The pipeline as it stands there.
    pub fn object(&self) -> Value {
        self.get(PIPELINES, "fleet").unwrap()
    }

    /// Its Deployment.
    pub fn deployment(&self) -> Value {
        self.get(DEPLOYMENTS, "fleet-worker").unwrap()
    }

    /// Changes the spec, as people do.
    pub fn edit(&self, change: impl FnOnce(&mut Value)) {
        self.change(PIPELINES, "fleet", |object| change(&mut object["spec"]));
    }

    /// Waits until so many workers are wanted.
    pub async fn sized(&self, workers: i64) {
        self.wanted("fleet", workers).await;
    }

    /// Whether a condition has this reason.
    pub fn says(&self, condition: &str, reason: &str) -> bool {
        self.reason("fleet", condition).as_deref() == Some(reason)
    }

    /// Waits until a condition has this reason.
    pub async fn tells(&self, condition: &str, reason: &str) {
        self.told("fleet", condition, reason).await;
    }

    /// Waits until the status speaks of the present spec.
    pub async fn looked_at(&self) {
        let is_looked_at =
            |object: Value| object["status"]["observedGeneration"] == object["metadata"]["generation"];
        self.until("it is looked at", |_| is_looked_at(self.object())).await;
    }

    /// What the workers' plan is made from, as their template says.
    pub fn plan_inputs(&self) -> Value {
        self.deployment()["spec"]["template"]["metadata"]["annotations"]["feedmill.dev/plan-inputs"].clone()
    }

    /// The name of the document that workers read.
    pub fn document(&self) -> String {
        let name = &self.deployment()["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"];
        name.as_str().unwrap().to_owned()
    }

    /// How long workers have for their end, by the present template.
    pub fn grace(&self) -> Value {
        self.deployment()["spec"]["template"]["spec"]["terminationGracePeriodSeconds"].clone()
    }

    /// Does what the Deployment's controller does: as many pods of the present template as are wanted, and no others.
    pub fn deploy(&self) {
        let (wanted, template) = (self.replicas("fleet").unwrap(), &self.deployment()["spec"]["template"]);
        for number in 0.. {
            let pod = format!("fleet-{number}");
            if self.get(PODS, &pod).is_some() {
                self.remove(PODS, &pod);
            } else if number >= wanted {
                break;
            }
            if number < wanted {
                let mut object = template.clone();
                object["metadata"]["name"] = pod.into();
                object["metadata"]["namespace"] = NAMESPACE.into();
                object["status"] =
                    json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
                self.put(PODS, object);
            }
        }
        self.whole("fleet-worker", wanted);
    }
}
