//! Takes the objects a pipeline should consist of, makes them so: by server-side apply, only where something differs, and never
//! an object that belongs to somebody else.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Resource, ResourceExt as _};
use serde::Serialize;
use serde_json::Value;

use crate::desired::{Desired, MANAGED_BY, MANAGER, PIPELINE};
use crate::observe::{Cache, Caches, Kept, Watched, shortened};
use crate::status::Obstacle;
use crate::validate::{Key, short_hash};
use crate::writes::Writes;

/// Why something was not applied.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// It belongs to somebody else.
    #[error("{0} is somebody else's")]
    NameConflict(String),
    /// The API server said no, or nothing.
    #[error("cannot write {what}")]
    Api {
        /// What.
        what: String,
        /// What was said.
        #[source]
        source: kube::Error,
    },
    /// The API server said nothing at all.
    #[error("a write was not answered within {} s", ANSWER.as_secs())]
    Unanswered,
}

/// All writes of one pipeline together take a second or two.
pub const ANSWER: Duration = Duration::from_secs(40);

impl ApplyError {
    /// What people are told, after so many failures in a row; none for what passes by itself.
    #[must_use]
    pub fn obstacle(&self, failures: u32) -> Option<Obstacle> {
        match self {
            Self::NameConflict(what) => Some(Obstacle::NameConflict(what.clone())),
            Self::Api { what, source: kube::Error::Api(status) } => match status.code {
                403 => Some(Obstacle::Forbidden(format!("{what}: {}", status.message))),
                400 | 422 => Some(Obstacle::Refused(format!("{what}: {}", status.message))),
                _ if failures < STUBBORN => None,
                code => Some(Obstacle::Refused(format!("{what}: {code} {}", status.message))),
            },
            Self::Api { what, source } => {
                (failures >= STUBBORN).then(|| Obstacle::Refused(format!("{what}: {source}")))
            }
            Self::Unanswered => (failures >= STUBBORN)
                .then(|| Obstacle::Refused(format!("{self}; see whether an admission webhook hangs"))),
        }
    }

    /// Whether the namespace or the pipeline is going: nothing is left to do.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        let Self::Api { source: kube::Error::Api(status), .. } = self else { return false };
        let causes = status.details.as_ref().map(|details| details.causes.as_slice()).unwrap_or_default();
        status.code == 403 && causes.iter().any(|cause| cause.reason == "NamespaceTerminating")
    }
}

/// What fails this often in a row does not pass by itself.
pub const STUBBORN: u32 = 3;

/// What was applied last and what the API server made of it. While neither changes nothing is written.
#[derive(Debug, Default)]
pub struct Applied(Mutex<HashMap<(Key, String), (String, String)>>);

impl Applied {
    fn is(&self, of: &(Key, String), wanted: &str, found: &str) -> bool {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(of).is_some_and(|(was_wanted, was_found)| was_wanted == wanted && was_found == found)
    }

    fn keep(&self, of: (Key, String), wanted: String, found: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(of, (wanted, found));
    }

    fn drop(&self, of: &(Key, String)) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(of);
    }

    /// A pipeline is gone.
    pub fn forget(&self, pipeline: &Key) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|(key, _), _| key != pipeline);
    }
}

/// The generation that each Deployment has had at least, with its identity. A cache that is older does not show what was written last, and must not be
/// taken for the end of a rollout.
#[derive(Debug, Default)]
pub struct Generations(Mutex<HashMap<Key, (String, i64)>>);

impl Generations {
    /// A Deployment as the API server gave it back.
    pub fn saw(&self, pipeline: &Key, deployment: &Deployment) {
        let seen = (deployment.uid().unwrap_or_default(), deployment.metadata.generation.unwrap_or_default());
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(pipeline.clone(), seen);
    }

    /// Whether a Deployment is older than what was written.
    #[must_use]
    pub fn is_old(&self, pipeline: &Key, deployment: &Deployment) -> bool {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(pipeline).is_some_and(|(uid, generation)| {
            deployment.metadata.uid.as_ref() == Some(uid)
                && deployment.metadata.generation.unwrap_or_default() < *generation
        })
    }

    /// A pipeline is gone.
    pub fn forget(&self, pipeline: &Key) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(pipeline);
    }
}

/// Everything that applying needs.
pub struct Applier<'a> {
    /// Does the writes.
    pub writes: Writes<'a>,
    /// What is known to exist.
    pub caches: &'a Caches,
    /// What was applied before.
    pub applied: &'a Applied,
    /// What Deployments have become.
    pub generations: &'a Generations,
    /// The pipeline.
    pub key: &'a Key,
    /// Its identity.
    pub uid: &'a str,
}

