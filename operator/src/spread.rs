//! Takes pods and nodes, gives how evenly workers are spread. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Taint, Toleration};

use crate::observe::{NodeFacts, WorkerPod};
use crate::types::{GpuNodes, PlacementSpec, PlacementStatus, SpreadMode};

/// Where workers run; the skew only where nodes can be read.
#[must_use]
pub fn measure(
    placement: &PlacementSpec,
    accelerator_labels: &[String],
    pods: &[&WorkerPod],
    nodes: Option<&[&NodeFacts]>,
) -> PlacementStatus {
    let placed: Vec<(&WorkerPod, &str)> =
        pods.iter().filter(|pod| pod.stays()).filter_map(|pod| Some((*pod, pod.node.as_deref()?))).collect();
    let mut a_node: BTreeMap<&str, i32> = BTreeMap::new();
    for (_, node) in &placed {
        *a_node.entry(node).or_default() += 1;
    }
    PlacementStatus {
        nodes: i32::try_from(a_node.len()).unwrap_or(i32::MAX),
        max_per_node: a_node.values().copied().max().unwrap_or_default(),
        skew: nodes.and_then(|nodes| skew(placement, accelerator_labels, &placed, nodes)),
    }
}

/// Between the fullest and the emptiest place. Only places with a node that takes workers count, and only workers of the newest
/// template: those of older ones are leaving.
fn skew(
    placement: &PlacementSpec,
    accelerator_labels: &[String],
    placed: &[(&WorkerPod, &str)],
    nodes: &[&NodeFacts],
) -> Option<i32> {
    let newest = placed.iter().map(|(pod, _)| pod).max_by_key(|pod| pod.made)?.template.as_deref();
    let key = placement.spread.topology_key.as_str();
    let mut places: BTreeMap<&str, i32> = nodes
        .iter()
        .filter(|node| takes_workers(placement, accelerator_labels, node))
        .filter_map(|node| Some((node.labels.get(key)?.as_str(), 0)))
        .collect();
    let place_of: BTreeMap<&str, &str> =
        nodes.iter().filter_map(|node| Some((node.name.as_str(), node.labels.get(key)?.as_str()))).collect();
    for (pod, node) in placed {
        if pod.template.as_deref() == newest
            && let Some(count) = place_of.get(node).and_then(|place| places.get_mut(place))
        {
            *count += 1;
        }
    }
    Some(places.values().max()? - places.values().min()?)
}

/// Whether the scheduler may put a worker there.
fn takes_workers(placement: &PlacementSpec, accelerator_labels: &[String], node: &NodeFacts) -> bool {
    let selected = placement.node_selector.iter().all(|(key, value)| node.labels.get(key) == Some(value));
    let avoided = placement.gpu_nodes == GpuNodes::Avoid
        && accelerator_labels.iter().any(|label| node.labels.contains_key(label));
    let kept_out = node
        .taints
        .iter()
        .filter(|taint| taint.effect == "NoSchedule" || taint.effect == "NoExecute")
        .any(|taint| !placement.tolerations.iter().any(|toleration| tolerates(toleration, taint)));
    selected && !avoided && !kept_out
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let effect = toleration.effect.as_deref().unwrap_or_default();
    let key = toleration.key.as_deref().unwrap_or_default();
    let exists = toleration.operator.as_deref() == Some("Exists");
    (effect.is_empty() || effect == taint.effect)
        && (key == taint.key || (key.is_empty() && exists))
        && (exists
            || toleration.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default())
}

