//! Looks after a fleet beside its ranks: finds workers, asks what they have ahead, closes what is idle.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::Instant;

use crate::chance;
use crate::choice::Standing;
use crate::discovery;
use crate::error::lock;
use crate::fleet::{Fleet, Inner};
use crate::load;
use crate::member::Member;

/// How often lists in files are looked at, and idle connections.
const LOOK: Duration = Duration::from_secs(2);

/// Names are not resolved more often than this, also while nobody can be asked.
const SHORTEST: Duration = Duration::from_secs(1);

/// How often what workers said is compared: what they said is a second old anyway.
const COMPARE: Duration = Duration::from_millis(250);

/// Workers whose time comes one after another are asked together.
const SHORTEST_NAP: Duration = Duration::from_millis(10);

/// How long discovery waits for an answer: a resolver that never answers must not stop the others.
const LONGEST_SEARCH: Duration = Duration::from_secs(30);

impl Fleet {
    /// Sees to it that the keeper runs, on the caller's runtime; it ends with the fleet or the runtime.
    pub(crate) fn keep(&self) {
        // Whoever asks an agent asks no worker.
        if self.inner.agent.is_some() {
            return;
        }
        let mut keeper = lock(&self.inner.keeper);
        if keeper.as_ref().is_none_or(|keeper| keeper.is_finished()) {
            *keeper = Some(tokio::spawn(run(Arc::downgrade(&self.inner))));
        }
    }
}

async fn run(fleet: Weak<Inner>) {
    let (mut looked, mut compared) = (None, None);
    let due = |then: Option<Instant>, now: Instant, every| then.is_none_or(|then| now - then >= every);
    loop {
        let (nudge, wake) = {
            let Some(inner) = fleet.upgrade() else { return };
            let now = chance::now();
            let wake = inner.look_after_members(now).max(now + SHORTEST_NAP);
            if due(compared, now, COMPARE) {
                compared = Some(now);
                inner.compare_members();
            }
            if due(looked, now, LOOK) || (due(looked, now, SHORTEST) && inner.nobody_can_be_asked()) {
                looked = Some(now);
                inner.search(now);
            }
            (Arc::clone(&inner.nudge), wake)
        };
        // The fleet may end meanwhile: it stops this task then.
        let _ = tokio::time::timeout_at(wake, nudge.notified()).await;
    }
}

impl Inner {
    /// Asks those whose time has come; says when the next one's comes.
    fn look_after_members(&self, now: Instant) -> Instant {
        let members = Arc::clone(&lock(&self.members));
        let idle = self.settings.timeouts.idle;
        let mut wake = now + SHORTEST;
        for member in members.iter() {
            member.close_idle(now);
            let Some(every) = self.settings.load_every else { continue };
            // Ranks that began together do not ask together.
            let every = every.mul_f64(0.9 + chance::jitter() / 5.0);
            match member.watch(|watch| watch.load_due(now, every, idle)) {
                Some(due) if due > now => wake = wake.min(due),
                Some(_) if member.watch(|watch| watch.asks_load(now)) => {
                    member.ask_load(self.settings.timeouts.silence, &self.changed);
                }
                _ => {}
            }
        }
        wake
    }

    /// Holds what workers said of themselves against each other.
    fn compare_members(&self) {
        let members = Arc::clone(&lock(&self.members));
        let loads: Vec<load::Load> = members.iter().map(|member| member.load(|load| load.clone())).collect();
        for (member, capacity) in members.iter().zip(load::capacities(loads.iter())) {
            member.set_capacity(capacity);
        }
        self.mark_twins(&members, &loads);
    }

    /// A worker with two addresses, one of each family, stands in the list twice when its name was resolved. The
    /// second one is left out while the first one lives.
    fn mark_twins(&self, members: &[Arc<Member>], loads: &[load::Load]) {
        for (index, member) in members.iter().enumerate() {
            let is_twin = |other: usize| {
                let (a, b) = (&member.endpoint, &members[other].endpoint);
                // The cheap question first: there are as many pairs as members squared.
                a.is_name_of_other_family(b)
                    && loads[index].name().is_some()
                    && loads[index].name() == loads[other].name()
                    && members[other].standing("", None) != Standing::Down
            };
            member.set_twin((0..index).any(is_twin));
        }
    }

    fn nobody_can_be_asked(&self) -> bool {
        lock(&self.members).iter().all(|member| member.standing("", None) == Standing::Down)
    }

    /// Resolves names and reads lists, on a task of its own.
    fn search(self: &Arc<Self>, now: Instant) {
        let urgent = self.nobody_can_be_asked();
        let errands = {
            let mut sources = lock(&self.sources);
            if !sources.change() {
                return;
            }
            sources.errands(now, self.settings.timeouts.resolve, urgent)
        };
        let fleet = Arc::downgrade(self);
        tokio::spawn(async move {
            let search = discovery::run(errands, discovery::resolve);
            let Ok(findings) = tokio::time::timeout(LONGEST_SEARCH, search).await else { return };
            if let Some(inner) = fleet.upgrade() {
                lock(&inner.sources).found(findings);
                inner.update_members();
            }
        });
    }
}