impl Applier<'_> {
    /// Makes everything so.
    ///
    /// # Errors
    /// The first that cannot be.
    pub async fn apply(&self, desired: &Desired, suspended: bool) -> Result<(), ApplyError> {
        let Desired {
            service_account,
            document,
            plan,
            service,
            deployment,
            disruption_budget,
            network_policy,
        } = desired;
        let names = crate::desired::Names::of(&self.key.name);
        let caches = self.caches;
        if let Some(account) = service_account {
            self.one(account, &caches.accounts).await?;
        }
        self.one(document, &caches.maps).await?;
        match plan {
            Some(plan) => drop(self.one(plan, &caches.maps).await?),
            None => self.gone(&names.plan, &caches.maps).await?,
        }
        self.one(service, &caches.services).await?;
        self.one(disruption_budget, &caches.budgets).await?;
        match network_policy {
            Some(policy) => drop(self.one(policy, &caches.policies).await?),
            None => self.gone(&names.worker, &caches.policies).await?,
        }
        // A suspended pipeline that never ran gets no workers to take away again.
        if suspended && caches.deployments.get(self.key, &names.worker).is_none() {
            return Ok(());
        }
        if let Some(made) = self.one(deployment, &caches.deployments).await? {
            self.generations.saw(self.key, &made);
        }
        Ok(())
    }

    /// Makes one object so; what it has become, when it had to be written.
    ///
    /// # Errors
    /// It is somebody else's, or the API server refuses.
    pub(crate) async fn one<K>(&self, wanted: &K, cache: &Cache<K>) -> Result<Option<K>, ApplyError>
    where
        K: Watched + Serialize,
    {
        let name = wanted.name_any();
        let what = format!("{} {name}", K::kind(&()));
        let of = (self.key.clone(), what.clone());
        let api = self.writes.api::<K>();
        let found = match cache.get(self.key, &name) {
            Some(Ok(found)) => Some(found),
            // One that lacks our label, cannot be read, or was made a moment ago.
            Some(Err(_)) | None => {
                let found = api
                    .get_opt(&name)
                    .await
                    .map_err(|source| ApplyError::Api { what: what.clone(), source })?;
                found.map(Arc::new)
            }
        };
        if let Some(found) = &found
            && !self.is_ours(found.as_ref())
        {
            return Err(ApplyError::NameConflict(what));
        }
        let wanted_hash = hash(wanted);
        if let Some(found) = &found
            && self.applied.is(&of, &wanted_hash, &hash(found.as_ref()))
        {
            return Ok(None);
        }
        let parameters = PatchParams::apply(MANAGER).force();
        // With its identity: a namesake that somebody has made since is a conflict, and not taken over.
        let mut body = wanted.clone();
        body.meta_mut().uid = found.as_ref().and_then(|found| found.uid());
        let body = Patch::Apply(&body);
        let write = api.patch(&name, &parameters, &body);
        let made = self.writes.done(&K::kind(&()), &name, &[], write).await?;
        if let Some(made) = &made {
            self.applied.keep(of, wanted_hash, hash(made));
        }
        Ok(made)
    }

    /// Takes one object away, if there is one of ours.
    ///
    /// # Errors
    /// The API server refuses.
    pub async fn gone<K>(&self, name: &str, cache: &Cache<K>) -> Result<(), ApplyError>
    where
        K: Watched,
    {
        let Some(Ok(found)) = cache.get(self.key, name) else { return Ok(()) };
        if !self.is_ours(found.as_ref()) {
            return Ok(());
        }
        let this = Preconditions { uid: found.uid(), resource_version: None };
        self.applied.drop(&(self.key.clone(), format!("{} {name}", K::kind(&()))));
        let (api, parameters) = (self.writes.api::<K>(), DeleteParams::background().preconditions(this));
        let write = api.delete(name, &parameters);
        self.writes.done(&K::kind(&()), name, &[404, 409], write).await.map(drop)
    }

    /// One that nobody owns and that has our labels was ours: it was left behind by `kubectl delete --cascade=orphan`.
    fn is_ours(&self, found: &impl kube::ResourceExt) -> bool {
        let label = |key: &str| found.labels().get(key).map(String::as_str);
        let is_left = found.owner_references().is_empty()
            && label(MANAGED_BY) == Some(MANAGER)
            && label(PIPELINE) == Some(self.key.name.as_str());
        is_left || is_owned(found, self.uid)
    }
}

fn is_owned(found: &impl Resource, uid: &str) -> bool {
    found.meta().owner_references.iter().flatten().any(|owner| owner.uid == uid)
}

