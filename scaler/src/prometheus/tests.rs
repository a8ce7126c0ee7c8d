use super::*;
use crate::spec::Fallback;
use crate::{Decision, Reason, State, decide};

const NOW: u64 = 1_700_000_000_000;
const STALE: u64 = 15_000;

fn vector(at_seconds: f64, value: &str) -> String {
    format!(
        r#"{{"status":"success","data":{{"resultType":"vector","result":[{{"metric":{{"namespace":"a"}},"value":[{at_seconds},"{value}"]}}]}}}}"#
    )
}

fn said(body: &str, now_ms: u64) -> Result<f64, Mute> {
    number(200, body.as_bytes(), now_ms, STALE)
}

#[test]
fn one_number_is_read_from_a_vector_or_a_scalar() {
    let now = NOW as f64 / 1000.0;
    for (body, value) in [
        (vector(now, "0.25"), 0.25),
        (vector(now - 10.0, "0"), 0.0),
        (vector(now + 3.0, "1e-3"), 0.001),
        (format!(r#"{{"status":"success","data":{{"resultType":"scalar","result":[{now},"7"]}}}}"#), 7.0),
        (vector(now, "7").replace("success\"", "success\",\"warnings\":[\"w\"]"), 7.0),
    ] {
        assert_eq!(said(&body, NOW), Ok(value), "{body}");
    }
}

#[test]
fn everything_else_is_named() {
    let now = NOW as f64 / 1000.0;
    let plain = vector(now, "0.25");
    let series = r#"{"metric":{},"value":[1,"1"]}"#;
    let of = |kind: &str, result: &str| {
        format!(r#"{{"status":"success","data":{{"resultType":"{kind}","result":{result}}}}}"#)
    };
    let large = format!("{plain}{}", " ".repeat(MOST_BYTES));
    for (body, why) in [
        (of("vector", "[]"), Mute::Empty),
        (of("vector", &format!("[{series},{series},{series}]")), Mute::Several { series: 3 }),
        (of("vector", r#"[{"metric":{},"histogram":[1,{}]}]"#), Mute::WrongType),
        (of("matrix", r#"[{"metric":{},"values":[[1,"1"]]}]"#), Mute::WrongType),
        (of("string", r#"[1,"x"]"#), Mute::WrongType),
        (of("tensor", "[]"), Mute::Unreadable),
        (of("vector", r#"[{"metric":{},"value":["1","1"]}]"#), Mute::Unreadable),
        (of("vector", r#"[{"metric":{},"value":[1,1]}]"#), Mute::Unreadable),
        (vector(now, "NaN"), Mute::NoNumber),
        (vector(now, "+Inf"), Mute::NoNumber),
        (vector(now, "-Inf"), Mute::NoNumber),
        (vector(now, ""), Mute::NoNumber),
        (vector(now, "many"), Mute::NoNumber),
        (vector(now - 16.0, "1"), Mute::Stale { age_ms: 16_000 }),
        (vector(0.0, "1"), Mute::Stale { age_ms: NOW }),
        (vector(now + 6.0, "1"), Mute::Future),
        (vector(1e300, "1"), Mute::Future),
        (vector(-1.0, "1"), Mute::Unreadable),
        (
            r#"{"status":"error","errorType":"bad_data","error":"parse error"}"#.into(),
            Mute::Refused { status: 200 },
        ),
        (r#"{"status":"success"}"#.into(), Mute::Unreadable),
        ("<html>sign in</html>".into(), Mute::Unreadable),
        (String::new(), Mute::Unreadable),
        (plain[..plain.len() - 3].into(), Mute::Unreadable),
        (large, Mute::Large),
    ] {
        assert!(Mute::LABELS.contains(&why.label()), "{why:?}");
        assert_eq!(said(&body, NOW), Err(why), "{:.200}", body);
    }
    assert_eq!(number(503, plain.as_bytes(), NOW, STALE), Err(Mute::Refused { status: 503 }));
    for why in [Mute::Late, Mute::Down, Mute::unprepared("no file"), Mute::insecure("no certificate")] {
        assert!(Mute::LABELS.contains(&why.label()), "{why:?}");
        let numbers = Numbers { wait: Ok(0.0), fill: Err(why.clone()), desired: None };
        let unanswered = signals(&ScalingSpec::default(), Fleet::default(), &numbers).unanswered;
        assert_eq!(unanswered, Some(Unanswered { query: "fill".into(), why }));
    }
}

#[test]
fn refusals_say_what_to_do_and_no_reason_is_without_end() {
    for (status, words) in [(401, "wants a token"), (403, "the right to"), (500, "(HTTP 500)")] {
        let told = Mute::Refused { status }.to_string();
        assert!(told.contains(words) && told.contains(&status.to_string()), "{told}");
    }
    assert_eq!(Mute::insecure("x".repeat(10_000)), Mute::Insecure { reason: "x".repeat(MOST_REASON) });
}

/// A fleet of which Prometheus is asked.
struct Asked {
    spec: ScalingSpec,
    state: Option<State>,
    now: u64,
    replicas: u32,
}

impl Asked {
    fn new(replicas: u32) -> Self {
        Self { spec: ScalingSpec::default(), state: None, now: NOW, replicas }
    }

    /// So many windows; the answers are given for the moment of each.
    fn live(&mut self, windows: usize, wait: &str, fill: &str, desired: Option<&str>) -> Vec<Decision> {
        (0..windows)
            .map(|_| {
                self.now += 10_000;
                let answer = |value: &str| said(&vector(self.now as f64 / 1000.0, value), self.now);
                let numbers =
                    Numbers { wait: answer(wait), fill: answer(fill), desired: desired.map(answer) };
                self.see(&numbers)
            })
            .collect()
    }

    fn see(&mut self, numbers: &Numbers) -> Decision {
        let fleet = Fleet { replicas: Some(self.replicas), ready: self.replicas, rollout: false };
        let decision =
            decide(&self.spec, &signals(&self.spec, fleet, numbers), self.state.as_ref(), self.now);
        self.state = Some(decision.state.clone());
        self.replicas = decision.replicas;
        decision
    }
}

fn sizes(decisions: &[Decision]) -> Vec<u32> {
    decisions.iter().map(|decision| decision.replicas).collect()
}

#[test]
fn a_desired_size_is_followed_with_the_margin_on_top() {
    let mut asked = Asked::new(4);
    // 1.15 * 10
    let decisions = asked.live(3, "0.3", "0.1", Some("10"));
    assert_eq!(sizes(&decisions), [4, 12, 12]);
    // In words of its own: nobody has said anything of samples.
    let words = "Prometheus says that 10.0 workers would do; this is with headroom";
    assert_eq!((decisions[1].reason.label(), decisions[1].reason.to_string()), ("Desired", words.to_owned()));
    // Full queues for five minutes: down to what is desired, by trying.
    let later = asked.live(200, "0", "1", Some("10"));
    assert_eq!(later.last().map(|decision| decision.replicas), Some(10));
}

#[test]
fn without_a_desired_size_hunger_adds_a_quarter_and_nothing_takes_away() {
    let mut asked = Asked::new(4);
    assert_eq!(sizes(&asked.live(7, "0.3", "0.1", None)), [4, 4, 4, 5, 5, 5, 7]);
    assert!(sizes(&asked.live(300, "0", "1", None)).iter().all(|size| *size == 7));
}

#[test]
fn a_query_in_vain_freezes_the_fleet_and_then_the_fallback_counts() {
    let mut asked = Asked::new(12);
    asked.spec.reports.fallback = Fallback::CurrentReplicasIfHigher(16);
    asked.live(3, "0", "1", Some("9"));
    let body = vector(0.0, "0");
    let lost = |now| Numbers { wait: said(&body, now), fill: Err(Mute::Down), desired: None };
    let decision = (0..11)
        .map(|_| {
            asked.now += 10_000;
            asked.see(&lost(asked.now))
        })
        .last();
    let decision =
        decision.map(|decision| (decision.replicas, decision.reason.label(), decision.reason.to_string()));
    let words = format!(
        "the query for wait was in vain: Prometheus gave a value that is {} s old, for 11 windows: the size is frozen",
        asked.now / 1000
    );
    assert_eq!(decision, Some((12, "ReportsLost", words)));
    asked.now += 10_000;
    assert_eq!(asked.see(&lost(asked.now)).replicas, 16);
}

#[test]
fn shares_that_cannot_be_and_absurd_sizes_freeze_too() {
    for (wait, fill, desired) in [
        ("1.5", "1", "9"),
        ("-1", "1", "9"),
        ("0", "7", "9"),
        ("0", "1", "-3"),
        ("0", "1", "1e12"),
        ("0", "1", "NaN"),
    ] {
        let mut asked = Asked::new(12);
        asked.live(3, "0", "1", Some("9"));
        let decisions = asked.live(40, wait, fill, Some(desired));
        assert!(sizes(&decisions).iter().all(|size| *size == 12), "{wait} {fill} {desired}");
        let lost =
            |decision: &Decision| matches!(decision.reason, Reason::Lost { .. } | Reason::Fallback { .. });
        assert!(decisions.iter().all(lost), "{wait} {fill} {desired}");
    }
}
