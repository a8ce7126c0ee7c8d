//! A bounded number of places, given to whoever needs one soonest.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::error::lock;

/// The places on one connection. A range that has failed elsewhere and is waited for goes before those
/// that were asked early.
pub(crate) struct Line {
    state: Mutex<State>,
}

struct State {
    free: usize,
    came: u64,
    /// By when the place is needed, then by who came first.
    waiting: BTreeMap<(Instant, u64), oneshot::Sender<Place>>,
}

/// A place; dropping it gives it to the next in line.
pub(crate) struct Place {
    /// None once it has been given on.
    line: Option<Arc<Line>>,
}

impl Line {
    pub(crate) fn new(places: usize) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(State { free: places, came: 0, waiting: BTreeMap::new() }) })
    }

    /// A place, needed by this moment. Dropping the future leaves the line.
    pub(crate) async fn place(self: &Arc<Self>, needed_at: Instant) -> Place {
        let mine = || Place { line: Some(Arc::clone(self)) };
        let turn = {
            let mut state = lock(&self.state);
            if state.free > 0 {
                state.free -= 1;
                return mine();
            }
            let (sender, turn) = oneshot::channel();
            state.came += 1;
            let key = (needed_at, state.came);
            state.waiting.insert(key, sender);
            turn
        };
        match turn.await {
            Ok(place) => place,
            // A sender is never dropped unsent while its line lives, and this future holds the line.
            Err(_) => std::future::pending().await,
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some(line) = self.line.take() else { return };
        loop {
            let next = {
                let mut state = lock(&line.state);
                let next = state.waiting.pop_first();
                if next.is_none() {
                    state.free += 1;
                }
                next
            };
            let Some((_, sender)) = next else { return };
            let place = Place { line: Some(Arc::clone(&line)) };
            match sender.send(place) {
                Ok(()) => return,
                // It has left the line; the place is still ours to give.
                Err(mut refused) => refused.line = None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn places_go_to_the_most_urgent_and_are_never_lost() {
        let line = Line::new(1);
        let now = crate::chance::now();
        let held = line.place(now).await;
        let (told, mut order) = tokio::sync::mpsc::unbounded_channel();
        let wait = |name: u32, seconds: u64| {
            let (line, told) = (Arc::clone(&line), told.clone());
            tokio::spawn(async move {
                let place = line.place(now + Duration::from_secs(seconds)).await;
                told.send(name).unwrap();
                drop(place);
            })
        };
        let late = wait(1, 9);
        let left = wait(2, 1);
        let soon = wait(3, 2);
        let also_soon = wait(4, 2);
        while lock(&line.state).waiting.len() < 4 {
            tokio::task::yield_now().await;
        }
        left.abort();
        assert!(left.await.unwrap_err().is_cancelled());
        drop(held);
        for task in [late, soon, also_soon] {
            task.await.unwrap();
        }
        drop(told);
        let mut names = Vec::new();
        while let Some(name) = order.recv().await {
            names.push(name);
        }
        assert_eq!(names, [3, 4, 1]);
        assert_eq!(lock(&line.state).free, 1);
        assert_eq!(Arc::strong_count(&line), 1);
        line.place(now).await;
    }
}
