//! Takes arguments, gives settings.

use std::net::SocketAddr;

use clap::Args;

use crate::desired::Installation;
use crate::queries::Server;

/// Arguments of the operator.
#[derive(Args, Clone, Debug)]
pub struct OperatorArgs {
    /// Image of workers whose pipeline names none
    #[arg(long, env = "FEEDMILL_WORKER_IMAGE", value_name = "IMAGE")]
    pub worker_image: String,
    /// Secret for that image's registry; may stand several times
    #[arg(long = "worker-pull-secret", value_name = "NAME")]
    pub pull_secrets: Vec<String>,
    /// Label of nodes with accelerators, which workers avoid; may stand several times
    #[arg(long = "accelerator-label", value_name = "LABEL")]
    pub accelerator_labels: Vec<String>,
    /// Look after pipelines of this namespace alone [default: of all]
    #[arg(long, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// Do not read nodes: how evenly workers are spread is then unknown
    #[arg(long)]
    pub without_nodes: bool,
    /// A namespace whose pods may read metrics of workers that a network policy closes
    #[arg(long, value_name = "NAMESPACE")]
    pub monitoring_namespace: Option<String>,
    /// Namespace of the operator and its lease
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAMESPACE", default_value = "default")]
    pub own_namespace: String,
    /// A name that no other operator has
    #[arg(long, env = "POD_NAME", value_name = "NAME")]
    pub identity: String,
    /// Name of the lease
    #[arg(long, value_name = "NAME", default_value = "feedmill-operator")]
    pub lease: String,
    /// Where /metrics, /livez and /readyz are answered
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:8080")]
    pub listen: SocketAddr,
    /// Pipelines that are worked on at once
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub concurrency: u16,
    /// Requests to the API server in any second, at most, without those for the lease
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u16).range(5..=10_000))]
    pub requests_per_second: u16,
    /// A Prometheus server that pipelines may name, with its queries as JSON; may stand several times.
    /// `main={"url": "http://prometheus:9090", "wait": "max(…{namespace=\"$namespace\"})", "fill": "…", "desired": "…"}`;
    /// an `https://` one may have `"ca"`, a file of the authorities that are trusted, and `"token"`, a file of the token that is sent
    #[arg(long = "prometheus", value_name = "NAME=JSON")]
    pub prometheus: Vec<Server>,
}

impl OperatorArgs {
    /// What the operator was installed with.
    #[must_use]
    pub fn installation(&self) -> Installation {
        let mut pull_secrets: Vec<String> = Vec::new();
        for name in &self.pull_secrets {
            // The API server refuses workers with one that stands twice.
            if !pull_secrets.contains(name) {
                pull_secrets.push(name.clone());
            }
        }
        Installation {
            worker_image: self.worker_image.clone(),
            pull_secrets,
            accelerator_labels: self.accelerator_labels.clone(),
            namespace: self.own_namespace.clone(),
            monitoring_namespace: self.monitoring_namespace.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command, FromArgMatches as _};

    use super::*;

    #[test]
    fn a_pull_secret_that_is_given_twice_is_one() {
        let words = ["operator", "--worker-image=w", "--identity=me"];
        let secrets = ["b", "a", "b"].map(|name| format!("--worker-pull-secret={name}"));
        let words = words.map(str::to_owned).into_iter().chain(secrets);
        let command = OperatorArgs::augment_args(Command::new("operator"));
        let settings = OperatorArgs::from_arg_matches(&command.get_matches_from(words)).unwrap();
        assert_eq!(settings.installation().pull_secrets, ["b", "a"]);
    }
}
