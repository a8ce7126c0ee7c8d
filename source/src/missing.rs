//! Takes objects that were confirmed to be missing, gives whether one was so a moment ago.
//!
//! A record whose picture is missing is met again and again: by each range that shares its position, and as a candidate for others.
//! Looking twice each time would make trainers wait for what is known.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::uri::ObjectUri;

/// Objects remembered at once. Addresses have at most about a kilobyte, so this is at most 4 MB.
const MAX_REMEMBERED: usize = 4096;

/// Objects confirmed to be missing, each for a while.
#[derive(Debug)]
pub(crate) struct ConfirmedMissing {
    keep: Duration,
    until: Mutex<HashMap<ObjectUri, Instant>>,
}

impl ConfirmedMissing {
    pub(crate) fn new(keep: Duration) -> Self {
        Self { keep, until: Mutex::default() }
    }

    /// Remembers it from `now` on. Files are never remembered: looking at them costs nothing, and a mount may come back.
    pub(crate) fn add(&self, uri: &ObjectUri, now: Instant) {
        let (ObjectUri::S3 { .. }, Some(until)) = (uri, now.checked_add(self.keep)) else {
            return;
        };
        let mut known = self.until.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MAX_REMEMBERED {
            known.retain(|_, until| *until > now);
        }
        if known.len() < MAX_REMEMBERED {
            known.insert(uri.clone(), until);
        }
    }

    /// Whether it was confirmed to be missing not long before `now`.
    pub(crate) fn has(&self, uri: &ObjectUri, now: Instant) -> bool {
        let known = self.until.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(uri).is_some_and(|until| *until > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_remembered_for_a_while_and_not_without_bound() {
        let now = Instant::now();
        let object = |number: usize| ObjectUri::S3 { bucket: "bucket".into(), key: number.to_string() };
        let missing = ConfirmedMissing::new(Duration::from_secs(10));
        assert!(!missing.has(&object(0), now));
        for number in 0..=MAX_REMEMBERED {
            missing.add(&object(number), now);
        }
        assert!(missing.has(&object(0), now + Duration::from_secs(9)));
        assert!(!missing.has(&object(0), now + Duration::from_secs(10)));
        assert!(!missing.has(&object(MAX_REMEMBERED), now), "there is no room for more");
        missing.add(&object(MAX_REMEMBERED), now + Duration::from_secs(10));
        assert!(missing.has(&object(MAX_REMEMBERED), now + Duration::from_secs(10)), "old ones make room");
        let file = ObjectUri::File("/nothing".into());
        missing.add(&file, now);
        assert!(!missing.has(&file, now));
    }
}
