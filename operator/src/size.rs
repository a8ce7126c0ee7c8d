//! Takes the wanted number of workers and the pods there are, gives the next write towards it. Pure.
//!
//! Going down, those that go first are marked before the number is written: one of the fullest node each time, there the newest;
//! pods that do not serve go by themselves before any that does.

use std::collections::BTreeMap;

use crate::observe::WorkerPod;

/// What marks a pod that goes first. Any number below 0, which is what others have.
pub const FIRST_TO_GO: i32 = -100;

/// The next write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Pods to mark, by name.
    pub mark: Vec<String>,
    /// Pods whose mark is taken away, by name.
    pub unmark: Vec<String>,
    /// The number to write, once the marks are seen.
    pub write: Option<i32>,
}

/// Decides the next write. `current` is the number that the Deployment has.
#[must_use]
pub fn step(current: i32, wanted: i32, pods: &[&WorkerPod]) -> Step {
    let staying: Vec<&WorkerPod> = pods.iter().copied().filter(|pod| pod.stays()).collect();
    let marked = |pod: &&WorkerPod| pod.deletion_cost.is_some();
    let all_marked = || staying.iter().copied().filter(marked).map(|pod| pod.name.clone()).collect();
    if wanted > current {
        return Step { unmark: all_marked(), write: Some(wanted), ..Step::default() };
    }
    if wanted == current {
        // Marks count until those that go are told to.
        let settled = count(staying.len()) <= wanted;
        return Step { unmark: if settled { all_marked() } else { Vec::new() }, ..Step::default() };
    }
    let Ok(keep @ 1..) = usize::try_from(wanted) else {
        // All go: none before another.
        return Step { write: Some(wanted), ..Step::default() };
    };
    let serving: Vec<&WorkerPod> = staying.iter().copied().filter(|pod| pod.ready).collect();
    let victims = victims(&serving, serving.len().saturating_sub(keep));
    let is_victim = |pod: &&WorkerPod| victims.contains(&pod.name.as_str());
    let named = |pods: &[&WorkerPod], holds: &dyn Fn(&&WorkerPod) -> bool| {
        pods.iter().copied().filter(|pod| holds(pod)).map(|pod| pod.name.clone()).collect::<Vec<_>>()
    };
    let mark = named(&serving, &|pod| is_victim(pod) && pod.deletion_cost != Some(FIRST_TO_GO));
    let unmark = named(&staying, &|pod| !is_victim(pod) && marked(pod));
    let write = (mark.is_empty() && unmark.is_empty()).then_some(wanted);
    Step { mark, unmark, write }
}

/// A number of things, as Kubernetes counts.
#[must_use]
pub fn count(things: usize) -> i32 {
    i32::try_from(things).unwrap_or(i32::MAX)
}

/// Whether workers are being replaced.
#[must_use]
pub fn has_two_templates(pods: &[&WorkerPod]) -> bool {
    let mut templates = pods.iter().filter(|pod| pod.stays()).map(|pod| &pod.template);
    templates.next().is_some_and(|first| templates.any(|other| other != first))
}