/// Whether workers are spread as wanted; none where that cannot be known.
#[must_use]
pub fn satisfied(placement: &PlacementSpec, status: &PlacementStatus) -> Option<bool> {
    match placement.spread.mode {
        SpreadMode::None => Some(true),
        SpreadMode::OnePerNode => Some(status.max_per_node <= 1),
        SpreadMode::Even if status.nodes == 0 => Some(true),
        SpreadMode::Even => status.skew.map(|skew| skew <= placement.spread.max_skew),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> NodeFacts {
        NodeFacts {
            name: name.into(),
            labels: BTreeMap::from([("kubernetes.io/hostname".into(), name.into())]),
            taints: Vec::new(),
        }
    }

    fn pods(places: &[(&str, &str)]) -> Vec<WorkerPod> {
        places
            .iter()
            .enumerate()
            .map(|(number, (node, template))| WorkerPod {
                name: format!("p{number}"),
                node: Some((*node).into()),
                template: Some((*template).into()),
                made: number as i64,
                ..WorkerPod::default()
            })
            .collect()
    }

    fn measured(placement: &PlacementSpec, pods: &[WorkerPod], nodes: &[NodeFacts]) -> PlacementStatus {
        let gpu = ["nvidia.com/gpu.present".to_owned()];
        measure(placement, &gpu, &pods.iter().collect::<Vec<_>>(), Some(&nodes.iter().collect::<Vec<_>>()))
    }

    #[test]
    fn only_nodes_that_take_workers_count() {
        let placement = PlacementSpec::default();
        let pods = pods(&[("n1", "t"), ("n1", "t"), ("n2", "t")]);
        let mut nodes = vec![node("n1"), node("n2")];
        assert_eq!(
            measured(&placement, &pods, &nodes),
            PlacementStatus { nodes: 2, max_per_node: 2, skew: Some(1) }
        );
        nodes.push(node("n3"));
        assert_eq!(measured(&placement, &pods, &nodes).skew, Some(2));
        nodes[2].taints.push(Taint {
            key: "node.kubernetes.io/unschedulable".into(),
            effect: "NoSchedule".into(),
            ..Taint::default()
        });
        assert_eq!(measured(&placement, &pods, &nodes).skew, Some(1));
        nodes[2] = node("n3");
        nodes[2].labels.insert("nvidia.com/gpu.present".into(), "true".into());
        assert_eq!(measured(&placement, &pods, &nodes).skew, Some(1));
        let anywhere = PlacementSpec { gpu_nodes: GpuNodes::Allow, ..PlacementSpec::default() };
        assert_eq!(measured(&anywhere, &pods, &nodes).skew, Some(2));
    }

    #[test]
    fn workers_of_an_older_template_are_leaving() {
        let placement = PlacementSpec::default();
        let pods = pods(&[("n1", "old"), ("n1", "old"), ("n1", "new"), ("n2", "new")]);
        let found = measured(&placement, &pods, &[node("n1"), node("n2")]);
        assert_eq!(found, PlacementStatus { nodes: 2, max_per_node: 3, skew: Some(0) });
        assert_eq!(satisfied(&placement, &found), Some(true));
    }

    #[test]
    fn without_nodes_the_skew_is_unknown() {
        let pods = pods(&[("n1", "t")]);
        let found = measure(&PlacementSpec::default(), &[], &pods.iter().collect::<Vec<_>>(), None);
        assert_eq!(found.skew, None);
        assert_eq!(satisfied(&PlacementSpec::default(), &found), None);
    }

    #[test]
    fn tolerations_are_read_as_the_scheduler_reads_them() {
        let taint = Taint {
            key: "k".into(),
            value: Some("v".into()),
            effect: "NoSchedule".into(),
            ..Taint::default()
        };
        let toleration = |key: &str, operator: &str, value: &str, effect: &str| Toleration {
            key: Some(key.into()),
            operator: Some(operator.into()),
            value: Some(value.into()),
            effect: Some(effect.into()),
            ..Toleration::default()
        };
        assert!(tolerates(&toleration("k", "Equal", "v", "NoSchedule"), &taint));
        assert!(tolerates(&toleration("k", "Exists", "", ""), &taint));
        assert!(tolerates(&toleration("", "Exists", "", ""), &taint));
        assert!(!tolerates(&toleration("k", "Equal", "w", "NoSchedule"), &taint));
        assert!(!tolerates(&toleration("k", "Equal", "v", "NoExecute"), &taint));
        assert!(!tolerates(&toleration("j", "Exists", "", ""), &taint));
    }
}
