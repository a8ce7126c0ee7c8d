//! One task for each kind of objects: it keeps a cache, and wakes the pipelines of what changes.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use kube::core::DeserializeGuard;
use kube::runtime::watcher;
use kube::{Api, Client};
use tokio::task::JoinSet;

use crate::observe::{Cache, NodeFacts, Watched, keep, nobody};
use crate::validate::Key;

/// Begins watches.
pub(super) struct Watches<'a> {
    pub(super) client: Client,
    pub(super) namespace: Option<String>,
    pub(super) tasks: &'a mut JoinSet<()>,
}

impl Watches<'_> {
    /// Begins a watch that wakes pipelines.
    pub(super) fn start<K, T>(
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

    /// Begins the watch of nodes, which wakes nobody and sees them all.
    pub(super) fn nodes(&mut self, cache: &Arc<Cache<NodeFacts>>) {
        let (api, all) = (Api::all(self.client.clone()), watcher::Config::default());
        let keeping = NodeFacts::from as fn(Node) -> NodeFacts;
        self.tasks.spawn(keep(api, all, Arc::clone(cache), nobody, keeping, |_| {}));
    }
}
