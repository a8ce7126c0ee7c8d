//! Takes watches, gives what exists: caches by pipeline, of pods and nodes only what is read.

/// All kinds together.
mod caches;
/// What is kept of what this operator writes.
mod kept;
/// What is kept of a pod.
pub mod pod;

use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Node, Taint};
use kube::core::DeserializeGuard;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt as _, watcher as watch_events};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::desired::PIPELINE;
use crate::validate::Key;

pub use caches::Caches;
pub use kept::{shortened, trimmed, trimmed_map, trimmed_pipeline, trimmed_revision};
pub use pod::{Trouble, TroubleKind, WorkerPod};

/// What can be watched: objects of namespaces.
pub trait Watched:
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

/// An object, or why it cannot be read.
pub type Kept<T> = Result<Arc<T>, Arc<str>>;

/// All objects of one kind, by the pipeline they belong to.
#[derive(Debug)]
pub struct Cache<T> {
    objects: RwLock<Objects<T>>,
    sight: watch::Sender<Sight>,
}

/// How much of a kind is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sight {
    /// Nothing was answered yet.
    Nothing,
    /// It may not be read.
    Refused,
    /// Everything.
    Complete,
}

#[derive(Debug)]
struct Objects<T> {
    of: HashMap<Key, BTreeMap<String, Kept<T>>>,
    /// Whose each object was last, by its own namespace and name: its label may have been taken away or changed since.
    owners: HashMap<(String, String), Key>,
}

impl<T> Default for Objects<T> {
    fn default() -> Self {
        Self { of: HashMap::new(), owners: HashMap::new() }
    }
}

impl<T> Objects<T> {
    /// Keeps an object as this pipeline's. Gives the one whose it was until now.
    fn put(&mut self, pipeline: Key, place: (String, String), object: Kept<T>) -> Option<Key> {
        let before = if self.owners.get(&place) == Some(&pipeline) { None } else { self.remove(&place) };
        self.of.entry(pipeline.clone()).or_default().insert(place.1.clone(), object);
        self.owners.insert(place, pipeline);
        before
    }

    /// Forgets an object. Gives the pipeline whose it was.
    fn remove(&mut self, place: &(String, String)) -> Option<Key> {
        let pipeline = self.owners.remove(place)?;
        if let Some(of) = self.of.get_mut(&pipeline) {
            of.remove(&place.1);
            if of.is_empty() {
                self.of.remove(&pipeline);
            }
        }
        Some(pipeline)
    }
}

impl<T> Default for Cache<T> {
    fn default() -> Self {
        Self { objects: RwLock::default(), sight: watch::Sender::new(Sight::Nothing) }
    }
}

impl<T> Cache<T> {
    /// The object of this name.
    #[must_use]
    pub fn get(&self, pipeline: &Key, name: &str) -> Option<Kept<T>> {
        self.objects.read().unwrap_or_else(PoisonError::into_inner).of.get(pipeline)?.get(name).cloned()
    }

    /// All readable objects of a pipeline.
    #[must_use]
    pub fn all(&self, pipeline: &Key) -> Vec<Arc<T>> {
        let objects = self.objects.read().unwrap_or_else(PoisonError::into_inner);
        objects.of.get(pipeline).into_iter().flat_map(BTreeMap::values).flatten().map(Arc::clone).collect()
    }

    /// All pipelines with objects.
    #[must_use]
    pub fn keys(&self) -> Vec<Key> {
        self.objects.read().unwrap_or_else(PoisonError::into_inner).of.keys().cloned().collect()
    }

    /// Ends when everything that existed at the start is there.
    pub async fn complete(&self) {
        // The sender lives as long as this cache.
        drop(self.sight.subscribe().wait_for(|sight| *sight == Sight::Complete).await);
    }

    /// Ends when everything is there, or may not be read.
    pub async fn answered(&self) {
        drop(self.sight.subscribe().wait_for(|sight| *sight != Sight::Nothing).await);
    }

    /// Whether everything that existed at the start is there.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        *self.sight.borrow() == Sight::Complete
    }

    /// The kind may not be read. What was read before goes on being known.
    fn refused(&self) {
        self.sight.send_if_modified(|sight| {
            let is_first = *sight == Sight::Nothing;
            if is_first {
                *sight = Sight::Refused;
            }
            is_first
        });
    }

    /// An object is there, of a pipeline or of none. Gives the pipelines of which something changed.
    pub(crate) fn put(&self, pipeline: Option<Key>, place: (String, String), object: Kept<T>) -> Vec<Key> {
        let mut objects = self.objects.write().unwrap_or_else(PoisonError::into_inner);
        let before = match &pipeline {
            Some(pipeline) => objects.put(pipeline.clone(), place, object),
            None => objects.remove(&place),
        };
        before.into_iter().chain(pipeline).collect()
    }

    /// An object is gone. Gives the pipeline whose it was.
    fn remove(&self, place: &(String, String)) -> Option<Key> {
        self.objects.write().unwrap_or_else(PoisonError::into_inner).remove(place)
    }

    fn replace(&self, with: Objects<T>) {
        *self.objects.write().unwrap_or_else(PoisonError::into_inner) = with;
        self.sight.send_replace(Sight::Complete);
    }
}

