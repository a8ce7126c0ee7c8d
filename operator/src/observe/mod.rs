//! Takes watches, gives what exists: caches by pipeline, of pods and nodes only what is read.

/// What is kept of a pod.
pub mod pod;

use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::sync::{Arc, PoisonError, RwLock};

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::{Node, Taint};
use kube::core::DeserializeGuard;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt as _, watcher as watch_events};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::desired::PIPELINE;
use crate::validate::Key;

pub use pod::{Trouble, WorkerPod};

/// An object, or why it cannot be read.
pub type Kept<T> = Result<Arc<T>, Arc<str>>;

/// All objects of one kind, by the pipeline they belong to.
#[derive(Debug)]
pub struct Cache<T> {
    objects: RwLock<HashMap<Key, BTreeMap<String, Kept<T>>>>,
    /// Which pipeline each object is kept under: a label may be changed or taken away.
    places: RwLock<HashMap<(String, String), Key>>,
    complete: watch::Sender<bool>,
}

impl<T> Default for Cache<T> {
    fn default() -> Self {
        Self { objects: RwLock::default(), places: RwLock::default(), complete: watch::Sender::new(false) }
    }
}

impl<T> Cache<T> {
    /// The object of this name.
    #[must_use]
    pub fn get(&self, pipeline: &Key, name: &str) -> Option<Kept<T>> {
        self.objects.read().unwrap_or_else(PoisonError::into_inner).get(pipeline)?.get(name).cloned()
    }

    /// All readable objects of a pipeline.
    #[must_use]
    pub fn all(&self, pipeline: &Key) -> Vec<Arc<T>> {
        let objects = self.objects.read().unwrap_or_else(PoisonError::into_inner);
        objects.get(pipeline).into_iter().flat_map(BTreeMap::values).flatten().map(Arc::clone).collect()
    }

    /// All pipelines with objects.
    #[must_use]
    pub fn keys(&self) -> Vec<Key> {
        self.objects.read().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
    }

    /// Ends when everything that existed at the start is there.
    pub async fn complete(&self) {
        // The sender lives as long as this cache.
        drop(self.complete.subscribe().wait_for(|complete| *complete).await);
    }

    /// An object as it is now, none if it is gone, and the pipeline that it belongs to now. Gives the pipelines of which something
    /// changed.
    fn put(&self, place: (String, String), now: Option<(Key, Kept<T>)>) -> Vec<Key> {
        let mut places = self.places.write().unwrap_or_else(PoisonError::into_inner);
        let mut objects = self.objects.write().unwrap_or_else(PoisonError::into_inner);
        let mut changed = Vec::new();
        let key = now.as_ref().map(|(key, _)| key.clone());
        let before = match &key {
            Some(key) => places.insert(place.clone(), key.clone()),
            None => places.remove(&place),
        };
        if let Some(before) = before.filter(|before| Some(before) != key.as_ref()) {
            if let Some(of) = objects.get_mut(&before) {
                of.remove(&place.1);
                if of.is_empty() {
                    objects.remove(&before);
                }
            }
            changed.push(before);
        }
        if let Some((key, object)) = now {
            objects.entry(key.clone()).or_default().insert(place.1, object);
            changed.push(key);
        }
        changed
    }

    fn replace(&self, with: HashMap<Key, BTreeMap<String, Kept<T>>>, places: HashMap<(String, String), Key>) {
        *self.places.write().unwrap_or_else(PoisonError::into_inner) = places;
        *self.objects.write().unwrap_or_else(PoisonError::into_inner) = with;
        self.complete.send_replace(true);
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
    let mut events = watch_events(api, config).default_backoff().boxed();
    let (mut building, mut places) = (HashMap::new(), HashMap::new());
    while let Some(event) = events.next().await {
        let kept = |object: DeserializeGuard<K>| match object.0 {
            Ok(object) => Ok(Arc::new(keep(object))),
            Err(error) => Err(Arc::from(error.error.as_str())),
        };
        match event {
            Ok(Event::Init) => (building, places) = (HashMap::new(), HashMap::new()),
            Ok(Event::InitApply(object)) => {
                if let Some(key) = of(&object) {
                    let place = (object.namespace().unwrap_or_default(), object.name_any());
                    places.insert(place, key.clone());
                    let of: &mut BTreeMap<_, _> = building.entry(key).or_default();
                    of.insert(object.name_any(), kept(object));
                }
            }
            Ok(Event::InitDone) => {
                let mut keys = cache.keys();
                keys.extend(building.keys().cloned());
                cache.replace(std::mem::take(&mut building), std::mem::take(&mut places));
                keys.into_iter().for_each(&wake);
            }
            Ok(Event::Apply(object)) => {
                let place = (object.namespace().unwrap_or_default(), object.name_any());
                let key = of(&object);
                cache.put(place, key.map(|key| (key, kept(object)))).into_iter().for_each(&wake);
            }
            Ok(Event::Delete(object)) => {
                let place = (object.namespace().unwrap_or_default(), object.name_any());
                cache.put(place, None).into_iter().for_each(&wake);
            }
            Err(error) => {
                tracing::warn!(kind = %K::kind(&()), error = %error, "a watch was interrupted; it is begun again");
            }
        }
    }
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

    #[test]
    fn an_object_that_loses_its_label_leaves_its_pipeline() {
        let cache: Cache<u8> = Cache::default();
        let key = |name: &str| Key { namespace: "team".into(), name: name.into() };
        let place = || ("team".to_owned(), "pod".to_owned());
        assert_eq!(cache.put(place(), Some((key("a"), Ok(Arc::new(1))))), [key("a")]);
        assert_eq!(cache.all(&key("a")), [Arc::new(1)]);
        // Another pipeline's: both hear of it.
        assert_eq!(cache.put(place(), Some((key("b"), Ok(Arc::new(2))))), [key("a"), key("b")]);
        assert_eq!((cache.all(&key("a")).len(), cache.all(&key("b"))), (0, vec![Arc::new(2)]));
        // Nobody's.
        assert_eq!(cache.put(place(), None), [key("b")]);
        assert_eq!((cache.all(&key("b")).len(), cache.keys().len()), (0, 0));
        // Its end is no news any more.
        assert_eq!(cache.put(place(), None), []);
    }
}
