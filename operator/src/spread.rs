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

/// Between the fullest and the emptiest place.
fn skew(
    placement: &PlacementSpec,
    accelerator_labels: &[String],
    placed: &[(&WorkerPod, &str)],
    nodes: &[&NodeFacts],
) -> Option<i32> {
    let places = places(placement, accelerator_labels, placed, nodes)?;
    let counts = || places.values().map(|pods| i32::try_from(pods.len()).unwrap_or(i32::MAX));
    Some(counts().max()? - counts().min()?)
}

/// The workers of each place. Only places with a node that takes workers count, and only workers of the newest template: those of
/// older ones are leaving.
fn places<'a>(
    placement: &PlacementSpec,
    accelerator_labels: &[String],
    placed: &[(&'a WorkerPod, &str)],
    nodes: &[&'a NodeFacts],
) -> Option<BTreeMap<&'a str, Vec<&'a WorkerPod>>> {
    let newest = placed.iter().map(|(pod, _)| pod).max_by_key(|pod| pod.made)?.template.as_deref();
    let key = placement.spread.topology_key.as_str();
    let mut places: BTreeMap<&str, Vec<&WorkerPod>> = nodes
        .iter()
        .filter(|node| takes_workers(placement, accelerator_labels, node))
        .filter_map(|node| Some((node.labels.get(key)?.as_str(), Vec::new())))
        .collect();
    let place_of: BTreeMap<&str, &str> =
        nodes.iter().filter_map(|node| Some((node.name.as_str(), node.labels.get(key)?.as_str()))).collect();
    for (pod, node) in placed {
        if pod.template.as_deref() == newest
            && let Some(pods) = place_of.get(node).and_then(|place| places.get_mut(place))
        {
            pods.push(pod);
        }
    }
    Some(places)
}

/// The worker that should go elsewhere, of a fleet that is whole and stands too unevenly: the newest of the fullest place. None where
/// no move helps.
#[must_use]
pub fn to_move<'a>(
    placement: &PlacementSpec,
    accelerator_labels: &[String],
    pods: &[&'a WorkerPod],
    nodes: &[&'a NodeFacts],
) -> Option<&'a WorkerPod> {
    if placement.spread.mode != SpreadMode::Even || pods.iter().any(|pod| !pod.serves()) {
        return None;
    }
    let placed: Vec<(&WorkerPod, &str)> =
        pods.iter().filter_map(|pod| Some((*pod, pod.node.as_deref()?))).collect();
    let places = places(placement, accelerator_labels, &placed, nodes)?;
    let fewest = places.values().map(Vec::len).min()?;
    let fullest =
        places.into_values().max_by_key(|pods| (pods.len(), pods.iter().map(|pod| pod.made).max()))?;
    let is_uneven = fullest.len() - fewest > usize::try_from(placement.spread.max_skew).unwrap_or(usize::MAX);
    // Moving one makes two counts nearer only when they differ by two.
    (is_uneven && fullest.len() - fewest > 1)
        .then(|| fullest.into_iter().max_by_key(|pod| (pod.made, pod.name.as_str())))
        .flatten()
}

/// The worker that is moved now, of a fleet of so many that is whole: one at a time, and not again and again where that does not help. A
/// fleet that stands as it should owes nothing to the moves that brought it there. One that waits for the worker that was moved last may
/// look like that, and does not count.
#[must_use]
pub fn even_out<'a>(
    moves: &mut Moves,
    placement: &PlacementSpec,
    accelerator_labels: &[String],
    wanted: i32,
    pods: &[&'a WorkerPod],
    nodes: &[&'a NodeFacts],
) -> Option<&'a WorkerPod> {
    if usize::try_from(wanted) != Ok(pods.len()) || pods.iter().any(|pod| !pod.serves()) {
        return None;
    }
    let found = to_move(placement, accelerator_labels, pods, nodes);
    if satisfied(placement, &measure(placement, accelerator_labels, pods, Some(nodes))) == Some(true) {
        *moves = Moves::default();
    }
    found.filter(|_| moves.may(nodes))
}

/// Moves of one pipeline that were tried for one set of nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moves {
    nodes: Vec<String>,
    tried: u8,
}

/// A scheduler that puts the worker back where it was will do so again.
const MOST_MOVES: u8 = 3;

impl Moves {
    /// Whether one more may be tried; counted if so. Other nodes are another chance.
    pub fn may(&mut self, nodes: &[&NodeFacts]) -> bool {
        let mut names: Vec<String> = nodes.iter().map(|node| node.name.clone()).collect();
        names.sort_unstable();
        if names != self.nodes {
            *self = Self { nodes: names, tried: 0 };
        }
        let may = self.tried < MOST_MOVES;
        self.tried = self.tried.saturating_add(u8::from(may));
        may
    }
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
    use crate::types::SpreadSpec;

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
    fn a_whole_fleet_moves_the_newest_worker_of_the_fullest_place_if_that_helps() {
        let placement = PlacementSpec::default();
        let nodes = [node("n1"), node("n2"), node("n3")];
        let nodes: Vec<&NodeFacts> = nodes.iter().collect();
        let moved = |placement: &PlacementSpec, pods: &[WorkerPod]| {
            let pods: Vec<&WorkerPod> = pods.iter().collect();
            to_move(placement, &[], &pods, &nodes).map(|pod| pod.name.clone())
        };
        let mut uneven = pods(&[("n1", "t"), ("n1", "t"), ("n2", "t")]);
        uneven.iter_mut().for_each(|pod| pod.ready = true);
        assert_eq!(moved(&placement, &uneven).as_deref(), Some("p1"));
        let loose = SpreadSpec { max_skew: 2, ..SpreadSpec::default() };
        assert_eq!(moved(&PlacementSpec { spread: loose, ..placement.clone() }, &uneven), None);
        // Not while one is on its way.
        uneven[2].ready = false;
        assert_eq!(moved(&placement, &uneven), None);
        let mut even = pods(&[("n1", "t"), ("n1", "t"), ("n2", "t"), ("n3", "t")]);
        even.iter_mut().for_each(|pod| pod.ready = true);
        assert_eq!(moved(&placement, &even), None);
    }

    #[test]
    fn moves_end_after_three_until_nodes_change() {
        let (one, two) = (node("n1"), node("n2"));
        let mut moves = Moves::default();
        assert_eq!([(); 4].map(|()| moves.may(&[&one])), [true, true, true, false]);
        assert!(moves.may(&[&one, &two]));
    }

    #[test]
    fn moves_that_helped_are_forgiven_and_others_are_not() {
        let placement = PlacementSpec::default();
        let nodes = [node("n1"), node("n2")];
        let nodes: Vec<&NodeFacts> = nodes.iter().collect();
        let whole = |places: &[(&str, &str)]| {
            let mut pods = pods(places);
            pods.iter_mut().for_each(|pod| pod.ready = true);
            pods
        };
        let (uneven, even) = (whole(&[("n1", "t"), ("n1", "t")]), whole(&[("n1", "t"), ("n2", "t")]));
        let mut moves = Moves::default();
        let mut moved = |pods: &[WorkerPod]| {
            let pods: Vec<&WorkerPod> = pods.iter().collect();
            even_out(&mut moves, &placement, &[], 2, &pods, &nodes).is_some()
        };
        // One drain after the other, on the same nodes.
        for _ in 0..5 {
            assert_eq!([moved(&uneven), moved(&even)], [true, false]);
        }
        // One that comes back to where it was; while it is away the others stand evenly.
        let (away, mut starts) = (whole(&[("n1", "t")]), even.clone());
        starts[1].ready = false;
        for helps in [true, true, true, false] {
            assert_eq!([moved(&uneven), moved(&away), moved(&starts)], [helps, false, false]);
        }
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
