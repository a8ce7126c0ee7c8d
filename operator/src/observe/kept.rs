//! What is kept of objects that are written by this operator.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Resource;

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

/// What is kept of other objects: not who wrote which field.
#[must_use]
pub fn trimmed<K: Resource>(mut object: K) -> K {
    object.meta_mut().managed_fields = None;
    object
}