/// Those of the serving pods that go, by name.
fn victims<'a>(serving: &[&'a WorkerPod], count: usize) -> Vec<&'a str> {
    let mut nodes: BTreeMap<&str, Vec<&WorkerPod>> = BTreeMap::new();
    for pod in serving {
        nodes.entry(pod.node.as_deref().unwrap_or_default()).or_default().push(pod);
    }
    for pods in nodes.values_mut() {
        // The newest last, where it is taken from.
        pods.sort_by(|a, b| (a.made, &a.name).cmp(&(b.made, &b.name)));
    }
    let mut victims = Vec::new();
    for _ in 0..count {
        // Of nodes that are equally full the one with the newest pod.
        let fullest = nodes.iter_mut().max_by_key(|(name, pods)| {
            (pods.len(), pods.last().map(|pod| pod.made), std::cmp::Reverse(**name))
        });
        let Some(pod) = fullest.and_then(|(_, pods)| pods.pop()) else { break };
        victims.push(pod.name.as_str());
    }
    victims
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, node: &str, made: i64) -> WorkerPod {
        WorkerPod { name: name.into(), node: Some(node.into()), made, ready: true, ..WorkerPod::default() }
    }

    fn six() -> Vec<WorkerPod> {
        ["n1", "n2", "n3", "n1", "n2", "n3"]
            .iter()
            .enumerate()
            .map(|(number, node)| pod(&format!("p{number}"), node, number as i64))
            .collect()
    }

    fn step_of(current: i32, wanted: i32, pods: &[WorkerPod]) -> Step {
        step(current, wanted, &pods.iter().collect::<Vec<_>>())
    }

    #[test]
    fn a_rollout_is_seen_by_its_two_templates() {
        let mut pods = six();
        let two = |pods: &[WorkerPod]| has_two_templates(&pods.iter().collect::<Vec<_>>());
        assert!(!two(&pods));
        pods[5].template = Some("new".into());
        assert!(two(&pods));
        pods[5].leaving = true;
        assert!(!two(&pods));
    }

    #[test]
    fn going_down_leaves_the_rest_spread_and_marks_before_it_writes() {
        let mut pods = six();
        let first = step_of(6, 2, &pods);
        assert_eq!(first.write, None);
        let mut mark = first.mark.clone();
        mark.sort();
        // Two are left, on two nodes.
        assert_eq!(mark, ["p2", "p3", "p4", "p5"]);
        for pod in &mut pods {
            pod.deletion_cost = mark.contains(&pod.name).then_some(FIRST_TO_GO);
        }
        assert_eq!(step_of(6, 2, &pods), Step { write: Some(2), ..Step::default() });
        // Written, but nobody is told to go yet: marks stay.
        assert_eq!(step_of(2, 2, &pods), Step::default());
        for pod in &mut pods {
            pod.leaving = pod.deletion_cost.is_some();
        }
        assert_eq!(step_of(2, 2, &pods), Step::default());
    }

    #[test]
    fn whatever_is_left_of_a_thousand_on_two_hundred_nodes_stands_evenly() {
        let pods: Vec<WorkerPod> = (0..1000)
            .map(|number| pod(&format!("p{number}"), &format!("n{:03}", (number * 7) % 200), number))
            .collect();
        for wanted in [999, 801, 600, 201, 200, 199, 77, 1] {
            let step = step_of(1000, wanted, &pods);
            let mut left = BTreeMap::from_iter((0..200).map(|number| (format!("n{number:03}"), 0)));
            for pod in pods.iter().filter(|pod| !step.mark.contains(&pod.name)) {
                *left.get_mut(pod.node.as_ref().unwrap()).unwrap() += 1;
            }
            assert_eq!(left.values().sum::<i32>(), wanted);
            assert!(left.values().max().unwrap() - left.values().min().unwrap() <= 1, "{wanted}");
        }
    }

    #[test]
    fn marks_are_taken_away_when_the_decision_is_undone() {
        let mut pods = six();
        pods[5].deletion_cost = Some(FIRST_TO_GO);
        pods[4].deletion_cost = Some(FIRST_TO_GO);
        assert_eq!(step_of(6, 6, &pods).unmark, ["p4", "p5"]);
        assert_eq!(
            step_of(6, 8, &pods),
            Step { mark: vec![], unmark: vec!["p4".into(), "p5".into()], write: Some(8) }
        );
        // One of two: the other is unmarked first.
        let one = step_of(6, 5, &pods);
        assert_eq!((one.mark.len(), one.unmark.len(), one.write), (0, 1, None));
    }

    #[test]
    fn pods_that_do_not_serve_go_before_those_that_do() {
        let mut pods = six();
        for pod in &mut pods[..3] {
            pod.ready = false;
        }
        assert_eq!(step_of(6, 3, &pods), Step { write: Some(3), ..Step::default() });
        assert_eq!(step_of(6, 2, &pods).mark.len(), 1);
    }

    #[test]
    fn nothing_is_marked_when_all_go_and_nothing_written_when_all_is_well() {
        assert_eq!(step_of(6, 0, &six()), Step { write: Some(0), ..Step::default() });
        assert_eq!(step_of(6, 6, &six()), Step::default());
        assert_eq!(step_of(0, 0, &[]), Step::default());
        assert_eq!(step_of(1, 2, &[]), Step { write: Some(2), ..Step::default() });
    }
}