/// Whether an object that was kept belongs to this pipeline, or to nobody since it was left behind; by its labels it was ours.
#[must_use]
pub fn ours_or_left<K: Resource>(kept: Option<Kept<K>>, uid: &str) -> Option<Arc<K>> {
    kept?.ok().filter(|found| {
        let is_left = found.meta().owner_references.as_ref().is_none_or(Vec::is_empty);
        is_left || is_owned(found.as_ref(), uid)
    })
}

/// Whether an object that was kept belongs to this pipeline.
#[must_use]
pub fn ours<K: Resource>(kept: Option<Kept<K>>, uid: &str) -> Option<Arc<K>> {
    kept?.ok().filter(|found| is_owned(found.as_ref(), uid))
}

/// A hash of what is written of an object: not of its status, its versions, or its number of workers, which have other writers.
fn hash(object: &impl Serialize) -> String {
    let mut object = serde_json::to_value(object).unwrap_or_default();
    if let Value::Object(map) = &mut object {
        // Taking fields out one by one would change the order of the others.
        map.retain(|key, _| key != "status");
        if let Some(Value::Object(metadata)) = map.get_mut("metadata") {
            metadata
                .retain(|key, _| !["resourceVersion", "managedFields", "generation"].contains(&key.as_str()));
        }
        if let Some(Value::Object(spec)) = map.get_mut("spec") {
            spec.retain(|key, _| key != "replicas");
        }
        if let Some(Value::Object(data)) = map.get_mut("data") {
            for value in data.values_mut() {
                if let Value::String(text) = value {
                    *text = shortened(std::mem::take(text));
                }
            }
        }
    }
    short_hash(object.to_string().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn deployment(value: &Value) -> Deployment {
        serde_json::from_value(value.clone()).unwrap()
    }

    #[test]
    fn what_others_write_is_no_difference() {
        let one = json!({"metadata": {"name": "a", "resourceVersion": "1", "generation": 1},
            "spec": {"replicas": 1, "selector": {}, "template": {}}, "status": {"replicas": 1}});
        let mut other = one.clone();
        other["metadata"]["resourceVersion"] = "2".into();
        other["spec"]["replicas"] = 16.into();
        other["status"]["replicas"] = 16.into();
        assert_eq!(hash(&deployment(&one)), hash(&deployment(&other)));
        other["metadata"]["labels"] = json!({"a": "b"});
        assert_ne!(hash(&deployment(&one)), hash(&deployment(&other)));
    }

    #[test]
    fn a_long_text_is_kept_as_its_hash_and_seen_to_change_all_the_same() {
        let map = |text: &str| -> k8s_openapi::api::core::v1::ConfigMap {
            serde_json::from_value(json!({"metadata": {"name": "a", "managedFields": [{"manager": "m"}]},
                "data": {"pipeline.yaml": text, "train": "sha256:00"}}))
            .unwrap()
        };
        let (one, other) = (map(&"a".repeat(40_000)), map(&"b".repeat(40_000)));
        let kept = crate::observe::trimmed_map(one.clone());
        assert!(kept.metadata.managed_fields.is_none());
        let data = kept.data.as_ref().unwrap();
        assert!(data["pipeline.yaml"].len() < 50);
        assert_eq!(data["train"], "sha256:00");
        assert_eq!(hash(&kept), hash(&one));
        assert_ne!(hash(&crate::observe::trimmed_map(other)), hash(&one));
    }

    #[test]
    fn what_passes_by_itself_is_no_obstacle() {
        let api = |code: u16, cause: &str| ApplyError::Api {
            what: "Service a".into(),
            source: kube::Error::Api(Box::new(
                serde_json::from_value(json!({"code": code, "message": "m",
                "details": {"causes": [{"reason": cause}]}}))
                .unwrap(),
            )),
        };
        assert_eq!(api(500, "").obstacle(0), None);
        assert_eq!(api(409, "").obstacle(2), None);
        assert_eq!(api(500, "").obstacle(3), Some(Obstacle::Refused("Service a: 500 m".into())));
        assert_eq!(ApplyError::Unanswered.obstacle(2), None);
        assert!(matches!(ApplyError::Unanswered.obstacle(3), Some(Obstacle::Refused(_))));
        assert_eq!(api(403, "").obstacle(0), Some(Obstacle::Forbidden("Service a: m".into())));
        assert_eq!(api(422, "").obstacle(0), Some(Obstacle::Refused("Service a: m".into())));
        assert!(api(403, "NamespaceTerminating").is_ending());
        assert!(!api(403, "").is_ending());
    }
}