/// The pipeline that an object belongs to, by its label.
#[must_use]
pub fn by_label<K: Resource>(object: &K) -> Option<Key> {
    let name = object.labels().get(PIPELINE)?;
    Some(Key { namespace: object.namespace()?, name: name.clone() })
}

/// The object itself.
#[must_use]
pub fn itself<K: Resource>(object: &K) -> Option<Key> {
    Some(Key::of(object))
}

/// All of one place: kinds that belong to no pipeline.
#[must_use]
pub fn nobody<K: Resource>(_: &K) -> Option<Key> {
    Some(nobodys())
}

/// Where kinds that belong to no pipeline are kept.
#[must_use]
pub fn nobodys() -> Key {
    Key { namespace: String::new(), name: String::new() }
}

fn is_refusal(error: &watcher::Error) -> bool {
    let (watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error)) = error else {
        return false;
    };
    matches!(error, kube::Error::Api(status) if status.code == 403)
}

fn place(object: &impl ResourceExt) -> (String, String) {
    (object.namespace().unwrap_or_default(), object.name_any())
}

/// Fills a cache for ever, and wakes the pipelines of which something changed. One object that cannot be read is kept as such;
/// it stops no other.
pub async fn keep<K, T>(
    api: Api<DeserializeGuard<K>>,
    config: watcher::Config,
    cache: Arc<Cache<T>>,
    of: fn(&DeserializeGuard<K>) -> Option<Key>,
    keep: fn(K) -> T,
    wake: impl Fn(Key),
) where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    loop {
        let mut events = watch_events(api.clone(), config.clone()).default_backoff().boxed();
        let mut building = Objects::default();
        while let Some(event) = events.next().await {
            let kept = |object: DeserializeGuard<K>| match object.0 {
                Ok(object) => Ok(Arc::new(keep(object))),
                Err(error) => Err(Arc::from(error.error.as_str())),
            };
            match event {
                Ok(Event::Init) => building = Objects::default(),
                Ok(Event::InitApply(object)) => {
                    if let Some(key) = of(&object) {
                        building.put(key, place(&object), kept(object));
                    }
                }
                Ok(Event::InitDone) => {
                    let mut keys = cache.keys();
                    keys.extend(building.of.keys().cloned());
                    cache.replace(std::mem::take(&mut building));
                    keys.into_iter().for_each(&wake);
                }
                Ok(Event::Apply(object)) => {
                    cache.put(of(&object), place(&object), kept(object)).into_iter().for_each(&wake);
                }
                // Without the label it had, perhaps.
                Ok(Event::Delete(object)) => cache.remove(&place(&object)).into_iter().for_each(&wake),
                Err(error) => {
                    if is_refusal(&error) {
                        cache.refused();
                    }
                    tracing::warn!(kind = %K::kind(&()), error = %error, "a watch was interrupted; it is begun again");
                    if has_expired(&error) {
                        break;
                    }
                }
            }
        }
        tokio::time::sleep(ANEW).await;
    }
}

/// Before everything is listed anew.
const ANEW: Duration = Duration::from_secs(1);

/// Whether the changes since what was listed are forgotten. As an answer instead of an event kube's watcher takes it for one of the faults
/// that pass, and would ask for the same changes for ever.
fn has_expired(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::WatchStartFailed(kube::Error::Api(status)) if status.code == 410)
}

/// What is kept of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeFacts {
    /// Its name.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its taints.
    pub taints: Vec<Taint>,
}

impl From<Node> for NodeFacts {
    fn from(node: Node) -> Self {
        let name = node.name_any();
        let mut taints = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
        if node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true) {
            taints.push(Taint {
                key: "node.kubernetes.io/unschedulable".into(),
                effect: "NoSchedule".into(),
                ..Taint::default()
            });
        }
        Self { name, labels: node.metadata.labels.unwrap_or_default(), taints }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key { namespace: "n".into(), name: name.into() }
    }

    fn place(name: &str) -> (String, String) {
        ("n".into(), name.into())
    }

    #[test]
    fn an_object_whose_label_is_taken_away_or_changed_is_nobodys_or_anothers() {
        let cache: Cache<u8> = Cache::default();
        let names = |pipeline: &str| cache.all(&key(pipeline)).iter().map(|kept| **kept).collect::<Vec<u8>>();
        assert_eq!(cache.put(Some(key("a")), place("x"), Ok(Arc::new(1))), [key("a")]);
        assert_eq!(cache.put(Some(key("a")), place("y"), Ok(Arc::new(2))), [key("a")]);
        assert_eq!(cache.put(Some(key("b")), place("x"), Ok(Arc::new(3))), [key("a"), key("b")]);
        assert_eq!((names("a"), names("b")), (vec![2], vec![3]));
        assert_eq!(cache.put(None, place("x"), Ok(Arc::new(4))), [key("b")]);
        assert_eq!(cache.put(None, place("x"), Ok(Arc::new(5))), []);
        assert_eq!((names("a"), names("b")), (vec![2], vec![]));
        // Deleted later, it is nobody's still.
        assert_eq!(cache.remove(&place("x")), None);
        assert_eq!(cache.remove(&place("y")), Some(key("a")));
        assert!(cache.keys().is_empty());
    }
}
