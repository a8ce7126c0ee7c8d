//! What is kept of objects that are written by this operator.

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use kube::Resource;

use crate::types::DataPipeline;
use crate::validate::short_hash;

/// The longest text of a ConfigMap that is kept whole: what one decision on the size leaves to the next, which with the most runs and
/// sizes has some 12 kB.
const LONGEST_TEXT: usize = 32 << 10;

/// A text, or its hash where it is long: whether it is still the same is all that is asked of those.
#[must_use]
pub fn shortened(text: String) -> String {
    if text.len() <= LONGEST_TEXT { text } else { format!("hash:{}", short_hash(text.as_bytes())) }
}

/// What is kept of a ConfigMap. Anybody who may write ConfigMaps can give theirs our labels, of a megabyte each.
#[must_use]
pub fn trimmed_map(map: ConfigMap) -> ConfigMap {
    let data = map.data.map(|data| data.into_iter().map(|(key, text)| (key, shortened(text))).collect());
    trimmed(ConfigMap { data, binary_data: None, ..map })
}

/// What is kept of a template that was kept: its text, which as a tree takes five times as much.
#[must_use]
pub fn trimmed_revision(revision: ControllerRevision) -> ControllerRevision {
    let data = revision.data.map(|data| RawExtension(data.0.to_string().into()));
    trimmed(ControllerRevision { data, ..revision })
}

/// What is kept of a pipeline: not the copy of itself that `kubectl apply` leaves in it.
#[must_use]
pub fn trimmed_pipeline(mut pipeline: DataPipeline) -> DataPipeline {
    if let Some(annotations) = &mut pipeline.metadata.annotations {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
    trimmed(pipeline)
}

/// What is kept of other objects: not who wrote which field.
#[must_use]
pub fn trimmed<K: Resource>(mut object: K) -> K {
    object.meta_mut().managed_fields = None;
    object
}
