//! One task for each kind of objects: it keeps a cache, and wakes the pipelines of what changes.

use std::fmt::Debug;
use std::sync::Arc;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Node;
use kube::core::DeserializeGuard;
use kube::runtime::watcher;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;

use super::work::Work;
use crate::apply::trimmed;
use crate::observe::{Cache, NodeFacts, itself, keep, nobody};
use crate::types::DataPipeline;
use crate::validate::Key;

/// What can be watched: objects of namespaces.
pub(super) trait Watched:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + Debug
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
}

impl<K> Watched for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + Sync
        + 'static
{
}

/// Begins watches.
pub(super) struct Watches<'a> {
    pub(super) client: Client,
    pub(super) namespace: Option<String>,
    pub(super) work: &'a Arc<Work>,
    pub(super) tasks: &'a mut JoinSet<()>,
}

impl Watches<'_> {
    /// Begins a watch.
    pub(super) fn start<K, T>(
        &mut self,
        cache: &Arc<Cache<T>>,
        labels: Option<&str>,
        of: fn(&DeserializeGuard<K>) -> Option<Key>,
        keeping: fn(K) -> T,
    ) where
        K: Watched,
        T: Send + Sync + 'static,
    {
        let work = Arc::clone(self.work);
        self.start_waking(cache, labels, of, keeping, move |key| work.wake(key));
    }

    pub(super) fn pipelines(&mut self, cache: &Arc<Cache<DataPipeline>>) {
        let (work, known) = (Arc::clone(self.work), Arc::clone(cache));
        self.start_waking(cache, None, itself, trimmed, move |key| work.wake_pipeline(key, &known));
    }

    fn start_waking<K, T>(
        &mut self,
        cache: &Arc<Cache<T>>,
        labels: Option<&str>,
        of: fn(&DeserializeGuard<K>) -> Option<Key>,
        keeping: fn(K) -> T,
        wake: impl Fn(Key) + Send + 'static,
    ) where
        K: Watched,
        T: Send + Sync + 'static,
    {
        let api: Api<DeserializeGuard<K>> = match &self.namespace {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        };
        let config =
            watcher::Config { label_selector: labels.map(str::to_owned), ..watcher::Config::default() };
        self.tasks.spawn(keep(api, config, Arc::clone(cache), of, keeping, wake));
    }

    pub(super) fn nodes(&mut self, cache: &Arc<Cache<NodeFacts>>) {
        let api: Api<DeserializeGuard<Node>> = Api::all(self.client.clone());
        self.tasks.spawn(keep(
            api,
            watcher::Config::default(),
            Arc::clone(cache),
            nobody,
            NodeFacts::from,
            |_| {},
        ));
    }
}
