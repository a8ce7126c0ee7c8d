use std::collections::BTreeMap;

use futures_util::FutureExt;
use proptest::prelude::*;

use super::*;

fn budget(capacity: u64, reserve: u64) -> Arc<Budget> {
    Budget::new("decode", capacity, reserve).unwrap()
}

fn poll(acquire: &mut Acquire) -> Option<Permit> {
    match acquire.poll_unpin(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(permit) => Some(permit.unwrap()),
        Poll::Pending => None,
    }
}

/// Requests with these (urgency, bytes), asked while everything is used, in the order of grants.
fn order_of_grants(requests: &[(u64, u64)]) -> Vec<usize> {
    let budget = budget(10, 0);
    let all = budget.acquire(10, &Urgency::new(0)).now_or_never().unwrap().unwrap();
    let mut waiting: BTreeMap<usize, Acquire> = requests
        .iter()
        .map(|(urgency, bytes)| budget.acquire(*bytes, &Urgency::new(*urgency)))
        .enumerate()
        .collect();
    drop(all);
    let mut order = Vec::new();
    while !waiting.is_empty() {
        let granted: Vec<_> =
            waiting.iter_mut().filter_map(|(index, acquire)| Some((*index, poll(acquire)?))).collect();
        assert!(!granted.is_empty(), "nobody proceeds");
        for (index, permit) in granted {
            waiting.remove(&index);
            order.push(index);
            drop(permit);
        }
    }
    order
}

#[test]
fn grants_follow_need_then_age() {
    for (requests, expected) in [
        // One at a time: each takes the whole budget.
        (vec![(3, 10), (1, 10), (2, 10)], vec![1, 2, 0]),
        (vec![(5, 10), (5, 10), (5, 10)], vec![0, 1, 2]),
        // The large one first, though each small one would fit beside what is used.
        (vec![(2, 1), (2, 1), (1, 10)], vec![2, 0, 1]),
        // 6 + 4 fit together, the 5 in between waits and is not overtaken by the 1.
        (vec![(4, 1), (3, 5), (2, 4), (1, 6)], vec![2, 3, 0, 1]),
    ] {
        assert_eq!(order_of_grants(&requests), expected, "{requests:?}");
    }
}

#[test]
fn a_stream_of_small_requests_does_not_starve_a_large_urgent_one() {
    let budget = budget(100, 0);
    let later = Urgency::new(10);
    let mut small: Vec<_> =
        (0..100).map(|_| budget.acquire(1, &later).now_or_never().unwrap().unwrap()).collect();
    let mut large = budget.acquire(90, &Urgency::new(1));
    // For each permit that ends, a new small request arrives; none may slip in.
    let mut stream: Vec<_> = Vec::new();
    for ended in 1..=90 {
        stream.push(budget.acquire(1, &later));
        small.pop();
        assert_eq!(stream.iter_mut().filter_map(poll).count(), 0);
        assert_eq!(poll(&mut large).is_some(), ended == 90, "after {ended} small ones ended");
    }
    assert_eq!(stream.iter_mut().filter_map(poll).count(), 90, "the large one is done, all fit");
}

#[test]
fn the_reserve_is_for_heads() {
    let budget = budget(100, 40);
    let urgency = Urgency::new(1);
    let held = budget.acquire(60, &urgency).now_or_never().unwrap().unwrap();
    let mut ordinary = budget.acquire(1, &urgency);
    assert!(poll(&mut ordinary).is_none());
    let head = Urgency::new(9);
    head.set_head(true);
    let permit = budget.acquire(40, &head).now_or_never().expect("before the more urgent").unwrap();
    assert_eq!(budget.stats().used, 100);
    drop(held);
    assert!(poll(&mut ordinary).is_some());
    drop(permit);
}

