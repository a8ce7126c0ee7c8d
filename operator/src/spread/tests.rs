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
        let wanted = count(pods.len());
        even_out(&mut Moves::default(), placement, &[], wanted, &pods, &nodes).map(|pod| pod.name.clone())
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
    assert_eq!([(); 4].map(|()| moves.may(&[&one], 9)), [true, true, true, false]);
    // One that left it as it was, or made it worse, is no chance; one that helped is.
    assert_eq!([9, 10, 8].map(|uneven| moves.may(&[&one], uneven)), [false, false, true]);
    assert!(moves.may(&[&one, &two], 8));
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
    let taint =
        Taint { key: "k".into(), value: Some("v".into()), effect: "NoSchedule".into(), ..Taint::default() };
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

/// A cluster of 200 nodes in four zones: ten have accelerators, ten take nothing now.
fn cluster() -> Vec<NodeFacts> {
    let mut nodes: Vec<NodeFacts> = (0..200).map(|number| node(&format!("n{number:03}"))).collect();
    for (number, node) in nodes.iter_mut().enumerate() {
        node.labels.insert("topology.kubernetes.io/zone".into(), format!("z{}", number % 4));
        match number {
            0..10 => drop(node.labels.insert("nvidia.com/gpu.present".into(), "true".into())),
            10..20 => node.taints.push(Taint {
                key: "node.kubernetes.io/unschedulable".into(),
                effect: "NoSchedule".into(),
                ..Taint::default()
            }),
            _ => {}
        }
    }
    nodes
}

/// As the scheduler does: to the emptiest of the places that take workers, there to the emptiest node.
fn schedule(placement: &PlacementSpec, nodes: &[&NodeFacts], pods: &[WorkerPod], gpu: &[String]) -> String {
    let place = |node: &NodeFacts| node.labels[&placement.spread.topology_key].clone();
    let place_of: BTreeMap<&str, String> =
        nodes.iter().map(|node| (node.name.as_str(), place(node))).collect();
    let (mut places, mut a_node) = (BTreeMap::<&str, usize>::new(), BTreeMap::<&str, usize>::new());
    for node in pods.iter().filter_map(|pod| pod.node.as_deref()) {
        *a_node.entry(node).or_default() += 1;
        *places.entry(place_of[node].as_str()).or_default() += 1;
    }
    let fit = nodes.iter().filter(|node| takes_workers(placement, gpu, node));
    let emptiest = fit.min_by_key(|node| {
        let name = node.name.as_str();
        (places.get(place_of[name].as_str()).copied(), a_node.get(name).copied())
    });
    emptiest.unwrap().name.clone()
}

#[test]
fn a_fleet_on_two_hundred_nodes_is_evened_out_with_as_few_moves_as_can_be() {
    let gpu = ["nvidia.com/gpu.present".to_owned()];
    let nodes = cluster();
    let all: Vec<&NodeFacts> = nodes.iter().collect();
    // Of nodes: three came back empty. Of zones: one did.
    for (key, empty, most) in
        [("kubernetes.io/hostname", 20..23, 15), ("topology.kubernetes.io/zone", 20..20, 0)]
    {
        let spread = SpreadSpec { topology_key: key.into(), ..SpreadSpec::default() };
        let placement = PlacementSpec { spread, ..PlacementSpec::default() };
        let away: Vec<&NodeFacts> = nodes
            .iter()
            .enumerate()
            .filter(|(number, _)| !empty.contains(number))
            .map(|(_, node)| node)
            .collect();
        let mut pods: Vec<WorkerPod> = Vec::new();
        for number in 0..900 {
            let node = schedule(&placement, &away, &pods, &gpu);
            pods.push(WorkerPod {
                name: format!("p{number}"),
                node: Some(node),
                made: number,
                ready: true,
                ..WorkerPod::default()
            });
        }
        let (mut moves, mut moved) = (Moves::default(), 0);
        loop {
            let refs: Vec<&WorkerPod> = pods.iter().collect();
            let Some(name) =
                even_out(&mut moves, &placement, &gpu, 900, &refs, &all).map(|pod| pod.name.clone())
            else {
                break;
            };
            moved += 1;
            pods.retain(|pod| pod.name != name);
            let node = schedule(&placement, &all, &pods, &gpu);
            pods.push(WorkerPod {
                name: format!("moved{moved}"),
                node: Some(node),
                made: 1000 + moved,
                ready: true,
                ..WorkerPod::default()
            });
        }
        let refs: Vec<&WorkerPod> = pods.iter().collect();
        let found = measure(&placement, &gpu, &refs, Some(&all));
        assert_eq!(satisfied(&placement, &found), Some(true), "{key}: {found:?} after {moved}");
        assert_eq!(found.nodes, 180, "{key}: nobody where nothing is taken");
        assert!(moved <= most, "{key}: {moved} moves");
    }
}
