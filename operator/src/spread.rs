//! Takes pods and nodes, gives how evenly workers are spread. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Taint, Toleration};

use crate::observe::{NodeFacts, WorkerPod};
use crate::size::count;
use crate::types::{GpuNodes, PlacementSpec, PlacementStatus, SpreadMode};

/// Where workers run; the skew only where nodes can be read.
#[must_use]
pub fn measure(
    placement: &PlacementSpec,
    accelerator_labels: &[String],
    pods: &[&WorkerPod],
    nodes: Option<&[&NodeFacts]>,
) -> PlacementStatus {
    let mut a_node: BTreeMap<&str, usize> = BTreeMap::new();
    for node in pods.iter().filter(|pod| pod.stays()).filter_map(|pod| pod.node.as_deref()) {
        *a_node.entry(node).or_default() += 1;
    }
    PlacementStatus {
        nodes: count(a_node.len()),
        max_per_node: count(a_node.values().copied().max().unwrap_or_default()),
        skew: nodes.and_then(|nodes| skew(&places(placement, accelerator_labels, pods, nodes)?)),
    }
}

/// The workers of each place.
type Places<'a> = BTreeMap<&'a str, Vec<&'a WorkerPod>>;

/// Between the fullest and the emptiest place.
fn skew(places: &Places<'_>) -> Option<i32> {
    let counts = || places.values().map(Vec::len);
    Some(count(counts().max()? - counts().min()?))
}

/// How far workers are from standing evenly: falls with each move that helps, also where other places stay as empty as this one was.
fn unevenness(places: &Places<'_>) -> usize {
    places.values().map(|pods| pods.len().saturating_mul(pods.len())).fold(0, usize::saturating_add)
}

/// Only places with a node that takes workers count, and only workers of the newest template: those of older ones are leaving.
fn places<'a>(
    placement: &PlacementSpec,
    accelerator_labels: &[String],
    pods: &[&'a WorkerPod],
    nodes: &[&'a NodeFacts],
) -> Option<Places<'a>> {
    let placed = || pods.iter().filter(|pod| pod.stays() && pod.node.is_some());
    let newest = placed().max_by_key(|pod| pod.made)?.template.as_deref();
    let key = placement.spread.topology_key.as_str();
    let place_of: BTreeMap<&str, &str> =
        nodes.iter().filter_map(|node| Some((node.name.as_str(), node.labels.get(key)?.as_str()))).collect();
    let mut places: Places<'_> = nodes
        .iter()
        .filter(|node| takes_workers(placement, accelerator_labels, node))
        .filter_map(|node| Some((*place_of.get(node.name.as_str())?, Vec::new())))
        .collect();
    for pod in placed().filter(|pod| pod.template.as_deref() == newest) {
        let place = pod.node.as_deref().and_then(|node| place_of.get(node));
        if let Some(there) = place.and_then(|place| places.get_mut(place)) {
            there.push(pod);
        }
    }
    Some(places)
}

/// The worker that should go elsewhere, where workers stand too unevenly: the newest of the fullest place. None where no move helps.
fn to_move<'a>(placement: &PlacementSpec, places: &Places<'a>) -> Option<&'a WorkerPod> {
    if placement.spread.mode != SpreadMode::Even {
        return None;
    }
    let fewest = places.values().map(Vec::len).min()?;
    let fullest = places.values().max_by_key(|pods| (pods.len(), pods.iter().map(|pod| pod.made).max()))?;
    // One is allowed at least: moving a worker makes two counts nearer only when they differ by two.
    let is_uneven = count(fullest.len() - fewest) > placement.spread.max_skew.max(1);
    fullest.iter().filter(|_| is_uneven).max_by_key(|pod| (pod.made, pod.name.as_str())).copied()
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
    let places = places(placement, accelerator_labels, pods, nodes)?;
    let Some(found) = to_move(placement, &places) else {
        *moves = Moves::default();
        return None;
    };
    moves.may(nodes, unevenness(&places)).then_some(found)
}

/// Moves of one pipeline that were tried for one set of nodes and did not help.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moves {
    nodes: Vec<String>,
    uneven: usize,
    tried: u8,
}

/// A scheduler that puts the worker back where it was will do so again.
const MOST_MOVES: u8 = 3;

impl Moves {
    /// Whether one more may be tried; counted if so. Other nodes are another chance, and so is each move that helped: a node that comes
    /// back empty wants as many workers as the others have.
    fn may(&mut self, nodes: &[&NodeFacts], uneven: usize) -> bool {
        let mut names: Vec<String> = nodes.iter().map(|node| node.name.clone()).collect();
        names.sort_unstable();
        if names != self.nodes || uneven < self.uneven {
            *self = Self { nodes: names, uneven, tried: 0 };
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
mod tests;
