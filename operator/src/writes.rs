//! Takes a write to the API server, gives what came of it: counted, named, and without those answers that are no errors there.

use k8s_openapi::NamespaceResourceScope;
use kube::{Api, Client, Resource};

use crate::apply::ApplyError;
use crate::metrics::Metrics;

/// Writes of one namespace.
#[derive(Clone, Copy)]
pub struct Writes<'a> {
    /// The API.
    pub client: &'a Client,
    /// Counts writes.
    pub metrics: &'a Metrics,
    /// Where.
    pub namespace: &'a str,
}

impl Writes<'_> {
    /// All objects of a kind.
    #[must_use]
    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), self.namespace)
    }

    /// Does it; none where the API server answers with one of these codes, which are as good as done.
    ///
    /// # Errors
    /// Any other answer, or none.
    pub async fn done<T>(
        &self,
        kind: &str,
        name: &str,
        fine: &[u16],
        write: impl Future<Output = kube::Result<T>>,
    ) -> Result<Option<T>, ApplyError> {
        self.metrics.written(kind);
        match write.await {
            Ok(made) => Ok(Some(made)),
            Err(kube::Error::Api(status)) if fine.contains(&status.code) => Ok(None),
            Err(source) => Err(ApplyError::Api { what: format!("{kind} {name}"), source }),
        }
    }
}