#[test]
fn a_waiting_request_can_become_head() {
    let budget = budget(100, 40);
    let held = budget.acquire(50, &Urgency::new(0)).now_or_never().unwrap().unwrap();
    let urgency = Urgency::new(5);
    let mut waiting = budget.acquire(50, &urgency);
    assert!(poll(&mut waiting).is_none());
    urgency.set_head(true);
    assert!(poll(&mut waiting).is_some());
    drop(held);
}

#[test]
fn an_ordinary_request_larger_than_the_ordinary_part_waits_to_be_head() {
    let budget = budget(100, 40);
    let urgency = Urgency::new(5);
    let mut waiting = budget.acquire(61, &urgency);
    assert!(poll(&mut waiting).is_none());
    urgency.set_head(true);
    assert!(poll(&mut waiting).is_some());
}

#[test]
fn urgency_may_change_while_waiting() {
    let budget = budget(10, 0);
    let all = budget.acquire(10, &Urgency::new(0)).now_or_never().unwrap().unwrap();
    let (first, second) = (Urgency::new(1), Urgency::new(2));
    let (mut one, mut two) = (budget.acquire(10, &first), budget.acquire(10, &second));
    second.set(0);
    drop(all);
    assert!(poll(&mut one).is_none());
    assert!(poll(&mut two).is_some());
}

#[test]
fn raising_an_urgency_grants_what_the_front_held_back() {
    let budget = budget(10, 0);
    let held = budget.acquire(6, &Urgency::new(0)).now_or_never().unwrap().unwrap();
    let (large, small) = (Urgency::new(1), Urgency::new(2));
    let (mut front, mut behind) = (budget.acquire(5, &large), budget.acquire(4, &small));
    assert!(poll(&mut behind).is_none(), "it would fit, but is less urgent");
    large.set(3);
    assert!(poll(&mut behind).is_some());
    assert!(poll(&mut front).is_none());
    drop(held);
}

#[test]
fn what_can_never_be_granted_is_an_error_at_once() {
    let budget = budget(10, 4);
    let error = budget.acquire(11, &Urgency::new(0)).now_or_never().unwrap().unwrap_err();
    assert_eq!(error, BudgetError::TooLarge { budget: "decode", asked: 11, capacity: 10 });
    assert!(error.to_string().starts_with("decode: "));
    assert_eq!(budget.stats(), BudgetStats { capacity: 10, reserve: 4, ..BudgetStats::default() });
    let error = Budget::new("fetch", 10, 11).unwrap_err();
    assert_eq!(error, BudgetError::ReserveTooLarge { budget: "fetch", reserve: 11, capacity: 10 });
}

#[test]
fn dropped_requests_leave_the_queue() {
    let budget = budget(10, 0);
    let urgency = Urgency::new(1);
    let held = budget.acquire(8, &urgency).now_or_never().unwrap().unwrap();
    let blocking = budget.acquire(10, &urgency);
    let mut behind = budget.acquire(2, &urgency);
    assert_eq!((budget.stats().waiting, budget.stats().waiting_bytes), (2, 12));
    assert!(poll(&mut behind).is_none());
    drop(blocking);
    let permit = poll(&mut behind).expect("nobody is before it any more");
    drop((held, permit));
    // Granted, but dropped before anybody looked.
    drop(budget.acquire(10, &urgency));
    assert_eq!(budget.stats(), BudgetStats { capacity: 10, ..BudgetStats::default() });
}

#[test]
fn permits_shrink_and_never_grow() {
    let budget = budget(10, 0);
    let mut permit = budget.acquire(8, &Urgency::new(1)).now_or_never().unwrap().unwrap();
    let mut waiting = budget.acquire(5, &Urgency::new(1));
    permit.shrink_to(9);
    assert_eq!((permit.bytes(), budget.stats().used), (8, 8));
    permit.shrink_to(5);
    assert_eq!((permit.bytes(), budget.stats().used), (5, 10));
    assert!(poll(&mut waiting).is_some());
    drop(permit);
    assert_eq!(budget.stats().used, 0);
}

