//! Takes an installation, gives whether it is at work: pipelines can be listed, and somebody has the lease and goes on renewing it.
//!
//! That is all that can be seen without making pods: whose operator it is, or whether it does its work well, is said by pipelines' status.

use std::time::Duration;

use clap::Args;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::ListParams;
use kube::{Api, Client};

use crate::leader::RETRY;
use crate::types::DataPipeline;

/// Arguments of the check.
#[derive(Args, Clone, Debug)]
pub struct CheckArgs {
    /// The namespace that is looked after alone [default: all]
    #[arg(long, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// Namespace of the operator and its lease
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAMESPACE", default_value = "default")]
    pub own_namespace: String,
    /// Name of the lease
    #[arg(long, value_name = "NAME", default_value = "feedmill-operator")]
    pub lease: String,
    /// How long an operator may take to begin
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub seconds: u64,
}

/// Why nobody is at work.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// Pipelines cannot be listed.
    #[error("datapipelines cannot be listed; is the definition installed (crds.enabled), and the role?")]
    Definition(#[source] kube::Error),
    /// The lease cannot be read.
    #[error("the lease {lease} of namespace {namespace} cannot be read")]
    Lease {
        /// Its name.
        lease: String,
        /// Its namespace.
        namespace: String,
        /// What the API server said.
        #[source]
        source: kube::Error,
    },
    /// The API server says nothing.
    #[error("the API server has not listed datapipelines within {seconds} s; can it be reached from here?")]
    Silent {
        /// How long was waited.
        seconds: u64,
    },
    /// Nobody renews it.
    #[error(
        "no operator has renewed the lease {lease} of namespace {namespace} within {seconds} s; see `kubectl logs` of its pods"
    )]
    Nobody {
        /// Its name.
        lease: String,
        /// Its namespace.
        namespace: String,
        /// How long was waited.
        seconds: u64,
    },
}

/// Waits until an operator is seen at work; its name.
///
/// # Errors
/// See [`CheckError`].
pub async fn check(client: Client, arguments: &CheckArgs) -> Result<String, CheckError> {
    let pipelines: Api<DataPipeline> = match &arguments.namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    let (lease, namespace) = (&arguments.lease, &arguments.own_namespace);
    let unread = |source| CheckError::Lease { lease: lease.clone(), namespace: namespace.clone(), source };
    let leases: Api<Lease> = Api::namespaced(client, namespace);
    let (mut is_listed, mut refusal) = (false, None);
    let seen = async {
        // Only whether it is answered; nothing of one is read.
        pipelines.list_metadata(&ListParams::default().limit(1)).await.map_err(CheckError::Definition)?;
        is_listed = true;
        let mut first = None;
        loop {
            let found = match leases.get_opt(lease).await {
                // That does not pass by itself.
                Err(kube::Error::Api(status)) if status.code == 403 => {
                    return Err(unread(kube::Error::Api(status)));
                }
                // Not yet, as while an API server begins anew.
                Err(error) => {
                    refusal = Some(error);
                    None
                }
                Ok(found) => {
                    refusal = None;
                    found
                }
            };
            let spec = found.and_then(|lease| lease.spec).unwrap_or_default();
            let holder = spec.holder_identity.filter(|holder| !holder.is_empty());
            // That it changes is seen; what stands in it was written by another clock.
            if let (Some(holder), Some(renewed)) = (holder, spec.renew_time) {
                match &first {
                    Some(before) if *before != (holder.clone(), renewed.clone()) => return Ok(holder),
                    _ => first = Some((holder, renewed)),
                }
            }
            tokio::time::sleep(RETRY / 2).await;
        }
    };
    match tokio::time::timeout(Duration::from_secs(arguments.seconds), seen).await {
        Ok(result) => result,
        Err(_) if !is_listed => Err(CheckError::Silent { seconds: arguments.seconds }),
        Err(_) => Err(refusal.map_or_else(
            || CheckError::Nobody {
                lease: lease.clone(),
                namespace: namespace.clone(),
                seconds: arguments.seconds,
            },
            unread,
        )),
    }
}