#[derive(Clone, Debug)]
enum Step {
    Ask { bytes: u64, urgency: usize },
    Drop(usize),
    Shrink { which: usize, bytes: u64 },
    Urgency { which: usize, value: u64 },
    Head { which: usize, head: bool },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0u64..25, 0usize..4).prop_map(|(bytes, urgency)| Step::Ask { bytes, urgency }),
        3 => any::<usize>().prop_map(Step::Drop),
        1 => (any::<usize>(), 0u64..25).prop_map(|(which, bytes)| Step::Shrink { which, bytes }),
        1 => (0usize..4, 0u64..4).prop_map(|(which, value)| Step::Urgency { which, value }),
        1 => (0usize..4, any::<bool>()).prop_map(|(which, head)| Step::Head { which, head }),
    ];
    prop::collection::vec(step, 1..80)
}

/// One request of the model, in the order of arrival.
struct Request {
    bytes: u64,
    urgency: usize,
    granted: bool,
    acquire: Option<Acquire>,
    permit: Option<Permit>,
}

proptest! {
    /// Against the rule written down naively: sort, grant from the front while it fits.
    #[test]
    fn grants_equal_the_naive_rule(steps in steps()) {
        const CAPACITY: u64 = 30;
        const RESERVE: u64 = 10;
        let budget = budget(CAPACITY, RESERVE);
        let urgencies: Vec<_> = (0..4).map(Urgency::new).collect();
        let mut requests: Vec<Request> = Vec::new();
        for step in steps {
            match step {
                Step::Ask { bytes, urgency } => requests.push(Request {
                    bytes,
                    urgency,
                    granted: false,
                    acquire: Some(budget.acquire(bytes, &urgencies[urgency])),
                    permit: None,
                }),
                Step::Drop(which) if !requests.is_empty() => {
                    let which = which % requests.len();
                    requests.remove(which);
                }
                Step::Shrink { which, bytes } if !requests.is_empty() => {
                    let which = which % requests.len();
                    let request = &mut requests[which];
                    if let Some(permit) = &mut request.permit {
                        permit.shrink_to(bytes);
                        request.bytes = request.bytes.min(bytes);
                    }
                }
                Step::Urgency { which, value } => urgencies[which].set(value),
                Step::Head { which, head } => urgencies[which].set_head(head),
                Step::Drop(_) | Step::Shrink { .. } => {}
            }
            let used = |requests: &[Request]| {
                requests.iter().filter(|request| request.granted).map(|request| request.bytes).sum::<u64>()
            };
            loop {
                let front = requests
                    .iter()
                    .enumerate()
                    .filter(|(_, request)| !request.granted)
                    .min_by_key(|(index, request)| {
                        let urgency = &urgencies[request.urgency];
                        (!urgency.is_head(), urgency.get(), request.urgency, *index)
                    });
                let Some((index, request)) = front else { break };
                let reserve = if urgencies[request.urgency].is_head() { 0 } else { RESERVE };
                if request.bytes > (CAPACITY - reserve).saturating_sub(used(&requests)) {
                    break;
                }
                requests[index].granted = true;
            }
            for request in &mut requests {
                if let Some(acquire) = &mut request.acquire
                    && let Some(permit) = poll(acquire)
                {
                    request.permit = Some(permit);
                    request.acquire = None;
                }
                prop_assert_eq!(request.permit.is_some(), request.granted);
            }
            let stats = budget.stats();
            let waiting = requests.iter().filter(|request| !request.granted);
            prop_assert_eq!(stats.used, used(&requests));
            prop_assert_eq!(stats.waiting, waiting.clone().count());
            prop_assert_eq!(stats.waiting_bytes, waiting.map(|request| request.bytes).sum::<u64>());
        }
        drop(requests);
        prop_assert_eq!((budget.stats().used, budget.stats().waiting), (0, 0));
    }
}
